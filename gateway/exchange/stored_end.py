"""The end of an answer whose client asked to have it stored: held back until it is stored, or changed to say that it is
not.

The engine's slot is given back meanwhile; the exchange itself ends with its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from common.log_formats import tag_request
from contract.errors import RoundhouseError
from gateway.exchange.client_response import AnsweredCall, RecordingCall
from gateway.server.asgi import error_headers
from gateway.server.call import header_lines

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange

logger = logging.getLogger(__name__)

HOLD_S: Final = 10.0
"""The most seconds that an end waits for the store. Afterwards the answer counts as not stored, and is not found later
even if the store writes it after all."""


class ObjectWrite:
    """The write of one object to the store of answers, which has begun. Belongs to the event loop."""

    __slots__ = ("_undo", "done", "extra_s", "is_given_up")

    def __init__(self, undo: Callable[[], None], extra_s: float = 0.0) -> None:
        """`undo`: called by `give_up`, to take the object out of the store once the write has ended. `extra_s`: seconds
        that an end waits longer than `HOLD_S`."""
        self._undo = undo
        self.extra_s = extra_s
        self.is_given_up = False
        """Nobody waits for the write any more: the store's thread leaves it out, if it has not begun it."""
        self.done: asyncio.Future[RoundhouseError | None] = asyncio.get_running_loop().create_future()
        """None: the object is committed. Otherwise `response_store_failed`: it is not, and will not be. The future has
        no exception."""

    def give_up(self, reason: str) -> None:
        """End the write as failed, although the store has not answered. An object that is written nevertheless is taken
        out again: a client that was told that it is not stored does not find it later. Does nothing once it is done."""
        if not self.done.done():
            self.is_given_up = True
            self.done.set_result(store_error(reason))
            self._undo()


def failed_write(reason: str) -> ObjectWrite:
    """Return a write that has failed already, of an object that the store did not get."""
    write = ObjectWrite(lambda: None)
    write.done.set_result(store_error(reason))
    return write


def store_error(reason: str) -> RoundhouseError:
    return RoundhouseError("response_store_failed", f"The database of stored responses failed: {reason}.")


class AnswerKeeper(Protocol):
    """Stores the answer of one exchange, and says in the answer's end that it is not stored, where that failed."""

    def begin_write(self, last_part: bytes) -> ObjectWrite | None:
        """Begin to store the answer if it is complete; None: it is not, or nothing of it is to be stored.

        `last_part`: events that the client did not get yet; empty: the answer is no stream. Called with each part until
        a write is returned.
        """

    def mark_lost(self, error: RoundhouseError) -> bool:
        """Note that the answer is not stored. Return True if the request fails by that, with `error`."""

    def mark_events(self, events: bytes, error: RoundhouseError) -> bytes:
        """Return the last events of a stream, changed to say that the answer is not stored, or that it failed."""

    def mark_body(self, body: bytes) -> bytes:
        """Return the body of a whole answer that did not fail, changed to say that the answer is not stored."""


class StoredEnd(RecordingCall):
    """An `AnsweredCall` that holds back what comes from the moment that the answer is complete until it is stored.

    Comments pass. Recorders get what is held when the client gets it. `Exchange.hold_end` makes one.
    """

    def __init__(self, call: AnsweredCall, exchange: Exchange, keeper: AnswerKeeper) -> None:
        super().__init__(call)
        self._exchange = exchange
        self._keeper = keeper
        self._write: ObjectWrite | None = None
        """None: the answer is not complete."""
        self._timer: asyncio.TimerHandle | None = None
        self.is_holding = False
        """Whether a part or the end of the answer is held back."""
        self._start: tuple[int, bytes] | None = None
        """Status and header lines of a held `start_response`; None: it is sent, or the answer is whole."""
        self._parts: list[bytes] = []
        self._is_ended = False
        """`end_response` is held."""
        self._whole: tuple[int, bytes, bytes] | None = None
        self._is_closing = False

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Pass a complete answer on, once it is stored if it is to be stored."""
        if self._holds(b""):
            self._whole = status, lines, body
        else:
            super().send_whole(status, lines, body)

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        if self._holds(first_part):
            self._start = status, lines
            self._parts.append(first_part)
        else:
            super().start_response(status, lines, first_part)

    def send_part(self, part: bytes) -> None:
        if not self._holds(part):
            super().send_part(part)
        elif not part.startswith(b":"):
            self._parts.append(part)
        elif self._start is None:
            super().send_part(part)

    def end_response(self, last_part: bytes = b"") -> None:
        if self._holds(last_part):
            self._parts.append(last_part)
            self._is_ended = True
        else:
            super().end_response(last_part)

    def _holds(self, part: bytes) -> bool:
        """Whether to hold `part` back. Begins to hold if the answer is complete with it."""
        if self._write is None:
            self._write = write = self._keeper.begin_write(part)
            if write is not None:
                self.is_holding = True
                self._timer = asyncio.get_running_loop().call_later(HOLD_S + write.extra_s, self._end_wait)
                write.done.add_done_callback(self._release)
        return self.is_holding

    def _end_wait(self) -> None:
        assert self._write is not None
        self._write.give_up(f"it did not answer within {round(HOLD_S + self._write.extra_s, 2):g} s")

    def close_later(self) -> None:
        """Have the exchange closed when what is held is sent. Call only while `is_holding`."""
        self._is_closing = True

    def give_up(self) -> None:
        """Send what is held at once, as not stored unless it is stored by now. Does nothing if nothing is held."""
        if self._write is not None and self.is_holding:
            self._write.give_up("the request ended before")
            self._release(self._write.done)

    def _release(self, done: asyncio.Future[RoundhouseError | None]) -> None:
        if not self.is_holding:
            return
        self.is_holding = False
        if self._timer is not None:
            self._timer.cancel()
        exchange = self._exchange
        try:
            self._send_held(done.result())
        except Exception:
            request_id = exchange.answer.request_id
            logger.exception("request %s failed at its end", request_id, extra=tag_request(request_id))
            self.call.break_off()
        if self._is_closing:
            exchange.close()

    def _send_held(self, error: RoundhouseError | None) -> None:
        answer, events = self._exchange.answer, b"".join(self._parts)
        is_failed = error is not None and self._keeper.mark_lost(error)
        if error is not None and is_failed:
            answer.error = answer.dialect.error_body(error, answer.request_id)
        if self._whole is not None:
            status, lines, body = self._whole
            if error is not None and is_failed:
                assert answer.error is not None
                answer.status = status = error.entry.status
                lines, body = answer.lines + header_lines(error_headers(error)), answer.error
            elif error is not None:
                body = self._keeper.mark_body(body)
            super().send_whole(status, lines, body)
            return
        if error is not None:
            events = self._keeper.mark_events(events, error)
            if is_failed:
                answer.broken_off_code = error.entry.code
        if self._start is not None:
            status, lines = self._start
            super().start_response(status, lines, events)
            events = b""
        if self._is_ended:
            super().end_response(events)
        elif events:
            super().send_part(events)
