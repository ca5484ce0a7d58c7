"""Requests for responses, read into a `Prompt`, with their tools. Pure.

A custom tool takes text instead of JSON; an engine sees a function with one string. A `file_search` is no tool of the
engine: the gateway searches before it asks (`file_search`). An `mcp` of a declared server stands for functions that the
gateway runs (`mcp`). Other tools that OpenAI runs itself do not run here. Agents such as Codex declare some of
them in every request, so they are ignored beside other tools. A request that has no others, or demands one of them, is
refused.

References: OpenAI's API reference, and Open Responses (openresponses.org) of 2026-04-24. `answer` writes the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from contract.errors import RoundhouseError
from gateway.protocols.chat.tool_forms import CUSTOM_PARAMETERS, describe_grammar
from gateway.protocols.common.conversation import Fields, OutputFormat, Prompt, System, Tool, ToolChoice, Turn
from gateway.protocols.common.field_reader import (
    describe_value,
    field_error,
    optional_count,
    optional_field,
    optional_number,
    read_metadata,
    read_thinking,
    require_choice,
    require_text,
    require_value,
)
from gateway.protocols.common.request_fields import check_as_chat
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.file_search import TYPE, ground_items, is_file_search, read_file_search
from gateway.protocols.responses.items import describe_items, read_turns, resolve_item
from gateway.protocols.responses.mcp import MCP_TYPE, McpTools, echo_mcp, function_name, functions_of, is_mcp

_CHOICES: Final = ("none", "auto", "required")
_MODES: Final = ("auto", "required")
_KINDS: Final = ("function", "custom")
_RUN_ELSEWHERE: Final = (
    *("web_search", "code_interpreter", "image_generation", "computer", "mcp", "local_shell", "shell"),
    *("apply_patch", "namespace", "tool_search"),
)
"""Prefixes of the types of OpenAI's own tools; some types have versions."""


def tools_of(fields: Fields, mcp: McpTools | None) -> tuple[Tool, ...]:
    """Return the tools that the model may call, in the order of `tools`: those that are declared and, if `tool_choice`
    lists allowed tools or names a server, are among these. A server of `mcp`, which are those that the request names
    (None: none), becomes the functions of its tools. A `file_search` is left out, and so are tools that OpenAI runs
    itself if there are others.

    Raises:
        RoundhouseError: `invalid_request`, also for a name that occurs twice, an allowed tool that is not declared, or
            if all declared tools are such as OpenAI runs itself; its `param` is the path to the value, such as
            `tools[1].name`.
    """
    tools: dict[str, Tool] = {}
    declared_tools = optional_field(fields, "tools", list) or []
    has_own = mcp is not None or any(map(_is_own, declared_tools))
    for number, declaration in enumerate(declared_tools):
        for tool in _declared_functions(declaration, f"tools[{number}]", mcp, has_own=has_own):
            if tool.name in tools:
                raise field_error(f"tools[{number}].name", f"must be no other tool's; {describe_value(tool.name)}")
            tools[tool.name] = tool
    allowed_names = _allowed_names(fields, mcp)
    if allowed_names is None:
        return tuple(tools.values())
    for number, name in enumerate(allowed_names):
        if name not in tools:
            raise _undeclared(name, f"tool_choice.tools[{number}].name")
    return tuple([tool for tool in tools.values() if tool.name in allowed_names])


