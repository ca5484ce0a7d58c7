"""How long a request lives: until it is answered, its time is up, or its client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from gateway.server.asgi import ClientGoneError, Receive


class DeadlineError(Exception):
    """The request's time is up."""


class Lifetime:
    """A context that cancels what its task awaits, and leaves with the reason instead of the cancellation.

    A cancellation of other origin passes as it is. One timer and one watch serve a whole request: a scope for each
    wait would cost more than the wait.
    """

    __slots__ = ("_is_over", "_loop", "_reason", "_task", "_timeout_s", "_timer", "_watch")

    def __init__(self, timeout_s: float | None) -> None:
        """None: it may take as long as it likes."""
        self._timeout_s = timeout_s
        self._reason: Exception | None = None
        self._is_over = False
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Lifetime:
        """Start the clock. From here `DeadlineError` may be raised."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task: asyncio.Task[object] = task
        if self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self.end_with, DeadlineError())
        return self

    def watch_client(self, receive: Receive, is_answered: Callable[[], bool]) -> None:
        """From here `ClientGoneError` may be raised. Call it once the body was read.

        uvicorn's `send` returns silently after a disconnect, so `receive` is the only place that tells. It says the
        same once the answer is complete; `is_answered` keeps the two apart.
        """
        # Never cancelled: it ends by itself with the answer or with the connection.
        self._watch = self._loop.create_task(self._until_disconnect(receive, is_answered))

    async def _until_disconnect(self, receive: Receive, is_answered: Callable[[], bool]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not is_answered():
            self.end_with(ClientGoneError())

    def end_with(self, reason: Exception) -> None:
        """Leave the context with `reason`, as soon as its task runs. The first reason counts."""
        if not self._is_over and self._reason is None:
            self._reason = reason
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        reason, self._reason = self._reason, None
        if reason is not None and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            try:
                raise reason from None
            finally:
                del reason  # its traceback leads to this frame
