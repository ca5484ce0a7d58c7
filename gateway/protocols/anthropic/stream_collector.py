"""Builds a blocking Anthropic message from the events of a stream."""

from __future__ import annotations

import json
from typing import Any, Final

from gateway.protocols.chat.stream_collector import merge_values
from gateway.protocols.common import usage
from gateway.protocols.common.event_reader import EventCollector, Fields

_UNKNOWN_ID: Final = "msg_unknown"
_PARTS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Type of a delta to its field whose strings are joined."""


class MessagesCollector(EventCollector):
    """`StreamCollector` of one Anthropic message, from typed events. Content blocks are ordered by their index. The
    stream is complete once `message_stop` has come."""

    __slots__ = ("_blocks", "_is_stopped", "_message", "_model", "_usage")

    def __init__(self, model: str) -> None:
        """`model` is the model's name for a stream that lacks `message_start`."""
        super().__init__()
        self._model = model
        self._message: Fields = {}
        self._usage: Fields = {}
        self._blocks: dict[int, _Block] = {}
        self._is_stopped = False

    def _take_event(self, fields: Fields) -> None:
        kind = fields.get("type")
        if kind == "content_block_delta":
            self._add_delta(fields.get("index"), fields.get("delta"))
        elif kind == "content_block_start":
            # llama-server starts a block a second time in its last events.
            index, block = fields.get("index"), fields.get("content_block")
            if isinstance(index, int) and isinstance(block, dict) and index not in self._blocks:
                self._blocks[index] = _Block(block)
        elif kind == "message_start" and isinstance(fields.get("message"), dict):
            self._message |= fields["message"]
            self._note_usage(fields["message"].get("usage"))
        elif kind == "message_delta":
            if isinstance(fields.get("delta"), dict):
                self._message |= fields["delta"]
            self._note_usage(fields.get("usage"))
        elif kind == "message_stop":
            self._is_stopped = True
        elif kind == "error":
            self._take_error(fields.get("error"))

    def _add_delta(self, index: Any, delta: Any) -> None:
        if not isinstance(index, int) or not isinstance(delta, dict):
            return
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Block({})
        block.add_delta(delta)

    def _note_usage(self, counts: Any) -> None:
        if isinstance(counts, dict):
            self._usage |= {name: value for name, value in counts.items() if value is not None}
            self.usage = usage.usage_of(self._usage)

    def _build_answer(self) -> Any:
        if not self._is_stopped:
            return None
        # llama-server leaves `message_start` out if the first token is only a part of a character.
        start = {"id": _UNKNOWN_ID, "type": "message", "role": "assistant", "content": [], "model": self._model}
        content = [self._blocks[index].build_block() for index in sorted(self._blocks)]
        return {**start, **self._message, "content": content, "usage": {"input_tokens": 0, **self._usage}}


class _Block:
    """A content block that grows with each delta."""

    __slots__ = ("_fields", "_texts")

    def __init__(self, start: Fields) -> None:
        self._fields = start
        self._texts: dict[str, list[str]] = {}

    def add_delta(self, delta: Fields) -> None:
        """Add one delta to the block."""
        name = _PARTS.get(str(delta.get("type")))
        if name is not None and isinstance(delta.get(name), str):
            self._texts.setdefault(name, []).append(delta[name])
            return
        for field, value in delta.items():
            if field == "citation":
                self._fields["citations"] = merge_values(self._fields.get("citations") or [], [value])
            elif field != "type":
                self._fields[field] = merge_values(self._fields.get(field), value)

    def build_block(self) -> Fields:
        """Return the block as a blocking answer holds it."""
        block = dict(self._fields)
        for name in ("text", "thinking"):
            if name in self._texts:
                block.setdefault("type", name)
                block[name] = str(block.get(name) or "") + "".join(self._texts[name])
        if block.get("type") == "tool_use" or "partial_json" in self._texts:
            block["input"] = _input("".join(self._texts.get("partial_json", ()))) or block.get("input") or {}
        return block


def _input(text: str) -> Fields | None:
    """Return a tool call's arguments; None if the model's text is not a JSON object."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
