"""The command line's questions to a gateway: at which address it is asked, how it refuses, and answers that stream."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, Self
from urllib.parse import quote, urlsplit

import aiohttp

from cli.admin_client import KEY_VARIABLE, AdminClient, RequestRefusedError, describe_error, read_error
from cli.options import controller_url, own_gateway_url, read_settings
from cli.output import CommandError, ExitCode, one_line
from common.listening import is_loopback, pick_local_host
from common.sse import SseReader
from controller import __version__

CONNECT_S: Final = 5.0
"""Seconds that a connection to the gateway may take."""
_CONTROLLER_S: Final = 3.0
"""Seconds to wait for the controller's word on where the gateway is."""
_PROBE_S: Final = 1.0
_PROGRESS: Final = MappingProxyType({"x-progress": "true"})


class GatewayAddress(NamedTuple):
    """Where a gateway is asked: `url` without a path. `verifies`: whether the certificate of an `https` address is
    checked; it is not where the installation says the address, for the certificate is for the names of clients."""

    url: str
    verifies: bool


async def find_gateway(given: str | None, controller: str | None, state: Any = None) -> GatewayAddress:
    """Return where the gateway is asked.

    `given`: its address as the operator gave it; None: the controller is asked, at the address `controller`, else where
    `ROUNDHOUSE_CONTROLLER_URL` or the settings with the state folder `state` say. Where `controller` is a gateway, that
    one. Where the controller of the settings does not answer or knows no gateway, the address that the settings name;
    of a controller that was named (`controller` or the variable), CommandError NO_CONTROLLER: nothing that is meant for
    another installation goes to this one. Raises CommandError also where a setting or the controller's address is
    wrong.
    """
    if given:
        return GatewayAddress(given.rstrip("/"), verifies=True)
    named = controller or os.environ.get("ROUNDHOUSE_CONTROLLER_URL")
    asked = controller_url(named, state)
    try:
        reported = await _ask_addresses(asked)
    except CommandError as error:
        if named or error.code is ExitCode.USAGE:
            raise
        reported = []
    if reported is None:
        return GatewayAddress(asked.rstrip("/"), verifies=True)
    own = own_gateway_url(read_settings(state=state))
    candidates = order_addresses(reported, urlsplit(asked).hostname if asked.startswith("http") else None)
    if not candidates and named and asked.startswith("http"):
        words = f"the controller at {asked} knows no gateway; --gateway URL names one"
        raise CommandError(words, ExitCode.NO_CONTROLLER)
    url = await _choose_address(candidates or [own])
    # A certificate is for the names of clients. Another machine must prove with it who it is: it gets the key.
    return GatewayAddress(url, verifies=url != own and not is_loopback(urlsplit(url).hostname or ""))


async def _ask_addresses(asked: str) -> list[str] | None:
    """Return the addresses of the gateway that the controller at `asked` knows; None: a gateway is there. Raises
    CommandError where neither answers, or refuses."""
    try:
        async with asyncio.timeout(_CONTROLLER_S), AdminClient(asked) as client:
            return (await client.get_status()).gateway_addresses
    except RequestRefusedError as error:
        if asked.startswith("http") and error.error_code != "invalid_gateway_token":
            return None  # it has no internal routes
        raise
    except TimeoutError:
        words = f"no controller answers at {asked} within {_CONTROLLER_S:.0f} s"
        raise CommandError(words, ExitCode.NO_CONTROLLER) from None


async def _choose_address(candidates: Sequence[str]) -> str:
    """Return the first of the addresses that accepts a connection, or the first of all. There is at least one."""
    if len(candidates) > 1:
        for each in candidates:
            if await _accepts_connections(each):
                return each
    return candidates[0]


def order_addresses(urls: Sequence[str], controller_host: str | None = None) -> list[str]:
    """Return the URLs that a gateway listens on in the order in which a program tries them, without duplicates: those
    of the loopback address before the others. Pure.

    `controller_host`: of the controller that told them, which replaces a wildcard (0.0.0.0, ::); None: it is on this
    machine, and the loopback address does.
    """
    local: list[str] = []
    others: list[str] = []
    for url in urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        reached = pick_local_host([host])
        if reached != host and controller_host is not None:
            reached = controller_host
        name = f"[{reached}]" if ":" in reached else reached
        (local if is_loopback(reached) else others).append(f"{parts.scheme}://{name}:{parts.port}")
    return list(dict.fromkeys([*local, *others]))


async def _accepts_connections(url: str) -> bool:
    parts = urlsplit(url)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.close()
        return True
    return False


class RefusedError(CommandError):
    """The gateway refused a request; the message is the gateway's own, the exit code FAILED. `error_code` and
    `retry_after_s` (seconds) are None where the answer does not say them."""

    def __init__(self, message: str, error_code: str | None, retry_after_s: float | None) -> None:
        """`error_code`: such as `document_not_found`; None: the answer named none. `retry_after_s`: seconds after which
        the same request may be accepted; None: the answer does not say."""
        super().__init__(message, ExitCode.FAILED)
        self.error_code = error_code
        self.retry_after_s = retry_after_s


