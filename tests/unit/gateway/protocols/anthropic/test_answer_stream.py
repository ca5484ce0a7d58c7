"""What an engine's chat completions become for Anthropic's clients: the events and the message, to the letter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import RoundhouseError
from gateway.protocols.anthropic.answer_stream import encode_event
from gateway.protocols.anthropic.dialect import MessagesStream
from gateway.protocols.anthropic.via_chat import MESSAGES_COUNTED_VIA_CHAT, MESSAGES_VIA_CHAT
from gateway.protocols.citations import AnnotatedMessage, annotate_message_body
from gateway.protocols.common.grounding import Passage
from tests.fakes.fake_controller import route
from tests.support.messages_schema import (
    ASKED,
    BEGUN,
    COUNTED,
    LLAMA_SERVER,
    NONE_TOLD,
    TEXT,
    THINKING,
    USAGE,
    Fields,
    call,
    checked_events,
    checked_message,
    chunk,
    ended,
    grew,
    lines,
    request_of,
    started,
    stopped,
    streamed,
    texts_of,
)
from tests.support.outcomes import present


def block(index: int, *texts: str) -> list[Fields]:
    """Events of a block of text."""
    return [started(index, **TEXT), *(grew(index, "text_delta", text=text) for text in texts), stopped(index)]


def called(index: int, call_id: str, name: str, *parts: str) -> list[Fields]:
    """Events of a call."""
    pieces = [grew(index, "input_json_delta", partial_json=part) for part in parts]
    return [started(index, type="tool_use", id=call_id, name=name, input={}), *pieces, stopped(index)]


def test_a_text_becomes_one_block() -> None:
    deltas: list[Fields] = [{"role": "assistant", "content": None}, {"content": 'He said "ü'}, {"content": '€"\n'}]
    out = streamed(*map(chunk, deltas), chunk({}, "stop"))
    assert out == lines(BEGUN, *block(0, 'He said "ü', '€"\n'), *ended("end_turn"))


def progress(delta: Fields, total: Any, cached: Any = 0) -> bytes:
    """An event of llama-server's `return_progress`."""
    fields = json.loads(chunk(delta).removeprefix(b"data: "))
    told = {"total": total, "cache": cached, "processed": cached, "time_ms": 0}
    return b"data: %b\n\n" % json.dumps({**fields, "prompt_progress": told}).encode()


@pytest.mark.parametrize(
    ("first", "usage"),
    [
        ([progress({"role": "assistant", "content": None}, 9, 6)] * 2 + [chunk({"role": "assistant"})], (3, 6)),
        ([progress({"content": "Hi"}, 9, 6)], (3, 6)),
        ([progress({}, None, "x")], (0, 0)),
        (
            [chunk({"role": "assistant"}).replace(b"{", b'{"usage":{"prompt_tokens":9,"completion_tokens":0},', 1)],
            (9, 0),
        ),
    ],
    ids=["progress", "progress-with-text", "no-numbers", "usage"],
)
def test_what_is_counted_before_the_first_token_is_told_at_once(first: list[bytes], usage: tuple[int, int]) -> None:
    events = checked_events(streamed(*first, chunk({"content": "Hi"}), chunk({}, "stop")))
    input_tokens, cached_tokens = usage
    told = {"input_tokens": input_tokens, "cache_read_input_tokens": cached_tokens, "output_tokens": 0}
    assert events[0]["message"]["usage"].items() >= told.items()
    assert [event["type"] for event in events].count("message_start") == 1
    quiet = [progress({"role": "assistant"}, 9)]
    assert MESSAGES_VIA_CHAT.open_stream(request_of()).feed_data(quiet[0]) == b"", "of the answer nothing is there"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_text_and_calls(name: str) -> None:
    deltas: list[Fields] = [{name: "Hm"}, {name: "m."}, {"content": "Let me see."}, call(0, "", "get_weather")]
    deltas += [call(0, '{"city":'), call(0, '"Paris"}'), call(1, "{}", "get_time")]
    assert streamed(*map(chunk, deltas), chunk({}, "tool_calls")) == lines(
        BEGUN,
        started(0, **THINKING),
        grew(0, "thinking_delta", thinking="Hm"),
        grew(0, "thinking_delta", thinking="m."),
        grew(0, "signature_delta", signature=""),
        stopped(0),
        *block(1, "Let me see."),
        *called(2, "id0", "get_weather", '{"city":', '"Paris"}'),
        *called(3, "id1", "get_time", "{}"),
        *ended("tool_use"),
    )


def test_thoughts_may_come_again() -> None:
    deltas: list[Fields] = [{"content": "a"}, {"reasoning": "b", "content": "c"}, call(0, "{}", "f"), {"content": "d"}]
    events = checked_events(streamed(*map(chunk, deltas), chunk({}, "stop")))
    kinds = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert kinds == ["text", "thinking", "text", "tool_use", "text"]


