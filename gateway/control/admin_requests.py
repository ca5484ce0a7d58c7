"""Asks the controller's admin API on behalf of a client whose access was checked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
from pydantic import JsonValue

from common.program_client import ProgramAnswer, ProgramClient, ProgramGoneError
from controller.schema.errors import ERROR_CODES, RoundhouseError
from gateway.control.link import check_token_taken

ANSWER_S: Final = 120.0
"""Seconds that an answer may take: a look at what a download will take reads the heads of its files."""


class AdminRequests:
    """Sends admin requests to the controller, and returns the JSON of their answers. The caller has checked the
    client's access. One for a gateway."""

    def __init__(self, controller: ProgramClient) -> None:
        """`controller`: an entered client, which the caller closes."""
        self._controller = controller

    async def send_request(
        self,
        method: str,
        path: str,
        body: dict[str, JsonValue] | None = None,
        *,
        actor: str = "gateway",
        within_s: float = ANSWER_S,
    ) -> Any:
        """Send a request and return the JSON of its answer.

        `path`: below `/v1/admin/`, percent-encoded, with the query. `body`: JSON object to send; None: none is sent.
        `actor`: who asks, for the controller's history. `within_s`: seconds that the whole answer may take.

        Raises:
            RoundhouseError: the controller's own error code, or `internal_error` if the gateway does not know that
                code; `controller_unavailable` if the controller does not answer in time, refuses the gateway's token,
                or answers what is no JSON. The controller may have carried out the request although the code is
                `controller_unavailable`.
        """
        headers = {"x-roundhouse-actor": actor} | ({} if body is None else {"content-type": "application/json"})
        content = b"" if body is None else json.dumps(body).encode()
        async with self._open_answer(method, path, headers, content, within_s) as answer:
            answered = await answer.read_body()
        try:
            return json.loads(answered)
        except ValueError:
            raise RoundhouseError("controller_unavailable", "The controller's answer is no JSON.") from None

    async def fetch_end(
        self, path: str, most_bytes: int, *, actor: str = "gateway", within_s: float = ANSWER_S
    ) -> tuple[bytes, int]:
        """Send a GET request; return the last bytes of the answer's text, and how many bytes before them were left out.

        `path`, `actor`, `within_s`: as for `send_request`. `most_bytes`: most bytes that are returned, above 0.

        Raises:
            RoundhouseError: as `send_request`, other than for an answer that is no JSON.
        """
        end, left_out = b"", 0
        async with self._open_answer("GET", path, {"x-roundhouse-actor": actor}, b"", within_s) as answer:
            while part := await answer.read_part():
                end += part
                if len(end) > 2 * most_bytes:
                    left_out += len(end) - most_bytes
                    end = end[-most_bytes:]
        kept = end[-most_bytes:]
        return kept, left_out + len(end) - len(kept)

    @asynccontextmanager
    async def _open_answer(
        self, method: str, path: str, headers: dict[str, str], content: bytes, within_s: float
    ) -> AsyncIterator[ProgramAnswer]:
        """Give the answer to a request, whose body can be read within the context. Raises as `send_request`."""
        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with await self._controller.send_request(
                method, f"/v1/admin/{path}", headers, content, timeout=timeout
            ) as answer:
                check_token_taken(answer)
                if answer.status >= 400:
                    raise _read_error(await answer.read_body())
                yield answer
        except (ProgramGoneError, TimeoutError) as error:
            reason = str(error) or f"no answer within {within_s:g} s"
            message = f"The controller does not answer: {reason}. Inference goes on without it."
            raise RoundhouseError("controller_unavailable", message) from error


def _read_error(body: bytes) -> RoundhouseError:
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        if error["code"] in ERROR_CODES:
            return RoundhouseError(error["code"], error["message"], param=error.get("param"))
    return RoundhouseError("internal_error", "The controller failed on this request.")
