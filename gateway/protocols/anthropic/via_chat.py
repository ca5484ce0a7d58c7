"""Anthropic's messages, translated for engines that serve chat completions. Pure. `answer_stream` writes the answers.

Follows the Messages API reference and the types of the `anthropic` package (2026-11). Fields that need Anthropic's
servers are refused. Fields about Anthropic's caching, regions and tiers are dropped. Fields that no API family knows
are passed on, because they may be the engine's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.anthropic.answer_stream import MessagesWriter
from gateway.protocols.anthropic.dialect import MessagesDialect
from gateway.protocols.common.bodies import CONSTRAINT_FIELDS, MESSAGE_FIELDS
from gateway.protocols.common.conversation import (
    AnswerWriter,
    Assistant,
    Call,
    Fields,
    Image,
    OutputFormat,
    Part,
    Prompt,
    System,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.field_reader import (
    choice_error,
    describe_value,
    field_error,
    optional_count,
    optional_field,
    read_thinking,
    require_choice,
    require_field,
    require_text,
    require_value,
)
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import check_as_chat
from gateway.protocols.via_chat import TokenCountDialect, ViaChatBase, ViaChatDialect

_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_BILLING: Final = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\s]*;)*\s*")
"""Start of Claude Code's system prompt, removed here. It serves Anthropic's billing and differs in each request, so
that no engine could reuse its prefix cache."""


def read_turns(fields: Fields) -> tuple[Turn, ...]:
    """Return the turns in `system` and `messages` of a request, in order, those of `system` first. User or assistant
    messages in a row become one turn, as in Anthropic's API. The tool results of a message precede its text. An empty
    assistant message at the end is dropped. Raises RoundhouseError as `read_prompt`."""
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


_NOT_PASSED: Final = (MESSAGE_FIELDS - {"temperature", "top_k", "top_p"}) | {
    *("stream_options", "anthropic_beta", "anthropic_version")
}
"""Fields that a chat completion has in another form, or not at all."""
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_CHOICES: Final[dict[str, Literal["auto", "required", "named", "none"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "named",
    "none": "none",
}
Thinking = Literal["enabled", "disabled"]
_THINKING_TYPES: Final[dict[str, Thinking]] = {"enabled": "enabled", "disabled": "disabled"}


def read_prompt(fields: Fields, *, needs_limit: bool = True) -> Prompt:
    """Return what a decoded request asks for. `needs_limit`: refuse a request without `max_tokens`, as Anthropic does.
    Raises RoundhouseError `invalid_request`, also for a field that needs Anthropic's servers (`container`,
    `mcp_servers`, `thread`, tools of Anthropic's own), or `modality_unsupported` for a document that is not text."""
    check_as_chat(fields, "messages")
    max_tokens = optional_count(fields, "max_tokens", 0)
    if max_tokens is None and needs_limit:
        raise field_error("max_tokens", "is missing: the most tokens that the answer may have")
    tools = _tools(fields)
    choice, parallel = _tool_choice(fields, tools)
    thinking, thinking_tokens = _thinking(fields.get("thinking"))
    effort, output_format = _output(fields)
    return Prompt(
        turns=read_turns(fields),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        output_format=output_format,
        max_tokens=max_tokens,
        stop=_stop(fields),
        thinking=thinking,
        thinking_tokens=thinking_tokens,
        effort=effort,
        passed_fields=_passed_fields(fields),
    )


def _passed_fields(fields: Fields) -> Fields:
    passed_fields = {name: value for name, value in fields.items() if name not in _NOT_PASSED}
    user = (optional_field(fields, "metadata", dict) or {}).get("user_id")
    if isinstance(user, str) and user:
        passed_fields.setdefault("user", user)
    return passed_fields


def _stop(fields: Fields) -> tuple[str, ...]:
    sequences = optional_field(fields, "stop_sequences", list) or ()
    return tuple([require_text(each, f"stop_sequences[{number}]") for number, each in enumerate(sequences)])


def _tools(fields: Fields) -> tuple[Tool, ...]:
    declarations = optional_field(fields, "tools", list) or ()
    return tuple([_tool(each, f"tools[{number}]") for number, each in enumerate(declarations)])


