"""Counts the tokens of an engine's stream that ends before the engine reports its own count. Pure.

Engines send one event for each token, with few exceptions. Not every event has a token: the first one may hold only the
role, the last ones a finish reason, the usage and `[DONE]`. Where an engine tells a count in each event (llama-server's
`timings_per_token`), that counts.
"""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|thinking|arguments|partial_json|refusal)"\s*:\s*"[^"]'
    rb'|"name"\s*:\s*"[^"]'
)
"""Text of the model in an event of any API family, or the name of a tool that it calls. A quote inside a JSON string
follows a backslash, so text of the model cannot contain such a key."""
_REPORTED: Final = re.compile(rb'"predicted_n"\s*:\s*(\d+)')
"""llama-server's own count of what was generated so far."""
_BLANK_LINE: Final = b"\n\n"
_LEAD_BYTES: Final = 256 * 1024
"""Bytes within which the first text is looked for."""


class TokenEventCounter:
    """Counts the events of one stream, to tell about how many tokens came (`count_tokens`) if the engine does not
    report it. One instance serves one stream; pass every part of it to `take_data`, in order."""

    __slots__ = ("_is_begun", "_last", "_lead", "_lead_events", "_second_last", "events")

    def __init__(self) -> None:
        self.events = 0
        """Events that came, about one per token."""
        self._lead = b""
        self._is_begun = False
        self._lead_events = 0
        self._second_last = self._last = b""

    def take_data(self, data: bytes) -> int:
        """Note the next part of the stream, cut anywhere, and return `events`, the number of events so far."""
        self._second_last = last = self._last
        self._last = data
        self.events += data.count(_BLANK_LINE)
        if data.startswith(b"\n") and last.endswith(b"\n") and not last.endswith(_BLANK_LINE):
            self.events += 1  # its blank line was cut
        if not self._is_begun:
            self._look_for_text(data)
        return self.events

    @property
    def tail(self) -> bytes:
        """The last two parts of the stream, joined: an event may be cut between them. Empty before the first."""
        return self._second_last + self._last

    def count_tokens(self) -> int:
        """Return the tokens that came so far: the engine's own count if the last two parts of the stream have one, else
        the number of events from the first to the last that has text; 0 if none had."""
        tail = self.tail
        reported = _REPORTED.findall(tail)
        if reported:
            return int(reported[-1])
        if not self._is_begun:
            return 0
        end_of_text = 0
        for match in _TEXT.finditer(tail):
            end_of_text = match.end()
        # The first blank line ends the event of the last text, or one that began before the tail.
        without_text = max(0, tail.count(_BLANK_LINE, end_of_text) - 1)
        return max(0, self.events - self._lead_events - without_text)

    def _look_for_text(self, data: bytes) -> None:
        self._lead = lead = self._lead + data
        match = _TEXT.search(lead)
        if match is not None or len(lead) > _LEAD_BYTES:
            self._is_begun = True
            self._lead_events = 0 if match is None else lead.count(_BLANK_LINE, 0, match.start())
            self._lead = b""
