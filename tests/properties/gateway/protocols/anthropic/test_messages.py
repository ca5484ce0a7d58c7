"""Conversations survive the way through Anthropic's requests, and answers the way through chunks cut anywhere."""

from __future__ import annotations

import json
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.anthropic.dialect import MessagesCollector
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT, read_prompt
from gateway.protocols.common.conversation import (
    Answer,
    Assistant,
    Call,
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
from gateway.protocols.common.request import parse_request
from tests.fakes.fake_controller import route
from tests.support.campaign import campaign_count
from tests.support.messages_schema import checked_events, checked_message
from tests.support.outcomes import present

Fields = dict[str, Any]

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
SAID = TEXTS.filter(bool)
NAMES = st.text("abcdef_-09", min_size=1, max_size=8)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
ARGUMENTS = OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")))
IMAGES = st.builds(Image, st.sampled_from(["data:image/png;base64,aGk=", "https://x.example/y.webp"]))
PARTS: st.SearchStrategy[tuple[Part, ...]] = st.lists(TEXTS.map(Text) | IMAGES, min_size=1, max_size=3).map(tuple)
USERS = st.builds(User, PARTS)
RESULTS = st.builds(ToolResult, NAMES, PARTS, st.booleans())
CALLS = st.lists(st.builds(Call, NAMES, NAMES, ARGUMENTS), max_size=3).map(tuple)
ASSISTANTS = st.builds(Assistant, TEXTS, TEXTS, CALLS).filter(lambda turn: turn != Assistant())
SYSTEMS = st.builds(System, SAID)


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, ...]:
    """A conversation in which nobody speaks twice in a row."""
    told: list[Turn] = list(draw(st.lists(SYSTEMS, max_size=2)))
    for _ in range(draw(st.integers(1, 3))):
        results = draw(st.lists(RESULTS, max_size=2))
        told += [*results, draw(USERS)] if not results or draw(st.booleans()) else results
        told.append(draw(ASSISTANTS))
    return tuple(told if draw(st.booleans()) else told[:-1])


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Whatever Anthropic's API can ask for."""
    strict = st.none() | st.booleans()
    tools = draw(st.lists(st.builds(Tool, NAMES, st.none() | TEXTS, OBJECTS, strict), max_size=2).map(tuple))
    named = st.sampled_from([tool.name for tool in tools]).map(lambda name: ToolChoice("named", name))
    other = st.builds(ToolChoice, st.sampled_from(["auto", "none", "required"]))
    choice = draw(st.none() | other | named if tools else st.none() | other)
    modes: tuple[Literal["enabled", "disabled"] | None, ...] = (None, "enabled", "disabled")
    thinking = draw(st.sampled_from(modes))
    return Prompt(
        turns=draw(turns()),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=draw(strict) if choice is not None else None,
        output_format=draw(st.none() | st.builds(OutputFormat, OBJECTS)),
        max_tokens=draw(st.integers(0, 9999)),
        stop=draw(st.lists(SAID, max_size=2).map(tuple)),
        thinking=thinking,
        thinking_tokens=draw(st.none() | st.integers(1, 9)) if thinking == "enabled" else None,
        effort=draw(st.sampled_from([None, "low", "medium", "high", "xhigh"])),
        passed_fields=draw(
            st.dictionaries(st.sampled_from(["temperature", "top_k", "min_p", "user"]), NAMES, max_size=3)
        ),
    )


def block_of(part: Part) -> Fields:
    """A part as Anthropic has it."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    assert isinstance(part, Image)
    kind, _, data = part.url.removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": kind, "data": data} if data else {"type": "url", "url": part.url}
    return {"type": "image", "source": source}


def blocks_of(turn: Turn) -> tuple[str, list[Fields]]:
    """Role and blocks of a turn."""
    match turn:
        case User():
            return "user", [block_of(part) for part in turn.parts]
        case ToolResult():
            content = [block_of(part) for part in turn.parts]
            result = {"type": "tool_result", "tool_use_id": turn.call_id, "content": content}
            return "user", [result | ({"is_error": True} if turn.is_error else {})]
        case Assistant():
            thoughts = [{"type": "thinking", "thinking": turn.thought, "signature": "s"}] if turn.thought else []
            texts = [{"type": "text", "text": turn.text}] if turn.text else []
            calls = [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
                for call in turn.calls
            ]
            return "assistant", thoughts + texts + calls
        case System():
            return "system", [{"type": "text", "text": turn.text}]


def request_of(prompt: Prompt, *, apart: bool) -> Fields:
    """A prompt as a request. `apart`: each of the user's turns is a message of its own."""
    system = [turn for turn in prompt.turns if isinstance(turn, System)]
    messages: list[Fields] = []
    for turn in prompt.turns[len(system) :]:
        role, blocks = blocks_of(turn)
        if messages and messages[-1]["role"] == role and not apart:
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": role, "content": blocks})
    kinds = {"auto": "auto", "none": "none", "required": "any", "named": "tool"}
    fields: Fields = {**prompt.passed_fields, "model": "m", "messages": messages, "max_tokens": prompt.max_tokens}
    fields["system"] = [block_of(Text(turn.text)) for turn in system]
    fields["stop_sequences"] = list(prompt.stop)
    fields["tools"] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters, "strict": tool.strict}
        for tool in prompt.tools
    ]
    if prompt.tool_choice is not None:
        choice: Fields = {"type": kinds[prompt.tool_choice.kind], "name": prompt.tool_choice.name}
        if prompt.parallel_tool_calls is not None:
            choice["disable_parallel_tool_use"] = not prompt.parallel_tool_calls
        fields["tool_choice"] = choice
    if prompt.thinking is not None:
        fields["thinking"] = {"type": prompt.thinking, "budget_tokens": prompt.thinking_tokens}
    fields["output_config"] = {"effort": prompt.effort}
    if prompt.output_format is not None:
        fields["output_config"]["format"] = {"type": "json_schema", "schema": prompt.output_format.schema}
    return fields


