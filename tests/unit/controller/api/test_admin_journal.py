"""What a stream of events sends, part by part."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controller.api.admin_journal import HEARTBEAT, _events
from controller.journal.entry import NewEntry
from controller.journal.event_log import FOLLOWED_AT_ONCE, EventLog

OTHER = NewEntry("failure", "engine", "boom", "other")
OURS = NewEntry("failure", "engine", "crack", "m")


async def test_what_was_not_asked_for_is_passed_over_without_an_empty_part(tmp_path: Path) -> None:
    journal = EventLog(tmp_path / "journal.db")
    entries = journal.record_entries([OTHER] * FOLLOWED_AT_ONCE + [OURS], 1_000.0)
    assert len(entries) == FOLLOWED_AT_ONCE + 1
    stream = _events(journal, 0, "m", set(), None)
    async with asyncio.timeout(30):
        assert [await anext(stream), await anext(stream)] == [
            HEARTBEAT,
            f"id: {entries[-1].id}\nevent: failure\ndata: {entries[-1].model_dump_json()}\n\n".encode(),
        ]
    journal.close()
