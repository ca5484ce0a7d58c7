"""Hooks of requests that list inputs: one with more than its engine answers at once is asked for in pieces."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.exchange.client_response import JSON_LINE
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks
from gateway.exchange.inner_requests import InnerAnswer, InnerCall, OpenInner, RoundClient, UsedTokens, fail_by_round
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json
from gateway.protocols.common.fan_out import ANSWER_FORMS, PiecedAnswer, Split, plan_split
from gateway.protocols.common.json_bytes import json_bytes
from gateway.server.call import Handler
from gateway.sessions import SESSION_FIELD
from gateway.tenancy.rate_limits import RateLimitEntry


class FanOut:
    """Answers one request by requests for its pieces, each of which is admitted like any other. Made when the request
    is read.

    A piece is asked for when the one before it has its slot, so at most one of them waits, and they get the slots that
    nobody else has a better claim to. All end with the request: when its client leaves, its time is over, or a piece
    fails.
    """

    __slots__ = ("_answer", "_client", "_entry", "_errors", "_exchange", "_open_inner", "_task", "_used")

    def __init__(self, exchange: Exchange, open_inner: OpenInner, split: Split) -> None:
        self._exchange = exchange
        self._open_inner = open_inner
        asked = {name: value for name, value in exchange.request.outline_fields.items() if name != SESSION_FIELD}
        self._answer = PiecedAnswer(ANSWER_FORMS[exchange.api.path], split, asked)
        self._client = RoundClient(exchange)
        self._errors: dict[int, Fields] = {}
        """The error with which the stream of a piece ended, by the piece's number."""
        self._task: asyncio.Task[None] | None = None
        self._entry: RateLimitEntry | None = None
        self._used = UsedTokens()

    def begin(self, exchange: Exchange) -> bool:
        """Begin to ask for the pieces, as a task which answers the request. Returns True, and so asks no engine for the
        request itself. A hook of `before_admission`: called once, when the request is checked and counted."""
        exchange.add_hooks(ExchangeHooks(on_end=(self._end,)))
        exchange.set_header_lines(exchange.services.now())
        self._client.follow_client()
        self._entry = exchange.account.take_entry()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._settle)  # a task that is cancelled before its first step runs no `finally`
        return True

    def _end(self, _: Exchange) -> None:
        task, self._task = self._task, None
        self._client.let_go()
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _run(self) -> None:
        exchange = self._exchange
        async with asyncio.TaskGroup() as group:
            for number, value in enumerate(self._answer.split.pieces()):
                entered = asyncio.Event()
                group.create_task(self._ask_piece(number, value, entered))
                await entered.wait()
        if not exchange.is_ended:
            exchange.run_guarded(self._end_answer)

    def _settle(self, _: asyncio.Task[None]) -> None:
        if self._entry is not None:
            self._used.settle(self._entry, self._exchange.services.now())

    async def _ask_piece(self, number: int, value: Any, entered: asyncio.Event) -> None:
        """Ask for the piece `number`, and keep its answer, or pass on its events. Sets `entered` when it has a slot, or
        gets none any more. A failure ends the request and is not raised."""
        exchange = self._exchange
        call = InnerCall(
            exchange.api.path.encode(),
            exchange.client.headers,
            exchange.services.now,
            query=exchange.client.query,
            take_part=partial(self._take_events, number) if exchange.is_stream else None,
        )

        def note_slot(_exchange: Exchange, _route: ModelRoute, _endpoint: Endpoint) -> None:
            entered.set()

        hooks = ExchangeHooks(
            on_request=(_go_on,) if number else (),
            on_admitted=() if number else (self._tell_place,),
            before_send=(note_slot,),
            on_end=(self._used.add,),
        )
        handler = self._open_inner(call, exchange.caller, hooks, exchange.answer.request_id)
        call.handler = handler
        try:
            if not call.response_complete:
                exchange.run_guarded(self._send_piece, handler, value)
            answer = await call.answered
            if not exchange.is_ended:
                exchange.run_guarded(self._take_answer, number, answer)
        finally:
            entered.set()
            self._client.end_round(handler)
            call.lose_client()

    def _send_piece(self, handler: Handler, value: Any) -> None:
        self._client.begin_round(handler)
        encoded = self._exchange.request.fill(json_bytes(self._answer.piece_fields(value)))
        handler.take_body(encoded if isinstance(encoded, bytes) else b"".join(encoded))

    def _tell_place(self, inner: Exchange) -> None:
        """Note that admission took the first piece, whose place in the queue is the request's."""
        exchange = self._exchange
        if not exchange.answer.status and inner.admission is not None and inner.admission.ticket is not None:
            exchange.set_header_lines(exchange.services.now(), inner.admission.ticket.place)
        for on_admitted in exchange.hooks.on_admitted:
            on_admitted(exchange)

    def _take_events(self, number: int, part: bytes) -> None:
        exchange = self._exchange
        if exchange.is_ended or number in self._errors:
            return
        events, error = self._answer.take_events(number, part)
        if error is not None:
            self._errors[number] = error
        if events:
            exchange.answer.send_events(events)

    def _take_answer(self, number: int, answer: InnerAnswer) -> None:
        exchange = self._exchange
        if answer.body and answer.status >= 400:
            exchange.answer.lines += _place_lines(answer.lines) if not number and not exchange.answer.status else b""
            fail_by_round(exchange, decode_json(answer.body)["error"], answer.lines)
        elif number in self._errors:
            fail_by_round(exchange, self._errors[number], b"")
        elif answer.is_broken or (exchange.is_stream and answer.body):
            exchange.fail_request(RoundhouseError("engine_disconnected", "The engine's answer broke off."))
        elif not exchange.is_stream:
            body = answer.body or b"".join(part for _, part in answer.parts)
            self._answer.take_answer(number, body)

    def _end_answer(self) -> None:
        exchange = self._exchange
        if exchange.is_stream:
            events = self._answer.end_events()
            if not exchange.answer.status:  # no piece had an event
                if not events:
                    raise RoundhouseError("engine_disconnected", "The engine failed: its stream had no event.")
                exchange.answer.send_events(events)
                events = b""
            exchange.answer.end_response(events)
        else:
            exchange.answer.send_whole(200, JSON_LINE, self._answer.join())
        exchange.close()


def _go_on(exchange: Exchange, _: ModelRoute) -> None:
    exchange.pass_full_queue()


def _place_lines(lines: bytes) -> bytes:
    """Return those of the header lines that tell the place in the queue."""
    names = (b"x-queue-", b"x-estimated-")
    return b"".join(line + b"\r\n" for line in lines.split(b"\r\n") if line.startswith(names))


def _plan(exchange: Exchange, route: ModelRoute, open_inner: OpenInner) -> None:
    split = plan_split(exchange.request.outline_fields, exchange.api.inputs, route)
    if split is not None:
        exchange.add_hooks(ExchangeHooks(before_admission=(FanOut(exchange, open_inner, split).begin,)))


def fan_out_hooks(open_inner: OpenInner) -> ExchangeHooks:
    """Return the hooks of requests that may list inputs, to be added after all that answer or keep a stream themselves.
    `open_inner` opens the requests for the pieces."""
    return ExchangeHooks(on_request=(partial(_plan, open_inner=open_inner),))
