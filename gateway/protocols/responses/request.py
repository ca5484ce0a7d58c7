"""Responses: reads a request into a `Prompt`. Pure.

References: OpenAI's API reference, and Open Responses (openresponses.org) of 2026-04-24. `answer_stream` writes the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

from gateway.protocols.common.conversation import Fields, OutputFormat, Prompt, System, Turn
from gateway.protocols.common.field_reader import (
    describe_value,
    field_error,
    optional_count,
    optional_field,
    optional_number,
    require_choice,
    require_text,
    require_value,
)
from gateway.protocols.common.metadata import read_metadata
from gateway.protocols.responses import tools
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import ground_items, read_file_search
from gateway.protocols.responses.items import kind_of, read_turns, resolve_item

_OWN: Final = frozenset(
    {"background", "context_management", "conversation", "include", "input", "instructions", "max_output_tokens"}
    | {"max_tool_calls", "messages", "metadata", "model", "parallel_tool_calls", "previous_response_id", "prompt"}
    | {"reasoning", "store", "stream", "stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation"}
)
"""Fields that mean nothing to a chat completion, or have another form there. All others are passed on: sampling and the
like mean the same, and fields that neither API knows may be the engine's own."""
_NOT_HERE: Final = {
    "prompt": "names a template that is kept elsewhere: send its text as `instructions` and `input`",
}
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES: Final = ("auto", "concise", "detailed")
_VERBOSITIES: Final = ("low", "medium", "high")
_FORMATS: Final = ("text", "json_object", "json_schema")
_MODES: Final = ("default", "enabled", "disabled")
_LOGPROBS: Final = "message.output_text.logprobs"
_MOST_LOGPROBS: Final = 20
_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "file_search_call": "fs",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "compaction": "cmp",
    "compaction_summary": "cmp",
}


def read_prompt(fields: Fields, context: ResponseContext) -> Prompt:
    """Return what the request asks for, after the items in `context.history`. Sets `context.input_items` if the
    response is stored, belongs to a conversation or `context.keeps_items`.

    Raises:
        RoundhouseError: `invalid_request`: a field is wrong, or is not supported here (`prompt`, `n` above 1,
            `truncation` other than `disabled`). `modality_unsupported`: a file is not text. Its `param` is the
            path to the value, such as `input[0].role`.
    """
    _check_fields(fields)
    own_items = _own_items(fields, context)
    callable_tools = tools.tools_of(fields, context.mcp)
    turns = _turns(fields, own_items, context)
    if context.stores or context.keeps_items or context.conversation_id is not None:
        context.input_items = tuple(describe_items(own_items, context.new_id))
    return Prompt(
        turns=tuple(turns),
        tools=callable_tools,
        tool_choice=tools.choice_of(fields, callable_tools),
        parallel_tool_calls=optional_field(fields, "parallel_tool_calls", bool),
        output_format=_output_format(fields),
        max_tokens=optional_count(fields, "max_output_tokens", 1),
        thinking=_thinking(fields),
        effort=_effort(fields),
        passed_fields=_passed_fields(fields),
    )


def output_format_of(fields: Fields) -> Fields:
    """Return `text.format` of a request, its content unchecked; `{"type": "text"}` if it has none. Raises
    RoundhouseError `invalid_request` if `text` or the format is no object."""
    text_fields = optional_field(fields, "text", dict) or {}
    output_format = optional_field(text_fields, "format", dict, "text.")
    return {"type": "text"} if output_format is None else output_format


def describe_items(items: Iterable[tuple[Fields, str]], new_id: Callable[[str], str]) -> Iterator[Fields]:
    """Yield copies of the items as lists of items show them, in order: each with an id, a type and a status, messages
    in parts. An item without an id gets one from `new_id`, which takes a prefix such as `msg`.

    Each item comes with its path in the request, such as `input[0]`, and must have been checked (`read_turns` or
    `check_items`).

    Raises:
        RoundhouseError: `invalid_request`, when the item's turn comes: its `id` or `status` is no string.
    """
    for item, place in items:
        kind = kind_of(item, place)
        item_id = optional_field(item, "id", str, f"{place}.") or new_id(_PREFIXES[kind])
        status = optional_field(item, "status", str, f"{place}.") or "completed"
        listed_item = {**item, "id": item_id, "type": kind, "status": status}
        if kind == "message" and isinstance(item["content"], str):
            listed_item["content"] = [_text_part(item["role"], item["content"])]
        yield listed_item


