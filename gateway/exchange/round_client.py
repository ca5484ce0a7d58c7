"""What requests share that are answered by rounds: by other requests of the gateway's own."""

from __future__ import annotations

from controller.schema.errors import ERROR_CODES, RoundhouseError
from gateway.exchange.client_response import JSON_LINE
from gateway.exchange.exchange import Exchange
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.large_body import LargeBody
from gateway.server.call import Handler
from gateway.tenancy.rate_limits import RateLimitEntry


class RoundClient:
    """The handler of the client's call in the place of its exchange, to which it passes on all but the client's pace:
    when the client reads slowly, the rounds under way wait for it. A `Handler`."""

    __slots__ = ("_exchange", "_is_full", "_rounds")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._rounds: set[Handler] = set()
        """The rounds that are under way."""
        self._is_full = False

    def follow_client(self) -> None:
        """Take the exchange's place at the client's call, unless another handler has it: that one is not slowed down
        by the client."""
        if self._exchange.client.handler is self._exchange:
            self._exchange.client.handler = self

    def let_go(self) -> None:
        """Leave the client's call. Call at the end of the exchange."""
        self._rounds.clear()
        if self._exchange.client.handler is self:
            self._exchange.client.handler = None

    def begin_round(self, handler: Handler) -> None:
        """Slow `handler` down when the client is slow, from now on until `end_round`."""
        self._rounds.add(handler)

    def slow_round(self) -> None:
        """Have the rounds wait if the client has not caught up. Call when a part of a round has come: before, it has
        nothing to stop."""
        if self._is_full:
            for handler in self._rounds:
                handler.client_full()

    def end_round(self, handler: Handler) -> None:
        """Slow `handler` down no more: its round is over, or did not begin."""
        self._rounds.discard(handler)

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
        """Have the rounds stop reading from their engines."""
        self._is_full = True
        self.slow_round()

    def client_ready(self) -> None:
        """Have the rounds read from their engines again."""
        self._is_full = False
        for handler in self._rounds:
            handler.client_ready()


class UsedTokens:
    """The tokens of all rounds of a request, for the limits of its key."""

    __slots__ = ("completion", "is_partial", "prompt", "was_sent")

    def __init__(self) -> None:
        self.prompt = 0
        self.completion = 0
        """Generated tokens; of a round whose engine sent no count, those that came."""
        self.was_sent = False
        """An engine was asked."""
        self.is_partial = False
        """Of an answer, or of a part of one, the engine sent no count."""

    @property
    def total(self) -> int:
        """Sum of the prompt tokens and generated tokens of all rounds so far."""
        return self.prompt + self.completion

    def add(self, exchange: Exchange) -> None:
        """Add the tokens of a round that has ended: `exchange` is its inner request."""
        account = exchange.account
        self.was_sent = self.was_sent or account.attempts > 0
        if account.usage is None:
            self.completion += account.passed_tokens
            self.is_partial = self.is_partial or (account.attempts > 0 and exchange.answer.status < 400)
        else:
            self.prompt += account.usage.prompt
            self.completion += account.usage.completion

    def settle(self, entry: RateLimitEntry, now: float) -> None:
        """Settle what the request takes of its key's limits, at its end. `now`: monotonic seconds."""
        entry.settle_request(
            now,
            None if self.is_partial else self.total,
            was_sent=self.was_sent,
            is_failed=False,
            passed_tokens=self.total,
        )


def fail_by_round(exchange: Exchange, error: Fields, lines: bytes) -> None:
    """End the client's request with the error of a round, which has every field of our envelope, in the form that the
    answer allows. `lines`: header lines of the round's answer; empty: it was a stream."""
    own_error = _own_error(error, lines)
    if own_error is not None:
        exchange.fail_request(own_error)
    else:
        exchange.answer.send_whole(error["status"], JSON_LINE, encode_json({"error": error}))
        exchange.close()


def _own_error(error: Fields, lines: bytes) -> RoundhouseError | None:
    """Return the error of the gateway's own that a round was answered with; None: it is the engine's. `lines`: header
    lines of the answer."""
    if error["code"] not in ERROR_CODES:
        return None
    after = next((line[12:] for line in lines.split(b"\r\n") if line.startswith(b"retry-after:")), None)
    retry_after_s = None if after is None else float(after)
    own_error = RoundhouseError(error["code"], error["message"], param=error.get("param"), retry_after_s=retry_after_s)
    is_own = own_error.build_envelope(error.get("request_id")).error.model_dump() == error
    return own_error if is_own else None
