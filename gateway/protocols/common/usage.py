"""Reads token counts in the forms of all API families. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from gateway.protocols.common.dialect import Usage

OBJECT: Final = re.compile(rb'"usage"\s*:\s*\{')
"""A usage object. Its key cannot occur inside a JSON string, where each quote follows a backslash."""
_SPAN = 4096
"""Bytes within which a usage object ends."""
_DECODER = json.JSONDecoder()


def usage_in(body: bytes) -> Usage | None:
    """Return the token counts in the last `usage` object of a blocking answer, without decoding the rest of the body.

    None if the body has no such object, or if the last one is damaged or longer than 4096 bytes.
    """
    end = len(body)
    while (start := body.rfind(b'"usage"', 0, end)) >= 0:
        key = OBJECT.match(body, start)
        if key is not None:
            span = body[key.end() - 1 : key.end() + _SPAN].decode(errors="replace")
            try:
                return usage_of(_DECODER.raw_decode(span)[0])
            except (ValueError, RecursionError):
                return None
        end = start
    return None


def usage_of(value: Any) -> Usage | None:
    """Return the counts of a decoded usage object, under the names of chat completions or of responses and messages;
    None if `value` is no object.

    Anthropic's cached input tokens are added to the prompt. A count that is missing or no whole number from 0 is 0,
    except that `total_tokens` stands for a missing `prompt_tokens`, as in rankings.
    """
    if not isinstance(value, dict):
        return None
    if "input_tokens" in value or "output_tokens" in value:
        read_tokens = _count(value.get("cache_read_input_tokens"))
        written_tokens = _count(value.get("cache_creation_input_tokens"))
        prompt_tokens = _count(value.get("input_tokens")) + read_tokens + written_tokens
        cached_tokens = read_tokens if "cache_read_input_tokens" in value else _cached_tokens(value, "input")
        return Usage(prompt_tokens, _count(value.get("output_tokens")), cached_tokens)
    prompt_tokens = _count(value["prompt_tokens"] if "prompt_tokens" in value else value.get("total_tokens"))
    return Usage(prompt_tokens, _count(value.get("completion_tokens")), _cached_tokens(value, "prompt"))


def add_usage(sum_: Usage | None, usage: Usage) -> Usage:
    """Return the usage of several answers to one prompt after one more answer. `sum_` is the usage of those before;
    None: there are none. Completion tokens are added up; the prompt counts once, with the larger of the two counts."""
    if sum_ is None:
        return usage
    cached_tokens = usage.cached if sum_.cached is None else sum_.cached
    return Usage(max(sum_.prompt, usage.prompt), sum_.completion + usage.completion, cached_tokens)


class UsageTally:
    """Adds up the usage of one OpenAI stream, event by event. `usage` is the usage of all answers so far; None: no
    event reported any.

    An event without choices reports the whole stream, once, or once per choice (llama-server). An event with choices
    reports its own choice's usage, which grows until that choice ends (vLLM's continuous usage).
    """

    __slots__ = ("_ended", "_whole", "usage")

    def __init__(self) -> None:
        self._whole: Usage | None = None
        self._ended: Usage | None = None
        self.usage: Usage | None = None

    def note_usage(self, value: Any, choices: Any) -> None:
        """Add the decoded `usage` of an event; `choices` are those of the same event, which may be missing or empty.

        Ignores a value that is no object, and events with choices after one without.
        """
        usage = usage_of(value)
        if usage is None:
            return
        if not choices:
            self.usage = self._whole = add_usage(self._whole, usage)
        elif self._whole is None:
            self.usage = add_usage(self._ended, usage)
            if isinstance(choices, list) and isinstance(choices[0], dict) and choices[0].get("finish_reason"):
                self._ended = self.usage


def _cached_tokens(usage: dict[str, Any], kind: str) -> int | None:
    details = usage.get(f"{kind}_tokens_details")
    tokens = details.get("cached_tokens") if isinstance(details, dict) else None
    return None if tokens is None else _count(tokens)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
