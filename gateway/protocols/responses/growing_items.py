"""Items of a response while they grow. Pure."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import encode_json
from gateway.protocols.responses import response_object as made
from gateway.protocols.responses.items import custom_input


class PartKind(NamedTuple):
    """A kind of content part: where it stands in a response, and the names of its events. One of `TEXT`, `REFUSAL` and
    `THOUGHT`."""

    item: str
    """Type of the item that holds the part."""
    event: str
    """Name of its events, without `.delta` and `.done`."""
    field: str
    """Field that holds its text."""


TEXT: Final = PartKind("message", "response.output_text", "text")
REFUSAL: Final = PartKind("message", "response.refusal", "refusal")
THOUGHT: Final = PartKind("reasoning", "response.reasoning", "text")
"""Thoughts, under Open Responses' event names; OpenAI's begin with `response.reasoning_text`."""


class ContentPart:
    """A content part of a message or reasoning item while its text grows. `ResponseWriter` holds the open one."""

    __slots__ = ("_texts", "annotations", "kind", "logprobs", "place", "start", "tail")

    def __init__(self, kind: PartKind, place: Fields) -> None:
        """`place` holds the fields that say where the part is (`item_id`, `output_index`, `content_index`); each of its
        events repeats them."""
        self.kind = kind
        self.place = place
        self.start = delta_start(kind.event, place)
        self.tail = b',"logprobs":' if kind is TEXT else b""
        self._texts: list[str] = []
        self.logprobs: list[Fields] = []
        self.annotations: list[Fields] = []
        """Citations in the text; set when the text is whole."""

    def append_text(self, text: str) -> None:
        """Add text to the part."""
        self._texts.append(text)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def part(self) -> Fields:
        """The part, with the text so far, as the item's content holds it. A new object at each call."""
        if self.kind is TEXT:
            return made.text_part(self.text, self.logprobs, self.annotations)
        return made.refusal_part(self.text) if self.kind is REFUSAL else made.reasoning_part(self.text)


class ContentItem:
    """A message or reasoning item while it grows: its complete content parts, without the open one. `name` is its id,
    `index` its position in the output."""

    __slots__ = ("index", "kind", "name", "parts", "status")

    def __init__(self, kind: str, name: str, index: int) -> None:
        self.kind = kind
        self.name = name
        self.index = index
        self.parts: list[Fields] = []
        self.status = "in_progress"

    @property
    def item(self) -> Fields:
        """The item, with its complete parts, as events and responses hold it. A new object at each call."""
        make = made.message_item if self.kind == "message" else made.reasoning_item
        return make(self.name, list(self.parts), self.status)


class SearchItem:
    """A search in vector stores, which was over before the answer began. `index` is its position in the output."""

    __slots__ = ("index", "item", "name", "status")

    def __init__(self, item: Fields, index: int) -> None:
        """`item` is the whole item."""
        self.item = item
        self.name: str = item["id"]
        self.index = index
        self.status: str = item["status"]

    @property
    def beginning(self) -> Fields:
        """The item as the event that adds it shows it: `in_progress`, without queries and results. A new object at each
        call."""
        return {**self.item, "status": "in_progress", "queries": [], "results": None}


class CallItem:
    """A call of a function or of a custom tool while its arguments grow. `name` is the item's id, `index` its position
    in the output."""

    __slots__ = ("_arguments", "_call_id", "_tool", "index", "is_custom", "name", "place", "start", "status")

    def __init__(self, name: str, index: int, call_id: str, tool: str, *, is_custom: bool) -> None:
        self.name = name
        self.index = index
        self.is_custom = is_custom
        self.place = {"item_id": name, "output_index": index}
        self.start = delta_start("response.function_call_arguments", self.place)
        self.status = "in_progress"
        self._call_id = call_id
        self._tool = tool
        self._arguments: list[str] = []

    def append_arguments(self, arguments: str) -> None:
        """Add a part of the JSON arguments, cut anywhere; for a custom tool, those of the function that stands for
        it."""
        self._arguments.append(arguments)

    @property
    def input_text(self) -> str:
        """The JSON arguments so far. For a custom tool, its input; while the arguments are not whole, their JSON."""
        arguments = "".join(self._arguments)
        return custom_input(arguments) if self.is_custom else arguments

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a complete JSON object, to which nothing can be added."""
        try:
            return isinstance(json.loads("".join(self._arguments)), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def item(self) -> Fields:
        """The item, with the arguments so far, as events and responses hold it. A new object at each call."""
        make = made.custom_call_item if self.is_custom else made.function_call_item
        return make(self.name, self._call_id, self._tool, self.input_text, self.status)


def delta_start(event: str, place: Fields) -> bytes:
    """Return the bytes of a delta event up to its text."""
    data = encode_json({"type": f"{event}.delta", **place})
    return b'event: %b.delta\ndata: %b,"delta":' % (event.encode(), data[:-1])
