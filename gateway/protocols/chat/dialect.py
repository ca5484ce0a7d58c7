"""OpenAI's chat completions and completions, passed through, each request adapted to the model's engine. Pure.

The usage event has no choices and comes last. The gateway always asks the engine for it, and removes it from the
client's stream unless the client asked for it too.

Thoughts are sent under both names that engines and clients use: llama-server, our worker and many clients use
`reasoning_content`; vLLM, gpt-oss and others use `reasoning`.

Coding agents send system messages later than at the start: Claude Code with its beta
`mid-conversation-system-2026-04-07`, Codex as `developer` items.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, cast

from contract.errors import RoundhouseError
from contract.routing import ModelRoute, ThinkingControl
from gateway.protocols.chat.stream_collector import OpenAICollector
from gateway.protocols.common import bodies
from gateway.protocols.common.bodies import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    CONSTRAINT_FIELDS,
    LLAMA_SERVER,
    OPENAI_REMOTE,
    adapt_constraints,
    check_foreign_fields,
)
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EnvelopeDialect, EventStream, StreamCollector
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.fan_out import check_choices
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import REFUSABLE, Api, check_effects
from gateway.protocols.common.streams import (
    OpenAIStream,
    as_events,
    data_of,
    differs_as_stream,
    split_events,
    wants_probabilities,
)

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
    return b"".join([_alias_in_event(event) for event in split_events(events)])


def alias_in_body(body: bytes) -> bytes:
    """Return the body of a blocking answer with each thought under both names, `reasoning_content` and `reasoning`; the
    same object if it has no thought, or both names already. A body that is no JSON passes."""
    if MARK not in body:
        return body
    return _THOUGHT.sub(_add_alias, body) if _has_one_name(body) else _alias_in_json(body)


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


def _alias_in_event(event: bytes) -> bytes:
    if MARK not in event:
        return event
    thoughts, nulls = _THOUGHT.findall(event), _NULL.findall(event)
    if len(thoughts) == len(nulls) == event.count(b'"delta"') == 1:  # sent by servers that know both names
        return _NULL.sub(lambda match: match[1] + thoughts[0][1], event)
    data = data_of(event)
    new_data = _alias_in_json(data)
    return event if new_data is data else b"data: %b\n\n" % new_data


def _alias_in_json(text: bytes) -> bytes:
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


def narrow_tools(fields: Fields, *, names_one: bool) -> Fields:
    """Return chat completion fields that offer only the tools that `tool_choice` permits. `fields` itself stays.

    - `{"type": "allowed_tools"}`, which only OpenAI knows: `tools` keeps the tools that the choice lists, perhaps none,
      and the choice becomes `required` if that is its mode, else `auto`.
    - `{"type": "function"}`, if `names_one` (for llama-server, which ignores this choice): `tools` keeps the function
      that the choice names, and the choice becomes `required`.
    - Any other choice, or `tools` that is no array: the result is the same object.

    Raises:
        RoundhouseError: `invalid_request`: `tool_choice` names a tool that is not among `tools`.
    """
    choice, tools = fields.get("tool_choice"), fields.get("tools")
    if not isinstance(choice, dict) or not isinstance(tools, list):
        return fields
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("allowed_tools"), dict):
        allowed_tools = choice["allowed_tools"]
        mode = "required" if allowed_tools.get("mode") == "required" else "auto"
        listed_tools = allowed_tools.get("tools")
        names = [_function_name(tool) for tool in listed_tools] if isinstance(listed_tools, list) else []
    elif names_one and choice.get("type") == "function":
        mode, names = "required", [_function_name(choice)]
    else:
        return fields
    known_names = {_function_name(tool) for tool in tools}
    for name in names:
        if name not in known_names:
            rule = f"`tool_choice` names {name!r:.80}, which is not among `tools`."
            raise RoundhouseError("invalid_request", rule, param="tool_choice")
    return fields | {"tools": [tool for tool in tools if _function_name(tool) in names], "tool_choice": mode}


def _function_name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


LEGACY_FIELDS: Final = ("functions", "function_call")
"""Fields of before 2023, which `tools` and `tool_choice` have replaced."""
_OF_TOOLS: Final = frozenset({"tools", "tool_choice", *LEGACY_FIELDS})


def has_functions(fields: Fields) -> bool:
    """Return whether a chat completion has `functions`, and not `tools`, so that its answer has `function_call`. Empty
    ones and null are none: clients send all their fields."""
    return bool(fields.get("functions")) and not fields.get("tools")


def has_other_forms(request: InferenceRequest) -> bool:
    """Return whether the tools, calls or results of a chat completion have forms that engines do not know
    (`tool_forms`)."""
    fields, text = request.outline_fields, request.outline
    # Each conversation with calls has one of these, as a key or a whole text: inside a string, a quote is escaped.
    if _OF_TOOLS.isdisjoint(fields) and b'"function' not in text and b'"custom"' not in text:
        return False
    choice, tools, messages = fields.get("tool_choice"), fields.get("tools"), fields.get("messages")
    return (
        any(fields.get(name) is not None for name in LEGACY_FIELDS)
        or (isinstance(choice, dict) and choice.get("type") == "custom")
        or (tools is not None and not (isinstance(tools, list) and all(map(_is_function, tools))))
        or (isinstance(messages, list) and any(map(_is_other_message, messages)))
    )


def _is_function(tool: Any) -> bool:
    """Whether a tool is a function with a name, as every engine knows it. llama-server fails at others."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def has_other_type(tool: Any) -> bool:
    """Return whether a tool, or a call of one, says that it is no function. One that is no object does not."""
    return isinstance(tool, dict) and tool.get("type", "function") != "function"