class AnswerObject(dict[str, Any]):
    """A JSON object of a gateway's answer. Taking a field that is missing raises CommandError: the gateway is of
    another version."""

    def __missing__(self, name: str) -> NoReturn:
        message = f"the gateway is of another version than this command, {__version__}: its answer has no `{name}`"
        raise CommandError(message, ExitCode.FAILED)


class GatewayClient:
    """Asks one gateway, with the API key in `ROUNDHOUSE_KEY`, if that is set. Use it in `async with`.

    Methods raise RefusedError, a CommandError with the gateway's own message and the code FAILED, where it refuses the
    request, CommandError with the code NO_CONTROLLER where it does not answer, or answers no JSON, and with the code
    FAILED where the JSON is no object. The objects of an answer are `AnswerObject`s. Only the connection has a timeout
    (5 s): an answer may take any time. Where the connection breaks before the answer, the gateway may have carried out
    the request.
    """

    def __init__(self, address: GatewayAddress, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        """Connect to nothing yet. `headers`: sent with each request, beside the client's own."""
        self._url = address.url
        self._ssl = address.verifies
        self._headers = {"user-agent": f"roundhouse/{__version__}", **headers}
        if key := os.environ.get(KEY_VARIABLE):
            self._headers["authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def check_model(self, name: str) -> None:
        """Raise RefusedError unless this client may ask the model `name`, which may be an alias. It need not be
        loaded."""
        await self._ask("GET", f"/v1/models/{quote(name, safe='/:@')}")

    async def stream_chat(
        self, body: Mapping[str, Any], on_progress: Callable[[Mapping[str, Any]], None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask for a chat completion, and yield the events of its stream, each a `chat.completion.chunk`, until its end
        mark. `body`: of the request, without `stream`. A model that is not loaded is loaded first, as for any client.

        `on_progress`: called with what the request waits for, as docs/gateway.md has it under "Progress". Raises
        RefusedError also for an error within the stream, and CommandError (FAILED) where the stream ends before its end
        mark. Close the generator (`aclosing`).
        """
        reader = SseReader(on_comment=lambda comment: _read_progress(comment, on_progress))
        asked = {**body, "stream": True}
        async with self._open("POST", "/v1/chat/completions", json=asked, headers=_PROGRESS) as answer:
            async for chunk in answer.content.iter_any():
                for event in reader.feed_bytes(chunk):
                    if event.data == "[DONE]":
                        return
                    read = json.loads(event.data, object_hook=AnswerObject)
                    if not isinstance(read, dict):
                        raise CommandError(f"{self._url} is no gateway of Roundhouse: an event is no JSON object")
                    if "error" in read:
                        raise _refusal(answer.status, event.data.encode(), None)
                    yield read
        raise CommandError("the answer broke off before its end")

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with self._open(method, path, **options) as answer:
            body = await answer.json(content_type=None, loads=_decode)
        if not isinstance(body, dict):
            raise CommandError(f"{self._url} is no gateway of Roundhouse: {path} is no JSON object", ExitCode.FAILED)
        return body

    @asynccontextmanager
    async def _open(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the answer where it is good. Errors while the block reads it are CommandErrors,
        too."""
        try:
            async with self._session.request(method, self._url + path, **options) as answer:
                if answer.status >= 400:
                    after = answer.headers.get("retry-after", "")
                    raise _refusal(answer.status, await answer.read(), int(after) if after.isdigit() else None)
                yield answer
        except aiohttp.ClientPayloadError:
            raise CommandError(f"the gateway at {self._url} went away before the end of its answer") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise unreached_error(self._url, error) from None


def unreached_error(url: str, error: Exception) -> CommandError:
    """Return the error that no gateway answers at `url`, for `error` of aiohttp or of the system. Exit code
    NO_CONTROLLER."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    message = f"no gateway answers at {url} ({reason}); `roundhouse up` starts one"
    message += ", or, if it runs elsewhere, name it: --gateway URL, or ROUNDHOUSE_STATE for another state folder"
    return CommandError(message, ExitCode.NO_CONTROLLER)


def _decode(text: str) -> Any:
    return json.loads(text, object_hook=AnswerObject)


def _refusal(status: int, content: bytes, retry_after_s: int | None) -> RefusedError:
    body = read_error(content)
    if body is None:
        return RefusedError(_read_message(content) or describe_error(status, None), None, retry_after_s)
    words = describe_error(status, body, retry_after_s)
    if body.code == "unknown_route":
        words = (
            f"{one_line(body.message).rstrip('.')}. The address of a gateway has no path (no /v1); else the gateway is"
        )
        words += " of another version than this command"
    return RefusedError(words, body.code, retry_after_s)


def _read_message(content: bytes) -> str | None:
    """Return the message of an error that is not Roundhouse's, such as a proxy's; None: there is none."""
    try:
        error = json.loads(content)["error"]
    except (ValueError, LookupError, TypeError):
        return None
    message = error.get("message") if isinstance(error, dict) else error
    return one_line(message) if isinstance(message, str) and message else None


def _read_progress(comment: str, on_progress: Callable[[Mapping[str, Any]], None]) -> None:
    name, _, text = comment.strip().partition(" ")
    if name == "progress":
        with suppress(ValueError):
            on_progress(json.loads(text))