def _check_fields(fields: Fields) -> None:
    """Refuse what is not supported here, and check fields that are only echoed, because clients parse them in the
    response."""
    for name, rule in _NOT_HERE.items():
        if fields.get(name) is not None:
            raise field_error(name, rule)
    if fields.get("n") not in (None, 1):
        raise field_error("n", f"must be 1, because a response holds one answer; {describe_value(fields['n'])}")
    for name in ("instructions", "safety_identifier", "prompt_cache_key", "service_tier", "user"):
        optional_field(fields, name, str)
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        optional_number(fields, name)
    optional_count(fields, "max_tool_calls", 1)
    read_file_search(fields)
    if fields.get("truncation") not in (None, "disabled"):
        rule = (
            "must be disabled: nothing is dropped here, so send fewer items where they are more than the context holds"
        )
        raise field_error("truncation", f"{rule}; {describe_value(fields['truncation'])}")
    read_metadata(fields)


def _own_items(fields: Fields, context: ResponseContext) -> list[tuple[Fields, str]]:
    """Return the items of the request's own input, each with its place."""
    value = fields.get("input")
    is_continuation = any(fields.get(name) is not None for name in ("previous_response_id", "conversation"))
    if value is None and "messages" in fields:
        raise field_error(
            "input", "is missing: `messages` is the field of /v1/chat/completions, and here it is `input`"
        )
    if not value and (is_continuation or context.may_lack_input) and (value is None or isinstance(value, str | list)):
        return []
    if isinstance(value, str) and value:
        return [({"type": "message", "role": "user", "content": value}, "input")]
    if not isinstance(value, list) or not value:
        raise field_error("input", f"must be a text or an array of items, and not empty; {describe_value(value)}")
    return [_own_item(item, f"input[{index}]", context) for index, item in enumerate(value)]


def _own_item(item: Any, place: str, context: ResponseContext) -> tuple[Fields, str]:
    kind = require_value(item, dict, place).get("type")
    if type(kind) is not str or kind == "item_reference":
        return resolve_item(item, context.referenced_items, place), place
    return item, place


def _turns(fields: Fields, own_items: list[tuple[Fields, str]], context: ResponseContext) -> list[Turn]:
    source = "previous_response_id" if context.conversation_id is None else "conversation"
    items = [*((item, source) for item in context.history), *own_items]
    turns = read_turns(ground_items(items, context.found_files), runs_calls=context.mcp is not None)
    if not turns and context.conversation_id is not None and not context.may_lack_input:
        raise field_error("input", "must not be empty, because the conversation has no items yet")
    instructions = fields.get("instructions")
    return [System(instructions, place="instructions"), *turns] if instructions else turns


def _text_part(role: str, text: str) -> Fields:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _output_format(fields: Fields) -> OutputFormat | None:
    form = output_format_of(fields)
    place = "text.format"
    kind = require_choice(form.get("type"), _FORMATS, f"{place}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat(place="text.format")
    at = f"{place}."
    return OutputFormat(
        schema=require_value(form.get("schema"), dict, at + "schema"),
        name=require_text(form.get("name"), at + "name"),
        description=optional_field(form, "description", str, at),
        strict=optional_field(form, "strict", bool, at),
        place="text.format",
    )


def _effort(fields: Fields) -> str | None:
    reasoning = optional_field(fields, "reasoning", dict) or {}
    if reasoning.get("summary") is not None:
        require_choice(reasoning["summary"], _SUMMARIES, "reasoning.summary")
    effort = reasoning.get("effort")
    return None if effort is None else require_choice(effort, _EFFORTS, "reasoning.effort")


def _thinking(fields: Fields) -> Literal["enabled", "disabled"] | None:
    mode = fields.get("thinking")
    if not isinstance(mode, str):
        return None  # the engine's own field of this name
    if require_choice(mode, _MODES, "thinking") == "default":
        return None
    return "enabled" if mode == "enabled" else "disabled"


def _passed_fields(fields: Fields) -> Fields:
    passed_fields = {name: value for name, value in fields.items() if name not in _OWN}
    if isinstance(passed_fields.get("thinking"), str):
        del passed_fields["thinking"]
    verbosity = (fields.get("text") or {}).get("verbosity")
    if verbosity is not None:
        passed_fields["verbosity"] = require_choice(verbosity, _VERBOSITIES, "text.verbosity")
    most = optional_count(fields, "top_logprobs", 0, _MOST_LOGPROBS)
    if most or _LOGPROBS in _included_names(fields):
        passed_fields |= {"logprobs": True, "top_logprobs": most or 0}
    return passed_fields


def _included_names(fields: Fields) -> list[Any]:
    """Return the names in `include`. All but one of the names that OpenAI defines are accepted without effect: they are
    about tools that nobody called, or about encrypted thoughts, which are sent plainly here."""
    return [
        require_value(name, str, f"include[{n}]")
        for n, name in enumerate(optional_field(fields, "include", list) or ())
    ]
