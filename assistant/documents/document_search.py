"""Retrieval, as the gateway asks it: searches for requests that want grounded answers, kept files that requests name,
and whether it is there."""

from __future__ import annotations

import asyncio
import json
from typing import Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, ValidationError

from common.program_client import ProgramAnswer, ProgramClient, ProgramGoneError
from contract.documents import SearchRequest, SearchResult
from contract.errors import ERROR_CODES, RoundhouseError
from contract.files import File, VectorStoreResults, VectorStoreSearch
from contract.retrieval import FILES, TENANT_HEADER
from gateway.protocols.common.json_bytes import json_bytes

INTERVAL_S: Final = 5.0
"""Seconds from the end of one probe to the next."""
TIMEOUT_S: Final = 2.0
"""Seconds that an answer may take."""

ProbeResult = Literal["unknown", "up", "down"]


class ProgramProbe:
    """The health of one program, by its last answer at `/health`: read `result`, which is `unknown`, `up` or `down`.
    Run `run` as a task as long as the probe is used, and cancel the task at the end."""

    def __init__(self, program: ProgramClient, interval_s: float = INTERVAL_S) -> None:
        """`program`: an entered client, which the caller closes after the end of `run`."""
        self._program = program
        self._interval_s = interval_s
        self.result: ProbeResult = "unknown"
        """`unknown` until the first answer or failure."""
        self.notice: str | None = None
        """What the program says of itself in its last answer, for operators; None: nothing but that it is up."""

    async def run(self) -> None:
        """Probe the program at once, and again `interval_s` seconds after the end of each probe, until cancelled. Each
        probe sets `notice`, and `result`: `up` after an answer with status 200, `down` after any other status, or
        without an answer within `TIMEOUT_S` (2 s). Never returns."""
        while True:
            self.result = "up" if await self._answers() else "down"
            await asyncio.sleep(self._interval_s)

    async def _answers(self) -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
            async with await self._program.send_request("GET", "/health", {}, timeout=timeout) as answer:
                text = (await answer.read_body()).decode(errors="replace")
                self.notice = text if answer.status == 200 and text != "ok" else None
                return answer.status == 200
        except ProgramGoneError:
            return False


TOKEN_REFUSED: Final = 401
"""Status with which retrieval refuses the gateway's token, and nothing else."""
REFUSED_WORDS: Final = "retrieval refuses the gateway's token: both must read the same ROUNDHOUSE_RETRIEVAL_TOKEN_FILE"


def check_token_accepted(answer: ProgramAnswer) -> None:
    """Raise ProgramGoneError if an answer of retrieval refuses the gateway's token; else do nothing."""
    if answer.status == TOKEN_REFUSED:
        raise ProgramGoneError(REFUSED_WORDS)


class _Question(NamedTuple):
    """A request to be sent to retrieval."""

    tenant: str
    path: str
    body: BaseModel | None
    """Of a POST; None: a GET."""
    request_id: str
    place: str | None
    """Path of the search, or of what names a file, in the client's request; None: the search is the whole request."""


_Answer = TypeVar("_Answer", bound=BaseModel)


class DocumentSearch:
    """Searches documents and reads kept files by asking the retrieval program. One per gateway:
    `Assistant.document_search`."""

    def __init__(self, retrieval: ProgramClient | None) -> None:
        """`retrieval`: an entered client, which its owner leaves; None: retrieval is turned off, so each search
        fails."""
        self._retrieval = retrieval

    async def search(
        self, tenant: str, request: SearchRequest, request_id: str, *, place: str | None = "rag"
    ) -> SearchResult:
        """Ask retrieval for the hits among a tenant's documents, and return them, best first; `data` may be empty.

        `request_id`: sent along, for the logs of retrieval. `place`: path of the search in the client's request, the
        prefix of an error's `param`; None: no prefix. Only connecting has a time limit.

        Raises:
            RoundhouseError: `retrieval_disabled`; `retrieval_unavailable` if retrieval does not answer, refuses the
                gateway's token, or its answer cannot be read; or the error that retrieval answers.
        """
        return await self._ask(_Question(tenant, "/v1/search", request, request_id, place), SearchResult)

    async def search_files(
        self, tenant: str, store_id: str, request: VectorStoreSearch, request_id: str, place: str
    ) -> VectorStoreResults:
        """Return the hits in one of a tenant's vector stores, best first; there may be none.

        `request_id`: sent along, for the logs of retrieval. `place`: path of the search in the client's request
        (`tools[0]`), which becomes the prefix of an error's `param`.

        Raises:
            RoundhouseError: `vector_store_not_found`; and as `search`: `retrieval_disabled`, `retrieval_unavailable`,
                or another error that retrieval answers.
        """
        path = f"/v1/vector_stores/{quote(store_id, safe='')}/search"
        return await self._ask(_Question(tenant, path, request, request_id, place), VectorStoreResults)

    async def find_file(self, tenant: str, file_id: str, request_id: str, place: str) -> File:
        """Return one of a tenant's files, without its content. `file_id`: as `NamedFile.is_kept_id` demands. `place`:
        path of the object that holds it in the client's request (`input[0].content[1]`). Raises RoundhouseError
        `file_not_found` or `retrieval_disabled`, with the path of the id as `param`, or `retrieval_unavailable`."""
        if self._retrieval is None:
            message = f"`{place}.file_id` needs files, which are not kept here: ROUNDHOUSE_RETRIEVAL is off."
            raise RoundhouseError("retrieval_disabled", message, param=f"{place}.file_id")
        return await self._ask(_Question(tenant, f"{FILES}/{file_id}", None, request_id, place), File)

    async def read_file(self, tenant: str, file_id: str, request_id: str, place: str) -> bytes:
        """Return the whole content of a file; arguments and errors as of `find_file`."""
        return await self._send(_Question(tenant, f"{FILES}/{file_id}/content", None, request_id, place))

    async def _ask(self, question: _Question, answer_type: type[_Answer]) -> _Answer:
        content = await self._send(question)
        try:
            return answer_type.model_validate_json(content)
        except ValidationError:
            raise RoundhouseError("retrieval_unavailable", "Retrieval's answer cannot be read.") from None

    async def _send(self, question: _Question) -> bytes:
        if self._retrieval is None:
            raise RoundhouseError("retrieval_disabled", "This Roundhouse keeps no documents.")
        headers = {TENANT_HEADER: quote(question.tenant, safe=""), "x-request-id": question.request_id}
        method, body = "GET", b""
        if question.body is not None:
            method, body = "POST", json_bytes(question.body.model_dump(exclude_none=True))
            headers["content-type"] = "application/json"
        try:
            async with await self._retrieval.send_request(method, question.path, headers, body) as answer:
                status, content = answer.status, await answer.read_body()
                check_token_accepted(answer)
        except ProgramGoneError as error:
            raise RoundhouseError("retrieval_unavailable", f"Retrieval does not answer: {error}.") from None
        if status != 200:
            raise _read_error(content, question.place)
        return content


def _read_error(content: bytes, place: str | None) -> RoundhouseError:
    try:
        error = json.loads(content)["error"]
        code, message, param = error["code"], str(error["message"]), error["param"]
        model = error.get("model")
    except (ValueError, KeyError, TypeError):
        code, message, param, model = "retrieval_unavailable", "Retrieval's answer cannot be read.", None, None
    if code not in ERROR_CODES:
        code = "retrieval_unavailable"
    if not isinstance(param, str):
        return RoundhouseError(code, message, model=model)
    return RoundhouseError(code, message, param=param if place is None else f"{place}.{param}", model=model)