def choice_of(fields: Fields, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """Return the tool choice of a request; None if it has none, or chooses its `file_search`. `tools` are those of
    `tools_of`, which must have been called first. With a `file_search`, which always runs, `required` demands nothing
    more of the model: it becomes `auto`, or None without other tools.

    Raises:
        RoundhouseError: `invalid_request`: the choice is of no known form, names a tool that is not declared, or is
            `required` without any tool. Its `param` is the path to the value, such as `tool_choice.name`.
    """
    choice = fields.get("tool_choice")
    if choice is None:
        return None
    searches = any(map(is_file_search, fields.get("tools") or ()))
    if isinstance(choice, dict):
        if searches and is_file_search(choice):
            return None
        if is_mcp(choice):
            return _choice_of_server(choice, tools)
        kind = require_choice(choice.get("type"), (*_KINDS, "allowed_tools", MCP_TYPE), "tool_choice.type")
        if kind == "allowed_tools":
            searches = any(map(is_file_search, choice["tools"]))
            return ToolChoice("required" if _mode(choice) == "required" and not searches else "auto")
        name = require_text(choice.get("name"), "tool_choice.name")
        if all(tool.name != name for tool in tools):
            raise _undeclared(name, "tool_choice.name")
        return ToolChoice("named", name)
    if choice == "required" and searches:
        return ToolChoice("auto") if tools else None
    if choice == "required" and not tools:
        raise field_error("tool_choice", "must not be required where `tools` is empty")
    if choice == "none":
        return ToolChoice("none")
    return ToolChoice("required" if require_choice(choice, _CHOICES, "tool_choice") == "required" else "auto")


def _choice_of_server(choice: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    if not tools:
        raise field_error("tool_choice.server_label", "must be that of a server whose tools are known")
    return ToolChoice("named", tools[0].name) if choice.get("name") is not None else ToolChoice("required")


def custom_names(fields: Fields) -> frozenset[str]:
    """Return the names of the custom tools that a request declares, also of those that it does not allow. The request
    must have been read without an error (`tools_of`), because the fields are not checked again."""
    return frozenset([tool["name"] for tool in fields.get("tools") or () if tool.get("type") == "custom"])


def echo_tools(fields: Fields, mcp: McpTools | None) -> tuple[list[Fields], Any]:
    """Return `tools` and `tool_choice` as the response repeats them: functions, custom tools, `file_search` and the
    servers of `mcp` (None: none) alone, and `auto` for no choice. The request must have been read without an error
    (`tools_of`, `choice_of`)."""
    tools = [_echo_tool(tool) for tool in fields.get("tools") or () if _is_own(tool) or _is_among(tool, mcp)]
    choice = fields.get("tool_choice")
    if not isinstance(choice, dict):
        return tools, choice or "auto"
    if is_file_search(choice):
        return tools, {"type": TYPE}
    if is_mcp(choice):
        return tools, {name: choice[name] for name in ("type", "server_label", "name") if choice.get(name) is not None}
    if choice["type"] != "allowed_tools":
        return tools, {"type": choice["type"], "name": choice["name"]}
    named = ("type", "server_label", "name")
    allowed_tools = [{name: tool[name] for name in named if name in tool} for tool in choice["tools"]]
    return tools, {"type": "allowed_tools", "mode": _mode(choice), "tools": allowed_tools}


def _echo_tool(tool: Fields) -> Fields:
    if is_file_search(tool):
        return {"filters": None, "max_num_results": None, "ranking_options": None, **tool}
    if is_mcp(tool):
        return echo_mcp(tool)
    if tool["type"] == "custom":
        return {"type": "custom", "name": tool["name"], "description": tool.get("description")}
    fields = {name: tool.get(name) for name in ("description", "parameters", "strict")}
    return {"type": "function", "name": tool["name"], **fields}


def _declared_functions(declaration: Any, place: str, mcp: McpTools | None, *, has_own: bool) -> Iterable[Tool]:
    """Return the functions that the model gets for one of `tools`."""
    if _is_among(declaration, mcp):
        assert mcp is not None
        server = mcp.find_server(declaration["server_label"])
        return () if server is None else functions_of(server)
    if is_file_search(declaration) or (has_own and _runs_elsewhere(declaration)):
        return ()
    return (_tool(declaration, place),)


def _is_among(tool: Any, mcp: McpTools | None) -> bool:
    """Whether a declared tool is a server of `mcp`."""
    return mcp is not None and is_mcp(tool) and mcp.find_server(tool.get("server_label")) is not None


def _tool(declaration: Any, place: str) -> Tool:
    tool = require_value(declaration, dict, place)
    kind, at = tool.get("type"), f"{place}."
    if kind not in _KINDS:
        raise field_error(
            f"{at}type",
            f"must be function, custom, file_search or mcp, because no other tools run here; {describe_value(kind)}",
        )
    name = require_text(tool.get("name"), f"{at}name")
    description = optional_field(tool, "description", str, at)
    if kind == "custom":
        form = optional_field(tool, "format", dict, at) or {"type": "text"}
        if require_choice(form.get("type"), ("text", "grammar"), f"{at}format.type") == "grammar":
            description = describe_grammar(description, form, f"{at}format.")
        return Tool(name, description, CUSTOM_PARAMETERS)
    return Tool(
        name, description, optional_field(tool, "parameters", dict, at), optional_field(tool, "strict", bool, at)
    )


def _is_own(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") in (*_KINDS, TYPE)


def _runs_elsewhere(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.startswith(_RUN_ELSEWHERE)


def _allowed_names(fields: Fields, mcp: McpTools | None) -> list[str] | None:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and is_mcp(choice):
        return _server_functions(choice, "tool_choice", mcp)
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    names: list[str] = []
    for number, tool in enumerate(require_value(choice.get("tools"), list, "tool_choice.tools")):
        place = f"tool_choice.tools[{number}]"
        if is_file_search(tool):
            continue
        if is_mcp(tool):
            names += _server_functions(tool, place, mcp)
            continue
        require_choice(require_value(tool, dict, place).get("type"), _KINDS, f"{place}.type")
        names.append(require_text(tool.get("name"), f"{place}.name"))
    if not choice["tools"]:
        raise field_error("tool_choice.tools", "must not be empty")
    return names


def _server_functions(chosen: Fields, place: str, mcp: McpTools | None) -> list[str]:
    """Return the functions of the server, or of its one tool, that a tool choice names."""
    server = None if mcp is None else mcp.find_server(chosen.get("server_label"))
    if server is None:
        value = describe_value(chosen.get("server_label"))
        raise field_error(f"{place}.server_label", f"must be that of one of `tools`; {value}")
    functions = [tool.function for tool in server.tools]
    if chosen.get("name") is None:
        return functions
    function = function_name(server.label, require_text(chosen["name"], f"{place}.name"))
    if function not in functions:
        raise field_error(f"{place}.name", f"must be a tool of the server; {describe_value(chosen['name'])}")
    return [function]


def _mode(choice: Fields) -> str:
    mode = choice.get("mode")
    return "auto" if mode is None else require_choice(mode, _MODES, "tool_choice.mode")


def _undeclared(name: str, place: str) -> RoundhouseError:
    return field_error(place, f"must be the name of one of `tools`; {describe_value(name)}")


_OWN: Final = frozenset(
    {"access_programs", "background", "context_management", "conversation", "image", "include", "input"}
    | {"instructions", "max_output_tokens", "max_tool_calls", "messages", "metadata", "model", "moderation"}
    | {"parallel_tool_calls", "previous_response_id", "prompt", "reasoning", "store", "stream", "stream_options"}
    | {"text", "tool_choice", "tools", "top_logprobs", "truncation"}
)
"""Fields that mean nothing to a chat completion, or have another form there. All others are passed on: sampling and the
like mean the same, and fields that neither API knows may be the engine's own."""
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES: Final = ("auto", "concise", "detailed")
_VERBOSITIES: Final = ("low", "medium", "high")
_FORMATS: Final = ("text", "json_object", "json_schema")
_LOGPROBS: Final = "message.output_text.logprobs"
_MOST_LOGPROBS: Final = 20


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
    callable_tools = tools_of(fields, context.mcp)
    turns = _turns(fields, own_items, context)
    if context.stores or context.keeps_items or context.conversation_id is not None:
        context.input_items = tuple(describe_items(own_items, context.new_id))
    return Prompt(
        turns=tuple(turns),
        tools=callable_tools,
        tool_choice=choice_of(fields, callable_tools),
        parallel_tool_calls=optional_field(fields, "parallel_tool_calls", bool),
        output_format=_output_format(fields),
        max_tokens=optional_count(fields, "max_output_tokens", 1),
        # A value that is no string is the engine's own field of this name.
        thinking=read_thinking(fields["thinking"]) if isinstance(fields.get("thinking"), str) else None,
        effort=_effort(fields),
        passed_fields=_passed_fields(fields),
    )


def output_format_of(fields: Fields) -> Fields:
    """Return `text.format` of a request, its content unchecked; `{"type": "text"}` if it has none. Raises
    RoundhouseError `invalid_request` if `text` or the format is no object."""
    text_fields = optional_field(fields, "text", dict) or {}
    output_format = optional_field(text_fields, "format", dict, "text.")
    return {"type": "text"} if output_format is None else output_format


def _check_fields(fields: Fields) -> None:
    """Refuse what is not supported here, and check fields that are only echoed, because clients parse them in the
    response."""
    check_as_chat(fields, "responses")
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
