"""The client of a request that is answered by rounds: when it reads slowly, the round under way waits for it."""

from __future__ import annotations

from controller.schema.errors import RoundhouseError
from gateway.exchange.exchange import Exchange
from gateway.protocols.common.large_body import LargeBody
from gateway.server.call import Handler


class RoundClient:
    """The handler of the client's call in the place of its exchange, to which it passes on all but the client's pace.
    A `Handler`."""

    __slots__ = ("_exchange", "_is_full", "_round")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._round: Handler | None = None
        """The round that is under way; None: none is."""
        self._is_full = False

    def follow_client(self) -> None:
        """Take the exchange's place at the client's call, unless another handler has it: that one is not slowed down
        by the client."""
        if self._exchange.client.handler is self._exchange:
            self._exchange.client.handler = self

    def let_go(self) -> None:
        """Leave the client's call. Call at the end of the exchange."""
        self._round = None
        if self._exchange.client.handler is self:
            self._exchange.client.handler = None

    def begin_round(self, handler: Handler) -> None:
        """Slow `handler` down when the client is slow, from now on until `end_round`."""
        self._round = handler

    def slow_round(self) -> None:
        """Have the round wait if the client has not caught up since an earlier one. Call when a part of it has come:
        before, it has nothing to stop."""
        if self._is_full and self._round is not None:
            self._round.client_full()

    def end_round(self) -> None:
        """Slow no handler down any more: the round is over."""
        self._round = None

    # Handler

    def take_body(self, body: bytes | LargeBody) -> None:
        """Do nothing. Never called: the body was complete before."""

    def fail_request(self, error: RoundhouseError) -> None:
        """See Exchange."""
        self._exchange.fail_request(error)

    def client_gone(self) -> None:
        """See Exchange."""
        self._exchange.client_gone()

    def client_full(self) -> None:
        """Have the round stop reading from its engine."""
        self._is_full = True
        if self._round is not None:
            self._round.client_full()

    def client_ready(self) -> None:
        """Have the round read from its engine again."""
        self._is_full = False
        if self._round is not None:
            self._round.client_ready()
