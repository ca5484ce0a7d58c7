"""Where a feature takes part in an exchange (ADR 21).

An exchange is opened with its hooks, and a hook may add others while the request is prepared. Of each kind there may be
several, which are called in order. All are called in the event loop's one thread and must not block it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from controller.schema.routing import Endpoint, ModelRoute
from gateway.exchange.attempt import AnswerForm

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange


class Pause(NamedTuple):
    """What an exchange waits for before its next hook: a future, and what to do with its result.

    The exchange may end during the wait, when its client leaves or its time is over; `then` is not called then.
    """

    future: asyncio.Future[Any]
    """An exception of it ends the request: a RoundhouseError is sent to the client, another as `internal_error`.

    It is not cancelled when the request ends otherwise: a hook that wants this does it in `on_end`. If it is cancelled,
    the exchange goes on waiting: whoever cancels it must end the request.
    """
    then: Callable[[Any], None] | None = None
    """Called with the result, if the request is not over; None: the result is ignored. May raise RoundhouseError."""


RequestHook: TypeAlias = "Callable[[Exchange, ModelRoute], Pause | None]"
SendHook: TypeAlias = "Callable[[Exchange, ModelRoute, Endpoint], Pause | None]"


@dataclass(slots=True)
class ExchangeHooks:
    """The hooks of one exchange, by kind, in the order of their calls. A kind without hooks costs one look.

    Never changed once made; `frozen` would cost a microsecond.

    Hooks of the first six kinds may raise RoundhouseError, which ends the request and is sent to the client. Those of
    the last two must not raise.
    """

    on_request: tuple[RequestHook, ...] = ()
    """Complete or change the request. Its body is read and its caller may use the model; it is neither checked against
    the model nor counted against the key's limits yet. Before an expensive step, call `exchange.count_request`."""
    before_admission: tuple[Callable[[Exchange], bool], ...] = ()
    """Look at the request, which is complete, checked and counted. Return True to answer it without an engine, now or
    later, by `exchange.answer` and `exchange.close`: no other hook is called but those of `on_event` and `on_end`."""
    on_admitted: tuple[Callable[[Exchange], None], ...] = ()
    """Note that admission took the request: it has a slot, or waits in the queue. Called once, when the header lines of
    the answer are set and before the engine is asked."""
    on_wait: tuple[Callable[[Exchange, ModelRoute], None], ...] = ()
    """Note that the request waits in the queue, perhaps for a load (`exchange.load_wait`). Called when it enters the
    queue, which it may do again after a failed attempt, and with each new routing table."""
    before_send: tuple[SendHook, ...] = ()
    """Look at the replica, whose slot the request holds, and change the request for it. Called for each attempt, before
    the engine's body is made. A pause should be short: it keeps the slot, and the replica may leave the table."""
    shape_answer: tuple[Callable[[Exchange, AnswerForm], AnswerForm], ...] = ()
    """Wrap what translates the engine's answer. Called for each attempt."""
    on_event: tuple[Callable[[bytes], None], ...] = ()
    """Take a part of a streamed answer before the client gets it: whole events, or a comment (a heartbeat, progress).
    Called whether or not a client is there. The hot path never looks for these: adding one wraps the client's call."""
    on_end: tuple[Callable[[Exchange], None], ...] = ()
    """Note that the request is over, however it ended, and holds nothing any more: `exchange.answer` and
    `exchange.account` tell what became of it. Called once, also where the request was refused before any other hook."""

    def __add__(self, other: ExchangeHooks) -> ExchangeHooks:
        """Return new hooks that hold both, those of `other` after these. Neither operand is changed."""
        return ExchangeHooks(
            self.on_request + other.on_request,
            self.before_admission + other.before_admission,
            self.on_admitted + other.on_admitted,
            self.on_wait + other.on_wait,
            self.before_send + other.before_send,
            self.shape_answer + other.shape_answer,
            self.on_event + other.on_event,
            self.on_end + other.on_end,
        )


NO_HOOKS: Final = ExchangeHooks()
