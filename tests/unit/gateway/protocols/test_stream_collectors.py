"""Blocking answers made of streams, where no engine at hand sends such streams. See also test_native_apis.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import HOLD_LIMIT, Dialect, EventTooLongError, StreamCollector, Usage
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import parse_request
from gateway.protocols.llama_native.dialect import NATIVE

FAMILIES: list[Dialect] = [CHAT, COMPLETIONS, MESSAGES, NATIVE]
DONE = b"data: [DONE]\n\n"


def gathering_of(dialect: Dialect, **fields: Any) -> StreamCollector | None:
    return dialect.open_collector(parse_request(json.dumps({"model": "m", **fields}).encode(), may_stream=True))


def made(dialect: Dialect, *events: bytes, **fields: Any) -> tuple[int, Any] | None:
    gathering = gathering_of(dialect, **fields)
    assert gathering is not None
    for event in events:
        gathering.feed_data(event)
    result = gathering.build_result()
    return None if result is None else (result[0], json.loads(result[1]))


def data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def typed(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> bytes:
    return data(
        id="c", object="chat.completion.chunk", choices=[{"index": index, "delta": fields, "finish_reason": finish}]
    )


def test_a_chat_with_everything() -> None:
    call = {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}
    result = made(
        CHAT,
        delta(role="assistant", content=None, refusal=None),
        delta(reasoning_content="I "),
        delta(reasoning_content="think", annotations=[1]),
        delta(role="assistant", content="a", annotations=[2]),
        delta(content="b", audio={"id": "x", "data": "A"}),
        delta(audio={"data": "B"}),
        delta(
            tool_calls=[{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}, call]
        ),
        delta(tool_calls=[{"index": 1, "function": {"arguments": "[]"}}, {"index": 0, "function": {"arguments": "}"}}]),
        delta(1, content="other"),
        delta(1, "length"),
        delta(0, "tool_calls"),
        data(
            id="c", choices=[], usage={"prompt_tokens": 1, "completion_tokens": 2}, obfuscation="xx", service_tier="s"
        ),
        DONE,
    )
    assert result is not None
    assert result[1] == {
        "id": "c",
        "object": "chat.completion",
        "service_tier": "s",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "ab",
                    "refusal": None,
                    "reasoning_content": "I think",
                    "reasoning": "I think",
                    "annotations": [1, 2],
                    "audio": {"id": "x", "data": "AB"},
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "[]"}},
                    ],
                },
            },
            {"index": 1, "finish_reason": "length", "message": {"role": "assistant", "content": "other"}},
        ],
    }


def test_calls_of_one_number_are_as_many_as_they_have_ids() -> None:
    calls = [
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}},
        {"index": 0, "id": "a", "function": {"arguments": "}"}},
        {"index": 0, "id": "", "function": {"arguments": ""}},
        {"index": 0, "id": "b", "function": {"name": "g", "arguments": "[]"}},
    ]
    result = made(CHAT, *(delta(tool_calls=[call]) for call in calls), delta(finish="tool_calls"), DONE)
    assert result is not None
    told = [(call["id"], call["function"]) for call in result[1]["choices"][0]["message"]["tool_calls"]]
    assert told == [("a", {"name": "f", "arguments": "{}"}), ("b", {"name": "g", "arguments": "[]"})]


def test_the_usage_of_a_blocking_chat_is_the_first_choices() -> None:
    gathering = gathering_of(CHAT, n=2)
    assert gathering is not None
    for index, count in ((1, 5), (0, 3)):
        gathering.feed_data(delta(index, "stop"))
        gathering.feed_data(data(choices=[], usage={"prompt_tokens": 9, "completion_tokens": count}))
    gathering.feed_data(DONE)
    result = gathering.build_result()
    assert result is not None
    assert json.loads(result[1])["usage"]["completion_tokens"] == 3
    assert gathering.usage == Usage(9, 8)


def test_probabilities_of_completions_are_joined() -> None:
    def piece(text: str, **logprobs: Any) -> bytes:
        return data(choices=[{"index": 0, "text": text, "logprobs": logprobs or None, "finish_reason": None}])

    end = data(object="text_completion", choices=[{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}])
    result = made(
        COMPLETIONS, piece("a", tokens=["a"], text_offset=[0]), piece("b", tokens=["b"], text_offset=[1]), end, DONE
    )
    assert result is not None
    logprobs = {"tokens": ["a", "b"], "text_offset": [0, 1]}
    assert result[1]["choices"] == [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]


def test_a_message_with_everything() -> None:
    def block(index: int, **fields: Any) -> bytes:
        return typed("content_block_start", index=index, content_block=fields)

    def part(index: int, kind: str, **fields: Any) -> bytes:
        return typed("content_block_delta", index=index, delta={"type": kind, **fields})

    result = made(
        MESSAGES,
        typed("message_start", message={"id": "i", "content": [], "stop_reason": None, "usage": {"input_tokens": 3}}),
        typed("ping"),
        block(0, type="thinking", thinking="", signature=""),
        part(0, "thinking_delta", thinking="I "),
        part(0, "thinking_delta", thinking="think"),
        part(0, "signature_delta", signature="sig"),
        block(2, type="tool_use", id="t", name="f", input={}),
        part(2, "input_json_delta", partial_json='{"x":'),
        part(2, "input_json_delta", partial_json="1}"),
        block(1, type="text", text=""),
        part(1, "text_delta", text="a"),
        block(1, type="text", text=""),
        part(1, "text_delta", text="b"),
        part(1, "citations_delta", citation={"c": 1}),
        block(3, type="tool_use", id="u", name="g"),
        part(3, "input_json_delta", partial_json="{broken"),
        typed("content_block_stop", index=0),
        typed("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 4}),
        typed("message_stop"),
    )
    assert result is not None
    assert result[1] == {
        "id": "i",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "I think", "signature": "sig"},
            {"type": "text", "text": "ab", "citations": [{"c": 1}]},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "u", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }


def test_a_message_whose_start_was_left_out() -> None:
    part = typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "ü"})
    end = typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    result = made(MESSAGES, part, end, typed("message_stop"))
    assert result is not None
    assert result[1]["content"] == [{"type": "text", "text": "ü"}]
    assert result[1]["usage"] == {"input_tokens": 0, "output_tokens": 2}
    assert result[1]["model"] == "m"


def test_parts_of_a_message_in_no_form_of_the_familys_are_passed_over() -> None:
    grown = {"type": "text_delta", "text": "a"}
    result = made(
        MESSAGES,
        typed("content_block_delta", index=0, delta=grown),
        typed("content_block_delta", index="0", delta=grown),
        typed("content_block_delta", delta=grown),
        typed("content_block_delta", index=0, delta="a"),
        typed("content_block_delta", index=1),
        typed("message_delta", delta={"stop_reason": "end_turn"}),
        typed("message_delta", delta=None, usage={"output_tokens": 2}),
        typed("message_stop"),
    )
    assert result == (
        200,
        {
            "id": "msg_unknown",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}],
            "model": "m",
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 0, "output_tokens": 2},
        },
    )


def test_choices_in_no_form_of_the_familys_are_passed_over() -> None:
    part = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
    result = made(CHAT, data(choices=["a", None, part]), data(choices=[]), DONE)
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}
    assert result == (200, {"object": "chat.completion", "choices": [choice]})


ERRORS: list[tuple[Dialect, bytes, int]] = [
    (CHAT, data(error={"code": 400, "message": "x"}), 400),
    (COMPLETIONS, data(error={"message": "x"}), 500),
    (MESSAGES, typed("error", error={"type": "rate_limit_error", "message": "x"}), 429),
    (MESSAGES, b'event: error\ndata: {"code":500,"message":"x","type":"server_error"}\n\n', 500),
    (NATIVE, data(error={"code": 400, "message": "x"}), 400),
    (NATIVE, b'error: {"code":400,"message":"x"}\n\n', 400),
]


@pytest.mark.parametrize(("dialect", "event", "status"), ERRORS)
def test_an_error_is_the_answer(dialect: Dialect, event: bytes, status: int) -> None:
    for ending in (event, event.rstrip()):
        result = made(dialect, data(choices=[]), ending)
        assert result is not None
        assert result[0] == status
        assert result[1]["error"]["message"] == "x"
        assert dialect.engine_error_body(status, json.dumps(result[1]).encode(), "r")


@pytest.mark.parametrize("dialect", FAMILIES)
def test_a_stream_that_broke_off_is_no_answer(dialect: Dialect) -> None:
    assert made(dialect) is None
    assert made(dialect, delta(content="a"), typed("message_start", message={}), data(content="a", stop=False)) is None
    gathering = gathering_of(dialect)
    assert gathering is not None
    gathering.feed_data(b"x" * HOLD_LIMIT)
    with pytest.raises(EventTooLongError):
        gathering.feed_data(b"x")


def test_native_waits_for_as_many_answers_as_were_asked_for() -> None:
    end = data(index=1, stop=True, content="", generation_settings={"stream": True, "n": 2})
    part = data(index=1, stop=False, content="a", completion_probabilities=[1])
    assert made(NATIVE, part, end, n=2) is None
    first = data(index=0, stop=True, content="")
    result = made(NATIVE, part, part, end, first, n_cmpl=2, n_probs=1)
    assert result is not None
    assert [answer["content"] for answer in result[1]] == ["", "aa"]
    assert result[1][1]["completion_probabilities"] == [1, 1]
    assert result[1][1]["generation_settings"] == {"stream": False, "n": 2}


LIMITED = {"stop": ["x"], "max_tokens": 5}
EXCLUDED: list[tuple[Dialect, dict[str, Any]]] = [
    *((dialect, LIMITED) for dialect in FAMILIES),
    *((dialect, {"n_indent": 2}) for dialect in FAMILIES),
    *((dialect, {"verbose": True}) for dialect in FAMILIES),
    (CHAT, {"logprobs": True}),
    (CHAT, {"n_probs": 2}),
    (COMPLETIONS, {"logprobs": 1, "stop": "x"}),
    (COMPLETIONS, {"best_of": 3}),
    (CHAT, {"reasoning_format": "deepseek-legacy"}),
    (CHAT, {"continue_final_message": True}),
    (CHAT, {"messages": [{"role": "user"}, {"role": "assistant"}]}),
    (MESSAGES, {"messages": [{"role": "assistant"}]}),
    (MESSAGES, {"stop_sequences": ["x"], "max_tokens": 5}),
    (NATIVE, {"return_tokens": True}),
    (NATIVE, {"response_fields": ["content"]}),
    (NATIVE, {"n_probs": 1, "stop": ["x"]}),
    (JSON_DIALECT, {}),
]
INCLUDED: list[tuple[Dialect, dict[str, Any]]] = [
    *((dialect, {"max_tokens": 5, "best_of": 1}) for dialect in FAMILIES),
    (CHAT, {"stop": ["x"], "max_tokens": None}),
    (CHAT, {"stop": [], "max_tokens": 5, "logprobs": False, "messages": [{"role": "user"}]}),
    (COMPLETIONS, {"logprobs": 3}),
    (MESSAGES, {"messages": "odd"}),
]


@pytest.mark.parametrize(("dialect", "fields"), EXCLUDED)
def test_what_a_stream_cannot_give_goes_as_it_is(dialect: Dialect, fields: dict[str, Any]) -> None:
    assert gathering_of(dialect, **fields) is None


@pytest.mark.parametrize(("dialect", "fields"), INCLUDED)
def test_the_rest_is_gathered(dialect: Dialect, fields: dict[str, Any]) -> None:
    assert gathering_of(dialect, **fields) is not None