def _tool(declaration: Any, place: str) -> Tool:
    tool: Fields = require_value(declaration, dict, place)
    kind = tool.get("type")
    if kind not in (None, "custom"):
        why = "a tool of Anthropic's own, which no model here knows: declare it with a `name` and an `input_schema`"
        raise field_error(f"{place}.type", f"cannot be {kind!r:.60}, {why}")
    at = f"{place}."
    return Tool(
        require_field(tool, "name", str, place),
        optional_field(tool, "description", str, at),
        require_field(tool, "input_schema", dict, place),
        optional_field(tool, "strict", bool, at),
    )


def _tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, bool | None]:
    """Return the tool choice, and whether the model may make several calls at once. None: the request does not say."""
    choice = optional_field(fields, "tool_choice", dict)
    if choice is None:
        return None, None
    kind = _CHOICES[require_choice(choice.get("type"), _CHOICES, "tool_choice.type")]
    name = None
    if kind == "named":
        name = require_choice(choice.get("name"), [tool.name for tool in tools], "tool_choice.name")
    is_single = optional_field(choice, "disable_parallel_tool_use", bool, "tool_choice.")
    return ToolChoice(kind, name), None if is_single is None else not is_single


def _thinking(setting: Any) -> tuple[Thinking | None, int | None]:
    """Return whether to think, and the maximum tokens for it. None: the request leaves it to the model. In Anthropic's
    object, `adaptive` and newer types leave it to the model. A string is the form that chat completions take here."""
    if setting is None:
        return None, None
    if isinstance(setting, str):
        return read_thinking(setting), None
    thinking: Fields = require_value(setting, dict, "thinking")
    kind = require_field(thinking, "type", str, "thinking")
    tokens = optional_field(thinking, "budget_tokens", int, "thinking.")
    if tokens is not None and tokens < 1:
        raise field_error("thinking.budget_tokens", f"must be at least 1; it is {tokens}")
    return _THINKING_TYPES.get(kind), tokens


def _output(fields: Fields) -> tuple[str | None, OutputFormat | None]:
    """Return the effort and the output format, None where not given. `output_format` is the older name of
    `output_config.format`."""
    config: Fields = optional_field(fields, "output_config", dict) or {}
    effort_word = config.get("effort")
    effort = None if effort_word is None else _EFFORTS[require_choice(effort_word, _EFFORTS, "output_config.effort")]
    place, output_format = "output_config.format", optional_field(config, "format", dict, "output_config.")
    if output_format is None:
        place, output_format = "output_format", optional_field(fields, "output_format", dict)
    if output_format is None:
        return effort, None
    require_choice(output_format.get("type"), ("json_schema",), f"{place}.type")
    return effort, OutputFormat(require_field(output_format, "schema", dict, place), place=place)


class _MessagesBase(ViaChatBase):
    """What messages and their token count share."""

    form: str | None = "messages"

    def prompt_for(self, request: InferenceRequest, prompt: Prompt, route: ModelRoute) -> Prompt:
        """Return `prompt` without a `thinking` object that the model does not support, because Anthropic's clients send
        one to any model. A `thinking` string stays, and is refused, as in chat completions."""
        is_wish = prompt.thinking is not None and not isinstance(request.outline_fields["thinking"], str)
        if is_wish and prompt.thinking not in route.capabilities.thinking_modes:
            return replace(prompt, thinking=None, thinking_tokens=None)
        return prompt


class MessagesViaChat(_MessagesBase, ViaChatDialect, MessagesDialect):
    """Dialect of `/v1/messages` for engines that serve chat completions: translates requests, answers and streams."""

    tells_prompt_first = True

    def read_request(self, request: InferenceRequest) -> Prompt:
        return read_prompt(request.whole_where_any(CONSTRAINT_FIELDS))

    def open_writer(self, request: InferenceRequest) -> AnswerWriter:
        return MessagesWriter(request.model)


class MessagesTokenCount(_MessagesBase, TokenCountDialect, MessagesDialect):
    """Dialect of `/v1/messages/count_tokens`, answered by the engine's token count of chat completions."""

    def read_request(self, request: InferenceRequest) -> Prompt:
        return read_prompt(request.whole_where_any(CONSTRAINT_FIELDS), needs_limit=False)

    def build_count(self, tokens: int) -> Fields:
        return {"input_tokens": tokens}


MESSAGES_VIA_CHAT: Final = MessagesViaChat()
MESSAGES_COUNTED_VIA_CHAT: Final = MessagesTokenCount()
