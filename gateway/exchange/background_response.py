"""Responses in the background: stored before an engine is asked, and made whether or not the client stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.exchange.client_response import JSON_LINE
from gateway.exchange.exchange import Exchange
from gateway.exchange.exchange_state import ExchangeState
from gateway.exchange.hooks import ExchangeHooks, Pause
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.replayed_events import replay_events
from gateway.protocols.responses.response_object import begin_response
from gateway.server.asgi import error_headers
from gateway.server.call import ClientCall, header_lines
from gateway.storage.responses.event_log import EventLog

_AT_WORK = (ExchangeState.SENT, ExchangeState.ANSWERING)


class BackgroundResponse:
    """A background response that admission has accepted: its `queued` object, its events, and its first save.

    Made by `ExchangeRun`. Making one lets the exchange go on without its client, and collects its events.
    """

    __slots__ = ("_context", "_exchange", "_save_future", "events", "queued_response")

    def __init__(self, exchange: Exchange, context: ResponseContext) -> None:
        self._exchange = exchange
        self._context = context
        self._save_future: asyncio.Future[None]
        self.events = EventLog()
        """All events of the response, whether or not a client reads them."""
        fields = exchange.request.outline_fields
        self.queued_response: Fields = {**begin_response(fields, context), "status": "queued"}
        """The response object with the status `queued`, which is stored and sent to the client first."""
        exchange.outlives_client = True
        exchange.add_hooks(
            ExchangeHooks(before_send=(self._await_save,), on_event=(partial(_record_part, self.events),))
        )

    def follow_save(self, save_future: asyncio.Future[None], cancel: Callable[[], None]) -> None:
        """Hold the request back from engines until `save_future` is done, and end it if that fails. Returns at once.

        Call once, before the request is sent. `save_future` stores the queued response. A client that asked for no
        stream is answered with that response then; `cancel` is called if the client leaves before, because nobody would
        know the response's id.
        """
        exchange = self._exchange
        self._save_future = save_future
        save_future.add_done_callback(self._check_save)
        if not exchange.is_stream:
            lines, request_id = exchange.answer.lines, exchange.answer.request_id
            ack = BackgroundAck(cancel, exchange.client, lines, request_id, self.queued_response)
            exchange.detach_client(ack)
            save_future.add_done_callback(ack.answer_when_saved)

    @property
    def saved(self) -> asyncio.Future[None]:
        """Done when the queued response is stored, or cannot be."""
        return self._save_future

    @property
    def response(self) -> Fields:
        """The response object as long as the engine's answer has not brought another: `queued`, or `in_progress` once
        an engine is asked."""
        if self._exchange.state in _AT_WORK:
            return {**self.queued_response, "status": "in_progress"}
        return self.queued_response

    def encode_events(self, last_events: bytes) -> bytes:
        """Return the events to store, encoded: those so far and `last_events`, which readers did not get yet.

        Empty: none came, and they can be made from the response object when they are asked for.
        """
        return self.events.to_stored(last_events)

    def end_events(self, outcome: Fields) -> None:
        """End `events`, so that their readers end. `outcome`: the final response object. Call once."""
        log = self.events
        if not log.next_number:
            log.append_events(replay_events(outcome, is_open_responses=self._context.is_open_responses))
        log.end()

    def _check_save(self, save_future: asyncio.Future[None]) -> None:
        error = save_future.exception()
        if isinstance(error, RoundhouseError):
            self._exchange.fail_request(error)

    def _await_save(self, _exchange: Exchange, _route: ModelRoute, _endpoint: Endpoint) -> Pause | None:
        # A response that cannot be stored could not be fetched later, so no engine works on it.
        return None if self._save_future.done() else Pause(self._save_future)


def _record_part(events: EventLog, part: bytes) -> None:
    if not part.startswith(b":"):
        events.append_events(part)


class BackgroundAck:
    """The handler of a call that starts a background response without a stream. The exchange goes on without the call.

    Answers once: with the queued response, or with the error that kept it from being stored.
    """

    __slots__ = ("_cancel", "_client", "_lines", "_queued_response", "_request_id")

    def __init__(
        self,
        cancel: Callable[[], None],
        client: ClientCall,
        lines: bytes,
        request_id: str,
        queued_response: Fields,
    ) -> None:
        """`lines`: header lines of the answer. `cancel`: called if the client leaves before its answer."""
        self._cancel = cancel
        self._client: ClientCall | None = client
        self._lines = lines
        self._request_id = request_id
        self._queued_response = queued_response

    def answer_when_saved(self, save_future: asyncio.Future[None]) -> None:
        """Answer with the queued response, which is stored, or with the error that kept it from being stored.

        A callback of `save_future`, which must be done. Does nothing if the client is gone.
        """
        error, client = save_future.exception(), self._release_client()
        if client is None:
            return
        if isinstance(error, RoundhouseError):
            lines = self._lines + header_lines(error_headers(error))
            client.send_whole(error.entry.status, lines, error.json_bytes(self._request_id))
        else:
            client.send_whole(200, self._lines + JSON_LINE, encode_json(self._queued_response))

    def take_body(self, body: bytes | LargeBody) -> None:
        """Do nothing. Never called: the request was complete before this handler was made."""

    def fail_request(self, error: RoundhouseError) -> None:
        """Do nothing. Never called: the request was complete before this handler was made."""

    def client_gone(self) -> None:
        """Cancel the response, because its id was not sent to the client yet. Called when the client leaves before it
        is answered."""
        self._cancel()
        self._release_client()

    def client_full(self) -> None:
        """Do nothing, because the one answer is short. Called when the client reads more slowly than data is sent."""

    def client_ready(self) -> None:
        """Do nothing, because the one answer is short. Called when the client reads again."""

    def _release_client(self) -> ClientCall | None:
        client, self._client = self._client, None
        if client is not None:
            client.handler = None
        return client
