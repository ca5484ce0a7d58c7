"""How streams of each family pass, end, count and fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import HOLD_LIMIT, Dialect, EventStream, EventTooLongError, Usage
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.llama_native.dialect import NATIVE

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


@pytest.mark.parametrize("dialect", FAMILIES)
def test_a_chunk_of_whole_events_is_not_even_copied(dialect: Dialect) -> None:
    part = PARTS[dialect]
    assert stream_of(dialect).feed_data(part) is part


@pytest.mark.parametrize("dialect", FAMILIES)
def test_an_endless_event_is_an_error(dialect: Dialect) -> None:
    events = stream_of(dialect)
    assert events.feed_data(b"x" * HOLD_LIMIT) == b""
    with pytest.raises(EventTooLongError):
        events.feed_data(b"x")


LLAMA_ERROR = {"code": 500, "message": "Compute error", "type": "server_error"}


def test_chat_errors_get_every_field_and_then_done() -> None:
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


def test_failures_of_ours() -> None:
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


def test_usage_of_several_choices() -> None:
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


def test_usage_of_the_other_families() -> None:
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
        ({"n": 2}, (9, 9), 9),
        ({"n_cmpl": None, "n": 2}, (9, 9), 9),
        ({"prompt": ["a", "b c"]}, (9, 4), 13),
        ({"prompt": ["a", "b c"], "n": 2}, (9, 9, 4, 4), 13),
        ({"prompt": ["a", "b c"], "n": 2}, (9,), 9),  # of a long answer's first part
    ],
)
def test_usage_of_a_native_answer_is_that_of_all_prompts(
    fields: dict[str, Any], evaluated: tuple[int, ...], prompt_tokens: int
) -> None:
    answers = [{"tokens_predicted": 3, "tokens_evaluated": tokens} for tokens in evaluated]
    usage = NATIVE.find_usage(json.dumps(answers).encode(), request_of(**fields))
    assert usage == Usage(prompt_tokens, 3 * len(evaluated))
