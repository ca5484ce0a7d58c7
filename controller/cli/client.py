"""The command line's side of the controller's internal interface."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from controller.cli.exits import CommandError, Exit
from controller.schema.errors import ErrorEnvelope
from controller.schema.status import ControllerStatus, PlanView

TIMEOUT_S = 10.0
Answer = TypeVar("Answer", bound=BaseModel)
Result = TypeVar("Result")


class NoControllerError(CommandError):
    """Nobody listens there, or nobody answers."""

    def __init__(self, url: str, reason: str) -> None:
        hint = "`roundhouse up` starts one"
        super().__init__(f"no controller answers at {url} ({reason}); {hint}", Exit.NO_CONTROLLER)


class ControllerClient:
    """Asks one controller. Every method raises NoControllerError, or CommandError when it refuses."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is `unix:<path>` or `http://host:port`."""
        scheme, _, rest = url.partition(":")
        if scheme not in ("unix", "http", "https") or not rest.strip("/"):
            raise CommandError(f"a controller's address is unix:PATH or http://HOST:PORT, not {url}", Exit.USAGE)
        self._url = url
        self._socket = rest if scheme == "unix" else None
        self._base = "http://controller" if scheme == "unix" else url.rstrip("/")
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(self._socket) if self._socket is not None else aiohttp.TCPConnector()
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # The environment's proxy is not for the way to the controller.
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def status(self) -> ControllerStatus:
        """What there is."""
        return await self._ask("GET", "/internal/status", ControllerStatus)

    async def plan(self) -> PlanView:
        """What would be done."""
        return await self._ask("GET", "/internal/plan", PlanView)

    async def pause(self, paused: bool) -> ControllerStatus:
        """Only observe, or act again."""
        return await self._ask("POST", "/internal/pause", ControllerStatus, {"paused": paused})

    async def shut_down(self, *, stop_engines: bool) -> None:
        """Ask it to end. The answer comes before the end."""
        await self._request("POST", "/internal/shutdown", {"stop_engines": stop_engines})

    async def _ask(self, method: str, path: str, kind: type[Answer], body: object = None) -> Answer:
        content = await self._request(method, path, body)
        try:
            return kind.model_validate_json(content)
        except ValidationError:
            raise CommandError(f"what answers at {self._url} is no controller of this version") from None

    async def _request(self, method: str, path: str, body: Any) -> bytes:
        try:
            async with self._session.request(method, self._base + path, json=body) as response:
                content = await response.read()
        except TimeoutError:
            raise NoControllerError(self._url, f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise NoControllerError(self._url, reason) from None
        if response.status >= 400:
            raise CommandError(f"the controller refused: {_reason(content, response.status)}")
        return content


def _reason(content: bytes, status: int) -> str:
    try:
        return ErrorEnvelope.model_validate_json(content).error.message
    except ValidationError:
        return f"HTTP status {status}"


def ask(url: str, question: Callable[[ControllerClient], Awaitable[Result]]) -> Result:
    """One question to the controller at `url`, from a program that runs no event loop."""

    async def _asked() -> Result:
        async with ControllerClient(url) as client:
            return await question(client)

    return asyncio.run(_asked())
