"""Stored responses by hooks: a request continues them, and its own response is stored, can be fetched and cancelled,
and may be made in the background.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Final

from assistant.hooks.response_session import SocketTurn
from assistant.storage.records import RUNNING, History, RecentResponse, RequestOptions
from assistant.storage.responses import EventLog, StoredResponses
from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from gateway.exchange.client_response import JSON_LINE
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks, ExchangeState, Pause
from gateway.exchange.stored_end import ObjectWrite
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LargeBody
from gateway.protocols.responses.answer import ResponseWriter, begin_response, fail_response, replace_end
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.replayed_events import replay_events
from gateway.server.asgi import error_headers
from gateway.server.call import ClientCall, header_lines

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
        exchange.outlive_client()
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
        """The future given to `follow_save`; AttributeError before that call. Done when the queued response is stored;
        its exception says why it cannot be. Await it by `asyncio.shield`: cancelling it would cancel the save."""
        return self._save_future

    @property
    def response(self) -> Fields:
        """The response object until the engine's answer brings another one: its status is `queued`, or `in_progress`
        once an engine is asked."""
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


RETRY_S: Final = 30.0
"""Seconds between attempts to store that a response in the background has failed."""


class ExchangeRun:
    """The response that an exchange makes, from when the request is read to its end; a `ResponseRun`, and the
    `AnswerKeeper` of the exchange.

    Loads what the request continues, locks its conversation, and stores the outcome. For an API that makes no response
    (`input_tokens`, `compact`), only what the request continues is loaded.
    """

    __slots__ = (
        "_background",
        "_context",
        "_exchange",
        "_fails_unstored",
        "_is_cancelled",
        "_options",
        "_outcome",
        "_responses",
        "_turn",
        "tenant",
    )

    def __init__(self, exchange: Exchange, responses: StoredResponses, turn: SocketTurn | None) -> None:
        """Read the request's options and add the hooks that they need to the exchange. Loads nothing yet.

        `turn`: of a request by WebSocket; None: the request came by HTTP.

        Raises:
            RoundhouseError: `invalid_request`, or `previous_response_not_found`, `conversation_not_found` or
                `conversation_item_not_found` for an id of a wrong form; see `RequestOptions.of`.
        """
        self._exchange = exchange
        self._responses = responses
        self._turn = turn
        self.tenant = exchange.caller.tenant
        """The tenant that the response belongs to. It stays, though a new table may give the caller's key another one:
        what is locked, continued and registered is this tenant's."""
        self._background: BackgroundResponse | None = None
        """None: the response is not made in the background, or admission has not accepted it yet."""
        self._is_cancelled = False
        self._fails_unstored: bool | None = None
        """Whether the response fails because it could not be stored; None: it could, as far as is known."""
        self._outcome: Fields | None = None
        """The final response object, which is stored or being stored; None: there is none, or nothing is to be
        stored."""
        fields = exchange.request.outline_fields
        self._context = context = responses.new_context(exchange.client.headers)
        if self._makes_response:
            self._options = options = RequestOptions.of(fields, can_store=responses.stores_responses)
        else:
            self._options = options = RequestOptions.of_references(fields)
        exchange.request.state = context
        context.stores = options.is_stored
        context.conversation_id = options.conversation_id
        context.names_parent = options.conversation_start is not None
        if options.is_background:
            exchange.hide_paths()  # other keys of the tenant may read its error
        is_registered = options.is_background or (options.is_stored and exchange.request.stream)
        if self._makes_response and self._stores_outcome:
            exchange.hold_end(self)
        answers_at_once = turn is not None and not turn.generates
        exchange.add_hooks(
            ExchangeHooks(
                before_admission=(self._answer_at_once,) if answers_at_once else (),
                on_admitted=(self._register,) if is_registered else (),
                on_end=(self._end,),
            )
        )

    @property
    def _makes_response(self) -> bool:
        return self._exchange.api.state == "made"

    @property
    def _stores_outcome(self) -> bool:
        return self._options.is_stored or self._options.conversation_id is not None

    @property
    def context(self) -> ResponseContext:
        """The response's context: its id, input and history, and the response object once the answer has begun."""
        return self._context

    @property
    def response_id(self) -> str:
        """The response's id, set when the request is read. The client may not know it yet."""
        return self._context.id

    @property
    def model(self) -> str:
        """The model's own name, not the alias that the client may have used."""
        return self._exchange.account.model

    @property
    def response(self) -> Fields | None:
        """The response object at present; None: no client knows the response's id yet."""
        if self._context.response is not None or self._background is None:
            return self._context.response
        return self._background.response

    @property
    def saved(self) -> asyncio.Future[None] | None:
        """Done when the response is stored at its beginning; its exception says why it cannot be. Await it shielded.
        None unless the response is made in the background and admission has accepted it."""
        return self._background.saved if self._background is not None else None

    @property
    def events(self) -> EventLog | None:
        """The events so far. None unless the response is made in the background and admission has accepted it."""
        return self._background.events if self._background is not None else None

    # The way in

    def load_history(self) -> Pause | None:
        """Begin to load the items that the request continues and refers to. Call once.

        The conversation of a request that makes a response, or the place of it that the request names, is locked first;
        the end of the exchange unlocks it. Returns a pause that ends when the items are loaded; None: there is nothing
        to load.

        Raises:
            RoundhouseError: `conversation_locked`; `rate_limit_exceeded`, since a request that needs loading is counted
                first; or the error for a response or conversation that the caller may not continue
                (`previous_response_not_found`, `conversation_not_found`, `conversation_item_not_found`,
                `invalid_request`), which the pause may raise, too, as well as `response_store_failed`.
        """
        exchange, options = self._exchange, self._options
        responses = self._responses
        if options.conversation_id is not None and self._makes_response:
            locks = responses.conversation_locks
            locks.acquire(self.tenant, options.conversation_id, self, options.conversation_start)
        if self._turn is not None:
            options = self._use_recent(self._turn, options)
        if not options.needs_stored:
            self._count_history()
            return None
        exchange.count_request()
        return Pause(responses.load_history(exchange.caller, options), self._use_history)

    def _use_recent(self, turn: SocketTurn, options: RequestOptions) -> RequestOptions:
        """Take the history from the connection's memory if the request continues the last response there. Return the
        options without what needs no loading."""
        context, previous_id = self._context, options.previous_id
        context.keeps_items, context.may_lack_input = True, not turn.generates
        history = turn.recent.find_history(previous_id) if previous_id is not None else None
        if previous_id is None or history is None:
            return options
        self._responses.check_visible(self._exchange.caller, options, history)
        context.history, context.owns_history = history.items, not turn.recent.is_stored(previous_id)
        context.referenced_items = {item["id"]: item for item in history.items if item["id"] in options.references}
        unread = tuple(item_id for item_id in options.references if item_id not in context.referenced_items)
        return options._replace(previous_id=None, references=unread)

    def _use_history(self, history: History) -> None:
        responses, caller, context = self._responses, self._exchange.caller, self._context
        responses.check_visible(caller, self._options, history)
        context.history = context.history or history.items
        context.conversation_item = history.conversation_item
        context.referenced_items = {**context.referenced_items, **responses.visible_items(caller, history)}
        self._count_history()

    def _count_history(self) -> None:
        if self._context.history and self._exchange.api.takes_slot:
            self._exchange.set_extra_text(len(json_bytes(self._context.history)))

    def _answer_at_once(self, exchange: Exchange) -> bool:
        """Answer with an empty response, which the connection's next request may continue."""
        exchange.set_header_lines(exchange.services.now())
        writer = ResponseWriter(exchange.request.fields, self._context)
        exchange.answer.send_events(writer.begin_answer(""))
        exchange.answer.end_response(writer.end_answer("stop", None, None))
        exchange.close()
        return True

    def _register(self, exchange: Exchange) -> None:
        responses = self._responses
        if self._options.is_background:
            background = BackgroundResponse(exchange, self._context)
            save_future = responses.save_new_response(self, background.queued_response)
            self._background = background
            responses.register_run(self)
            background.follow_save(save_future, self.cancel)
        else:
            responses.register_run(self)

    # What becomes of it

    def cancel(self) -> None:
        """Cancel the response: answer the client with the cancelled response or the error `state_conflict`, and close
        the exchange.

        Does nothing if the response has ended; an outcome that is complete is stored.
        """
        self.store_outcome()
        exchange = self._exchange
        if exchange.is_ended or self._outcome is not None:
            return
        self._is_cancelled = True
        if self._context.cancel is not None:
            exchange.answer.end_response(self._context.cancel())
        else:
            exchange.answer.send_error(RoundhouseError("state_conflict", "The response was cancelled."))
        exchange.close()

    def store_outcome(self) -> None:
        """If the response has ended, begin to store its final object, unregister it and unlock its conversation;
        otherwise do nothing.

        Stores once, and returns without waiting for the disk. Does nothing for a response that is neither to be stored
        nor in a conversation.
        """
        outcome = self._find_outcome() if self._outcome is None and self._stores_outcome else None
        if outcome is not None:
            self._begin_store(outcome, b"")

    def _begin_store(self, outcome: Fields, last_events: bytes) -> ObjectWrite | None:
        """Begin to store the response. `last_events`: those that its readers did not get yet."""
        self._outcome = outcome
        responses, background = self._responses, self._background
        responses.unregister_run(self)
        events = background.encode_events(last_events) if background is not None else b""
        write = responses.save_outcome(self, outcome, events)
        self._unlock_conversation()
        if write is not None and background is not None:
            write.done.add_done_callback(self._check_write)
        return write

    def _end(self, exchange: Exchange) -> None:
        self.store_outcome()
        if self._background is not None and self._outcome is not None:
            self._background.end_events(self._outcome)
        if self._turn is not None:
            self._remember_outcome(self._turn.recent)
        if not self._is_lost:
            self._responses.unregister_run(self)
        self._unlock_conversation()
        self._context.cancel = None  # it refers back, see Exchange

    # AnswerKeeper

    def begin_write(self, last_part: bytes) -> ObjectWrite | None:
        """If the response is complete, begin to store it, and return the write. None: it is not complete, is stored
        already, or nothing is to be stored. `last_part`: events that its readers did not get yet. See AnswerKeeper."""
        response = self._context.response
        if response is None or self._outcome is not None or not _is_complete(response):
            return None
        return self._begin_store(response, last_part)

    def mark_lost(self, error: RoundhouseError) -> bool:
        """Note that the response is not stored. Return True if it fails by that: it is in the background, or its
        conversation lacks its items. A response that has failed before stays as it is. May be called twice."""
        context, outcome = self._context, self._outcome
        assert outcome is not None
        if self._fails_unstored is None:
            is_needed = self._background is not None or self._options.conversation_id is not None
            self._fails_unstored = is_needed and outcome["status"] != "failed"
            if self._fails_unstored:
                outcome = fail_response(outcome, outcome["output"], self._describe_error(error))
            if self._background is None:
                context.stores = False
                outcome = {**outcome, "store": False}
            context.response = self._outcome = outcome
        return self._fails_unstored

    def mark_events(self, events: bytes, error: RoundhouseError) -> bytes:
        """Return the events with the final response object in the last one. If the response fails, that is
        `response.failed`, after an event `error`."""
        assert self._outcome is not None
        return replace_end(events, self._outcome, self._describe_error(error))

    def mark_body(self, body: bytes) -> bytes:
        """Return the final response object as JSON with `store: false`, in place of `body`. Call after `mark_lost`."""
        return encode_json(self._outcome)

    def _describe_error(self, error: RoundhouseError) -> Fields:
        fields: Fields = error.build_envelope(self._exchange.answer.request_id).error.model_dump()
        return fields

    # A response in the background whose end could not be stored

    @property
    def _is_lost(self) -> bool:
        return self._responses.get_run(self.response_id) is self and self._outcome is not None

    def _check_write(self, done: asyncio.Future[RoundhouseError | None]) -> None:
        """If the end of a response in the background is not stored, serve it from here, as failed, until it is."""
        error, saved = done.result(), self.saved
        is_known = saved is not None and saved.done() and saved.exception() is None  # else no client knows its id
        if error is not None and is_known:
            self.mark_lost(error)
            self._responses.register_run(self)
            self._store_failure()

    def _store_failure(self) -> None:
        responses, outcome = self._responses, self._outcome
        if self._is_lost and outcome is not None:  # else it was deleted
            responses.save_new_response(self, outcome).add_done_callback(self._check_failure)

    def _check_failure(self, done: asyncio.Future[None]) -> None:
        if done.exception() is None:
            self._responses.unregister_run(self)
        else:
            asyncio.get_running_loop().call_later(RETRY_S, self._store_failure)

    def _unlock_conversation(self) -> None:
        if self._options.conversation_id is not None:
            locks = self._responses.conversation_locks
            locks.release(self.tenant, self._options.conversation_id, self)

    def _remember_outcome(self, recent: RecentResponse) -> None:
        response = self._context.response
        if self._exchange.answer.error is not None or (response is not None and response["status"] == "failed"):
            recent.forget(self._options.previous_id)
        else:
            recent.keep(self._context, self.model)

    def _find_outcome(self) -> Fields | None:
        """Return the response object to store; None: it is not final, or nobody was told of a response."""
        exchange, context = self._exchange, self._context
        response = context.response
        if response is None and self._background is not None:
            response = self._background.queued_response
        if response is None or not (exchange.is_ended or _is_complete(response)):
            return None
        if _is_complete(response):
            return response
        if self._is_cancelled or (exchange.answer.client_gone and not exchange.outlives_client):
            if context.cancel is None:
                return {**response, "status": "cancelled"}
            context.cancel()
            return context.response
        return fail_response(response, [], self._error_fields())

    def _error_fields(self) -> Fields:
        """Return all fields of the error that ended the answer."""
        body = self._exchange.answer.error
        if body is None:
            body = RoundhouseError("internal_error", "The gateway failed on this request.").json_bytes()
        error: Fields = json.loads(body)["error"]
        return error


def _open_run(exchange: Exchange, _: ModelRoute, responses: StoredResponses, turn: SocketTurn | None) -> Pause | None:
    return ExchangeRun(exchange, responses, turn).load_history()


def response_hooks(responses: StoredResponses, turn: SocketTurn | None = None) -> ExchangeHooks:
    """Return the hooks by which each request for a response loads what it continues, and stores its response
    (`ExchangeRun`). `turn`: of one request by WebSocket; None: the hooks are for all requests by HTTP."""
    return ExchangeHooks(on_request=(partial(_open_run, responses=responses, turn=turn),))


def _is_complete(response: Fields) -> bool:
    return response["status"] not in RUNNING