ENDINGS: list[tuple[bytes, Fields | None, tuple[Fields, Fields]]] = [
    (chunk({}, "length"), USAGE, ended("max_tokens")),
    (chunk({}, "content_filter"), USAGE, ended("refusal")),
    (chunk({}, "stop", stop_reason="fox"), USAGE, ended("stop_sequence", sequence="fox")),
    (chunk({}, "stop", stop_reason=128001), USAGE, ended("end_turn")),
    (chunk({}, "whatever"), USAGE, ended("end_turn")),
    (chunk({}, "stop"), None, ended("end_turn", NONE_TOLD)),
    (chunk({}, "stop"), {}, ended("end_turn", NONE_TOLD)),
    (
        chunk({}, "stop"),
        {"prompt_tokens": 2, "completion_tokens": 1},
        ended("end_turn", {"input_tokens": 2, "cache_read_input_tokens": 0, "output_tokens": 1}),
    ),
    (
        b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}],'
        b'"__verbose":{"stop_type":"word","stopping_word":"fox"}}\n\n' + chunk({}, "stop"),
        USAGE,
        ended("stop_sequence", sequence="fox"),
    ),
    (
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
        b'"__verbose":{"stop_type":"eos","stopping_word":""}}\n\n',
        USAGE,
        ended("end_turn"),
    ),
]


@pytest.mark.parametrize(("last", "usage", "expected"), ENDINGS)
def test_how_a_stream_ends(last: bytes, usage: Fields | None, expected: tuple[Fields, Fields]) -> None:
    out = streamed(chunk({"content": "a"}), last, usage=usage)
    assert out == lines(BEGUN, *block(0, "a"), *expected)


def test_calls_that_end_with_stop_are_calls() -> None:
    assert streamed(chunk(call(0, "{}", "f")), chunk({}, "stop")).endswith(lines(*ended("tool_use")))


def test_a_refusal_is_text_and_the_reason() -> None:
    out = streamed(chunk({"refusal": "No."}), chunk({}, "stop"))
    assert out == lines(BEGUN, *block(0, "No."), *ended("refusal"))


def test_an_empty_answer_has_no_blocks() -> None:
    assert streamed(chunk({}), chunk({}, "stop")) == lines(BEGUN, *ended("end_turn"))


def test_of_several_answers_the_first_counts() -> None:
    out = streamed(
        chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({}, "length", index=1), chunk({}, "stop")
    )
    assert b'"b"' not in out
    assert out.endswith(lines(*ended("end_turn")))


BEGUN_BEFORE = [{"type": "thinking", "thinking": "[Hm", "signature": ""}, {"type": "text", "text": "["}]
PREFILLED: Fields = {"messages": [*ASKED["messages"], {"role": "assistant", "content": BEGUN_BEFORE}]}


def test_an_answer_goes_on_without_what_llama_server_repeats() -> None:
    body = json.loads(MESSAGES_VIA_CHAT.engine_body(request_of(**PREFILLED), LLAMA_SERVER, as_stream=False))
    assert body["echo"] is True
    message = {"reasoning_content": "[Hm[Hm.", "content": "[[1,2],[3]]"}
    thought = {"type": "thinking", "thinking": "[Hm.", "signature": ""}
    assert whole(message, **PREFILLED)["content"] == [thought, {"type": "text", "text": "[1,2],[3]]"}]
    assert whole({"reasoning_content": "[Hm", "content": "["}, **PREFILLED)["content"] == []
    parts = [{"reasoning": "[Hm[H"}, {"reasoning": "m."}, {"content": "["}, {"content": "[1,2]"}, {"content": ",[3]]"}]
    out = streamed(*map(chunk, parts), chunk({}, "stop"), **PREFILLED)
    assert texts_of(out) == ["[H", "m.", "", "[1,2]", ",[3]]"]
    assert texts_of(streamed(chunk({"content": "[[1,2]"}), chunk({}, "stop"), **PREFILLED)) == ["[1,2]"]


def test_an_answer_that_begins_as_it_was_begun_is_whole() -> None:
    other = route("m")
    assert "echo" not in json.loads(
        MESSAGES_VIA_CHAT.engine_body(request_of(other, **PREFILLED), other, as_stream=False)
    )
    assert whole({"content": "[1,2],[3]]"}, engine=other, **PREFILLED)["content"][0]["text"] == "[1,2],[3]]"
    out = streamed(
        chunk({"content": "["}), chunk({"content": "1,2],[3]]"}), chunk({}, "stop"), engine=other, **PREFILLED
    )
    assert texts_of(out) == ["[", "1,2],[3]]"]


