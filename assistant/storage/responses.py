"""Stored responses, and responses that are being made and can be read already, with events. `database` has the SQL.

Each reader pulls at its own pace: a slow one delays nobody, and nothing is buffered for it. Whole blocks of events are
compressed; a log then takes a few times the memory of the response's text.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from assistant.storage.conversation_records import (
    ConversationLocks,
    ConversationTurn,
    conversation_not_found,
    encode_items,
)
from assistant.storage.pagination import may_see_model
from assistant.storage.records import (
    CONTINUABLE,
    History,
    HistoryBounds,
    RequestOptions,
    StoredResponse,
    not_continuable,
    not_in_background,
    previous_not_found,
    response_not_found,
    responses_not_stored,
)
from assistant.storage.store import StateStore
from contract.errors import RoundhouseError
from gateway.exchange.plain_responses import new_response_context
from gateway.exchange.stored_end import ObjectWrite, failed_write
from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.items import BranchStart
from gateway.protocols.responses.replayed_events import replay_end, replay_events
from gateway.routing.table import LiveRoutes
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)


T = TypeVar("T")


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
    def events(self) -> EventLog | None:
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
        return new_response_context(headers, self._clock)

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
        return self._store.submit_job(
            lambda database: database.load_history(
                caller.tenant,
                options.previous_id,
                options.references,
                self.history_bounds,
                options.conversation_id,
                options.conversation_start,
            )
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
        """Call `callback` once everything that was to be stored until now is written or lost. It is called at once if
        the gateway stores nothing."""
        if self._store is None:
            callback()
            return

        def end(written: asyncio.Future[None]) -> None:
            written.exception()  # else asyncio says that nobody has looked at it
            callback()

        self._store.submit_job(lambda _: None, is_bounded=False).add_done_callback(end)

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
        stored = _stored_response(run, response)
        return self._require_store().submit_job(lambda database: database.save_objects(stored))

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
        stored_response = await self._store_of(response_id).submit_job(
            lambda database: database.find_response(caller.tenant, response_id)
        )
        if stored_response is None or not self._may_see(caller, stored_response.model):
            raise response_not_found(response_id)
        return stored_response.response

    async def open_events(
        self, caller: Caller, response_id: str, first_number: int, *, is_open_responses: bool
    ) -> EventLog:
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
        log = EventLog.from_stored(
            await self._store_of(response_id).submit_job(
                lambda database: database.find_events(caller.tenant, response_id)
            )
        )
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
        is_deleted = await self._store_of(response_id).submit_job(
            lambda database: database.delete_response(caller.tenant, response_id)
        )
        if not is_deleted:
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
        model_and_items = await self._store_of(response_id).submit_job(
            lambda database: database.list_input_items(caller.tenant, response_id)
        )
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


BLOCK_BYTES: Final = 64 * 1024
"""Bytes of events that are compressed at once; that takes the event loop less than a millisecond."""
DONE: Final = b"data: [DONE]\n\n"
_EVENT_END: Final = b"\n\n"
_HEADER: Final = struct.Struct(">II")
"""Header of a stored block: number of events, compressed bytes."""


class EventLog:
    """The events of one background response in memory, compressed. Belongs to the event loop.

    The response's exchange appends events and calls `end`; any number of readers read them.
    """

    def __init__(self, first_number: int = 0) -> None:
        """`first_number`: number of the first event that will be appended. Do not read events with smaller numbers."""
        self._blocks: list[bytes] = []
        """Compressed events."""
        self._first_numbers: list[int] = []
        """Number of the first event of each block."""
        self._tail: list[bytes] = []
        """Events after the last block."""
        self._tail_first = first_number
        self._tail_size = 0
        self.next_number = first_number
        """Number of the next event to be appended."""
        self.is_ended = False
        self._waiters: list[asyncio.Future[None]] = []

    @classmethod
    def from_stored(cls, stored: bytes) -> EventLog:
        """Restore a log from the result of `to_stored`; empty bytes give a log without events. The log has ended. Bytes
        of another form raise struct.error here, or zlib.error when the events are read."""
        log = cls()
        position = 0
        while position < len(stored):
            count, size = _HEADER.unpack_from(stored, position)
            position += _HEADER.size
            log._first_numbers.append(log.next_number)
            log._blocks.append(stored[position : position + size])
            log.next_number += count
            position += size
        log._tail_first = log.next_number
        log.is_ended = True
        return log

    def to_stored(self, last_events: bytes = b"") -> bytes:
        """Return all events so far, encoded for `from_stored`, which numbers them from 0. Empty if there are none.

        `last_events`: further ones, which are to be stored before readers get them. They have the form that
        `append_events` takes, and are not appended.
        """
        self._seal_tail()
        parts = []
        ends = itertools.pairwise([*self._first_numbers, self.next_number])
        for block, (first, after) in zip(self._blocks, ends, strict=True):
            parts += [_HEADER.pack(after - first, len(block)), block]
        last_events = last_events.removesuffix(DONE)
        if last_events:
            last_block = zlib.compress(last_events, 1)
            parts += [_HEADER.pack(count_events(last_events), len(last_block)), last_block]
        return b"".join(parts)

    def append_events(self, events: bytes) -> None:
        """Append whole server-sent events with LF line ends, and wake the readers.

        They get the next numbers. A `data: [DONE]` at the end of `events` is left out.
        """
        events = events.removesuffix(DONE)
        if not events:
            return
        self._tail.append(events)
        self._tail_size += len(events)
        self.next_number += count_events(events)
        if self._tail_size >= BLOCK_BYTES:
            self._seal_tail()
        self._wake_readers()

    def end(self) -> None:
        """Mark the log as complete, and wake the readers. Append nothing afterwards."""
        self.is_ended = True
        self._wake_readers()

    def read_block(self, number: int) -> bytes:
        """Return one or more whole events, the first with number `number`; empty: no such event was appended yet.

        `number` must not be below the log's first number. Does not wait.
        """
        if number >= self.next_number:
            return b""
        if number >= self._tail_first:
            return _skip_events(b"".join(self._tail), number - self._tail_first)
        index = bisect_right(self._first_numbers, number) - 1
        return _skip_events(zlib.decompress(self._blocks[index]), number - self._first_numbers[index])

    async def wait_for_more(self, timeout_s: float) -> bool:
        """Wait for further events or the end. Returns False if neither comes within `timeout_s` seconds.

        Only what comes after the call ends the wait: call it if `is_ended` is False and `read_block` was empty, without
        awaiting in between.
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def _seal_tail(self) -> None:
        if self._tail:
            self._blocks.append(zlib.compress(b"".join(self._tail), 1))
            self._first_numbers.append(self._tail_first)
            self._tail, self._tail_size, self._tail_first = [], 0, self.next_number

    def _wake_readers(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def follow_events(events: EventLog, first_number: int, silence_s: float) -> AsyncIterator[bytes]:
    """Yield the events from number `first_number` on in blocks, wait for new ones until the log has ended, then yield
    `data: [DONE]`.

    A comment is yielded after each `silence_s` seconds without an event. A `first_number` beyond the last event yields
    no events.
    """
    number = first_number
    while True:
        block = events.read_block(number)
        if block:
            number += count_events(block)
            yield block
        elif events.is_ended:
            break
        elif not await events.wait_for_more(silence_s):
            yield b": heartbeat\n\n"
    yield DONE


def read_all_events(events: EventLog) -> bytes:
    """Return all events from number 0 that have come so far, followed by `data: [DONE]`. Does not wait for more."""
    blocks, number = [], 0
    while block := events.read_block(number):
        number += count_events(block)
        blocks.append(block)
    return b"".join(blocks) + DONE


def count_events(events: bytes) -> int:
    """Return the number of whole server-sent events in `events`: its blank lines. The events must have LF line ends and
    JSON without line breaks; a comment counts as an event."""
    return events.count(_EVENT_END)


def _skip_events(events: bytes, count: int) -> bytes:
    position = 0
    for _ in range(count):
        position = events.index(_EVENT_END, position) + len(_EVENT_END)
    return events[position:]
