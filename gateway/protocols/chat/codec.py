"""Chat completions: writes a `Prompt` as a request to an engine and reads the engine's answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.protocols.chat import llama_server
from gateway.protocols.common.conversation import (
    Answer,
    Assistant,
    Call,
    Fields,
    Finish,
    Image,
    OutputFormat,
    Part,
    Prompt,
    System,
    Text,
    Tokens,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)

_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def write_request(prompt: Prompt) -> Fields:
    """Return the fields of a chat completion request, without `model` and `stream`.

    `thinking` and `thinking_tokens` are left out, because each engine has its own switch for them (`adapt_thinking`,
    `llama_server.fields_for`). Leading system turns become one message. Without `prompt.tools`, a tool choice is left
    out, too.
    """
    fields: Fields = {**prompt.passed_fields, "messages": _messages(prompt.turns)}
    if prompt.tools:
        fields["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.tool_choice is not None:
            fields["tool_choice"] = _tool_choice(prompt.tool_choice)
        if prompt.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    if prompt.output_format is not None:
        fields["response_format"] = write_format(prompt.output_format)
    if prompt.max_tokens is not None:
        fields["max_tokens"] = prompt.max_tokens
    if prompt.stop:
        fields["stop"] = list(prompt.stop)
    if prompt.effort is not None:
        fields["reasoning_effort"] = prompt.effort
    return fields


def answer_of(fields: Fields) -> Answer:
    """Return the first choice of a decoded blocking chat completion as an `Answer`. Raises nothing.

    Fields that the engine leaves out or gives in another type count as empty. Without any choice the answer is empty.
    """
    choices = fields.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict):
        message = {}
    calls = tuple(_calls(message.get("tool_calls")))
    return Answer(
        id=id_of(fields),
        text=_text(message.get("content")),
        thought=thought_in(message),
        refusal=_text(message.get("refusal")),
        calls=calls,
        finish="tool_calls" if calls and choice.get("finish_reason") == "stop" else finish_of(choice),
        stop_sequence=stop_sequence_of(choice) or llama_server.stop_sequence_in(fields),
        tokens=tokens_of(fields.get("usage")),
        logprobs=tuple(logprobs_of(choice) or ()),
    )


def id_of(fields: Fields) -> str:
    """Return the engine's id of an answer or of a chunk; empty if it has none."""
    return _text(fields.get("id"))


def has_text(chunk: Fields) -> bool:
    """Whether the first choice in a chunk of a stream holds a part of the answer's text. Thoughts and tool calls are
    no text."""
    choices = chunk.get("choices")
    delta = choices[0].get("delta") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    return isinstance(delta, dict) and bool(delta.get("content"))


def thought_in(message: Fields) -> str:
    """Return the thoughts in a message or a delta, from `reasoning_content` or else `reasoning`; empty if there are
    none."""
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def finish_of(choice: Fields) -> Finish:
    """Return why a choice ended. An unknown or missing reason counts as `stop`; the caller checks whether the choice
    has ended."""
    return _FINISHES.get(str(choice.get("finish_reason")), "stop")


def stop_sequence_of(choice: Fields) -> str | None:
    """Return the stop string that ended a choice, as vLLM and our worker report it (`stop_reason`); None: no stop
    string did, or it is not reported."""
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, str) else None


def logprobs_of(choice: Fields) -> list[Fields] | None:
    """Return the log probabilities of a choice or of a part of one, an object for each token in order; None if it has
    none."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else None


def tokens_of(usage: Any) -> Tokens | None:
    """Return the counts of a chat completion's usage object; None if it is empty or not an object. Counts that are
    missing are 0."""
    if not usage or not isinstance(usage, dict):
        return None
    return Tokens(
        prompt=_count(usage, "prompt_tokens"),
        completion=_count(usage, "completion_tokens"),
        cached=_count(usage.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _calls(calls: Any) -> Iterable[Call]:
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            name, arguments = _text(function.get("name")), _text(function.get("arguments"))
            yield Call(_text(call.get("id")) or f"call_{number}", name, arguments)


def _messages(turns: tuple[Turn, ...]) -> list[Fields]:
    """Return the messages of a request. Leading system turns become one message, because most chat templates accept one
    system message, at the start."""
    leading_count = 0
    while leading_count < len(turns) and isinstance(turns[leading_count], System):
        leading_count += 1
    leading_texts = [turn.text for turn in turns[:leading_count] if isinstance(turn, System)]
    first: list[Fields] = [{"role": "system", "content": "\n\n".join(leading_texts)}] if leading_texts else []
    return first + [_message(turn) for turn in turns[leading_count:]]


def _message(turn: Turn) -> Fields:
    match turn:
        case System():
            return {"role": "system", "content": turn.text}
        case User():
            return {"role": "user", "content": _content(turn.parts)}
        case ToolResult():
            return {"role": "tool", "tool_call_id": turn.call_id, "content": _content(turn.parts)}
        case Assistant():
            return _assistant(turn)


def _assistant(turn: Assistant) -> Fields:
    # Templates disagree on null content; all of them take an empty string beside tool calls.
    message: Fields = {"role": "assistant", "content": turn.text or turn.refusal}
    if turn.thought:
        message |= {"reasoning_content": turn.thought, "reasoning": turn.thought}
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.calls
        ]
    return message


def _content(parts: tuple[Part, ...]) -> str | list[Fields]:
    """Return a string if all parts are text, which every engine accepts, else a list of parts. Texts are joined as
    llama-server and vLLM join them."""
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _part(part: Part) -> Fields:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        url = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
        return {"type": "image_url", "image_url": url}
    return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}


def _tool(tool: Tool) -> Fields:
    function: Fields = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> str | Fields:
    if choice.kind == "named":
        return {"type": "function", "function": {"name": choice.name}}
    return choice.kind


def write_format(output: OutputFormat) -> Fields:
    """Return the `response_format` of a chat completion request: `json_object` where `output.schema` is None, else
    `json_schema`, without a description or `strict` that is None."""
    if output.schema is None:
        return {"type": "json_object"}
    schema: Fields = {"name": output.name, "schema": output.schema}
    if output.description is not None:
        schema["description"] = output.description
    if output.strict is not None:
        schema["strict"] = output.strict
    return {"type": "json_schema", "json_schema": schema}
