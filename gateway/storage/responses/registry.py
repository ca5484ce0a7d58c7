"""Stored responses, and responses that are being made and can be read already."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.answer_times import AnswerTimes
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.conversation_items import BranchStart
from gateway.protocols.responses.replayed_events import replay_end, replay_events
from gateway.routing.live_routes import LiveRoutes
from gateway.server.asgi import Header
from gateway.storage.conversations.errors import conversation_not_found
from gateway.storage.conversations.locks import ConversationLocks
from gateway.storage.conversations.records import ConversationTurn, encode_items
from gateway.storage.responses.errors import (
    not_continuable,
    not_in_background,
    previous_not_found,
    response_not_found,
    responses_not_stored,
)
from gateway.storage.responses.event_log import EventLog, ResponseEvents
from gateway.storage.responses.records import (
    CONTINUABLE,
    TOKEN_LENGTH,
    History,
    HistoryBounds,
    StoredResponse,
    id_of,
    item_ids,
)
from gateway.storage.responses.request_options import RequestOptions
from gateway.storage.store import ObjectWrite, StateStore, failed_write
from gateway.storage.visibility import may_see_model
from gateway.tenancy.api_keys import Caller

T = TypeVar("T")

logger = logging.getLogger(__name__)

OPEN_RESPONSES: Final = b"openresponses-version"
"""Request header of clients that expect answers as in the Open Responses specification."""


class ResponseRun(Protocol):
    """A response that is being made, as `StoredResponses` knows it while it is registered there."""

    @property
    def context(self) -> ResponseContext:
        """The response's context: its id, input and history."""

    @property
    def tenant(self) -> str:
        """The tenant that the response belongs to."""

    @property
    def model(self) -> str:
        """The model's own name."""

    @property
    def response(self) -> Fields | None:
        """The response object at present; None: no client knows the response's id yet."""

    @property
    def response_id(self) -> str:
        """The response's id."""

    @property
    def saved(self) -> asyncio.Future[None] | None:
        """Done when the response is stored at its beginning, or cannot be; None: it is stored at its end alone."""

    @property
    def events(self) -> ResponseEvents | None:
        """The events so far; None: not a background response, so only the client of the request gets its events."""

    def store_outcome(self) -> None:
        """If the response has ended, begin to store it and unregister it; otherwise do nothing."""

    def cancel(self) -> None:
        """Cancel the response. Does nothing if it has ended."""


