"""Tools of chat completions in forms that engines do not know: custom tools, which take a text instead of JSON, and
`functions` of before 2023. Engines get functions among `tools`, and the client its own form back. Pure.

A custom tool becomes a function with one string, whose grammar the model is told in words. The input is a part of the
JSON arguments, so a stream has it whole, at the end of its answer. `functions` know one call at a time: further ones
are left out. Their messages have no ids; those that engines get are counted, so that a growing conversation keeps its
cached beginning, and have nine letters and digits, as Mistral's chat templates demand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.chat.dialect import (
    LEGACY_FIELDS,
    ChatCollector,
    ChatStream,
    OpenAIDialect,
    alias_in_body,
    has_functions,
    has_other_type,
)
from gateway.protocols.chat.stream_collector import CallNumbers
from gateway.protocols.common.bodies import OPENAI_REMOTE
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, StreamCollector
from gateway.protocols.common.errors import as_event, decode_json, encode_json
from gateway.protocols.common.field_reader import (
    choice_error,
    describe_value,
    field_error,
    optional_field,
    require_choice,
    require_field,
    require_text,
    require_value,
)
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import rename_error
from gateway.protocols.common.streams import data_of, split_events

CUSTOM_PARAMETERS: Final[Fields] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""JSON Schema of the function that stands for a custom tool."""
_CALLS: Final = b'"tool_calls"'


