"""The responses that are stored, and those that are being made and can be asked for."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.context import ResponseContext
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
from gateway.storage.store import StateStore
from gateway.storage.visibility import may_see_model
from gateway.tenancy.api_keys import Caller

T = TypeVar("T")

logger = logging.getLogger(__name__)

OPEN_RESPONSES: Final = b"openresponses-version"


class ResponseRun(Protocol):
    """A response that is being made, and whose id somebody may know."""

    @property
    def context(self) -> ResponseContext:
        """Its own."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def model(self) -> str:
        """The model's own name."""

    @property
    def response(self) -> Fields | None:
        """What it is now; None: nobody has been told of it yet."""

    @property
    def response_id(self) -> str:
        """Its id."""

    @property
    def events(self) -> ResponseEvents | None:
        """Its events, as far as they have come; None: nobody but its client gets them."""

    def store_outcome(self) -> None:
        """Store it, if it is known by now what became of it."""

    def cancel(self) -> None:
        """End it. Harmless after its end."""


class StoredResponses:
    """All of a gateway's. Belongs to the event loop."""

    def __init__(
        self, store: StateStore | None, live: LiveRoutes, bounds: HistoryBounds, clock: Callable[[], float]
    ) -> None:
        """`store` None: none are stored. `clock` gives Unix time."""
        self._store = store
        self._live = live
        self.history_bounds = bounds
        self._clock = clock
        self._running: dict[str, ResponseRun] = {}
        self.conversation_locks = ConversationLocks()

    # For requests that make them

    @property
    def stores_responses(self) -> bool:
        """Whether responses are stored here."""
        return self._store is not None

    def new_context(self, headers: Sequence[Header]) -> ResponseContext:
        """For a new response to a request with these headers."""
        token = secrets.token_hex(TOKEN_LENGTH // 2)
        return ResponseContext(
            id=id_of(token),
            created_at=int(self._clock()),
            clock=self._clock,
            new_id=item_ids(token),
            is_open_responses=any(name == OPEN_RESPONSES for name, _ in headers),
        )

    def load_history(self, caller: Caller, options: RequestOptions) -> asyncio.Future[History]:
        """What a request continues and refers to; see `StateDatabase.load_history`. Raises RoundhouseError, too."""
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
            caller.tenant, options.previous_id, options.references, self.history_bounds, options.conversation_id
        )

    def check_visible(self, caller: Caller, options: RequestOptions, history: History) -> None:
        """Raises RoundhouseError `previous_response_not_found`, or `conversation_not_found`: the key is not for the
        model that made the response, or that answered last in the conversation."""
        if self._may_see(caller, history.model):
            return
        if options.conversation_id is not None:
            raise conversation_not_found(options.conversation_id, "conversation")
        if options.previous_id is not None:
            raise previous_not_found(options.previous_id, options.previous_id)

    def visible_items(self, caller: Caller, history: History) -> dict[str, Fields]:
        """Of the items referred to, those of models that the key is for; the others are as if they were not there."""
        models = history.referred_models
        return {
            name: item for name, item in history.referenced_items.items() if self._may_see(caller, models.get(name))
        }

    def register_run(self, run: ResponseRun) -> None:
        """It can be asked for from now on."""
        self._running[run.context.id] = run

    def unregister_run(self, run: ResponseRun) -> None:
        """It cannot be asked for any more, except where it is stored."""
        self._running.pop(run.context.id, None)

    def save_outcome(self, run: ResponseRun, response: Fields, events: bytes) -> None:
        """Store what it has come to, and its events (`EventLog.to_stored`), and add that to its conversation. That it
        cannot be stored is said in the log."""
        try:
            stored_object = _stored_outcome(run, response, events)
            if stored_object is not None:
                self._require_store().save_object(stored_object)
        except RoundhouseError as error:
            logger.error("the response %s is not stored: %s", run.context.id, error)  # noqa: TRY400

    def save_new_response(self, run: ResponseRun, response: Fields) -> asyncio.Future[None]:
        """Store what it is at its beginning, if that can be. Raises RoundhouseError `invalid_request`."""
        return self._require_store().save_new_response(_stored_response(run, response))

    # For requests that ask for them. Each raises RoundhouseError `response_not_found` or `response_store_failed`.

    async def get_response(self, caller: Caller, response_id: str) -> Fields:
        """What it is now."""
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
        """The events from `first_number` on of a response in the background, which may still be made.
        `is_open_responses`: see ResponseContext. Raises RoundhouseError `invalid_request`, too: it was not made in the
        background."""
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
            # By a restart, perhaps, whatever number its events had come to.
            log = EventLog(first_number)
            log.append_events(replay_end(response, first_number))
        else:
            log.append_events(replay_events(response, is_open_responses=is_open_responses))
        log.end()
        return log

    async def cancel_response(self, caller: Caller, response_id: str) -> Fields:
        """End it, if it is not over. What it is then."""
        run = self._find_run(caller, response_id)
        if run is not None and run.response is not None:
            run.cancel()
        return await self.get_response(caller, response_id)

    async def delete_response(self, caller: Caller, response_id: str) -> None:
        """Delete it, and end it before if it is not over."""
        await self.cancel_response(caller, response_id)
        if not await self._store_of(response_id).delete_response(caller.tenant, response_id):
            raise response_not_found(response_id)

    async def list_input_items(self, caller: Caller, response_id: str) -> list[Fields]:
        """All items that it was made of, the oldest first: of those that it continues, and its own input."""
        run = self._find_run(caller, response_id)
        if run is not None and run.response is not None:
            return [*run.context.history, *run.context.input_items]
        model_and_items = await self._store_of(response_id).list_input_items(caller.tenant, response_id)
        if model_and_items is None or not self._may_see(caller, model_and_items[0]):
            raise response_not_found(response_id)
        return model_and_items[1]

    # Parts of these

    def _find_run(self, caller: Caller, response_id: str) -> ResponseRun | None:
        """One that runs, and is the caller's to see. One whose end is known is stored first, and runs no more: what
        its client was told, others may count on."""
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
    """None: neither the response is stored nor a conversation that it was made in."""
    context = run.context
    turn = None
    if context.conversation_id is not None and response["status"] in CONTINUABLE:
        items = _encode(lambda: encode_items([*context.input_items, *response["output"]]))
        turn = ConversationTurn(context.id, context.conversation_id, run.tenant, run.model, items)
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
