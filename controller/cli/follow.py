"""Follows events across lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from pydantic import ValidationError

from controller.cli.admin_client import AdminClient
from controller.cli.client_errors import NoControllerError, RequestRefusedError
from controller.cli.output import print_error
from controller.cli.sse import SseEvent
from controller.schema.errors import ErrorEnvelope
from controller.schema.journal import JournalEntry

FIRST_PAUSE_S = 0.2
"""Seconds before the first reconnect."""
LONGEST_PAUSE_S = 5.0
"""Maximum seconds between two reconnects."""
GAP = "gap"
"""Kind of the event that reports missing entries."""
ERROR = "error"
"""Kind of the last event of a gateway whose own end, or whose controller's end, breaks the stream."""


class EventFollower:
    """Passes each entry once, in order, to `handle_entry`, over as many connections as needed. Entries that the
    controller no longer keeps are missing, and an error line says so. `model` None and empty `kinds`: all. Uses an open
    `client`, and does not close it."""

    def __init__(
        self, client: AdminClient, model: str | None, kinds: Sequence[str], handle_entry: Callable[[JournalEntry], None]
    ) -> None:
        self._client = client
        self._model = model
        self._kinds = kinds
        self._handle_entry = handle_entry
        self._last_id = ""
        self._pause_s = FIRST_PAUSE_S
        self._is_reported = False

    async def follow_events(self, after: int | None) -> None:
        """Follow events until cancelled: those after the entry with the id `after`, or new ones where it is None. Never
        returns.

        A lost connection is reported once on stderr and made again, without a limit. Raises NoControllerError only
        where no controller answers at the start, and RequestRefusedError where it refuses at the start, or later with a
        status below 500; and CommandError for any other failure, also later. What `handle_entry` raises passes.
        """
        newest_id = (await self._client.list_models()).last_event_id
        self._last_id = str(newest_id if after is None else after)
        while True:
            reason = await self._follow_once()
            if not self._is_reported:
                print_error(f"the connection broke ({reason}); asking for what came after event {self._last_id}")
                self._is_reported = True
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    async def _follow_once(self) -> str:
        """Follow events over one connection. Returns why it ended."""
        events = self._client.follow_events(after=self._last_id, model=self._model, kinds=self._kinds)
        try:
            async with aclosing(events):
                async for event in events:
                    if event.kind == ERROR:
                        return _reason_of(event.data)
                    self._on_event(event)
        except NoControllerError as error:
            return error.reason
        except RequestRefusedError as error:
            # A gateway whose controller is away answers with 5xx.
            if error.status < 500:
                raise
            return str(error)
        return "the stream ended"

    def _on_event(self, event: SseEvent) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._is_reported = False
        if event.id:
            self._last_id = event.id
        if event.kind == GAP:
            print_error("events were lost here: they are no longer kept; `roundhouse history` has the changes")
            return
        try:
            self._handle_entry(JournalEntry.model_validate_json(event.data))
        except ValidationError:
            print_error(f"event {event.id or '?'} cannot be read: it is of another version")


def _reason_of(data: str) -> str:
    try:
        return ErrorEnvelope.model_validate_json(data).error.message
    except ValidationError:
        return "it ended with an error"
