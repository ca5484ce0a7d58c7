"""Field names of thoughts in chat completion answers: sends them under both names that engines and clients use. Pure.

llama-server, our worker and many clients use `reasoning_content`; vLLM, gpt-oss and others use `reasoning`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.sse import data_of, split_events

MARK: Final = b'"reasoning'
"""Bytes that occur wherever there are thoughts, and never inside a JSON string, where a quote follows a backslash."""

_NAMES: Final = ("reasoning_content", "reasoning")
_THOUGHT: Final = re.compile(rb'"(reasoning(?:_content)?)"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
_NULL: Final = re.compile(rb'("(reasoning(?:_content)?)"\s*:\s*)null')


def alias_in_events(events: bytes) -> bytes:
    """Return whole events of a stream with each thought under both names, `reasoning_content` and `reasoning`. Events
    that have both already, or no thought, pass unchanged."""
    if _has_one_name(events):
        return _THOUGHT.sub(_add_alias, events)
    return b"".join([_event(event) for event in split_events(events)])


def alias_in_body(body: bytes) -> bytes:
    """Return the body of a blocking answer with each thought under both names, `reasoning_content` and `reasoning`; the
    same object if it has no thought, or both names already. A body that is no JSON passes."""
    if MARK not in body:
        return body
    return _THOUGHT.sub(_add_alias, body) if _has_one_name(body) else _json(body)


def alias_in_message(message: Any) -> Any:
    """Return a message or a delta with its thoughts under both names; the same object if it has none, has both names,
    or is no object. Otherwise a copy."""
    if not isinstance(message, dict):
        return message
    reasoning_content, reasoning = message.get("reasoning_content"), message.get("reasoning")
    thought = reasoning_content or reasoning
    if reasoning_content == reasoning or not isinstance(thought, str) or (reasoning_content and reasoning):
        return message
    return message | dict.fromkeys(_NAMES, thought)


def _has_one_name(text: bytes) -> bool:
    return not (b'"reasoning"' in text and b'"reasoning_content"' in text)


def _add_alias(match: re.Match[bytes]) -> bytes:
    other_name = b"reasoning" if match[1] == b"reasoning_content" else b"reasoning_content"
    return b'%b,"%b":%b' % (match[0], other_name, match[2])


def _event(event: bytes) -> bytes:
    if MARK not in event:
        return event
    thoughts, nulls = _THOUGHT.findall(event), _NULL.findall(event)
    if len(thoughts) == len(nulls) == event.count(b'"delta"') == 1:  # sent by servers that know both names
        return _NULL.sub(lambda match: match[1] + thoughts[0][1], event)
    data = data_of(event)
    new_data = _json(data)
    return event if new_data is data else b"data: %b\n\n" % new_data


def _json(text: bytes) -> bytes:
    """Return JSON with each thought under both names, for an engine that sends both and leaves one of them null."""
    fields = decode_json(text)
    choices = fields.get("choices") if isinstance(fields, dict) else None
    is_changed = False
    for choice in choices if isinstance(choices, list) else ():
        for name in ("message", "delta"):
            message = choice.get(name) if isinstance(choice, dict) else None
            if (new_message := alias_in_message(message)) is not message:
                choice[name] = new_message
                is_changed = True
    return encode_json(fields) if is_changed else text