@given(prompts(), st.booleans())
@settings(max_examples=campaign_count(40, 1_000))
def test_a_conversation_survives_the_way_through_a_request(prompt: Prompt, apart: bool) -> None:
    assert read_prompt(json.loads(json.dumps(request_of(prompt, apart=apart)))) == prompt


ANSWERS = st.builds(
    Answer,
    id=st.just("chatcmpl-7"),
    text=TEXTS,
    thought=TEXTS,
    refusal=st.just("") | TEXTS,
    calls=st.lists(st.builds(Call, NAMES, NAMES, ARGUMENTS | st.sampled_from(["", "[1]", "{"])), max_size=3).map(tuple),
    finish=st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
    stop_sequence=st.none() | SAID,
    tokens=st.builds(Tokens, st.integers(9, 99), st.integers(1, 99), st.integers(0, 9), st.integers(0, 9)),
)


def chat_of(answer: Answer) -> Fields:
    """A blocking chat completion."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    message: Fields = {"role": "assistant", "content": answer.text, "reasoning_content": answer.thought}
    message |= {"refusal": answer.refusal} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": answer.finish, "stop_reason": answer.stop_sequence}
    tokens = present(answer.tokens)
    usage: Fields = {"prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}
    usage["prompt_tokens_details"] = {"cached_tokens": tokens.cached}
    usage["completion_tokens_details"] = {"reasoning_tokens": tokens.reasoning}
    return {"id": answer.id, "choices": [choice], "usage": usage}


def cut(draw: st.DrawFn, text: Any) -> list[Any]:
    """A text or bytes in parts, some of them perhaps empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streams(draw: st.DrawFn, answer: Answer) -> list[bytes]:
    """The answer as an engine streams it, in parts that are cut anywhere."""
    whole = chat_of(answer)
    deltas: list[Fields] = [{"role": "assistant", "content": None}]
    deltas += [{"reasoning": part} for part in cut(draw, answer.thought)]
    deltas += [{"content": part} for part in cut(draw, answer.text)]
    deltas += [{"refusal": part} for part in cut(draw, answer.refusal)]
    for index, call in enumerate(answer.calls):
        first, *others = cut(draw, call.arguments)
        told = {"index": index, "id": call.id, "function": {"name": call.name, "arguments": first}}
        deltas.append({"tool_calls": [told]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in others]
    choices: list[Fields] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": answer.finish, "stop_reason": answer.stop_sequence})
    events = [{"id": answer.id, "choices": [choice]} for choice in choices]
    events.append({"id": answer.id, "choices": [], "usage": whole["usage"]})
    sent = [json.dumps(event, ensure_ascii=False).encode() for event in events] + [b"[DONE]"]
    return cut(draw, b"".join([b"data: " + each + b"\n\n" for each in sent]))


@given(st.data())
@settings(max_examples=campaign_count(40, 1_000))
def test_a_stream_gathered_is_the_whole_message(data: st.DataObject) -> None:
    answer = data.draw(ANSWERS)
    parts = data.draw(streams(answer))
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    request = parse_request(json.dumps(asked).encode(), may_stream=True)
    MESSAGES_VIA_CHAT.check_request(request, route("m"))
    translate = present(MESSAGES_VIA_CHAT.get_body_converter(request))
    whole = json.loads(translate(json.dumps(chat_of(answer)).encode()))
    checked_message(whole)
    made = present(MESSAGES_VIA_CHAT.open_collector(request))
    events = MESSAGES_VIA_CHAT.open_stream(request)
    sent = b""
    for part in parts:
        made.feed_data(part)
        sent += events.feed_data(part)
    sent += events.finish_stream()
    assert events.is_complete
    assert events.usage == made.usage
    checked_events(sent)
    gathered = MessagesCollector("m")
    gathered.feed_data(sent)
    for result in (made.build_result(), gathered.build_result()):
        assert result is not None
        assert (result[0], json.loads(result[1])) == (200, whole)
