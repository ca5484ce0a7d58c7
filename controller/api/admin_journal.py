"""Routes of the admin API for events and history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, get_args

from fastapi import FastAPI, Header, Query
from fastapi.responses import StreamingResponse

from contract.journal import HISTORY_KINDS, EventKind, History, JournalEntry
from controller.admin.service import AdminService
from controller.api.requests import error_responses
from controller.journal import EventLog

HEARTBEAT_S = 10.0
"""Seconds of silence after which an event stream sends a heartbeat."""
HEARTBEAT = b": ka\n\n"
"""An SSE comment, which clients ignore."""
PAGE = 500
"""Maximum number of entries in one answer of the history."""
_TAGS: list[Any] = ["admin"]

_EVENT = {
    "type": "object",
    "description": "One event.",
    "properties": {
        "id": {"type": "string", "description": "Id of the entry; missing if `event` is `gap`."},
        "event": {"enum": [*get_args(EventKind), "gap"]},
        "data": {"type": "string", "description": "The entry as JSON.", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}

Model = Annotated[str | None, Query(description="Return only entries of this model.", max_length=400)]
Kinds = Annotated[list[EventKind] | None, Query(description="Return only entries of these kinds; may be repeated.")]
LARGEST_ID = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly."""
After = Annotated[
    int | None,
    Query(
        ge=0,
        le=LARGEST_ID,
        description="Begin after the entry with this id; 0: begin with the oldest entry that is kept.",
    ),
]
Before = Annotated[
    int | None,
    Query(ge=0, le=LARGEST_ID, description="Return only entries that are older than the entry with this id."),
]
_LONGEST_ID = len(str(LARGEST_ID))


def declare_journal(app: FastAPI, journal: EventLog, service: AdminService) -> None:
    """Add the routes `/v1/admin/events` (a stream) and `/v1/admin/history` to `app`."""

    @app.get(
        "/v1/admin/events",
        tags=_TAGS,
        summary="Events",
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "Server-sent events.",
                "content": {"text/event-stream": {"schema": _EVENT}},
            },
            **error_responses(),
        },
    )
    async def events(
        model: Model = None,
        kind: Kinds = None,
        after: After = None,
        for_s: Annotated[
            float | None,
            Query(
                gt=0,
                le=86400,
                allow_inf_nan=False,
                description="End the stream after this many seconds; default: never.",
            ),
        ] = None,
        last_event_id: Annotated[
            str | None,
            Header(description="Id of the last event that the client has received. The stream begins after it."),
        ] = None,
    ) -> StreamingResponse:
        """State changes, steps of plans, failures, statements and edits as they happen, as server-sent events: `id` is
        the entry's, `event` its kind, `data` the entry as JSON. `Last-Event-ID` (or `after`) resumes, also after a
        restart of the controller; an event `gap` says that entries after it are no longer kept. Without either, the
        stream begins with the next event."""
        start_id = after if (last_seen_id := _id_in(last_event_id)) is None else last_seen_id
        seen_id = journal.newest_id if start_id is None else start_id
        stream = _events(journal, seen_id, model and service.resolve_known_name(model), set(kind or ()), for_s)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    @app.get(
        "/v1/admin/history",
        tags=_TAGS,
        summary="History",
        responses=error_responses(),
    )
    async def history(
        model: Model = None,
        kind: Kinds = None,
        limit: Annotated[int, Query(ge=1, le=PAGE, description="Maximum number of entries.")] = 100,
        before: Before = None,
    ) -> History:
        """Who or what changed what, and when: edits of files, loads and unloads, failures of engines. The newest first.
        Without `kind`, only the kinds that change something."""
        kinds = tuple(kind or HISTORY_KINDS)
        entries = journal.read_page(kinds, model and service.resolve_known_name(model), before, limit + 1)
        has_more = len(entries) > limit
        return History(entries=entries[:limit], next_before=entries[limit - 1].id if has_more else None)


def _id_in(header: str | None) -> int | None:
    """Return the event id in a `Last-Event-ID` header. None means that the header is missing or no id."""
    if header is None or not header.isascii() or not header.isdigit():
        return None
    return min(int(header), LARGEST_ID) if len(header) <= _LONGEST_ID else LARGEST_ID


async def _events(
    journal: EventLog, seen_id: int, model: str | None, kinds: set[EventKind], for_s: float | None
) -> AsyncIterator[bytes]:
    # 0 asks for every entry that is kept.
    if seen_id and journal.lacks_after(seen_id):
        yield b'event: gap\ndata: {"message": "entries after the last one seen are no longer kept"}\n\n'
        seen_id = seen_id if seen_id <= journal.newest_id else 0
    yield HEARTBEAT  # so that the headers leave at once
    told_id = seen_id
    loop = asyncio.get_running_loop()
    ends_at = float("inf") if for_s is None else loop.time() + for_s
    beat_at = loop.time() + HEARTBEAT_S
    while (now := loop.time()) < ends_at:
        if now >= beat_at:
            # The id of what was not selected: who resumes after it has lost nothing.
            yield HEARTBEAT if seen_id == told_id else f"id: {seen_id}\n".encode() + HEARTBEAT
            told_id, beat_at = seen_id, now + HEARTBEAT_S
        try:
            async with asyncio.timeout(min(beat_at, ends_at) - now):
                entries = await journal.wait_for_entries(seen_id)
        except TimeoutError:
            continue
        seen_id = entries[-1].id
        selected_entries = [entry for entry in entries if _is_selected(entry, model, kinds)]
        if selected_entries:
            yield b"".join(_event(entry) for entry in selected_entries)
            told_id, beat_at = selected_entries[-1].id, loop.time() + HEARTBEAT_S


def _is_selected(entry: JournalEntry, model: str | None, kinds: set[EventKind]) -> bool:
    return (model is None or entry.model == model) and (not kinds or entry.kind in kinds)


def _event(entry: JournalEntry) -> bytes:
    return f"id: {entry.id}\nevent: {entry.kind}\ndata: {entry.model_dump_json()}\n\n".encode()
