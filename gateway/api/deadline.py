"""Cancel the work of a request when its time is up or its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from gateway.server.asgi import ClientGoneError, Receive


class DeadlineError(Exception):
    """The time limit of a `Lifetime` is over. Raised by leaving its context."""


class Lifetime:
    """Context manager that cancels what its task awaits, and raises the reason instead of `CancelledError`.

    Enter it once, in the task of the request. The reason is `DeadlineError`, `ClientGoneError`, or that of `end_with`.
    A cancellation from elsewhere stays `CancelledError`, and any other exception of the block is raised as it is. One
    timer and one watch of the client serve a whole request: a
    timeout for each wait would cost more than the wait.
    """

    __slots__ = ("_is_over", "_loop", "_reason", "_task", "_timeout_s", "_timer", "_watch")

    def __init__(self, timeout_s: float | None) -> None:
        """`timeout_s`: seconds from entering the context to `DeadlineError`; None: no limit."""
        self._timeout_s = timeout_s
        self._reason: Exception | None = None
        self._is_over = False
        self._watch: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Lifetime:
        """Start the timer. From here on, `DeadlineError` may be raised."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task: asyncio.Task[object] = task
        if self._timeout_s is not None:
            self._timer = self._loop.call_later(self._timeout_s, self.end_with, DeadlineError())
        return self

    def watch_client(self, receive: Receive, is_answered: Callable[[], bool]) -> None:
        """Watch for a disconnect: from here on, `ClientGoneError` may be raised. Returns at once.

        Call once, within the context, after the body was read: nobody else may call `receive` any more. uvicorn's
        `send` returns silently after a disconnect, so only `receive` tells of it, but also when the answer is complete.
        `is_answered` tells the two apart: it must return True once the whole answer was sent.
        """
        # Never cancelled: the watch ends by itself with the answer or with the connection.
        self._watch = self._loop.create_task(self._until_disconnect(receive, is_answered))

    async def _until_disconnect(self, receive: Receive, is_answered: Callable[[], bool]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not is_answered():
            self.end_with(ClientGoneError())

    def end_with(self, reason: Exception) -> None:
        """Cancel what the context's task awaits, so that the context raises `reason`. Returns at once.

        Call in the event loop after the context was entered. Does nothing after an earlier reason or the end of the
        context.
        """
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