def custom_arguments(input_text: str) -> str:
    """Return a custom tool's input, a plain text, as JSON arguments of the function that stands for the tool in chat
    completions. `custom_input` reverses it."""
    return json.dumps({"input": input_text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the custom tool's input, a plain text, from the JSON arguments of the function that stands for the tool;
    the arguments themselves, without an error, if they do not have the function's form."""
    value = decode_json(arguments)
    input_text = value.get("input") if isinstance(value, dict) else None
    return input_text if isinstance(input_text, str) else arguments


def describe_grammar(description: str | None, grammar: Fields, at: str) -> str:
    """Return a custom tool's description with its grammar. No engine constrains one argument by OpenAI's grammars, so
    the model is told in words. `at`: the path of `grammar` in the request, followed by a dot."""
    definition = require_text(grammar.get("definition"), f"{at}definition")
    text = f"The input follows this {grammar.get('syntax', 'lark')} grammar:\n{definition}"
    return text if description is None else f"{description}\n\n{text}"


# Requests.


def write_tools(fields: Fields, *, keeps_types: bool) -> Fields:
    """Return the fields of a chat completion with functions alone for tools, calls and results; `fields` itself stays.
    `keeps_types`: tools that are no functions stay as they are, for a remote model that may know them.

    Raises:
        RoundhouseError: `invalid_request`: one of the forms is wrong; or `not_supported` (400): a tool is of a type
            that no engine here knows. Its `param` is the place in the client's request.
    """
    new_fields = {name: value for name, value in fields.items() if name not in LEGACY_FIELDS}
    functions = optional_field(fields, "functions", list)
    if functions:
        if fields.get("tools"):
            raise field_error("functions", "must be left out beside `tools`, which say the same")
        new_fields |= {"tools": _write_functions(functions), "parallel_tool_calls": False}
    elif not keeps_types:
        new_fields |= _write_custom_tools(fields)
    if fields.get("function_call") is not None:
        choice = _write_function_call(fields["function_call"], functions or [])
        if functions:
            new_fields["tool_choice"] = choice
    if isinstance(fields.get("messages"), list):
        new_fields["messages"] = _write_messages(fields["messages"], keeps_types=keeps_types)
    return new_fields


def _write_functions(functions: list[Any]) -> list[Fields]:
    for number, function in enumerate(functions):
        place = f"functions[{number}]"
        require_text(require_value(function, dict, place).get("name"), f"{place}.name")
        optional_field(function, "parameters", dict, f"{place}.")
    return [{"type": "function", "function": function} for function in functions]


def _write_function_call(choice: Any, functions: list[Fields]) -> str | Fields:
    if not isinstance(choice, dict):
        return require_choice(choice, ("none", "auto"), "function_call")
    name = require_text(choice.get("name"), "function_call.name")
    if all(function["name"] != name for function in functions):
        raise field_error("function_call.name", f"must be the name of one of `functions`; {describe_value(name)}")
    return {"type": "function", "function": {"name": name}}


def _write_custom_tools(fields: Fields) -> Fields:
    """Return `tools` and `tool_choice` of a request, as far as it has them, with functions for custom tools."""
    written: Fields = {}
    tools = optional_field(fields, "tools", list)
    if tools is not None:
        written["tools"] = [_write_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    choice = fields.get("tool_choice")
    if not isinstance(choice, dict):
        return written
    written["tool_choice"] = _name_function(choice, "tool_choice")
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        place = "tool_choice.allowed_tools.tools"
        tools = [_name_function(tool, f"{place}[{number}]") for number, tool in enumerate(allowed["tools"])]
        written["tool_choice"] = {**choice, "allowed_tools": {**allowed, "tools": tools}}
    return written


def _write_tool(tool: Any, place: str) -> Fields:
    if not has_other_type(require_value(tool, dict, place)):
        function = require_field(tool, "function", dict, place)
        require_text(function.get("name"), f"{place}.function.name")
        return {**tool, "type": "function"}
    if tool["type"] != "custom":
        message = (
            f"`{place}.type` must be function or custom: no other tools run in a chat completion. A response "
            f"(/v1/responses) has `file_search` and `mcp`; {describe_value(tool['type'])}."
        )
        raise RoundhouseError("not_supported", message, param=f"{place}.type", status=400)
    place = f"{place}.custom"
    custom = require_value(tool.get("custom"), dict, place)
    function = {"name": require_text(custom.get("name"), f"{place}.name"), "parameters": CUSTOM_PARAMETERS}
    text = optional_field(custom, "description", str, f"{place}.")
    form = optional_field(custom, "format", dict, f"{place}.") or {"type": "text"}
    if require_choice(form.get("type"), ("text", "grammar"), f"{place}.format.type") == "grammar":
        grammar = require_field(form, "grammar", dict, f"{place}.format")
        text = describe_grammar(text, grammar, f"{place}.format.grammar.")
    return {"type": "function", "function": function if text is None else {**function, "description": text}}


def _name_function(chosen: Any, place: str) -> Any:
    """Return the choice of a custom tool as that of its function; any other as it is."""
    if not (isinstance(chosen, dict) and chosen.get("type") == "custom"):
        return chosen
    custom = require_value(chosen.get("custom"), dict, f"{place}.custom")
    return {"type": "function", "function": {"name": require_text(custom.get("name"), f"{place}.custom.name")}}


def _write_messages(messages: list[Any], *, keeps_types: bool) -> list[Any]:
    written: list[Any] = []
    open_calls: dict[str, str] = {}
    for number, message in enumerate(messages):
        place, new_id = f"messages[{number}]", f"call{number:05d}"
        if not isinstance(message, dict):
            written.append(message)
        elif message.get("role") == "function":
            name = require_text(message.get("name"), f"{place}.name")
            content = "" if message.get("content") is None else message["content"]
            written.append({"role": "tool", "tool_call_id": open_calls.pop(name, new_id), "content": content})
        else:
            written.append(_write_calls(message, place, new_id, keeps_types=keeps_types))
            if isinstance(message.get("function_call"), dict):
                open_calls[message["function_call"]["name"]] = new_id
    return written


def _write_calls(message: Fields, place: str, new_id: str, *, keeps_types: bool) -> Fields:
    calls = message.get("tool_calls")
    if isinstance(calls, list) and not keeps_types:
        calls = [_write_call(call, f"{place}.tool_calls[{number}]") for number, call in enumerate(calls)]
        message = {**message, "tool_calls": calls}
    if "function_call" not in message:
        return message
    kept = {name: value for name, value in message.items() if name != "function_call"}
    call = optional_field(message, "function_call", dict, f"{place}.")
    if call is None:
        return kept
    if calls:
        raise field_error(f"{place}.function_call", "must be left out beside `tool_calls`, which say the same")
    place = f"{place}.function_call"
    function = {
        "name": require_text(call.get("name"), f"{place}.name"),
        "arguments": require_field(call, "arguments", str, place),
    }
    return {"content": "", **kept, "tool_calls": [{"id": new_id, "type": "function", "function": function}]}


def _write_call(call: Any, place: str) -> Any:
    if not has_other_type(call):
        return call
    if call["type"] != "custom":
        raise choice_error(call["type"], ("function", "custom"), f"{place}.type")
    custom = require_value(call.get("custom"), dict, f"{place}.custom")
    name = require_text(custom.get("name"), f"{place}.custom.name")
    arguments = custom_arguments(require_field(custom, "input", str, f"{place}.custom"))
    kept = {key: value for key, value in call.items() if key != "custom"}
    return {**kept, "type": "function", "function": {"name": name, "arguments": arguments}}


# Answers.


class _ChoiceForms:
    """The calls of one choice in the client's form, of a whole message or of the deltas of a stream in their order."""

    __slots__ = ("_custom_names", "_has_call", "_held", "_is_legacy", "_numbers")

    def __init__(self, custom_names: frozenset[str], *, is_legacy: bool) -> None:
        """`custom_names`: of the client's custom tools. `is_legacy`: the client sent `functions`."""
        self._custom_names = custom_names
        self._is_legacy = is_legacy
        self._numbers = CallNumbers()
        self._has_call = False
        self._held: dict[int, Fields] = {}
        """Calls of custom tools by their numbers, with the arguments so far."""

    def rewrite_choice(self, choice: Fields, name: str) -> None:
        """Change the choice of an answer (`name` is `message`) or of an event (`delta`) in place."""
        message = choice.get(name)
        message = message if isinstance(message, dict) else {}
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            del message["tool_calls"]
            kept = [call for number, call in enumerate(calls) if self._keeps_call(call, number, message, name)]
            if kept:
                message["tool_calls"] = kept
        if choice.get("finish_reason") is None and name == "delta":
            return
        if self._held:
            written = [self._write_custom(held) for held in self._held.values()]
            if name == "message":
                written = [{key: value for key, value in call.items() if key != "index"} for call in written]
            message["tool_calls"] = [*message.get("tool_calls", ()), *written]
            self._held = {}
            choice[name] = message
        if self._has_call and self._is_legacy and choice.get("finish_reason") in ("tool_calls", "stop"):
            choice["finish_reason"] = "function_call"

    def _keeps_call(self, call: Any, number: int, message: Fields, name: str) -> bool:
        """Whether the client gets a call, or a part of one, as it is. If not, it is noted, or put into `message`."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return not self._is_legacy
        if name == "delta":
            number = self._numbers.number_of(call)
        given = function.get("arguments")
        arguments = given if isinstance(given, str) else "" if given is None else encode_json(given).decode()
        if self._is_legacy:
            self._has_call = True
            if number == 0:
                named = {"name": function["name"]} if function.get("name") else {}
                message["function_call"] = {**named, "arguments": arguments}
            return False
        if number not in self._held:
            if function.get("name") not in self._custom_names:
                return True
            self._held[number] = {"index": number, "id": call.get("id"), "name": function["name"], "arguments": ""}
        self._held[number]["arguments"] += arguments
        return False

    def _write_custom(self, held: Fields) -> Fields:
        custom = {"name": held["name"], "input": custom_input(held["arguments"])}
        return {"index": held["index"], "id": held["id"], "type": "custom", "custom": custom}


def rewrite_body(body: bytes, custom_names: frozenset[str], *, is_legacy: bool) -> bytes:
    """Return a blocking chat completion with its calls in the client's form; the same object if it has no call, or is
    no chat completion. See `_ChoiceForms`."""
    fields = decode_json(body) if _CALLS in body else None
    choices = fields.get("choices") if isinstance(fields, dict) else None
    if not isinstance(choices, list):
        return body
    for choice in choices:
        if isinstance(choice, dict):
            _ChoiceForms(custom_names, is_legacy=is_legacy).rewrite_choice(choice, "message")
    return encode_json(fields)


class _FormsStream(ChatStream):
    """`EventStream` of chat completion events with calls in the client's form."""

    __slots__ = ("_choices", "_custom_names", "_is_legacy")

    def __init__(self, request: InferenceRequest, custom_names: frozenset[str], *, is_legacy: bool) -> None:
        super().__init__(request.id, strip_usage=not request.wants_usage)
        self._custom_names = custom_names
        self._is_legacy = is_legacy
        self._choices: dict[int, _ChoiceForms] = {}

    def feed_data(self, chunk: bytes) -> bytes:
        return self._rewrite_events(super().feed_data(chunk))

    def finish_stream(self) -> bytes:
        return self._rewrite_events(super().finish_stream())

    def _rewrite_error(self, event: bytes, error: Fields) -> bytes:
        written = super()._rewrite_error(event, error)
        return as_event(rename_error(data_of(written), "functions")) if self._is_legacy else written

    def _rewrite_events(self, events: bytes) -> bytes:
        if not self._choices and _CALLS not in events:
            return events
        return b"".join([self._rewrite_event(event) for event in split_events(events)])

    def _rewrite_event(self, event: bytes) -> bytes:
        fields = decode_json(data_of(event))
        choices = fields.get("choices") if isinstance(fields, dict) else None
        if not choices or not isinstance(choices, list):
            return event
        for choice in choices:
            if isinstance(choice, dict):
                index = choice["index"] if isinstance(choice.get("index"), int) else 0
                forms = self._choices.get(index)
                if forms is None:
                    forms = _ChoiceForms(self._custom_names, is_legacy=self._is_legacy)
                    self._choices[index] = forms
                forms.rewrite_choice(choice, "delta")
        return as_event(encode_json(fields))


class _FormsCollector(ChatCollector):
    """`StreamCollector` of a blocking chat completion with calls in the client's form."""

    __slots__ = ("_rewrite",)

    def __init__(self, rewrite: Callable[[bytes], bytes]) -> None:
        super().__init__(is_chat=True)
        self._rewrite = rewrite

    def build_result(self) -> tuple[int, bytes] | None:
        result = super().build_result()
        return result if result is None or result[0] >= 400 else (result[0], self._rewrite(result[1]))


class ToolFormsDialect(OpenAIDialect):
    """Dialect of chat completions whose tools have other forms than engines know. `is_legacy`: serves requests with
    `functions`; else custom tools, and conversations with either."""

    may_flow: bool = False

    def __init__(self, *, is_legacy: bool) -> None:
        super().__init__(is_chat=True)
        self._is_legacy = is_legacy
        self.form = "functions" if is_legacy else None

    def can_serve(self, request: InferenceRequest) -> bool:
        return self._is_legacy is has_functions(request.outline_fields)

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what `OpenAIDialect.check_request` and `write_tools` refuse."""
        super().check_request(request, route)
        write_tools(request.fields, keeps_types=route.backend == OPENAI_REMOTE)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        # Of a large body, too: a custom tool's input becomes a part of a text, which an outline cannot tell.
        fields = write_tools(request.fields, keeps_types=route.backend == OPENAI_REMOTE)
        return super().engine_body(request.with_fields(fields), route, as_stream=as_stream)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        return _FormsStream(request, _custom_names(request), is_legacy=self._is_legacy)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        is_possible = super().open_collector(request) is not None
        return _FormsCollector(self.get_body_converter(request)) if is_possible else None

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes]:
        names = _custom_names(request)
        return lambda body: rewrite_body(alias_in_body(body), names, is_legacy=self._is_legacy)


def _custom_names(request: InferenceRequest) -> frozenset[str]:
    """The names of the custom tools of a request that was checked, or is a remote's."""
    tools = request.outline_fields.get("tools")
    customs = [tool.get("custom") for tool in tools if has_other_type(tool)] if isinstance(tools, list) else []
    return frozenset([custom["name"] for custom in customs if isinstance(custom, dict) and _is_named(custom)])


def _is_named(custom: Fields) -> bool:
    return isinstance(custom.get("name"), str)


CUSTOM_TOOLS: Final = ToolFormsDialect(is_legacy=False)
FUNCTIONS: Final = ToolFormsDialect(is_legacy=True)