class StoredResponses:
    """All stored and running responses of a gateway. Belongs to the event loop.

    A response belongs to its tenant. A key that is limited to some models sees the responses of these models.
    Coroutines for the routes raise RoundhouseError: `response_not_found` if the caller may not see a response with the
    id, it has expired, or nothing is stored; `response_store_failed` if the database fails.
    """

    def __init__(
        self, store: StateStore | None, live: LiveRoutes, bounds: HistoryBounds, clock: Callable[[], float]
    ) -> None:
        """`store` None: nothing is stored.

        `bounds`: limits of what a request may continue. `clock`: Unix time in seconds.
        """
        self._store = store
        self._live = live
        self.history_bounds = bounds
        self._clock = clock
        self._running: dict[str, ResponseRun] = {}
        self.conversation_locks = ConversationLocks()

    # For requests that make responses

    @property
    def stores_responses(self) -> bool:
        """Whether this gateway stores responses."""
        return self._store is not None

    def new_context(self, headers: Sequence[Header]) -> ResponseContext:
        """Return the context of a new response, with a random id.

        `headers`: those of the request, names in lower case.
        """
        token, now = secrets.token_hex(TOKEN_LENGTH // 2), self._clock()
        return ResponseContext(
            id=id_of(token),
            created_at=int(now),
            times=AnswerTimes(now),
            clock=self._clock,
            new_id=item_ids(token),
            is_open_responses=any(name == OPEN_RESPONSES for name, _ in headers),
        )

    def load_history(self, caller: Caller, options: RequestOptions) -> asyncio.Future[History]:
        """Load what a request continues and refers to; all of it counts as used now.

        Without a store, the history is empty; a request that continues something is refused. The models of the caller's
        key are not checked: call `check_visible` and `visible_items` with the result.

        Raises:
            RoundhouseError: at the call or by the future: `previous_response_not_found`, `conversation_not_found`,
                `conversation_item_not_found`, or `invalid_request` if the response is still running, failed, or exceeds
                the bounds; by the future: `response_store_failed`.
        """
        if self._store is None:
            if options.previous_id is not None:
                raise responses_not_stored()
            if options.conversation_id is not None:
                raise conversation_not_found(options.conversation_id, "conversation")
            empty_future: asyncio.Future[History] = asyncio.get_running_loop().create_future()
            empty_future.set_result(History())
            return empty_future
        if options.references:
            for run in list(self._running.values()):
                run.store_outcome()
        if options.previous_id is not None:
            run_before = self._find_run(caller, options.previous_id)
            if run_before is not None and run_before.response is not None:
                raise not_continuable(options.previous_id, run_before.response["status"])
        return self._store.load_history(
            caller.tenant,
            options.previous_id,
            options.references,
            self.history_bounds,
            options.conversation_id,
            options.conversation_start,
        )

    def check_visible(self, caller: Caller, options: RequestOptions, history: History) -> None:
        """Check that the caller may use the model that made the continued response, or last answered in a conversation.

        `history`: what `load_history` returned for `options`.

        Raises:
            RoundhouseError: `previous_response_not_found` or `conversation_not_found` if the caller may not.
        """
        if self._may_see(caller, history.model):
            return
        if options.conversation_id is not None:
            raise conversation_not_found(options.conversation_id, "conversation")
        if options.previous_id is not None:
            raise previous_not_found(options.previous_id, options.previous_id)

    def visible_items(self, caller: Caller, history: History) -> dict[str, Fields]:
        """Return the items of `history.referenced_items` that the caller may see, by id.

        Items of models that the caller may not use are left out; items that no model has made are included.
        """
        models = history.referred_models
        return {
            name: item for name, item in history.referenced_items.items() if self._may_see(caller, models.get(name))
        }

    def register_run(self, run: ResponseRun) -> None:
        """Make a running response readable by its id, for its tenant. Call `unregister_run` after its end."""
        self._running[run.context.id] = run

    def unregister_run(self, run: ResponseRun) -> None:
        """Stop serving a response from its run; if it was stored, it is read from the store. May be called twice."""
        self._running.pop(run.context.id, None)

    def get_run(self, response_id: str) -> ResponseRun | None:
        """Return the run that is registered with this id, of any tenant; None: there is none."""
        return self._running.get(response_id)

    def call_when_written(self, callback: Callable[[], None]) -> None:
        """Call `callback` when everything that was to be stored until now is written, or is lost; at once if the
        gateway stores nothing."""
        if self._store is None:
            callback()
            return

        def end(written: asyncio.Future[None]) -> None:
            written.exception()  # else asyncio says that nobody has looked at it
            callback()

        self._store.submit_job(lambda _: None).add_done_callback(end)

    def save_outcome(self, run: ResponseRun, response: Fields, events: bytes) -> ObjectWrite | None:
        """Begin to store an ended response with its events, and to add its items to its conversation, all or nothing.

        What is stored depends on the request: nothing (None) if `store` is false and there is no conversation; a failed
        or cancelled response adds nothing to its conversation. A failure is logged and told by the result, not raised.

        `response`: the response object. `events`: from `EventLog.to_stored`; may be empty. Raises AssertionError if
        there is something to store and the gateway stores nothing.
        """
        try:
            stored_object = _stored_outcome(run, response, events)
        except RoundhouseError as error:
            logger.error("the response %s is not stored: %s", run.context.id, error)  # noqa: TRY400
            return failed_write(error.message)
        return self._require_store().save_object(stored_object) if stored_object is not None else None

    def save_new_response(self, run: ResponseRun, response: Fields) -> asyncio.Future[None]:
        """Store a response at its beginning. The future ends when the response is committed.

        Call only if `stores_responses`; otherwise AssertionError is raised.

        Raises:
            RoundhouseError: `invalid_request` if the request is nested too deeply; by the future:
                `response_store_failed`.
        """
        return self._require_store().save_new_response(_stored_response(run, response))

    # For the routes of stored responses. Each raises RoundhouseError `response_not_found` or `response_store_failed`.

    async def get_response(self, caller: Caller, response_id: str) -> Fields:
        """Return the response object at present, of a running or a stored response. Does not count as a use. The object
        of a running response is the one that the response goes on with: do not change it.

        Raises:
            RoundhouseError: `response_not_found` if there is none that the caller may see; `response_store_failed`.
        """
        run = self._find_run(caller, response_id)
        if run is not None and run.response is not None:
            return run.response
        stored_response = await self._store_of(response_id).find_response(caller.tenant, response_id)
        if stored_response is None or not self._may_see(caller, stored_response.model):
            raise response_not_found(response_id)
        return stored_response.response

    async def open_events(
        self, caller: Caller, response_id: str, first_number: int, *, is_open_responses: bool
    ) -> ResponseEvents:
        """Return the events of a running or stored background response. Read only those from number `first_number` on.

        Those of a running response go on coming; those of a stored one have ended. Events that are not stored are made
        from the response object. `is_open_responses`: see `ResponseContext`.

        Raises:
            RoundhouseError: `response_not_found`; `response_store_failed`; `invalid_request` if the response was not
                made in the background.
        """
        run = self._find_run(caller, response_id)
        if run is not None and run.response is not None:
            if run.events is None:
                raise not_in_background(response_id)
            return run.events
        response = await self.get_response(caller, response_id)
        if not response["background"]:
            raise not_in_background(response_id)
        log = EventLog.from_stored(await self._store_of(response_id).find_events(caller.tenant, response_id))
        if log.next_number:
            return log
        if first_number and response["status"] == "failed":
            # Perhaps failed by a restart; nobody knows how many events it had.
            log = EventLog(first_number)
            log.append_events(replay_end(response, first_number))
        else:
            log.append_events(replay_events(response, is_open_responses=is_open_responses))
        log.end()
        return log

    def is_being_made(self, caller: Caller, response_id: str) -> bool:
        """Return whether the response is still being made; False also for an id that the caller may not see.

        A response that is complete, though its engine has not closed the connection yet, is not being made any more:
        this call has it stored in the background.
        """
        return self._find_run(caller, response_id) is not None

    async def cancel_response(self, caller: Caller, response_id: str) -> Fields:
        """Cancel a running response, and return the response object. A response that has ended is returned unchanged.

        Raises:
            RoundhouseError: `response_not_found` if there is none that the caller may see; `response_store_failed`.
        """
        run = self._find_run(caller, response_id)
        if run is not None and run.response is not None:
            run.cancel()
        return await self.get_response(caller, response_id)

    async def delete_response(self, caller: Caller, response_id: str) -> None:
        """Delete a stored response. A running one is cancelled first.

        Raises:
            RoundhouseError: `response_not_found` if there is none that the caller may see, or it is not stored;
                `response_store_failed`.
        """
        await self.cancel_response(caller, response_id)
        if not await self._store_of(response_id).delete_response(caller.tenant, response_id):
            raise response_not_found(response_id)
        self._running.pop(response_id, None)  # one that failed because its end could not be stored

    async def list_input_items(self, caller: Caller, response_id: str) -> list[Fields]:
        """Return all input items of a response, oldest first: the items that it continues, then its own.

        Items that are no longer stored are left out.

        Raises:
            RoundhouseError: `response_not_found` if there is none that the caller may see; `response_store_failed`.
        """
        run = self._find_run(caller, response_id)
        if run is not None and run.response is not None:
            return [*run.context.history, *run.context.input_items]
        model_and_items = await self._store_of(response_id).list_input_items(caller.tenant, response_id)
        if model_and_items is None or not self._may_see(caller, model_and_items[0]):
            raise response_not_found(response_id)
        return model_and_items[1]

    # Internal

    def _find_run(self, caller: Caller, response_id: str) -> ResponseRun | None:
        """Return a running response that the caller may see; None: there is none with this id.

        One that has ended is stored first, and is not running then, because its client may know its end already.
        """
        run = self._running.get(response_id)
        if run is not None:
            run.store_outcome()
            run = self._running.get(response_id)
        if run is None or run.tenant != caller.tenant or not self._may_see(caller, run.model):
            return None
        return run

    def _may_see(self, caller: Caller, model: str | None) -> bool:
        return may_see_model(self._live.current, caller, model)

    def _require_store(self) -> StateStore:
        assert self._store is not None, "what is not stored is not saved"
        return self._store

    def _store_of(self, response_id: str) -> StateStore:
        if self._store is None:
            raise response_not_found(response_id)
        return self._store


def _stored_outcome(run: ResponseRun, response: Fields, events: bytes) -> StoredResponse | ConversationTurn | None:
    """Return what to store of an ended response: the response, or its conversation's turn only; None: nothing."""
    context = run.context
    turn = None
    if context.conversation_id is not None and response["status"] in CONTINUABLE:
        input_items, answers = context.input_items, context.times.describe_items(response)
        items = _encode(lambda: (*encode_items(input_items), *encode_items(response["output"], answers)))
        start = BranchStart(context.conversation_item) if context.names_parent else None
        turn = ConversationTurn(context.id, context.conversation_id, run.tenant, run.model, items, start)
    return _stored_response(run, response, turn, events) if context.stores else turn


def _stored_response(
    run: ResponseRun, response: Fields, turn: ConversationTurn | None = None, events: bytes = b""
) -> StoredResponse:
    context = run.context
    items = (*context.history, *context.input_items) if context.owns_history else context.input_items
    stored_response = _encode(
        lambda: StoredResponse.of(run.tenant, run.model, response, items, context.conversation_item, turn, events)
    )
    return replace(stored_response, previous_id=None) if context.owns_history else stored_response


def _encode(encode: Callable[[], T]) -> T:
    try:
        return encode()
    except RecursionError:
        message = "The request is nested too deeply for its response to be stored."
        raise RoundhouseError("invalid_request", message) from None