@pytest.mark.parametrize("before", [b"", chunk({"content": "a"})])
def test_an_engines_error_is_the_end(before: bytes) -> None:
    event = b"data: " + json.dumps({"error": {"message": "Out of luck.", "code": 503}}).encode() + b"\n\n"
    events = MESSAGES_VIA_CHAT.open_stream(request_of(stream=True))
    out = (
        events.feed_data(before)
        + events.feed_data(event)
        + events.feed_data(b"data: [DONE]\n\n")
        + events.finish_stream()
    )
    assert events.is_complete
    last = out.split(b"\n\n")[-2] + b"\n\n"
    told = json.loads(last.removeprefix(b"event: error\ndata: "))
    assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")
    assert (told["error"]["message"], told["error"]["status"]) == ("Out of luck.", 503)
    assert told["request_id"] == "req-7"


@pytest.mark.parametrize("before", [b"", chunk({"content": "a"})])
def test_an_error_of_ours_is_the_end(before: bytes) -> None:
    events = MESSAGES_VIA_CHAT.open_stream(request_of(stream=True))
    out = events.feed_data(before) + events.fail_stream(RoundhouseError("engine_disconnected", "It broke."), "req-1")
    assert events.is_complete
    assert events.fail_stream(RoundhouseError("engine_disconnected", "Again."), "req-1") == b""
    told = json.loads(out.rsplit(b"event: error\ndata: ", 1)[1])
    assert (told["type"], told["error"]["type"], told["error"]["code"]) == ("error", "api_error", "engine_disconnected")
    assert (told["error"]["message"], told["request_id"]) == ("It broke.", "req-1")


@pytest.mark.parametrize("error", [{"message": "Out of luck.", "code": 400}, "Out of luck.", {"why": "Out of luck."}])
def test_an_engines_error_that_is_called_a_success_is_an_error(error: Any) -> None:
    translate = present(MESSAGES_VIA_CHAT.get_body_converter(request_of()))
    with pytest.raises(RoundhouseError, match=r"Out of luck\.") as caught:
        translate(json.dumps({"error": error, "choices": []}).encode())
    assert caught.value.entry.code == "engine_error"
    assert translate(json.dumps({"error": None, "choices": [{"message": {"content": "a"}}]}).encode())
    with pytest.raises(RoundhouseError, match="no chat completion"):
        translate(b"{}")


