"""Inference requests that the gateway makes itself, on behalf of a caller whose own request waits for the answer.

Such a request is an `Exchange` like any other: it queues, takes a slot and is counted in metrics, as a request or as a
round of one. It does not count for its caller's limits, because the caller's own request has. Its answer is kept until
it is complete, or handed over in the parts in which it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from contract.errors import ERROR_CODES, RoundhouseError
from gateway.control.remote_health import parse_retry_after
from gateway.exchange.client_response import JSON_LINE
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import NO_HOOKS, ExchangeHooks
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.common.streams import data_of, split_events
from gateway.server.asgi import Header
from gateway.server.body_budget import BodyRoom
from gateway.server.call import ClientCall, Handler
from gateway.tenancy.api_keys import Caller
from gateway.tenancy.rate_limits import RateLimitEntry

_EMPTY: Final = b""


@dataclass(slots=True)
class InnerAnswer:
    """The answer to a request of the gateway's own: whole in `body`, or else a stream, whose `parts` are kept unless
    they were handed over as they came. Complete when `InnerRequests.send_request` returns it. Times are monotonic
    seconds."""

    began_at: float
    """When the request was made, in monotonic seconds, like all times here."""
    status: int = 0
    body: bytes = _EMPTY
    """Body of a whole answer; empty: the answer is a stream."""
    lines: bytes = _EMPTY
    """Header lines of a whole answer, each with CRLF."""
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    """The parts of a stream, each with the monotonic time of its arrival: whole events, or comments. Empty if they were
    handed over as they came."""
    ended_at: float = 0.0
    is_broken: bool = False
    """The stream ended without its last event."""

    def read_events(self) -> Iterator[tuple[float, Fields]]:
        """Yield the data of each event of a stream that is a JSON object, in order, with the time of its arrival.

        Times are monotonic seconds.
        """
        for came_at, part in self.parts:
            for event in split_events(part):
                fields = decode_json(data_of(event))
                if isinstance(fields, dict):
                    yield came_at, fields

    @property
    def error(self) -> Fields | None:
        """Field `error` of the answer, as a dict that may lack any field; None: the request succeeded.

        It is taken from a whole answer with an error status, or from the event with which a stream in OpenAI's form
        ended. A whole answer without an error object has the code `engine_error`. A stream that ended without its last
        event has the code `engine_disconnected`. An error among parts that were handed over as they came is not found.
        """
        if self.body:
            return _error_in(self.body) if self.status >= 400 else None
        for _, fields in self.read_events():
            error: Fields | None = fields.get("error")
            if isinstance(error, dict):
                return error
        return {"code": "engine_disconnected", "message": "The stream broke off."} if self.is_broken else None


def _error_in(body: bytes) -> Fields:
    fields = decode_json(body)
    error = fields.get("error") if isinstance(fields, dict) else None
    return error if isinstance(error, dict) else {"code": "engine_error", "message": "The engine failed."}


class InnerCall(ClientCall):
    """A `ClientCall` that has no client's connection: it gathers the answer to a request of the gateway's own, or hands
    its parts over. Await `answered`."""

    __slots__ = ("_answer", "_now", "_take_part", "answered")

    def __init__(
        self,
        path: bytes,
        headers: list[Header],
        now: Callable[[], float],
        *,
        query: bytes = b"",
        take_part: Callable[[bytes], None] | None = None,
    ) -> None:
        """`headers`, `query`: those of the request on whose behalf this one is made. `now` returns monotonic seconds.
        `take_part` gets each part of a stream, which is not kept then; None: all are kept."""
        super().__init__(_NoConnection(), _no_opener, b"POST", path, query, headers, keep_alive=True, is_http_1_1=True)
        self.body_complete = True
        self._now = now
        self._take_part = take_part
        self._answer = InnerAnswer(now())
        self.answered: asyncio.Future[InnerAnswer] = asyncio.get_running_loop().create_future()
        """The answer, when it is complete; it never has an exception."""

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Keep a complete answer, and end the call: `answered` is done."""
        self._answer.status, self._answer.body, self._answer.lines = status, body, lines
        self._finish()

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        """Keep the status and the first part of an answer that comes in parts. The header lines are dropped."""
        self._answer.status = status
        self.send_part(first_part)

    def send_part(self, part: bytes) -> None:
        """Keep a part of the answer, with the time of its arrival, or hand it over."""
        if self._take_part is None:
            self._answer.parts.append((self._now(), part))
        else:
            self._take_part(part)

    def end_response(self, last_part: bytes = b"") -> None:
        """Keep `last_part`, unless it is empty, and end the call: `answered` is done."""
        if last_part:
            self.send_part(last_part)
        self._finish()

    def break_off(self) -> None:
        """End the call with an incomplete answer (`InnerAnswer.is_broken`): `answered` is done."""
        self._answer.is_broken = True
        self._finish()

    def _finish(self) -> None:
        self.response_complete = True
        self._answer.ended_at = self._now()
        if not self.answered.done():
            self.answered.set_result(self._answer)