def _is_other_message(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    calls = message.get("tool_calls")
    return (
        message.get("function_call") is not None
        or message.get("role") == "function"
        or (isinstance(calls, list) and any(map(has_other_type, calls)))
    )


_SYSTEM_ROLES: Final = ("system", "developer")
_TURN_ROLES: Final = ("user", "tool", "function")
"""Roles of messages that are not the model's. Anthropic's API puts tool results into user messages too."""
_REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
"""The form in which Claude Code itself puts such texts into user messages, for servers without that beta."""


def fold_system_messages(messages: list[Any]) -> list[Any]:
    """Return the messages with a system message at the start only; the same list if nothing must change. The given
    list and its messages are not changed. System messages that hold more than text stay where they are.

    Leading system and developer messages become one. A later one is appended to the message before it, if that is the
    user's or a tool result. Otherwise its text goes to the start of the next message if that is one of those, else into
    a user message of its own.

    Where a text goes depends on the neighbouring messages alone, so that a growing conversation keeps the prefix that
    engines have cached. No message is put between a tool call and its result, and none after a result: some templates
    drop earlier thoughts once another user message follows.
    """
    leading_count = 0
    while leading_count < len(messages) and _is_system(messages[leading_count]):
        leading_count += 1
    later_messages = messages[leading_count:]
    is_plain_start = leading_count == 0 or (leading_count == 1 and messages[0]["role"] == "system")
    if is_plain_start and not any(map(_is_system, later_messages)):
        return messages
    folded_messages: list[Any] = messages[:leading_count] if is_plain_start else []
    if not is_plain_start:
        leading_text = "\n\n".join(_plain_text(message["content"]) for message in messages[:leading_count])
        folded_messages.append({"role": "system", "content": leading_text})
    waiting_texts: list[str] = []
    for message in later_messages:
        if not _is_system(message):
            if not waiting_texts:
                folded_messages.append(message)
            elif _is_turn(message):
                folded_messages.append(_with_texts(message, waiting_texts, before=True))
            else:
                folded_messages += [_user_message(waiting_texts), message]
            waiting_texts = []
        elif folded_messages and not waiting_texts and _is_turn(folded_messages[-1]):
            folded_messages[-1] = _with_texts(folded_messages[-1], [_reminder(message)], before=False)
        else:
            waiting_texts.append(_reminder(message))
    if waiting_texts:
        folded_messages.append(_user_message(waiting_texts))
    return folded_messages


def _is_system(message: Any) -> bool:
    """Whether this is a system or developer message of text alone. Others are left for the engine to refuse."""
    if not isinstance(message, dict) or message.get("role") not in _SYSTEM_ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_text, content)))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_turn(message: Any) -> bool:
    """Whether text can be added to the message."""
    return (
        isinstance(message, dict)
        and message.get("role") in _TURN_ROLES
        and isinstance(message.get("content"), str | list)
    )


def _reminder(message: Fields) -> str:
    return _REMINDER.format(_plain_text(message["content"]))