def whole(message: Fields, finish: str = "stop", usage: Fields | None = USAGE, **fields: Any) -> Fields:
    answer: Fields = {"id": "chatcmpl-7", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    translate = present(MESSAGES_VIA_CHAT.get_body_converter(request_of(**fields)))
    made: Fields = json.loads(translate(json.dumps(answer | ({} if usage is None else {"usage": usage})).encode()))
    checked_message(made)
    return made


def test_a_message_given_whole_becomes_events() -> None:
    calls = [
        {"id": "id0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}},
        {"id": "id1", "type": "function", "function": {"name": "get_time", "arguments": "[1]"}},
        {"id": "id2", "type": "function", "function": {"name": "get_time", "arguments": '{"cut'}},
    ]
    message = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hmm.", "tool_calls": calls}
    assert whole(message) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "claude-alias",
        "content": [
            {"type": "thinking", "thinking": "Hmm.", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "id0", "name": "get_weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "id1", "name": "get_time", "input": {}},
            {"type": "tool_use", "id": "id2", "name": "get_time", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": COUNTED,
    }


def test_whole_messages_that_were_cut_refused_or_not_counted() -> None:
    assert whole({"content": "a"}, "length")["stop_reason"] == "max_tokens"
    assert whole({"content": "", "refusal": "No."})["content"] == [{"type": "text", "text": "No."}]
    assert whole({"content": None, "refusal": "No."})["stop_reason"] == "refusal"
    assert whole({"content": ""}, usage=None)["usage"] == NONE_TOLD


def test_a_count_is_the_engines_or_an_error() -> None:
    translate = present(MESSAGES_COUNTED_VIA_CHAT.get_body_converter(request_of()))
    assert translate(b'{"object":"response.input_tokens","input_tokens":12}') == b'{"input_tokens":12}'
    for wrong in (b"{}", b'{"input_tokens":true}', b"[]", b"x"):
        with pytest.raises(RoundhouseError, match="counts no tokens"):
            translate(wrong)


def test_what_follows_the_end_is_passed_over() -> None:
    events = MESSAGES_VIA_CHAT.open_stream(request_of(stream=True))
    out = events.feed_data(chunk({"content": "a"}) + chunk({}, "stop") + b"data: [DONE]\n\n")
    assert (out, events.is_complete) == (lines(BEGUN, *block(0, "a"), *ended("end_turn", NONE_TOLD)), True)
    late = json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode()
    assert events.feed_data(chunk({"content": "b"}) + b"data: " + late + b"\n\n") == b""
    assert (events.finish_stream(), events.usage) == (b"", None)


def test_calls_that_overlap_come_one_after_the_other() -> None:
    deltas: list[Fields] = [call(0, "", "f"), call(1, "", "g"), call(0, '{"x"'), call(1, '{"y":'), call(2, "{}", "h")]
    deltas += [{"content": "So"}, {"content": "."}, call(0, ":1}"), call(1, "2}"), call(0, "late")]
    assert streamed(*map(chunk, deltas), chunk({}, "tool_calls")) == lines(
        BEGUN,
        *called(0, "id0", "f", '{"x"', ":1}"),
        *called(1, "id1", "g", '{"y":', "2}"),
        *called(2, "id2", "h", "{}"),
        *block(3, "So."),
        *ended("tool_use"),
    )


def test_what_waits_for_a_call_that_is_never_whole_comes_at_the_end() -> None:
    deltas: list[Fields] = [call(0, '{"cut', "f"), call(1, "", "g"), call(2, "[", "h")]
    blocks = (*called(0, "id0", "f", '{"cut'), *called(1, "id1", "g"), *called(2, "id2", "h", "["))
    assert streamed(*map(chunk, deltas), chunk({}, "length")) == lines(BEGUN, *blocks, *ended("max_tokens"))


@pytest.mark.parametrize("place", [{"index": 0}, {}])
def test_calls_of_one_number_are_as_many_as_they_have_ids(place: Fields) -> None:
    # As Gemini's compatible endpoint and older versions of Ollama send them.
    parts: list[Fields] = [
        {"id": "a", "function": {"name": "f", "arguments": '{"x":1'}},
        {"id": "a", "function": {"arguments": "}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{"}},
        {"id": "", "function": {"arguments": "}"}},
        {"id": "c", "function": {"name": "f", "arguments": "{}"}},
    ]
    chunks = [chunk({"tool_calls": [{**place, **part}]}) for part in parts]
    out = streamed(*chunks, chunk({}, "tool_calls"))
    blocks = [each["content_block"] for each in checked_events(out) if each["type"] == "content_block_start"]
    assert [(block["id"], block["name"]) for block in blocks] == [("a", "f"), ("b", "g"), ("c", "f")]
    made = present(MESSAGES_VIA_CHAT.open_collector(request_of()))
    for each in (*chunks, chunk({}, "tool_calls"), b"data: [DONE]\n\n"):
        made.feed_data(each)
    result = present(made.build_result())
    told = [(block["id"], block["name"], block["input"]) for block in json.loads(result[1])["content"]]
    assert told == [("a", "f", {"x": 1}), ("b", "g", {}), ("c", "f", {})]


PASSAGES = [
    Passage("d1", "a.md", chunk=0, start=0, end=4, page=None, score=1.0, text="Coal"),
    Passage("d2", None, chunk=3, start=9, end=12, page=2, score=0.5, text="Tea"),
]
STREAM = b"".join(
    [
        encode_event("message_start", {"message": {"id": "msg_1", "content": []}}),
        encode_event("content_block_start", {"index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        encode_event("content_block_delta", {"index": 0, "delta": {"type": "thinking_delta", "thinking": "see [1]"}}),
        encode_event("content_block_stop", {"index": 0}),
        encode_event("content_block_start", {"index": 1, "content_block": {"type": "text", "text": "Tea "}}),
        encode_event("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "is there ["}}),
        encode_event("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "2], not [7]."}}),
        encode_event("content_block_stop", {"index": 1}),
        encode_event("message_stop", {}),
    ]
)


def told(stream: bytes) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: ")]


@pytest.mark.parametrize("size", [1, 7, 40, len(STREAM)])
def test_citations_come_before_the_end_of_their_block(size: int) -> None:
    stream = AnnotatedMessage(MessagesStream("r"), PASSAGES)
    parts = [stream.feed_data(STREAM[start : start + size]) for start in range(0, len(STREAM), size)]
    events = told(b"".join(parts) + stream.finish_stream())
    assert stream.is_complete
    assert [source["document_id"] for source in events[0]["message"]["sources"]] == ["d1", "d2"]  # type: ignore[index]
    added = [event for event in events if "citations_delta" in json.dumps(event)]
    [delta] = added
    assert events.index(delta) == [event["type"] for event in events].index("message_stop") - 2
    citation = delta["delta"]["citation"]  # type: ignore[index]
    text = "Tea is there [2], not [7]."
    assert text[citation["start_index"] : citation["end_index"]] == "[2]"
    assert (citation["source"], citation["cited_text"], citation["page"], delta["index"]) == ("d2", "Tea", 2, 1)
    rest = [event for event in events[1:] if event is not delta]
    assert rest == told(STREAM)[1:], "everything else passes"


def test_a_body_that_is_no_message_passes() -> None:
    for body in (b"[]", b"no", b'{"content": "x"}'):
        assert annotate_message_body(body, PASSAGES) == body
