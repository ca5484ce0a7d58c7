"""How streams of each family pass, end, count and fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import HOLD_LIMIT, Dialect, EventStream, EventTooLongError, StreamCollector, Usage
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.llama_native import NATIVE
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.support.outcomes import present
from tests.support.responses import context

LOST = RoundhouseError("engine_disconnected", "Gone.")
FAMILIES: list[Dialect] = [CHAT, COMPLETIONS, MESSAGES, NATIVE]


def request_of(**fields: Any) -> InferenceRequest:
    return parse_request(json.dumps({"model": "m", **fields}).encode(), may_stream=True)


def stream_of(dialect: Dialect, **fields: Any) -> EventStream:
    return dialect.open_stream(request_of(stream=True, **fields))


def typed(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def passed(events: EventStream, *chunks: bytes) -> bytes:
    return b"".join([events.feed_data(chunk) for chunk in chunks]) + events.finish_stream()


def told(event: bytes) -> Any:
    return json.loads(event.split(b"data: ", 1)[1].split(b"\n", 1)[0])


DONE = b"data: [DONE]\n\n"
ENDS: list[tuple[Dialect, bytes]] = [
    (CHAT, DONE),
    (COMPLETIONS, b"data:[DONE]\r\n\r\n"),
    (MESSAGES, typed("message_stop")),
    (MESSAGES, typed("error", error={"type": "api_error", "message": "x"}, request_id="req_1")),
    (NATIVE, data(stop=True, stop_type="eos", content="")),
    (NATIVE, DONE),
    (NATIVE, data(content="only what response_fields named")),
]
PARTS: dict[Dialect, bytes] = {
    CHAT: data(choices=[{"index": 0, "delta": {"content": "a"}}]),
    COMPLETIONS: data(choices=[{"index": 0, "text": "a"}]),
    MESSAGES: typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
    NATIVE: data(content="a", stop=False),
}


@pytest.mark.parametrize(("dialect", "end"), ENDS)
@pytest.mark.parametrize("after", [b"", b": ka\n\n", b":\n\n"])
@pytest.mark.parametrize("blank", [True, False])
def test_each_end_is_known_as_one(dialect: Dialect, end: bytes, after: bytes, blank: bool) -> None:
    events = stream_of(dialect)
    part = PARTS[dialect]
    if not blank:
        after, end = b"", end.rstrip()
    out = passed(events, part, end + after)
    assert out == part + end + (after if blank else b"\n\n")
    assert events.is_complete
    assert events.fail_stream(LOST, "r") == b""


@pytest.mark.parametrize("rest", [b"", b"\n", b"\r", b"\r\n"])
def test_an_end_gets_the_blank_line_that_it_lacks(rest: bytes) -> None:
    assert passed(stream_of(CHAT), b"data: [DONE]" + rest) == DONE


@pytest.mark.parametrize("dialect", FAMILIES)
@pytest.mark.parametrize("rest", [b"", b"data: {", b"event: mess", b": comment\n\n"])
def test_a_stream_without_its_end_is_not_complete(dialect: Dialect, rest: bytes) -> None:
    events = stream_of(dialect)
    part = PARTS[dialect]
    assert passed(events, part + rest) == part + (rest if rest.endswith(b"\n\n") else b"")
    assert not events.is_complete
    assert not stream_of(dialect).is_complete


FINISHED = data(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
COUNTED = data(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})


@pytest.mark.parametrize("ending", [[FINISHED], [FINISHED, COUNTED], [FINISHED + COUNTED], [FINISHED, b": bye\n\n"]])
def test_an_answer_with_a_finish_reason_is_whole_without_done(ending: list[bytes]) -> None:
    """Some servers end so. What broke off is failed without `finish_stream`."""
    part = PARTS[CHAT]
    asked = {"stream_options": {"include_usage": True}}
    events = stream_of(CHAT, **asked)
    assert passed(events, part, *ending) == b"".join([part, *ending]) + DONE
    assert events.is_complete
    for dialect, last in ((MESSAGES_VIA_CHAT, b"message_stop"), (RESPONSES_VIA_CHAT, b'"response.completed"')):
        request = request_of(stream=True, messages=[{"role": "user", "content": "Hi"}], input="Hi", max_tokens=9)
        request.state = context()
        events = dialect.open_stream(request)
        assert last in passed(events, part, *ending)
        assert events.is_complete
    collector = present(CHAT.open_collector(request_of()))
    collector.feed_data(b"".join([part, *ending]))
    assert present(collector.build_result())[0] == 200


@pytest.mark.parametrize("dialect", [MESSAGES_VIA_CHAT, RESPONSES_VIA_CHAT], ids=["messages", "responses"])
def test_a_last_event_without_its_blank_line_ends_an_answer_too(dialect: Any) -> None:
    request = request_of(stream=True, messages=[{"role": "user", "content": "Hi"}], input="Hi", max_tokens=9)
    request.state = context()
    events = dialect.open_stream(request)
    passed(events, PARTS[CHAT], FINISHED.removesuffix(b"\n"))
    assert events.is_complete


def test_a_choice_without_a_finish_reason_is_not_whole() -> None:
    collector = present(CHAT.open_collector(request_of(n=2)))
    collector.feed_data(data(choices=[{"index": 1, "delta": {"content": "a"}}]) + FINISHED)
    assert collector.build_result() is None


@pytest.mark.parametrize("dialect", FAMILIES)
def test_a_chunk_of_whole_events_is_not_even_copied_and_an_endless_event_is_an_error(dialect: Dialect) -> None:
    part = PARTS[dialect]
    assert stream_of(dialect).feed_data(part) is part
    events = stream_of(dialect)
    assert events.feed_data(b"x" * HOLD_LIMIT) == b""
    with pytest.raises(EventTooLongError):
        events.feed_data(b"x")


LLAMA_ERROR = {"code": 500, "message": "Compute error", "type": "server_error"}


def test_engines_errors_get_the_familys_form_and_are_the_end() -> None:
    events = stream_of(CHAT)
    error, done, _ = passed(events, PARTS[CHAT], data(error=LLAMA_ERROR)).split(b"\n\n")[1:]
    assert told(error)["error"].items() >= {"code": "engine_error", "status": 500, "message": "Compute error"}.items()
    assert done + b"\n\n" == DONE
    assert events.is_complete
    assert events.fail_stream(LOST, "r") == DONE


def test_native_errors_are_the_end() -> None:
    for error in (data(error=LLAMA_ERROR), b"error: " + json.dumps(LLAMA_ERROR).encode() + b"\n\n"):
        events = stream_of(NATIVE)
        out = passed(events, PARTS[NATIVE], error)
        assert told(out.removeprefix(PARTS[NATIVE]))["error"]["code"] == "engine_error"
        assert events.is_complete


def test_llama_servers_errors_of_messages_become_the_familys() -> None:
    events = stream_of(MESSAGES)
    raw = b"event: error\ndata: " + json.dumps(LLAMA_ERROR).encode() + b"\n\n"
    out = passed(events, PARTS[MESSAGES], raw).removeprefix(PARTS[MESSAGES])
    assert out.startswith(b"event: error\n")
    assert told(out)["type"] == "error"
    assert told(out)["error"].items() >= {"type": "api_error", "message": "Compute error"}.items()
    assert events.is_complete


def test_failures_of_ours_have_the_familys_form() -> None:
    for dialect in (CHAT, COMPLETIONS):
        out = stream_of(dialect).fail_stream(LOST, "r")
        assert told(out) == LOST.build_envelope("r").model_dump()
        assert out.endswith(b"\n\n" + DONE)
    assert told(stream_of(NATIVE).fail_stream(LOST, "r")) == LOST.build_envelope("r").model_dump()
    assert told(stream_of(MESSAGES).fail_stream(LOST, "r"))["request_id"] == "r"


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def test_the_usage_event_is_taken_out_unless_the_client_asked() -> None:
    last = data(choices=[], usage=USAGE)
    events = stream_of(CHAT)
    assert passed(events, PARTS[CHAT], last + DONE) == PARTS[CHAT] + DONE
    assert events.usage == Usage(7, 3)
    asked = stream_of(CHAT, stream_options={"include_usage": True})
    assert passed(asked, PARTS[CHAT], last + DONE) == PARTS[CHAT] + last + DONE
    with_choices = data(choices=[{"index": 0, "text": "", "finish_reason": "stop"}], usage=USAGE)
    events = stream_of(COMPLETIONS)
    assert passed(events, with_choices, DONE) == with_choices + DONE
    assert events.usage == Usage(7, 3)


def test_usage_of_several_choices_is_added_and_that_which_grows_is_told_last() -> None:
    last = data(choices=[], usage=USAGE)
    events = stream_of(CHAT, n=2)
    passed(events, last, last, DONE)
    assert events.usage == Usage(7, 6)
    ends = [data(choices=[{"index": n, "text": "", "finish_reason": "stop"}], usage=USAGE) for n in (0, 1)]
    events = stream_of(COMPLETIONS, n=2)
    passed(events, *ends, DONE)
    assert events.usage == Usage(7, 6)
    # vLLM's continuous usage grows with each event, and the last one tells the whole.
    growing = [data(choices=[{"index": 0, "text": "a"}], usage=USAGE | {"completion_tokens": n}) for n in (1, 2)]
    events = stream_of(COMPLETIONS)
    passed(events, *growing, ends[0])
    assert events.usage == Usage(7, 3)
    passed(events, last, DONE)
    assert events.usage == Usage(7, 3)


def test_usage_of_messages_is_told_at_the_beginning_and_at_the_end() -> None:
    events = stream_of(MESSAGES)
    start = {"usage": {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 0}}
    events.feed_data(typed("message_start", message=start))
    assert events.usage == Usage(7, 0, 3)
    passed(
        events,
        typed("message_delta", delta={}, usage={"output_tokens": 9, "input_tokens": None}),
        typed("message_delta", delta={}, usage=None),
        typed("message_stop"),
    )
    assert events.usage == Usage(7, 9, 3)


@pytest.mark.parametrize("choices", [{"n": 2}, {"n_cmpl": None, "n": 2}])
@pytest.mark.parametrize("prompts", [1, 2])
def test_usage_of_a_native_stream_is_that_of_all_prompts_and_answers(choices: dict[str, Any], prompts: int) -> None:
    events = stream_of(NATIVE, **choices, prompt=["x"] * prompts)
    seen = []
    for evaluated in [5, 5, 7, 7][: 2 * prompts]:
        events.feed_data(data(stop=True, stop_type="eos", tokens_evaluated=evaluated, tokens_predicted=4))
        seen.append((events.is_complete, events.usage))
    first = [(False, Usage(5, 4)), (prompts == 1, Usage(5, 8))]
    assert seen == [*first, *[(False, Usage(9, 12)), (True, Usage(12, 16))][: 2 * (prompts - 1)]]


@pytest.mark.parametrize(
    ("dialect", "body", "usage"),
    [
        (CHAT, {"usage": USAGE}, Usage(7, 3)),
        (MESSAGES, {"usage": {"input_tokens": 1, "output_tokens": 2}}, Usage(1, 2)),
        (MESSAGES, {"usage": {"input_tokens": 1, "cache_creation_input_tokens": 4, "output_tokens": 2}}, Usage(5, 2)),
        (MESSAGES, {"input_tokens": 5}, None),
        (NATIVE, {"tokens_predicted": 3, "tokens_evaluated": 9, "prompt": '"tokens_predicted":99'}, Usage(9, 3)),
        (NATIVE, {"tokens_predicted": 3}, Usage(0, 3)),
        (NATIVE, {"content": "x"}, None),
        (CHAT, {"usage": {"total_tokens": 6}}, Usage(6, 0)),
    ],
)  # fmt: skip
def test_usage_of_blocking_answers(dialect: Dialect, body: Any, usage: Usage | None) -> None:
    for separators in ((",", ":"), None):
        assert dialect.find_usage(json.dumps(body, separators=separators).encode(), request_of()) == usage


@pytest.mark.parametrize(
    ("fields", "evaluated", "prompt_tokens"),
    [
        *(({"n": 2}, (9, 9), 9), ({"n_cmpl": None, "n": 2}, (9, 9), 9), ({"prompt": ["a", "b c"]}, (9, 4), 13)),
        ({"prompt": ["a", "b c"], "n": 2}, (9, 9, 4, 4), 13),
        ({"prompt": ["a", "b c"], "n": 2}, (9,), 9),  # of a long answer's first part
    ],
)
def test_a_native_prompt_counts_once(fields: dict[str, Any], evaluated: tuple[int, ...], prompt_tokens: int) -> None:
    answers = [{"tokens_predicted": 3, "tokens_evaluated": tokens} for tokens in evaluated]
    usage = NATIVE.find_usage(json.dumps(answers).encode(), request_of(**fields))
    assert usage == Usage(prompt_tokens, 3 * len(evaluated))


def gathering_of(dialect: Dialect, **fields: Any) -> StreamCollector | None:
    return dialect.open_collector(parse_request(json.dumps({"model": "m", **fields}).encode(), may_stream=True))


def made(dialect: Dialect, *events: bytes, **fields: Any) -> tuple[int, Any] | None:
    gathering = present(gathering_of(dialect, **fields))
    for event in events:
        gathering.feed_data(event)
    result = gathering.build_result()
    return None if result is None else (result[0], json.loads(result[1]))


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
    result = present(made(CHAT, *(delta(tool_calls=[call]) for call in calls), delta(finish="tool_calls"), DONE))
    told = [(call["id"], call["function"]) for call in result[1]["choices"][0]["message"]["tool_calls"]]
    assert told == [("a", {"name": "f", "arguments": "{}"}), ("b", {"name": "g", "arguments": "[]"})]


def test_the_usage_of_a_blocking_chat_is_the_first_choices() -> None:
    gathering = present(gathering_of(CHAT, n=2))
    for index, count in ((1, 5), (0, 3)):
        gathering.feed_data(delta(index, "stop"))
        gathering.feed_data(data(choices=[], usage={"prompt_tokens": 9, "completion_tokens": count}))
    gathering.feed_data(DONE)
    result = present(gathering.build_result())
    assert json.loads(result[1])["usage"]["completion_tokens"] == 3
    assert gathering.usage == Usage(9, 8)


def test_probabilities_of_completions_are_joined() -> None:
    def piece(text: str, **logprobs: Any) -> bytes:
        return data(choices=[{"index": 0, "text": text, "logprobs": logprobs or None, "finish_reason": None}])

    end = data(object="text_completion", choices=[{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}])
    joined = present(
        made(
            COMPLETIONS, piece("a", tokens=["a"], text_offset=[0]), piece("b", tokens=["b"], text_offset=[1]), end, DONE
        )
    )
    logprobs = {"tokens": ["a", "b"], "text_offset": [0, 1]}
    assert joined[1]["choices"] == [{"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]


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
    result = present(made(MESSAGES, part, end, typed("message_stop")))
    assert result[1]["content"] == [{"type": "text", "text": "ü"}]
    assert result[1]["usage"] == {"input_tokens": 0, "output_tokens": 2}
    assert result[1]["model"] == "m"


def test_parts_of_messages_of_odd_forms_are_passed_over() -> None:
    grown = {"type": "text_delta", "text": "a"}
    result = present(
        made(
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


def test_choices_of_odd_forms_are_passed_over() -> None:
    odd = ["a", None, {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]
    result = present(made(CHAT, data(choices=odd), data(choices=[]), DONE))
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
        result = present(made(dialect, data(choices=[]), ending))
        assert result[0] == status
        assert result[1]["error"]["message"] == "x"
        assert dialect.engine_error_body(status, json.dumps(result[1]).encode(), "r")


@pytest.mark.parametrize("dialect", FAMILIES)
def test_a_stream_that_broke_off_is_no_answer(dialect: Dialect) -> None:
    assert made(dialect) is None
    assert made(dialect, delta(content="a"), typed("message_start", message={}), data(content="a", stop=False)) is None
    gathering = present(gathering_of(dialect))
    gathering.feed_data(b"x" * HOLD_LIMIT)
    with pytest.raises(EventTooLongError):
        gathering.feed_data(b"x")


def test_native_waits_for_as_many_answers_as_were_asked_for() -> None:
    end = data(index=1, stop=True, content="", generation_settings={"stream": True, "n": 2})
    part = data(index=1, stop=False, content="a", completion_probabilities=[1])
    assert made(NATIVE, part, end, n=2) is None
    first = data(index=0, stop=True, content="")
    result = present(made(NATIVE, part, part, end, first, n_cmpl=2, n_probs=1))
    assert [answer["content"] for answer in result[1]] == ["", "aa"]
    assert result[1][1]["completion_probabilities"] == [1, 1]
    assert result[1][1]["generation_settings"] == {"stream": False, "n": 2}


LIMITED = {"stop": ["x"], "max_tokens": 5}
EXCLUDED: list[tuple[Dialect, dict[str, Any]]] = [
    *((dialect, LIMITED) for dialect in FAMILIES),
    *((dialect, {"n_indent": 2}) for dialect in FAMILIES),
    *((dialect, {"verbose": True}) for dialect in FAMILIES),
    *((CHAT, {"logprobs": True}), (CHAT, {"n_probs": 2}), (COMPLETIONS, {"logprobs": 1, "stop": "x"})),
    (COMPLETIONS, {"best_of": 3}),
    (CHAT, {"reasoning_format": "deepseek-legacy"}),
    (CHAT, {"continue_final_message": True}),
    (CHAT, {"messages": [{"role": "user"}, {"role": "assistant"}]}),
    (MESSAGES, {"messages": [{"role": "assistant"}]}),
    (MESSAGES, {"stop_sequences": ["x"], "max_tokens": 5}),
    *((NATIVE, {"return_tokens": True}), (NATIVE, {"response_fields": ["content"]})),
    *((NATIVE, {"n_probs": 1, "stop": ["x"]}), (JSON_DIALECT, {})),
]
INCLUDED: list[tuple[Dialect, dict[str, Any]]] = [
    *((dialect, {"max_tokens": 5, "best_of": 1}) for dialect in FAMILIES),
    (CHAT, {"stop": ["x"], "max_tokens": None}),
    (CHAT, {"stop": [], "max_tokens": 5, "logprobs": False, "messages": [{"role": "user"}]}),
    (COMPLETIONS, {"logprobs": 3}),
    (MESSAGES, {"messages": "odd"}),
]


@pytest.mark.parametrize(
    ("dialect", "fields", "is_gathered"),
    [*((*each, False) for each in EXCLUDED), *((*each, True) for each in INCLUDED)],
)
def test_what_a_stream_cannot_give_goes_as_it_is_and_the_rest_is_gathered(
    dialect: Dialect, fields: dict[str, Any], is_gathered: bool
) -> None:
    assert (gathering_of(dialect, **fields) is not None) is is_gathered
