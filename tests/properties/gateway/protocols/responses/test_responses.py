"""Properties of responses: items say what they were made of, and a stream says what the whole answer says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.errors import ERROR_CODES, RoundhouseError
from gateway.protocols.common.conversation import (
    Assistant,
    Audio,
    Call,
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
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses import request as responses
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.properties.gateway.protocols.test_dialects import cut, cuts, garbage, words
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from tests.support.responses import Fields, context, events_in, folded

names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
some = words.filter(bool)
json_objects = st.dictionaries(names, st.one_of(st.integers(-9, 9), words, st.lists(words, max_size=2)), max_size=3)
arguments = json_objects.map(json.dumps)
Draw = Callable[[st.SearchStrategy[Any]], Any]


# What is asked for.

parts = st.one_of(
    st.builds(Text, words),
    st.builds(Image, some, st.one_of(st.none(), st.sampled_from(["low", "high", "auto"]))),
    st.builds(Audio, some, st.sampled_from(["wav", "mp3"])),
)
tools = st.lists(
    st.builds(Tool, names, st.none() | words, st.none() | json_objects, st.none() | st.booleans()),
    max_size=3,
    unique_by=lambda tool: tool.name,
)
formats = st.one_of(
    st.none(),
    st.builds(OutputFormat),
    st.builds(OutputFormat, json_objects, names, st.none() | words, st.none() | st.booleans()),
)


@st.composite
def turns(draw: st.DrawFn) -> list[Turn]:
    """A conversation. What the model says is one turn until somebody else speaks, and results are of calls before."""
    said: list[Turn] = []
    calls: list[str] = []
    for _ in range(draw(st.integers(1, 6))):
        kinds = ["user", "system"]
        kinds += [] if said and isinstance(said[-1], Assistant) else ["assistant"]
        kinds += ["result"] if calls else []
        kind = draw(st.sampled_from(kinds))
        if kind == "user":
            said.append(User(tuple(draw(st.lists(parts, min_size=1, max_size=3)))))
        elif kind == "system":
            said.append(System(draw(words)))
        elif kind == "result":
            said.append(ToolResult(draw(st.sampled_from(calls)), tuple(draw(st.lists(parts, min_size=1, max_size=2)))))
        else:
            made = tuple(draw(st.lists(st.builds(Call, some, names, arguments), max_size=2)))
            calls += [call.id for call in made]
            answers = st.builds(Assistant, words, words, st.just(made), words)
            said.append(draw(answers.filter(lambda answer: answer != Assistant())))
    return said


def part_of(part: Part) -> Fields:
    """It in an item."""
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.url, "detail": part.detail}
    return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}}


def items_of(turn: Turn, draw: Draw) -> list[Fields]:
    """It as items, in one of the ways that clients have."""
    if isinstance(turn, System):
        role = draw(st.sampled_from(["system", "developer"]))
        content: Any = draw(st.sampled_from([turn.text, [{"type": "input_text", "text": turn.text}]]))
        return [{"role": role, "content": content}]
    if isinstance(turn, User):
        plain = turn.parts[0].text if len(turn.parts) == 1 and isinstance(turn.parts[0], Text) else None
        content = [part_of(part) for part in turn.parts]
        if plain is not None and draw(st.booleans()):
            content = plain
        return [{"type": "message", "role": "user", "content": content}]
    if isinstance(turn, ToolResult):
        output: Any = [part_of(part) for part in turn.parts]
        return [{"type": "function_call_output", "call_id": turn.call_id, "output": output}]
    half = len(turn.thought) // 2  # two parts of one thought
    thoughts = [{"type": "reasoning_text", "text": piece} for piece in (turn.thought[:half], turn.thought[half:])]
    said = [{"type": "output_text", "text": turn.text}] if turn.text else []
    refused = [{"type": "refusal", "refusal": turn.refusal}] if turn.refusal else []
    return [
        *([{"type": "reasoning", "summary": [], "content": thoughts}] if turn.thought else []),
        *([{"role": "assistant", "content": said + refused}] if said or refused else []),
        *(
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in turn.calls
        ),
    ]


def asked_for(prompt: Prompt, draw: Draw) -> Fields:
    """A request for just that."""
    form: Fields = {"type": "text"}
    if prompt.output_format is not None:
        told = prompt.output_format
        form = {"type": "json_object"}
        if told.schema is not None:
            described = {"description": told.description, "strict": told.strict}
            form = {"type": "json_schema", "name": told.name, "schema": told.schema, **described}
    choice = prompt.tool_choice
    named = choice is not None and choice.kind == "named"
    return {
        "model": "m",
        "input": [item for turn in prompt.turns for item in items_of(turn, draw)],
        "tools": [
            {"type": "function", **{name: getattr(tool, name) for name in Tool.__slots__}} for tool in prompt.tools
        ],
        "tool_choice": {"type": "function", "name": choice.name} if choice and named else choice and choice.kind,
        "parallel_tool_calls": prompt.parallel_tool_calls,
        "text": {"format": form},
        "max_output_tokens": prompt.max_tokens,
        "thinking": prompt.thinking or "default",
        "reasoning": {"effort": prompt.effort},
        **prompt.passed_fields,
    }


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """What may be asked for."""
    declared = draw(tools)
    choices = [None, ToolChoice("auto"), ToolChoice("none")]
    choices += [ToolChoice("required"), *(ToolChoice("named", tool.name) for tool in declared)] if declared else []
    return Prompt(
        turns=tuple(draw(turns())),
        tools=tuple(declared),
        tool_choice=draw(st.sampled_from(choices)),
        parallel_tool_calls=draw(st.none() | st.booleans()),
        output_format=draw(formats),
        max_tokens=draw(st.none() | st.integers(1, 99)),
        thinking=draw(st.sampled_from([None, "enabled", "disabled"])),
        effort=draw(st.sampled_from([None, "none", "minimal", "high"])),
        passed_fields=draw(
            st.fixed_dictionaries(
                {}, optional={"temperature": st.floats(0, 2), "top_k": st.integers(1, 9), "user": words}
            )
        ),
    )


@settings(max_examples=campaign_count(40, 1_000))
@given(draw=st.data(), prompt=prompts(), places=st.integers(0, 9))
def test_items_say_what_they_were_made_of(draw: st.DataObject, prompt: Prompt, places: int) -> None:
    fields = asked_for(prompt, draw.draw)
    assert responses.read_prompt(fields, context()) == prompt
    # It is the same whether a part of the items came before, and is only referred to, or all come at once.
    before, own = fields["input"][:places], fields["input"][places:]
    follows = {**fields, "input": own, "previous_response_id": "resp_0"}
    assert responses.read_prompt(follows, context(history=tuple(before))) == prompt


@settings(max_examples=campaign_count(40, 1_000))
@given(draw=st.data(), prompt=prompts())
def test_what_is_kept_of_the_input_says_the_same(draw: st.DataObject, prompt: Prompt) -> None:
    fields = asked_for(prompt, draw.draw)
    made = context(stores=True)
    responses.read_prompt(fields, made)
    ids = [item["id"] for item in made.input_items]
    assert len(set(ids)) == len(ids) == len(fields["input"])
    assert responses.read_prompt({**fields, "input": list(made.input_items)}, context()) == prompt


# What is answered.


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Fields], Fields]:
    """The choices of a chat completion's chunks, and the choice of the same answer whole."""
    deltas: list[Fields] = []
    message: Fields = {"role": "assistant", "content": None}
    for name, told in (("reasoning_content", "reasoning_content"), ("content", "content"), ("refusal", "refusal")):
        said = draw(st.lists(words, max_size=4))
        deltas += [{name: word} for word in said]
        if "".join(said):
            message[told] = "".join(said)
    made = draw(st.lists(st.tuples(names, st.lists(arguments, min_size=1, max_size=1)), max_size=3))
    calls = []
    pieces: list[list[Fields]] = []
    for index, (name, (given_to_it,)) in enumerate(made):
        calls.append({"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": given_to_it}})
        places = sorted(draw(st.lists(st.integers(0, len(given_to_it)), max_size=3)))
        cut_up = [given_to_it[a:b] for a, b in itertools.pairwise([0, *places, len(given_to_it)])]
        first = {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": cut_up[0]}}
        pieces.append([first, *({"index": index, "function": {"arguments": piece}} for piece in cut_up[1:])])
    deltas += [{"tool_calls": [piece]} for piece in mixed(pieces, draw)]
    if calls:
        message["tool_calls"] = calls
    finish = draw(st.sampled_from(["stop", "length", "content_filter", "tool_calls" if calls else "stop"]))
    choices: list[Fields] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    return choices, {"index": 0, "message": message, "finish_reason": finish}


def mixed(pieces: list[list[Fields]], draw: st.DrawFn) -> list[Fields]:
    """The pieces of several calls in the order in which they begin, the rest of each anywhere after that."""
    out: list[Fields] = []
    waiting: list[list[Fields]] = []
    for begun in pieces:
        out.append(begun[0])
        waiting.append(begun[1:])
        for rest in waiting:
            take = draw(st.integers(0, len(rest)))
            out += rest[:take]
            del rest[:take]
    return out + [piece for rest in waiting for piece in rest]


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def request_of(custom: str | None, *, stream: bool, is_open: bool) -> InferenceRequest:
    """A request that was read."""
    tools = [{"type": "custom", "name": custom}] if custom else []
    fields: Fields = {"model": "m", "input": "Hi", "tools": tools}
    request = InferenceRequest(b"", fields, "m", stream=stream, wants_usage=False)
    request.state = context(is_open_responses=is_open)
    request.prompt = RESPONSES_VIA_CHAT.read_request(request)
    return request


def streamed(choices: list[Fields]) -> bytes:
    """As an engine streams them."""
    events = [{"id": "x", "choices": [choice]} for choice in choices] + [{"choices": [], "usage": USAGE}]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def passed(request: InferenceRequest, parts: list[bytes]) -> bytes:
    """What comes out of the parts of a stream."""
    events = RESPONSES_VIA_CHAT.open_stream(request)
    out = b"".join([events.feed_data(part) for part in parts]) + events.finish_stream()
    assert events.is_complete
    return out


@settings(max_examples=campaign_count(40, 1_000))
@given(made=answers(), places=cuts, custom=st.none() | names, is_open=st.booleans())
def test_a_stream_says_what_the_whole_answer_says(
    made: tuple[list[Fields], Fields], places: list[int], custom: str | None, is_open: bool
) -> None:
    choices, choice = made
    names_called = [call["function"]["name"] for call in choice["message"].get("tool_calls", ())]
    custom = names_called[0] if names_called and custom else custom
    blocking = request_of(custom, stream=False, is_open=is_open)
    translate = present(RESPONSES_VIA_CHAT.get_body_converter(blocking))
    whole = json.loads(translate(json.dumps({"id": "x", "choices": [choice], "usage": USAGE}).encode()))
    stream = request_of(custom, stream=True, is_open=is_open)
    parts = cut(streamed(choices), places)
    assert folded(passed(stream, parts), is_open=is_open) == whole
    assert whole == blocking.state.response == stream.state.response
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 2

    gathering = present(RESPONSES_VIA_CHAT.open_collector(request_of(custom, stream=False, is_open=is_open)))
    for part in parts:
        gathering.feed_data(part)
    result = present(gathering.build_result())
    assert json.loads(result[1]) == whole


_STOPPED = (
    [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"},
)


@settings(max_examples=campaign_count(40, 1_000))
@given(
    made=answers(),
    places=cuts,
    length=st.integers(0, 3000),
    code=st.sampled_from(sorted(ERROR_CODES)),
    message=words,
    is_open=st.booleans(),
)
@example(made=_STOPPED, places=[], length=0, code="context_length_exceeded", message="m", is_open=False)
def test_a_stream_that_breaks_off_ends_as_one_should(
    made: tuple[list[Fields], Fields], places: list[int], length: int, code: str, message: str, is_open: bool
) -> None:
    request = request_of(None, stream=True, is_open=is_open)
    events = RESPONSES_VIA_CHAT.open_stream(request)
    whole = streamed(made[0])
    whole = whole[: min(length, len(whole) - 20)]
    out = b"".join([events.feed_data(part) for part in cut(whole, places)])
    out += events.fail_stream(RoundhouseError(code, message, param="p"), "r")
    assert events.is_complete
    response = folded(out, is_open=is_open)
    assert response == request.state.response
    assert (response["status"], response["error"]["message"]) == ("failed", message)
    error = events_in(out)[-2]
    assert error["error"] == RoundhouseError(code, message, param="p").build_envelope("r").error.model_dump()
    assert (error["code"], error["message"], error["param"]) == (code, message, "p")
    assert events.fail_stream(RoundhouseError(code, message), "r") == b""


@settings(max_examples=campaign_count(40, 1_000))
@given(stream=garbage, places=cuts)
@example(
    stream=b'data: {"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"top_logprobs":3}]}}]}\n\n', places=[]
)
@example(stream=b'data: {"choices":[{"delta":{"tool_calls":[{"index":[],"id":3,"function":7}]}}]}\n\n', places=[])
def test_garbage_harms_nothing(stream: bytes, places: list[int]) -> None:
    events = RESPONSES_VIA_CHAT.open_stream(request_of(None, stream=True, is_open=False))
    out = b"".join([events.feed_data(part) for part in cut(stream, places)]) + events.finish_stream()
    folded(out + events.fail_stream(RoundhouseError("engine_disconnected", "Gone."), "r"))
