"""Builds a blocking chat completion or completion from the events of a stream, and reads messages of odd forms."""

from __future__ import annotations

from typing import Any, Final

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import UsageTally
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.streams import NO_JSON, EventCollector

_STREAMS_ONLY = ("prompt_progress", "obfuscation")
"""Fields that streams have and blocking answers have not."""

_THOUGHTS: Final = ("thinking", "reasoning", "reasoning.text", "reasoning.summary", "summary")
"""Types of parts that hold thoughts: Mistral's, OpenRouter's."""


def normalize_message(message: Fields) -> Fields:
    """Return a message, or a delta of one, with texts as strings and calls as `tool_calls`, whose arguments are JSON
    texts; the same object where it is so already. Servers also send content as a list of parts, arguments as an
    object, thoughts as parts, and the `function_call` of before 2023.

    Raises:
        RoundhouseError: `engine_error`: it says something that has no place in an answer.
    """
    content, details = message.get("content"), message.get("reasoning_details")
    is_text = content is None or isinstance(content, str)
    if is_text and not details and not message.get("tool_calls") and not message.get("function_call"):
        return message
    found = {**message}
    if not is_text:
        found |= _read_content(content)
    if details and not message.get("reasoning_content") and not message.get("reasoning"):
        found["reasoning_content"] = _flatten(details)
    if call := found.pop("function_call", None):
        found["tool_calls"] = [{"index": 0, "type": "function", "function": call}]
    if calls := found.get("tool_calls"):
        if not isinstance(calls, list):
            raise _unknown_form("tool_calls")
        found["tool_calls"] = [_normalize_call(each) for each in calls]
    return found


def _read_content(content: Any) -> Fields:
    """Return the fields of a message that a list of parts stands for."""
    if not isinstance(content, list):
        raise _unknown_form("content")
    texts = {"content": "", "reasoning_content": "", "refusal": ""}
    for part in content:
        field, text = _read_part(part)
        texts[field] += text
    return {name: text or None for name, text in texts.items() if text or name == "content"}


def _normalize_call(call: Any) -> Fields:
    if not isinstance(call, dict):
        raise _unknown_form("tool_calls")
    function = call.get("function")
    if function is None:
        return call
    if not isinstance(function, dict):
        raise _unknown_form("tool_calls")
    arguments = function.get("arguments")
    if arguments is None or isinstance(arguments, str):
        return call
    return {**call, "function": {**function, "arguments": json_bytes(arguments).decode()}}


def _read_part(part: Any) -> tuple[str, str]:
    """Return the field that a part of a message's content belongs to, and its text."""
    if isinstance(part, str):
        return "content", part
    kind = part.get("type") if isinstance(part, dict) else part
    if kind in (None, "text", "output_text") and isinstance(part, dict) and isinstance(part.get("text"), str):
        return "content", part["text"]
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return "refusal", part["refusal"]
    if kind in _THOUGHTS:
        return "reasoning_content", _flatten([part])
    raise _unknown_form("content")


def _flatten(value: Any) -> str:
    """Return the texts of thoughts, which are in parts within each other. What is encrypted has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _flatten(value.get("thinking") or value.get("text") or value.get("summary") or value.get("content"))
    return "".join(_flatten(each) for each in value) if isinstance(value, list) else ""


def _unknown_form(field: str) -> RoundhouseError:
    return RoundhouseError("engine_error", f"The engine answered with `{field}` in a form that is not known here.")


class OpenAICollector(EventCollector):
    """`StreamCollector` of a chat completion (`is_chat`) or a completion. Collects choices by their index; of each
    field beside the choices, the last value counts. The stream is complete once `[DONE]` has come, or where it ended
    after a finish reason of each choice."""

    __slots__ = ("_choices", "_ended_last", "_is_chat", "_tally", "_top", "_usages")

    def __init__(self, *, is_chat: bool) -> None:
        super().__init__()
        self._is_chat = is_chat
        self._choices: dict[int, _Choice] = {}
        self._top: Fields = {}
        self._usages: dict[int, Any] = {}
        """Usage objects by the index of the choice that had ended last. llama-server sends one for each choice; a
        blocking answer has that of the first choice."""
        self._ended_last = 0
        self._tally = UsageTally()

    @property
    def answer_id(self) -> str | None:
        """The engine's id of the answer; None if no event had one yet."""
        answer_id = self._top.get("id")
        return answer_id if isinstance(answer_id, str) and answer_id else None

    def _take_event(self, fields: Fields) -> None:
        try:
            self._add_event(fields)
        except RoundhouseError as error:
            self._take_fault(error.message)

    def _take_unreadable(self) -> None:
        self._take_fault(NO_JSON)

    def _add_event(self, fields: Fields) -> None:
        choices = fields.pop("choices", None)
        usage = fields.pop("usage", None)
        self._top.update(fields)
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict):
                    self._add_choice(choice)
        if usage is not None:
            self._usages[self._ended_last] = usage
            self._tally.note_usage(usage, choices)
            self.usage = self._tally.usage

    def _add_choice(self, choice: Fields) -> None:
        index = choice.get("index", 0)
        if not isinstance(index, int):
            return
        open_choice = self._choices.get(index)
        if open_choice is None:
            open_choice = self._choices[index] = _Choice(index)
        open_choice.add_part(choice)
        if choice.get("finish_reason") is not None:
            self._ended_last = index

    def _build_answer(self) -> Any:
        if not self.is_done and not (self._choices and all(each.has_ended for each in self._choices.values())):
            return None
        top = {name: value for name, value in self._top.items() if name not in _STREAMS_ONLY}
        if self._is_chat:
            top["object"] = "chat.completion"
        choices = [self._choices[index].build_choice(is_chat=self._is_chat) for index in sorted(self._choices)]
        answer = {"choices": choices, **top}
        if self._usages:
            answer["usage"] = self._usages[min(self._usages)]
        return answer


