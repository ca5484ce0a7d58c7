"""Time that a test moves forward: what is due by then happens at once, and nothing is due because a machine is slow."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import Context, copy_context
from typing import Any, Final

import pytest

_STEP_S: Final = 0.5
"""Time goes on in steps, so that what is due again and again is due in each of them."""
_TURNS: Final = 5
"""Of the event loop after a step: a timer's callback may start something that starts something else."""


class Timer:
    """In the place of an event loop's TimerHandle."""

    def __init__(self, clock: LoopClock, when: float, run: Callable[[], object]) -> None:
        self._clock = clock
        self._when = when
        self._run = run
        self._cancelled = False
        self.set()

    def set(self) -> None:
        """Let it fire when its time comes, or now."""
        self._handle = self._clock.real_call_later(max(0.0, self._when - self._clock.monotonic()), self._fire)

    def reset(self) -> None:
        self._handle.cancel()
        self.set()

    def _fire(self) -> None:
        self._clock.timers.discard(self)
        self._run()

    def cancel(self) -> None:
        self._cancelled = True
        self._handle.cancel()
        self._clock.timers.discard(self)

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class LoopClock:
    """In `time`'s place for gateways made after it, and the clock of an event loop's timers. Goes on as usual besides,
    but for the time that `skip` itself takes, which does not count.
    Moving it moves the test's own deadlines, too: move it less than they are long."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ahead_s = 0.0
        self._stopped_at: float | None = None
        """Real seconds, while `skip` moves the clock. None: the clock goes on."""
        self.real_call_later = loop.call_later
        self.timers: set[Timer] = set()

    def monotonic(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) + self._ahead_s

    def time(self) -> float:
        """Unix time."""
        return time.time() - time.monotonic() + self.monotonic()

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        inside = context or copy_context()
        timer = Timer(self, when, lambda: inside.run(callback, *args))
        self.timers.add(timer)
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        return self.call_at(self.monotonic() + delay, callback, *args, context=context)

    async def skip(self, seconds: float) -> None:
        """Let so much time pass, not more on a slow machine, and what is due in it happen."""
        self._stopped_at = time.monotonic()
        try:
            await self._go_on(seconds)
        finally:
            self._ahead_s -= time.monotonic() - self._stopped_at
            self._stopped_at = None

    async def _go_on(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, _STEP_S)
            self._ahead_s += step
            seconds -= step
            for timer in sorted(self.timers, key=Timer.when):
                timer.reset()
            for _ in range(_TURNS):
                await asyncio.sleep(0)


@contextlib.contextmanager
def moved_by_hand(loop: asyncio.AbstractEventLoop) -> Iterator[LoopClock]:
    """A clock for this loop, and for gateways that are made inside."""
    clock = LoopClock(loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", clock.monotonic)
        if not isinstance(loop, asyncio.BaseEventLoop):  # uvloop's timers do not ask for the time
            patch.setattr(loop, "call_at", clock.call_at)
            patch.setattr(loop, "call_later", clock.call_later)
        patch.setattr("gateway.app.time", clock)
        yield clock


@pytest.fixture
async def loop_clock() -> AsyncIterator[LoopClock]:
    """The test's own loop's."""
    with moved_by_hand(asyncio.get_running_loop()) as clock:
        yield clock
