"""Anthropic's messages: reads the conversation of a request. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import (
    Assistant,
    Call,
    Fields,
    Image,
    Part,
    System,
    Text,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.field_reader import (
    choice_error,
    describe_value,
    field_error,
    optional_field,
    require_choice,
    require_field,
    require_value,
)

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_BILLING: Final = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\s]*;)*\s*")
"""Start of Claude Code's system prompt, removed here. It serves Anthropic's billing and differs in each request, so
that no engine could reuse its prefix cache."""


def read_turns(fields: Fields) -> tuple[Turn, ...]:
    """Return the turns in `system` and `messages` of a request, in order, those of `system` first. User or assistant
    messages in a row become one turn, as in Anthropic's API. The tool results of a message precede its text. An empty
    assistant message at the end is dropped.

    Raises:
        RoundhouseError: `invalid_request`, or `modality_unsupported` for a document that is not text; `param` is the
            path to the value, such as `messages[1].content[0].type`.
    """
    turns: list[Turn] = list(_system(fields.get("system"), "system"))
    messages = require_value(fields.get("messages"), list, "messages")
    if not messages:
        raise field_error("messages", "must not be empty")
    for number, message in enumerate(messages):
        for turn in _message(message, f"messages[{number}]"):
            _add(turns, turn)
    if turns and turns[-1] == Assistant():
        turns.pop()  # an empty turn, which gives the answer nothing to continue
    return tuple(turns)


def _add(turns: list[Turn], turn: Turn) -> None:
    last = turns[-1] if turns else None
    if isinstance(last, User) and isinstance(turn, User):
        turns[-1] = replace(last, parts=last.parts + turn.parts)
    elif isinstance(last, Assistant) and isinstance(turn, Assistant):
        text = "\n\n".join(filter(None, (last.text, turn.text)))
        thought = "\n\n".join(filter(None, (last.thought, turn.thought)))
        turns[-1] = replace(last, text=text, thought=thought, calls=last.calls + turn.calls)
    else:
        turns.append(turn)


def _message(value: Any, place: str) -> Iterable[Turn]:
    message: Fields = require_value(value, dict, place)
    role, content = message.get("role"), message.get("content")
    if role == "user":
        return _user(content, place)
    if role == "assistant":
        return (_assistant(content, place),)
    if role == "system":
        return _system(content, f"{place}.content", place)
    raise choice_error(role, ("user", "assistant", "system"), f"{place}.role")


def _system(content: Any, place: str, turn_place: str = "system") -> Iterator[System]:
    if content is None:
        return
    texts = [content] if isinstance(content, str) else [_text_only(*each) for each in _blocks(content, place)]
    for each in texts:
        text = _BILLING.sub("", each, count=1) if each.startswith("x-anthropic-billing-header:") else each
        if text:
            yield System(text, turn_place)


def _text_only(block: Fields, place: str) -> str:
    require_choice(block["type"], ("text",), f"{place}.type")
    return require_field(block, "text", str, place)


def _user(content: Any, place: str) -> Iterator[Turn]:
    if isinstance(content, str):
        yield User((Text(content),), place)
        return
    parts: list[Part] = []
    empty = True
    for block, block_place in _blocks(content, f"{place}.content"):
        empty = False
        if block["type"] == "tool_result":
            yield _tool_result(block, block_place)
        else:
            parts.extend(_parts(block, block_place))
    if empty:
        raise field_error(f"{place}.content", "must not be empty")
    if parts:
        yield User(tuple(parts), place)


def _assistant(content: Any, place: str) -> Assistant:
    if isinstance(content, str):
        return Assistant(content, place=place)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    for block, block_place in _blocks(content, f"{place}.content"):
        match block["type"]:
            case "text":
                texts.append(require_field(block, "text", str, block_place))
            case "thinking":
                thoughts.append(require_field(block, "thinking", str, block_place))
            case "tool_use":
                calls.append(_call(block, block_place))
            case "redacted_thinking":
                pass  # encrypted for Anthropic's models
            case kind:
                raise choice_error(kind, ("text", "thinking", "redacted_thinking", "tool_use"), f"{block_place}.type")
    return Assistant("".join(texts), "\n\n".join(thoughts), tuple(calls), place=place)


def _call(block: Fields, place: str) -> Call:
    arguments: Fields = require_field(block, "input", dict, place)
    return Call(require_field(block, "id", str, place), require_field(block, "name", str, place), _ENCODE(arguments))


def _tool_result(block: Fields, place: str) -> ToolResult:
    content = block.get("content")
    parts = (Text(""),) if content is None else _content(content, f"{place}.content")
    return ToolResult(require_field(block, "tool_use_id", str, place), parts, block.get("is_error") is True, place)


def _content(content: Any, place: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple([part for each in _blocks(content, place) for part in _parts(*each)])


def _parts(block: Fields, place: str) -> tuple[Part, ...]:
    kind = block["type"]
    if kind == "text":
        return (Text(require_field(block, "text", str, place)),)
    if kind == "image":
        source: Fields = require_field(block, "source", dict, place)
        return (Image(_image_url(source, f"{place}.source"), place=place),)
    if kind == "document":
        return _document(block, place)
    raise choice_error(kind, ("text", "image", "document"), f"{place}.type")


def _image_url(source: Fields, place: str) -> str:
    if require_choice(source.get("type"), ("base64", "url"), f"{place}.type") == "url":
        return require_field(source, "url", str, place)
    return f"data:{require_field(source, 'media_type', str, place)};base64,{require_field(source, 'data', str, place)}"


def _document(block: Fields, place: str) -> tuple[Part, ...]:
    """Return the document's text, preceded by its title and its context where it has them."""
    heading = [Text(text) for name in ("title", "context") if (text := optional_field(block, name, str, f"{place}."))]
    source: Fields = require_field(block, "source", dict, place)
    place = f"{place}.source"
    kind = source.get("type")
    if kind == "text":
        return (*heading, Text(require_field(source, "data", str, place)))
    if kind == "content":
        return (*heading, *_content(source.get("content"), f"{place}.content"))
    message = (
        f"No model here reads documents of the type {kind!r:.60}: send their text (a source of the type `text`), or "
    )
    message += "a PDF (`base64`, media type application/pdf)."
    raise RoundhouseError("modality_unsupported", message, param=place)


def _blocks(content: Any, place: str) -> Iterator[tuple[Fields, str]]:
    """Yield each content block with its place. Each has a `type`."""
    if not isinstance(content, list):
        raise field_error(place, f"must be a string or an array of blocks; {describe_value(content)}")
    for number, block in enumerate(content):
        block_place = f"{place}[{number}]"
        if type(block) is not dict or type(block.get("type")) is not str:
            require_field(require_value(block, dict, block_place), "type", str, block_place)
        yield block, block_place
