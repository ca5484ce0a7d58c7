"""Anthropic's messages: reads a request into a `Prompt`. Pure.

Follows the Messages API reference and the types of the `anthropic` package (2026-11). Fields that need Anthropic's
servers are refused. Fields about Anthropic's caching, regions and tiers are dropped. Fields that no API family knows
are passed on, because they may be the engine's own.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from gateway.protocols.anthropic.turns import read_turns
from gateway.protocols.common.conversation import Fields, OutputFormat, Prompt, Tool, ToolChoice
from gateway.protocols.common.field_reader import (
    field_error,
    optional_count,
    optional_field,
    require_choice,
    require_field,
    require_text,
    require_value,
)

_REFUSED: Final = {
    "container": "code runs on Anthropic's servers",
    "mcp_servers": "they are called by Anthropic's servers",
    "thread": "Anthropic's servers keep it. Send the whole conversation in `messages`",
}
_READ: Final = frozenset(
    {"model", "messages", "system", "max_tokens", "stop_sequences", "stream", "stream_options", "metadata"}
    | {"tools", "tool_choice", "thinking", "output_config", "output_format"}
)
_MEANINGLESS: Final = frozenset(
    {"anthropic_beta", "anthropic_version", "betas", "billing_policy", "cache_control", "compaction"}
    | {"context_management", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "service_tier"}
    | {"speed", "user_profile_id", "workspace_id"}
)
_NOT_PASSED: Final = _READ | _MEANINGLESS | frozenset(_REFUSED)
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_CHOICES: Final[dict[str, Literal["auto", "required", "named", "none"]]] = {
    "auto": "auto",
    "any": "required",
    "tool": "named",
    "none": "none",
}
Thinking = Literal["enabled", "disabled"]
_MODES: Final[dict[str, Thinking | None]] = {"default": None, "enabled": "enabled", "disabled": "disabled"}


def read_prompt(fields: Fields, *, needs_limit: bool = True) -> Prompt:
    """Return what a decoded request asks for. `needs_limit`: refuse a request without `max_tokens`, as Anthropic does.

    Raises:
        RoundhouseError: `invalid_request`: a field is wrong, or needs Anthropic's servers (`container`, `mcp_servers`,
            `thread`, tools of Anthropic's own). `modality_unsupported`: a document is not text. `param` is the
            path to the value, such as `messages[1].content[0].type`.
    """
    for name, why in _REFUSED.items():
        if fields.get(name):
            raise field_error(name, f"cannot be used here: {why}")
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
        return _MODES[require_choice(setting, _MODES, "thinking")], None
    thinking: Fields = require_value(setting, dict, "thinking")
    kind = require_field(thinking, "type", str, "thinking")
    tokens = optional_field(thinking, "budget_tokens", int, "thinking.")
    if tokens is not None and tokens < 1:
        raise field_error("thinking.budget_tokens", f"must be at least 1; it is {tokens}")
    return _MODES.get(kind), tokens


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