def _plain_text(content: Any) -> str:
    """Return the text, parts joined as engines join the parts of a message."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _user_message(texts: list[str]) -> Fields:
    return {"role": "user", "content": "\n\n".join(texts)}


def _with_texts(message: Fields, texts: list[str], *, before: bool) -> Fields:
    """Return the message with `texts` added. Content in parts of text becomes a string, so that a client that sends a
    text once as a string and once as parts gets the same prompt."""
    content = message["content"]
    if isinstance(content, str) or all(map(_is_text, content)):
        all_texts = [*texts, _plain_text(content)] if before else [_plain_text(content), *texts]
        return {**message, "content": "\n\n".join(filter(None, all_texts))}
    parts = [{"type": "text", "text": text} for text in texts]
    return {**message, "content": [*parts, *content] if before else [*content, *parts]}


Asked = Literal["enabled", "disabled"]


def adapt_request(request: InferenceRequest, route: ModelRoute) -> InferenceRequest:
    """Return a chat completion request as the model's engine understands it; the same object if nothing must change,
    else a copy.

    - `thinking` and `reasoning_effort: none` become the field that `route.thinking_control` names.
    - Thoughts of earlier answers get both of their field names, because engines read one or the other. Not for remote
      models.
    - A `tool_choice` that the engine does not support becomes a shorter list of `tools`. Not for remote models.
    - System messages move to where the model's chat template takes them (`route.system_first`).

    Raises:
        RoundhouseError: `invalid_request`: `tool_choice` names a tool that is not among `tools`.
    """
    fields = request.outline_fields
    engine_fields = fields
    if "thinking" in fields or "reasoning_effort" in fields:
        engine_fields = adapt_thinking(engine_fields, route)
    messages = fields.get("messages")
    if isinstance(messages, list) and route.backend != OPENAI_REMOTE:
        for message in messages:
            if (
                isinstance(message, dict)
                and ("reasoning" in message or "reasoning_content" in message)
                and alias_in_message(message) is not message
            ):
                engine_fields = engine_fields | {"messages": [alias_in_message(each) for each in messages]}
                break
    if isinstance(messages, list) and route.system_first:
        folded_messages = fold_system_messages(engine_fields["messages"])
        if folded_messages is not engine_fields["messages"]:
            engine_fields = engine_fields | {"messages": folded_messages}
    if "tool_choice" in fields and route.backend != OPENAI_REMOTE:
        engine_fields = narrow_tools(engine_fields, names_one=route.backend == LLAMA_SERVER)
    if engine_fields is fields:
        return request
    return replace(request, outline=json_bytes(engine_fields), outline_fields=engine_fields)


def adapt_fields(fields: Fields, route: ModelRoute) -> Fields:
    """Return the fields of a translated chat completion as the model's engine understands them; `fields` itself if none
    of them must change. `fields` must have `messages` in the form of `via_chat.write_request`.

    - The token limit gets the name in `route.max_tokens_field`.
    - Thoughts of earlier answers keep one name for a remote, which may refuse the other. This changes the messages in
      place.
    - System messages move to where the model's chat template takes them (`route.system_first`).
    """
    if route.system_first:
        fields = fields | {"messages": fold_system_messages(fields["messages"])}
    if "max_tokens" in fields and route.max_tokens_field != "max_tokens":
        fields = {route.max_tokens_field if name == "max_tokens" else name: fields[name] for name in fields}
    if route.backend == OPENAI_REMOTE:
        for message in fields["messages"]:
            message.pop("reasoning", None)
    return fields


def ask_for_prompt_tokens(fields: Fields, route: ModelRoute) -> Fields:
    """Return the fields of a stream so that the engine reports the prompt's tokens before its first token: llama-server
    in progress events, vLLM and our worker in the usage of each event. The same object for a remote model, which may
    refuse such a field. Raises KeyError if `fields` lacks `stream_options` and the engine is neither llama-server nor a
    remote."""
    if route.backend == OPENAI_REMOTE:
        return fields
    if route.backend == LLAMA_SERVER:
        return fields | {"return_progress": True}
    return fields | {"stream_options": {**fields["stream_options"], "continuous_usage_stats": True}}


def adapt_thinking(fields: Fields, route: ModelRoute) -> Fields:
    """Return the fields with `thinking` and `reasoning_effort: none` as the model's engine understands them (see
    `apply_thinking`); the same object if nothing must change. `fields` itself is never changed.

    - `thinking`, if it is a string, must be `default`, `enabled` or `disabled`; the caller has checked that. `default`
      is dropped, and so is any of them if the engine has no switch. A value that is no string stays.
    - `reasoning_effort: none` counts as `thinking: disabled` if the model can disable thinking, but `enabled` or
      `disabled` in `thinking` wins over it. It stays as it is if the engine has no switch, or if `thinking` is neither
      `enabled` nor `disabled` and the engine takes `reasoning_effort` or the model cannot disable thinking.
    """
    control, word, effort = route.thinking_control, fields.get("thinking"), fields.get("reasoning_effort")
    mode = cast("Asked", word) if isinstance(word, str) and word != "default" else None
    dropped_names = {"thinking"} if isinstance(word, str) else set()
    if effort == "none" and control not in (None, "reasoning_effort"):
        if mode is None and "disabled" in route.capabilities.thinking_modes:
            mode = "disabled"
        if mode is not None:
            dropped_names.add("reasoning_effort")
    if dropped_names == {"thinking"} and control == "thinking" and mode is not None:
        return fields  # the engine takes the field as it is
    if dropped_names:
        fields = {name: value for name, value in fields.items() if name not in dropped_names}
    return apply_thinking(fields, mode, control)


def apply_thinking(fields: Fields, mode: Asked | None, control: ThinkingControl | None) -> Fields:
    """Return a copy of chat completion fields in which the field named by `control` turns thinking on or off; the same
    object if `mode` or `control` is None. By `control`:

    - `chat_template_kwargs`: sets `enable_thinking` in it for the chat template, as llama-server and vLLM take it.
    - `thinking`: sets the word itself, as our worker takes it.
    - `reasoning_effort`: sets `none` to disable thinking. To enable it, the request's own effort stays; `medium` if it
      has none, or `none`.
    - None: the engine has no switch, and its models advertise no thinking modes.
    """
    if mode is None or control is None:
        return fields
    if control == "thinking":
        return fields | {"thinking": mode}
    if control == "reasoning_effort":
        effort = fields.get("reasoning_effort")
        new_effort = "none" if mode == "disabled" else effort if effort not in (None, "none") else "medium"
        return fields | {"reasoning_effort": new_effort}
    kwargs = fields.get("chat_template_kwargs")
    template_kwargs = kwargs if isinstance(kwargs, dict) else {}
    return fields | {"chat_template_kwargs": {**template_kwargs, "enable_thinking": mode == "enabled"}}


class ChatStream(OpenAIStream):
    """`EventStream` of chat completion events, passed through. Thoughts are sent under both of their field names,
    `reasoning_content` and `reasoning`."""

    __slots__ = ()

    def feed_data(self, chunk: bytes) -> bytes:
        events = super().feed_data(chunk)
        return alias_in_events(events) if MARK in events else events


class ChatCollector(OpenAICollector):
    """`StreamCollector` of a blocking chat completion. Thoughts are sent under both of their field names,
    `reasoning_content` and `reasoning`."""

    __slots__ = ()

    def build_result(self) -> tuple[int, bytes] | None:
        result = super().build_result()
        return result if result is None else (result[0], alias_in_body(result[1]))


class OpenAIDialect(EnvelopeDialect):
    """Dialect of chat completions (`is_chat`) or of completions, for engines that serve them: both are passed
    through."""

    may_flow: bool = True

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._known_fields = CHAT_FIELDS if is_chat else COMPLETION_FIELDS
        self._api: Api = "chat" if is_chat else "completions"

    def can_serve(self, request: InferenceRequest) -> bool:
        """Return False for a chat whose tools have other forms than engines know."""
        return not (self._is_chat and has_other_forms(request))

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model does not support, fields that a remote model must not get, too many answers, and
        fields that the engine would ignore.

        Raises:
            RoundhouseError: as `Dialect.check_request`.
        """
        super().check_request(request, route)
        fields = request.outline_fields
        check_foreign_fields(fields, self._known_fields, route)
        check_choices(fields, route)
        adapt_constraints(request.whole_where_any(CONSTRAINT_FIELDS), route, is_chat=self._is_chat)
        if not REFUSABLE[self._api].isdisjoint(fields):
            check_effects(fields, self._api, route)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body as the engine understands it, without fields that it must not get, and asking for usage in
        each stream.

        Raises:
            RoundhouseError: `invalid_request`: `tool_choice` names a tool that is not among `tools`.
        """
        asked_fields = request.whole_where_any(CONSTRAINT_FIELDS)
        fields = adapt_constraints(asked_fields, route, is_chat=self._is_chat)
        if fields is not asked_fields:
            request = replace(request, outline=json_bytes(fields), outline_fields=fields)
        if self._is_chat:
            request = adapt_request(request, route)
        request = bodies.without_foreign_fields(request, self._known_fields, route)
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=True)
        if request.stream and not request.wants_usage:
            return bodies.with_usage(request, route.served_name)
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        stream_class = ChatStream if self._is_chat else OpenAIStream
        return stream_class(request.id, strip_usage=not request.wants_usage)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new collector; None also for log probabilities in a chat, and for those with stop strings in a
        completion. Chat streams of llama-server lack the log probabilities of tokens without text; its completion
        streams include those of a stop string, which a blocking answer leaves out."""
        fields = request.outline_fields
        if differs_as_stream(fields) or (wants_probabilities(fields) and (self._is_chat or fields.get("stop"))):
            return None
        return ChatCollector(is_chat=True) if self._is_chat else OpenAICollector(is_chat=False)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        return alias_in_body if self._is_chat else None

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        return as_events(body)


CHAT: Final = OpenAIDialect(is_chat=True)
COMPLETIONS: Final = OpenAIDialect(is_chat=False)
