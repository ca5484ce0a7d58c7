"""One request for a response, or for the tokens of one.

It differs from others in that it may continue stored responses, that its own is stored, that it may go on without its
client, and that another request may end it.
"""

from __future__ import annotations

import asyncio
import json

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint, ModelRoute
from gateway.exchange.background_ack import BackgroundAck
from gateway.exchange.exchange import Exchange
from gateway.exchange.response_session import SocketTurn
from gateway.exchange.services import ApiSpec, Services
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.answer_stream import ResponseWriter
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.replayed_events import replay_events
from gateway.protocols.responses.response_object import begin_response, fail_response
from gateway.server.call import ClientCall
from gateway.storage.responses.event_log import EventLog, ResponseEvents
from gateway.storage.responses.recent_response import RecentResponse
from gateway.storage.responses.records import RUNNING, History
from gateway.storage.responses.request_options import RequestOptions


class ResponseExchange(Exchange):
    """A `registry.ResponseRun`, from the time when it is accepted."""

    __slots__ = (
        "_context",
        "_event_log",
        "_held_endpoint",
        "_is_cancelled",
        "_is_outcome_stored",
        "_is_saved",
        "_options",
        "_outlives_client",
        "_queued_response",
        "_turn",
    )

    def __init__(
        self, api: ApiSpec, client: ClientCall, services: Services, request_id: str, turn: SocketTurn | None = None
    ) -> None:
        """`turn` None: it came by HTTP."""
        super().__init__(api, client, services, request_id)
        self._turn = turn
        self._options = RequestOptions(None, ())
        self._context = services.responses.new_context(client.headers)
        self._queued_response: Fields | None = None
        """What is told of one in the background before its engine says anything."""
        self._outlives_client = False
        """It does so when its client leaves."""
        self._event_log: EventLog | None = None
        """The events of one in the background."""
        self._is_saved = False
        """One in the background: it is stored that it is queued."""
        self._held_endpoint: Endpoint | None = None
        """What it was given before that."""
        self._is_cancelled = False
        self._is_outcome_stored = False

    @property
    def context(self) -> ResponseContext:
        """See Run."""
        return self._context

    @property
    def response_id(self) -> str:
        """See Run."""
        return self._context.id

    @property
    def tenant(self) -> str:
        """See Run."""
        return self._caller.tenant

    @property
    def model(self) -> str:
        """See Run."""
        return self._account.model

    @property
    def response(self) -> Fields | None:
        """See Run."""
        response = self._context.response
        if response is not None or self._queued_response is None or self._attempt is None:
            return response or self._queued_response
        return {**self._queued_response, "status": "in_progress"}

    @property
    def events(self) -> ResponseEvents | None:
        """See Run."""
        return self._event_log

    # The way in

    def _accept_request(self, route: ModelRoute) -> None:
        responses, fields = self._services.responses, self._request.outline_fields
        makes_response = self._api.state == "made"
        self._options = options = (
            RequestOptions.of(fields, can_store=responses.stores_responses)
            if makes_response
            else RequestOptions.of_references(fields)
        )
        self._request.state = self._context
        self._context.stores = options.is_stored
        self._context.conversation_id = options.conversation_id
        if options.conversation_id is not None and makes_response:
            responses.conversation_locks.acquire(self.tenant, options.conversation_id, self)
        if self._turn is not None:
            options = self._use_recent(self._turn, options)
        if options.needs_stored:
            self._answer.lines = self._header_lines(self._count_request())
            responses.load_history(self._caller, options).add_done_callback(self._history_loaded)
        else:
            super()._accept_request(route)

    def _use_recent(self, turn: SocketTurn, options: RequestOptions) -> RequestOptions:
        """Continue what was made last on the connection, if that is asked for. What must still be read."""
        context, previous_id = self._context, options.previous_id
        context.keeps_items, context.may_lack_input = True, not turn.generates
        history = turn.recent.find_history(previous_id) if previous_id is not None else None
        if previous_id is None or history is None:
            return options
        self._services.responses.check_visible(self._caller, options, history)
        context.history, context.owns_history = history.items, not turn.recent.is_stored(previous_id)
        context.referenced_items = {item["id"]: item for item in history.items if item["id"] in options.references}
        unread = tuple(item_id for item_id in options.references if item_id not in context.referenced_items)
        return options._replace(previous_id=None, references=unread)

    def _history_loaded(self, history_future: asyncio.Future[History]) -> None:
        if self._is_over:
            history_future.exception()  # else asyncio says that nobody has looked at it
        else:
            self._run_guarded(self._use_history, history_future)

    def _use_history(self, history_future: asyncio.Future[History]) -> None:
        history = history_future.result()
        self._services.responses.check_visible(self._caller, self._options, history)
        self._context.history = self._context.history or history.items
        self._context.conversation_item = history.conversation_item
        found_items = self._services.responses.visible_items(self._caller, history)
        self._context.referenced_items = {**self._context.referenced_items, **found_items}
        self._find_slot(self._renew_route(), self._services.now())

    def _text_bytes(self) -> int:
        history_bytes = len(json_bytes(self._context.history)) if self._context.history else 0
        return super()._text_bytes() + history_bytes

    def _find_slot(self, route: ModelRoute, now: float) -> None:
        if self._turn is not None and not self._turn.generates:
            self._answer_at_once(now)
            return
        super()._find_slot(route, now)
        if self._options.is_background:
            self._accept_in_background()
        elif self._options.is_stored and self._is_stream:
            self._services.responses.register_run(self)

    def _answer_at_once(self, now: float) -> None:
        """An empty response, which the next one of the connection may continue."""
        self._answer.lines = self._header_lines(now)
        writer = ResponseWriter(self._request.fields, self._context)
        self._answer.send_events(writer.begin_answer(""))
        last_events = writer.end_answer("stop", None, None)
        self._answer.end_response(last_events)
        self._close()

    def _accept_in_background(self) -> None:
        responses = self._services.responses
        self._outlives_client = True
        self._event_log = EventLog()
        self._answer.record_events(self._event_log)
        self._queued_response = queued_response = {
            **begin_response(self._request.outline_fields, self._context),
            "status": "queued",
        }
        responses.register_run(self)
        save_future = responses.save_new_response(self, queued_response)
        save_future.add_done_callback(self._queued_saved)
        if not self._is_stream:
            self._answer.detach_client()
            self._client.handler = receipt = self._new_ack(queued_response)
            save_future.add_done_callback(receipt.answer_when_saved)

    def _new_ack(self, queued_response: Fields) -> BackgroundAck:
        return BackgroundAck(self, self._client, self._answer.lines, self._answer.request_id, queued_response)

    def _queued_saved(self, save_future: asyncio.Future[None]) -> None:
        error = save_future.exception()
        if isinstance(error, RoundhouseError):
            self.fail_request(error)
        self._is_saved = True
        if self._held_endpoint is not None and not self._is_over:
            self._run_guarded(self._send_held_attempt, self._held_endpoint)

    def _send_attempt(self, route: ModelRoute, endpoint: Endpoint) -> None:
        # One that cannot be stored could not be asked for later: its engine is not asked either.
        if self._options.is_background and not self._is_saved:
            self._held_endpoint = endpoint
        else:
            super()._send_attempt(route, endpoint)

    def _may_see_paths(self) -> bool:
        """Not of one in the background: its error is stored, and other keys of the tenant may read it."""
        return not self._options.is_background and super()._may_see_paths()

    def _send_held_attempt(self, endpoint: Endpoint) -> None:
        super()._send_attempt(self._renew_route(), endpoint)

    # What becomes of it

    def client_gone(self) -> None:
        """See Exchange."""
        if self._outlives_client and not self._is_over:
            self._answer.client_gone = True
            self._answer.detach_client()
            self.client_ready()
        else:
            super().client_gone()

    def cancel(self) -> None:
        """See Run."""
        self.store_outcome()
        if self._is_over or self._is_outcome_stored:
            return
        self._is_cancelled = True
        if self._context.cancel is not None:
            self._answer.end_response(self._context.cancel())
        else:
            self._answer.send_error(RoundhouseError("state_conflict", "The response was cancelled."))
        self._close()

    def store_outcome(self) -> None:
        """See Run."""
        if self._is_outcome_stored or not (self._options.is_stored or self._options.conversation_id):
            return
        outcome = self._find_outcome()
        if outcome is not None:
            self._is_outcome_stored = True
            self._services.responses.unregister_run(self)
            self._services.responses.save_outcome(self, outcome, self._end_events(outcome))
            self._unlock_conversation()

    def _close(self) -> None:
        if not self._is_over:
            super()._close()
            self.store_outcome()
            if self._turn is not None:
                self._remember_outcome(self._turn.recent)
            self._services.responses.unregister_run(self)
            self._unlock_conversation()
            self._context.cancel = None  # it refers back, see Exchange

    def _unlock_conversation(self) -> None:
        if self._options.conversation_id is not None:
            locks = self._services.responses.conversation_locks
            locks.release(self.tenant, self._options.conversation_id, self)

    def _remember_outcome(self, recent: RecentResponse) -> None:
        response = self._context.response
        if self._answer.error is not None or (response is not None and response["status"] == "failed"):
            recent.forget(self._options.previous_id)
        else:
            recent.keep(self._context, self._account.model)

    def _find_outcome(self) -> Fields | None:
        """What is to be stored; None: nothing yet, or nobody was told that there is a response."""
        context = self._context
        response = context.response or self._queued_response
        if response is None or not (self._is_over or _is_complete(response)):
            return None
        if _is_complete(response):
            return response
        if self._is_cancelled or (self._answer.client_gone and not self._outlives_client):
            if context.cancel is None:
                return {**response, "status": "cancelled"}
            context.cancel()
            return context.response
        return fail_response(response, [], self._error_fields())

    def _end_events(self, outcome: Fields) -> bytes:
        """End the event log. What of it is to be stored; empty: nothing that could not be made of `outcome` again."""
        log = self._event_log
        if log is None:
            return b""
        is_recorded = log.next_number > 0
        if not is_recorded:
            log.append_events(replay_events(outcome, is_open_responses=self._context.is_open_responses))
        log.end()
        return log.to_stored() if is_recorded else b""

    def _error_fields(self) -> Fields:
        """Every field of the error that was told."""
        body = self._answer.error
        if body is None:
            body = RoundhouseError("internal_error", "The gateway failed on this request.").json_bytes()
        error: Fields = json.loads(body)["error"]
        return error


def _is_complete(response: Fields) -> bool:
    return response["status"] not in RUNNING