class _Choice:
    """A choice that grows with each event."""

    __slots__ = ("_calls", "_fields", "_message", "_numbers", "_texts")

    def __init__(self, index: int) -> None:
        self._fields: Fields = {"finish_reason": None, "index": index}
        self._message: Fields = {}
        self._texts: dict[str, list[str]] = {}
        """Name of a text field to its parts, joined when the choice is built."""
        self._calls: dict[int, tuple[int, _ToolCall]] = {}
        """Number of a tool call to its index in the stream and the call."""
        self._numbers = CallNumbers()

    @property
    def has_ended(self) -> bool:
        """Whether an event with the finish reason of this choice has come."""
        return self._fields["finish_reason"] is not None

    def add_part(self, choice: Fields) -> None:
        """Add the part of the choice that one event holds."""
        for name, value in choice.items():
            if name == "delta":
                if isinstance(value, dict):
                    self._add_delta(normalize_message(value))
            elif name == "text":
                if isinstance(value, str):
                    _append(self._texts, name, value)
            elif name == "logprobs" and isinstance(value, dict):
                self._fields[name] = merge_values(self._fields.get(name), value)
            elif value is not None or name not in self._fields:
                self._fields[name] = value

    def _add_delta(self, delta: Fields) -> None:
        for name, value in delta.items():
            if name == "role":
                self._message[name] = value
            elif isinstance(value, str):
                _append(self._texts, name, value)
            elif name == "tool_calls" and isinstance(value, list):
                for call in value:
                    if isinstance(call, dict):
                        self._add_call(call)
            else:
                self._message[name] = merge_values(self._message.get(name), value)

    def _add_call(self, call: Fields) -> None:
        number = self._numbers.number_of(call)
        if number not in self._calls:
            self._calls[number] = _index_of(call), _ToolCall()
        self._calls[number][1].add_part(call)

    def build_choice(self, *, is_chat: bool) -> Fields:
        """Return the choice as a blocking answer holds it."""
        texts = {name: "".join(parts) for name, parts in self._texts.items()}
        if not is_chat:
            return {"text": texts.get("text", ""), **self._fields}
        message: Fields = {"role": "assistant", **self._message, "content": "", **texts}
        if self._calls:
            calls = sorted(self._calls.values(), key=lambda entry: entry[0])
            message["tool_calls"] = [call.build_call() for _, call in calls]
        return {**self._fields, "message": message}


class CallNumbers:
    """Numbers the tool calls of one choice of a stream from 0, in the order in which they start. Some engines give all
    calls the same index, or none, and tell them apart by id: a part with a new id and a function name starts another
    call."""

    __slots__ = ("_count", "_open")

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[int, tuple[int, Any]] = {}
        """Index in the stream to the number and the id of the call that uses the index now."""

    def number_of(self, call: Fields) -> int:
        """Return the number of the tool call to which `call` belongs, an element of a delta's `tool_calls`. Call once
        for each such element, in the order of the stream."""
        index, call_id = _index_of(call), call.get("id")
        open_call = self._open.get(index)
        if open_call is None or (call_id and open_call[1] and call_id != open_call[1] and _has_name(call)):
            open_call = self._open[index] = self._count, call_id
            self._count += 1
        return open_call[0]


def _index_of(call: Fields) -> int:
    index = call.get("index")
    return index if isinstance(index, int) else 0


def _has_name(call: Fields) -> bool:
    function = call.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


class _ToolCall:
    """A tool call that grows with each event. Its function's strings arrive in parts, its id and type whole."""

    __slots__ = ("_fields", "_function")

    def __init__(self) -> None:
        self._fields: Fields = {"type": "function"}
        self._function: dict[str, list[str]] = {"name": [], "arguments": []}

    def add_part(self, call: Fields) -> None:
        """Add the part of the call that one event holds."""
        for name, value in call.items():
            if name == "function" and isinstance(value, dict):
                for part, text in value.items():
                    if isinstance(text, str):
                        _append(self._function, part, text)
            elif name != "index" and value not in (None, ""):
                self._fields[name] = value

    def build_call(self) -> Fields:
        """Return the call as a message holds it."""
        return {**self._fields, "function": {name: "".join(parts) for name, parts in self._function.items()}}


def _append(texts: dict[str, list[str]], name: str, value: str) -> None:
    parts = texts.get(name)
    if parts is None:
        texts[name] = [value]
    else:
        parts.append(value)


def merge_values(old: Any, new: Any) -> Any:
    """Return a field's value after one more part of it. Strings and lists are joined, objects are merged field by
    field; of any other value, or of two types, the last one counts. `new` None changes nothing. `old` may be changed in
    place."""
    if new is None:
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in new.items():
            old[name] = merge_values(old.get(name), value)
        return old
    if isinstance(old, list) and isinstance(new, list):
        old.extend(new)
        return old
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return new
