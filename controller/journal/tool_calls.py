"""Writes the calls of tools that gateways report into the journal: each call once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from controller.journal.entry import NewEntry
from controller.journal.event_log import EventLog
from controller.redaction.patterns import mask_text
from controller.redaction.redactor import Redact
from controller.schema.routing import MOST_TOOL_CALLS, GatewayReport
from controller.schema.tools import ToolCallRecord, replica_model

KNOWN_GATEWAYS: Final = 64
"""Starts of gateways whose last written call is remembered."""
SHOWN_CHARS: Final = 200
"""Characters of a call's arguments, and of each of its names, that an entry has at most."""


class ToolCallRecorder:
    """Appends an entry to `journal` for each call of a tool that a gateway reports for the first time, stamped with the
    clock's time. Every report repeats a gateway's latest calls; which of them are written already follows from the
    gateway's id, which is new with each start of a gateway, and from the call's number. An earlier controller's calls
    are read from the journal."""

    def __init__(self, journal: EventLog, clock: Callable[[], float], redact: Redact) -> None:
        """`redact` masks the secrets of a model; an MCP server's are known by its `replica_model`."""
        self._journal = journal
        self._clock = clock
        self._redact = redact
        self._written = self._read_written()
        """Gateway to the number of its last written call, the gateway that wrote last at the end."""

    def record_calls(self, report: GatewayReport) -> None:
        """Record the calls of a report that are not recorded yet, in their order, and how many are missing before them:
        a report holds at most 64 (`MOST_TOOL_CALLS`). Secrets are masked, and each text is cut to 200 characters
        (`SHOWN_CHARS`). Never raises."""
        gateway, last = report.gateway_id, self._written.get(report.gateway_id, 0)
        calls = [call for call in report.tool_calls[-MOST_TOOL_CALLS:] if call.sequence > last]
        if not calls:
            return
        self._journal.record_entries(self._make_entries(gateway, last, calls), self._clock())
        self._written.pop(gateway, None)
        self._written[gateway] = max(call.sequence for call in calls)
        for forgotten in list(self._written)[:-KNOWN_GATEWAYS]:
            del self._written[forgotten]

    def _make_entries(self, gateway: str, last: int, calls: list[ToolCallRecord]) -> Iterator[NewEntry]:
        for call in sorted(calls, key=lambda each: each.sequence):
            if call.sequence <= last:
                continue
            if (missing := call.sequence - last - 1) > 0:
                message = f"{missing} calls of tools are not recorded: there were more than a report holds"
                yield NewEntry("tool", gateway, message, details={"gateway": gateway, "missing": missing})
            last = call.sequence
            yield self._make_entry(gateway, call)

    def _make_entry(self, gateway: str, call: ToolCallRecord) -> NewEntry:
        tool = self._shown(call, call.tool)
        outcome = self._shown(call, call.outcome)
        return NewEntry(
            "tool",
            self._shown(call, call.caller),
            f"called {tool}: {outcome}, {call.duration_ms} ms",
            details={
                "tool": tool,
                "server": None if call.server is None else self._shown(call, call.server),
                "arguments": self._shown(call, call.arguments),
                "outcome": outcome,
                "duration_ms": call.duration_ms,
                "output_bytes": call.output_bytes,
                "at": call.at,
                "request_id": self._shown(call, call.request_id),
                "gateway": gateway,
                "sequence": call.sequence,
            },
        )

    def _shown(self, call: ToolCallRecord, text: str) -> str:
        """Return a text of a gateway with the secrets masked that it marks and that are known of the call's server, cut
        to `SHOWN_CHARS`."""
        text = mask_text(text)
        if call.server is not None:
            text = self._redact(replica_model(call.server), text)
        return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."

    def _read_written(self) -> dict[str, int]:
        written: dict[str, int] = {}
        newest_first = self._journal.read_page(("tool",), None, None, KNOWN_GATEWAYS * MOST_TOOL_CALLS)
        for entry in reversed(newest_first):
            gateway, sequence = entry.details.get("gateway"), entry.details.get("sequence")
            if isinstance(gateway, str) and isinstance(sequence, int):
                written[gateway] = max(sequence, written.pop(gateway, 0))
        return dict(list(written.items())[-KNOWN_GATEWAYS:])
