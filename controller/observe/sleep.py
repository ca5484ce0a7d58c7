"""Putting an engine to sleep and waking it, by its own HTTP routes.

A woken engine must answer its canary as it did when it was first ready: a fixed prompt, answered greedily. Engines were
seen to answer nonsense after a sleep (vllm#29341).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import aiohttp

from common.host_tls import HostContexts
from common.network.answers import UnreadableAnswerError, gather_whole
from contract.hosts import EngineTls
from controller.engines.base import SleepCalls

TIMEOUT_S: Final = 120.0
"""Seconds that all calls of a sleep or a wake may take together: whoever waits for the model waits for all of them. The
first sleep of 16 GB of weights took 10 s: it pins main memory."""
_SHOWN: Final = 200


class SleepError(Exception):
    """An engine did not do what a sleep or a wake asks of it. The message says what, as half a sentence."""


@dataclass(frozen=True, slots=True)
class SleepTarget:
    """An engine that a `Sleeper` puts to sleep or wakes."""

    base_url: str
    """URL of the engine's HTTP server, without a path."""
    calls: SleepCalls
    token: str | None = field(default=None, repr=False)
    """Bearer token that the engine checks; None: it checks none."""
    tls: EngineTls | None = None
    """How to open connections to the relay of its host; None: none is between."""


class Sleeper(Protocol):
    """Puts engines to sleep and wakes them. `HttpSleeper` does."""

    async def put_to_sleep(self, target: SleepTarget) -> None:
        """Put an idle engine to sleep, and return once it says that it sleeps. Raises SleepError."""

    async def wake_engine(self, target: SleepTarget) -> str:
        """Wake an engine, and return its answer to the canary. Raises SleepError."""


class HttpSleeper:
    """The Sleeper of real engines. Does not close `session`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._contexts = HostContexts()

    async def put_to_sleep(self, target: SleepTarget) -> None:
        """Put an idle engine to sleep, and return once it says that it sleeps. Raises SleepError for a call that fails
        or does not do it, and if it takes longer than 120 s (`TIMEOUT_S`)."""
        async with _limit_time():
            for path, body in target.calls.sleep:
                await self._call(target, path, body)
            if not says_asleep(await self._call(target, target.calls.state_path, None, method="GET")):
                raise SleepError("it took the call and is awake")

    async def wake_engine(self, target: SleepTarget) -> str:
        """Wake an engine, also one that is awake, and return its answer to the canary. Raises SleepError for a call
        that fails, for an answer without text, and if it takes longer than 120 s (`TIMEOUT_S`)."""
        async with _limit_time():
            for path, body in target.calls.wake:
                await self._call(target, path, body)
            text = read_canary(await self._call(target, target.calls.canary_path, target.calls.canary_body))
        if text is None:
            raise SleepError("its answer to the canary has no text")
        return text

    async def _call(self, target: SleepTarget, path: str, body: Any, *, method: str = "POST") -> str:
        headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0)
        try:
            tls = self._contexts.list_options(target.tls)
            url = target.base_url + path
            async with self._session.request(method, url, json=body, headers=headers, timeout=timeout, **tls) as answer:
                text = (await gather_whole(answer.content.iter_any())).decode(errors="replace")
        except (aiohttp.ClientError, OSError, TimeoutError, UnreadableAnswerError) as error:
            raise SleepError(f"{path}: {error or type(error).__name__}") from error
        if answer.status != 200:
            raise SleepError(f"{path}: HTTP {answer.status}: {text[:_SHOWN]}")
        return text


@asynccontextmanager
async def _limit_time() -> AsyncIterator[None]:
    """Raise SleepError in place of what takes longer than `TIMEOUT_S`."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield
    except TimeoutError:
        raise SleepError(f"it has not ended within {TIMEOUT_S:g} s") from None


def says_asleep(text: str) -> bool | None:
    """Return whether an engine sleeps, by its answer `{"is_sleeping": ...}`; None: the answer does not tell."""
    state = _read_object(text).get("is_sleeping")
    return state if isinstance(state, bool) else None


def read_canary(text: str) -> str | None:
    """Return the text of an engine's answer to its canary, a completion; None: it has no text."""
    choices = _read_object(text).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    canary = choice.get("text") if isinstance(choice, dict) else None
    return canary if isinstance(canary, str) and canary else None


def _read_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