class _NoConnection:
    """The `Connection` of calls that have none: `InnerCall` never writes to it."""

    transport: asyncio.Transport
    default_lines = _EMPTY
    max_body_bytes = 0
    local_address: str | None = None

    def send_continue(self) -> None:
        """See Connection, as for the others."""

    def reserve_body(self, size: int) -> BodyRoom:
        raise AssertionError("the body is complete from the start")

    def finish_call(self, call: ClientCall) -> None: ...


def _no_opener(_: ClientCall) -> Handler:
    raise AssertionError("an inner request is opened by the dispatcher")


OpenInner: TypeAlias = Callable[[ClientCall, Caller, ExchangeHooks, str | None], Handler]
"""`InferenceDispatcher.open_inner`: opens a request of the gateway's own."""


class InnerRequests:
    """Makes requests of the gateway's own. Made once, by `create_gateway`."""

    def __init__(self, open_inner: OpenInner, now: Callable[[], float]) -> None:
        """`now` returns monotonic seconds."""
        self._open_inner = open_inner
        self._now = now

    async def send_request(self, path: str, fields: Fields, headers: list[Header], caller: Caller) -> InnerAnswer:
        """Make a POST request with the body `fields`, and return its whole answer, an error's too.

        `path`: of an inference API; raises KeyError for another one. RecursionError is raised if `fields` are nested
        too deeply. `headers`: those of the caller's own request, for what depends on them, such as the session.
        `caller`: must have been authenticated; the request does not count for its limits. If the task is cancelled, the
        request ends as one whose client leaves.
        """
        call = InnerCall(path.encode(), headers, self._now)
        handler = self._open_inner(call, caller, NO_HOOKS, None)
        call.handler = handler
        try:
            if not call.response_complete:
                handler.take_body(json_bytes(fields))
            return await call.answered
        finally:
            call.lose_client()


class RoundClient:
    """Handler of a client's call while its request is answered by rounds (inner requests). A `Handler`, in the place of
    the client's exchange, to which it passes on errors and the client's leaving. If the client reads slowly, the rounds
    under way read slowly, too."""

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
            self._is_full = self._exchange.is_client_full

    def let_go(self) -> None:
        """Leave the client's call. Call at the end of the exchange."""
        self._rounds.clear()
        if self._exchange.client.handler is self:
            self._exchange.client.handler = None

    def begin_round(self, handler: Handler) -> None:
        """Slow `handler` down when the client is slow, from now on until `end_round`."""
        self._rounds.add(handler)
        if self._is_full:
            handler.client_full()

    def end_round(self, handler: Handler) -> None:
        """Slow `handler` down no more: its round is over, or did not begin."""
        self._rounds.discard(handler)

    # Handler

    def take_body(self, body: bytes | LargeBody) -> None:
        """Do nothing. Never called: the body was complete before."""

    def fail_request(self, error: RoundhouseError) -> None:
        """End the client's request with `error`, in the form that its answer still allows."""
        self._exchange.fail_request(error)

    def client_gone(self) -> None:
        """Tell the client's exchange that the client has left, which ends the request unless it outlives its client."""
        self._exchange.client_gone()

    def client_full(self) -> None:
        """Have the rounds stop reading from their engines."""
        self._is_full = True
        for handler in self._rounds:
            handler.client_full()

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
        """Of at least one round that was answered without an error, the engine sent no count."""

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
        """Settle what the request takes of its key's limits. Call once, at its end. `now`: monotonic seconds."""
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
    own_error = _own_error(error, lines, exchange.services.clock())
    if own_error is not None:
        exchange.fail_request(own_error)
    else:
        exchange.answer.send_whole(error["status"], JSON_LINE, encode_json({"error": error}))
        exchange.close()


def _own_error(error: Fields, lines: bytes, unix_now: float) -> RoundhouseError | None:
    """Return the error of the gateway's own that a round was answered with; None: it is the engine's. `lines`: header
    lines of the answer, of which an engine's may name a date in `Retry-After`. `unix_now`: Unix time in seconds."""
    if error["code"] not in ERROR_CODES:
        return None
    after = next((line[12:] for line in lines.split(b"\r\n") if line.startswith(b"retry-after:")), None)
    retry_after_s = None if after is None else parse_retry_after(after.decode("latin-1"), unix_now)
    code, message, param, model = error["code"], error["message"], error.get("param"), error.get("model")
    own_error = RoundhouseError(code, message, param=param, retry_after_s=retry_after_s, model=model)
    is_own = own_error.build_envelope(error.get("request_id")).error.model_dump() == error
    return own_error if is_own else None
