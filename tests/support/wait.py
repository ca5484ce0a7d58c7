"""Waiting for a condition with a deadline, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

POLL_S = 0.02
DEADLINE_S = 60.0


async def until(what: str, look: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """The first true answer of `look`, which may be a coroutine function. Fails when none comes in time."""
    ends = time.monotonic() + deadline_s
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > ends:
            raise AssertionError(f"waited {deadline_s:g} s in vain for: {what}; last answer: {found!r}")
        await asyncio.sleep(POLL_S)


def eventually(what: str, look: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """The same without a loop: `look` is a plain function."""
    ends = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < ends, f"waited {deadline_s:g} s in vain for: {what}; last answer: {found!r}"
        time.sleep(POLL_S)
    return found
