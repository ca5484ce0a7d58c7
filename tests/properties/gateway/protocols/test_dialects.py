"""Properties of all families: whatever the cuts and the line ends, the same comes out; garbage harms nothing."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.errors import ERROR_CODES, RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common.dialect import Dialect, EventTooLongError
from gateway.protocols.common.errors import OVERFLOW_CODE
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.llama_native import NATIVE
from tests.support.campaign import campaign_count
from tests.support.outcomes import present

FAMILIES: list[Dialect] = [CHAT, COMPLETIONS, MESSAGES, NATIVE]
BLOCKING = b'{"model":"m"}'
STREAM = b'{"model":"m","stream":true}'
TRICKY = [
    *('"usage":{"prompt_tokens":99}', "data: [DONE]", "\n\n", "\r\n\r\n", '{"error"', '"error":{}', "event: error\n")
]
TRICKY += ['"type":"message_stop"', '"stop_type"', "Grüße 😀", "\ud83d", "\u2028", ": x", '"sequence_number":7']

words = st.one_of(st.sampled_from(TRICKY), st.text(max_size=6))
line_ends = st.sampled_from([b"\n", b"\r\n"])
data_starts = st.sampled_from([b"data: ", b"data:"])
cuts = st.lists(st.integers(0, 9000), max_size=30)
comments = st.sampled_from([b"", b"", b": ka\n\n", b":\r\n\r\n"])
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "input_tokens": 7, "output_tokens": 3}


def request(raw: bytes = STREAM) -> InferenceRequest:
    return parse_request(raw, may_stream=True)


def fields_of(dialect: Dialect, word: str, number: int) -> dict[str, Any]:
    """One event's data: some of a text."""
    if dialect is CHAT:
        call = {"index": number % 2, "id": "i", "function": {"name": "", "arguments": word}}
        return {"choices": [{"index": 0, "delta": {"content": word, "tool_calls": [call]}, "finish_reason": None}]}
    if dialect is COMPLETIONS:
        return {"choices": [{"index": number % 2, "text": word, "finish_reason": None}], "usage": None}
    if dialect is MESSAGES:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    return {"index": 0, "content": word, "stop": False, "tokens_predicted": number}


def ends_of(dialect: Dialect) -> list[dict[str, Any]]:
    """The data of the last events."""
    if dialect in (CHAT, COMPLETIONS):
        return [{"choices": [], "usage": USAGE}]
    if dialect is MESSAGES:
        return [{"type": "message_delta", "delta": {}, "usage": USAGE}, {"type": "message_stop"}]
    return [{"index": 0, "content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 3, "tokens_evaluated": 7}]


@st.composite
def streams(draw: st.DrawFn, dialect: Dialect) -> bytes:
    """A whole stream of a family, or one that ends with an error, or that breaks off."""
    line_end, start = draw(line_ends), draw(data_starts)

    def event(fields: dict[str, Any], name: str | None = None) -> bytes:
        kind = name or fields.get("type")
        named = b"event: " + str(kind).encode() + line_end if kind else b""
        return named + start + json.dumps(fields).encode() + line_end * 2

    parts = [event(fields_of(dialect, word, n)) for n, word in enumerate(draw(st.lists(words, max_size=6)))]
    parts = list(itertools.chain(*((draw(comments), part) for part in parts)))
    ending = draw(st.sampled_from(["whole", "whole", "error", "cut"]))
    if ending == "error":
        error = {"code": 500, "message": draw(words), "type": "server_error"}
        parts.append(event(error, "error") if dialect is MESSAGES else event({"error": error}))
    elif ending == "whole":
        parts += [event(fields) for fields in ends_of(dialect)]
        if dialect in (CHAT, COMPLETIONS):
            parts.append(start + b"[DONE]" + line_end * 2)
    stream = b"".join(parts)
    return stream.rstrip(b"\r\n") if draw(st.booleans()) else stream + draw(comments)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


def passed(dialect: Dialect, parts: list[bytes]) -> tuple[bytes, bool, Any, bytes]:
    """What comes out, whether it is complete, the usage, and what a failure would add."""
    events = dialect.open_stream(request())
    out = []
    for part in parts:
        whole = events.feed_data(part)
        assert whole == b"" or whole.endswith((b"\n\n", b"\n\r\n")), "a heartbeat may follow anything that is passed on"
        out.append(whole)
    out.append(events.finish_stream())
    lost = events.fail_stream(RoundhouseError("engine_disconnected", "Gone."), "r")
    return b"".join(out), events.is_complete, events.usage, lost


def gathered(dialect: Dialect, parts: list[bytes]) -> Any:
    gathering = present(dialect.open_collector(request(BLOCKING)))
    for part in parts:
        gathering.feed_data(part)
    return gathering.build_result(), gathering.usage


@pytest.mark.parametrize("dialect", FAMILIES)
@settings(max_examples=campaign_count(15, 600))
@given(draw=st.data(), places=cuts)
def test_cuts_change_nothing(dialect: Dialect, draw: st.DataObject, places: list[int]) -> None:
    stream = draw.draw(streams(dialect))
    assert passed(dialect, cut(stream, places)) == passed(dialect, [stream])
    assert gathered(dialect, cut(stream, places)) == gathered(dialect, [stream])


@pytest.mark.parametrize("dialect", FAMILIES)
@settings(max_examples=campaign_count(15, 600))
@given(draw=st.data(), places=cuts)
def test_a_stream_is_complete_exactly_if_gathered(dialect: Dialect, draw: st.DataObject, places: list[int]) -> None:
    stream = draw.draw(streams(dialect))
    _, complete, usage, _ = passed(dialect, cut(stream, places))
    result, counted = gathered(dialect, cut(stream, places))
    assert complete == (result is not None)
    if result is not None and result[0] == 200:
        json.loads(result[1])
        assert usage == counted is not None


@pytest.mark.parametrize("dialect", FAMILIES)
@settings(max_examples=campaign_count(15, 600))
@given(draw=st.data(), places=cuts)
def test_a_text_comes_out_as_it_went_in(dialect: Dialect, draw: st.DataObject, places: list[int]) -> None:
    said = draw.draw(st.lists(words, max_size=6))
    events = [fields_of(dialect, word, 0) for word in said] + ends_of(dialect)
    stream = b"".join(b"data: " + json.dumps(fields).encode() + b"\n\n" for fields in events) + b"data: [DONE]\n\n"
    (result, _) = gathered(dialect, cut(stream, places))
    assert result is not None
    answer = json.loads(result[1])
    if dialect is CHAT and said:
        message = answer["choices"][0]["message"]
        assert json.dumps(message["content"]) == json.dumps("".join(said))
        assert message["tool_calls"][0]["function"]["arguments"] == message["content"]
    elif dialect is COMPLETIONS and said:
        assert json.dumps(answer["choices"][0]["text"]) == json.dumps("".join(said))
    elif dialect is MESSAGES and said:
        assert json.dumps(answer["content"][0]["text"]) == json.dumps("".join(said))
    elif dialect is NATIVE:
        assert json.dumps(answer["content"]) == json.dumps("".join(said))


names = st.sampled_from(
    [
        *("choices", "delta", "index", "usage", "error", "type", "message", "content", "tool_calls", "function"),
        *("content_block", "response", "output", "stop", "stop_type", "text", "logprobs", "code", "status"),
    ]
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 600), st.floats(), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=5)),
    max_leaves=12,
)
types = st.sampled_from(["content_block_delta", "message_start", "message_delta", "message_stop", "response.completed"])
shaped = st.builds(
    lambda value, name, kind, line: b"%bdata: %b%b" % (
        b"event: %b\n" % name if name else b"",
        json.dumps({"type": kind, **value} if isinstance(value, dict) and kind else value).encode(),
        line,
    ),
    json_values,
    st.sampled_from([b"", b"error", b"message_stop"]),
    st.one_of(st.none(), types),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n", b""]),
)  # fmt: skip
garbage = st.lists(st.one_of(st.binary(max_size=40), shaped), max_size=8).map(b"".join)


@pytest.mark.parametrize("dialect", FAMILIES)
@settings(max_examples=campaign_count(15, 600))
@given(stream=garbage, places=cuts)
@example(stream=b'data: {"error":' + b'{"a":' * 2000 + b"1" + b"}" * 2001 + b"\n\n", places=[])
@example(stream=b'data: {"error":{"a":' + b"[" * 970 + b"]" * 970 + b"}}\n\n", places=[])
@example(stream=b'data: {"choices":[{"delta":{"x":' + b'{"a":' * 960 + b"1" + b"}" * 960 + b"}}]}\n\n" * 2, places=[])
@example(stream=b'data: {"error":{"code":1e999}}\n\n', places=[])
@example(stream=b'data: {"error":"\\ud83d"}\n\n', places=[])
@example(stream=b'data: {"choices":[{"index":1e3,"delta":{"tool_calls":[{"index":[]}]}}]}\n\ndata: [DONE]', places=[])
def test_garbage_harms_nothing(dialect: Dialect, stream: bytes, places: list[int]) -> None:
    try:
        passed(dialect, cut(stream, places))
        result, _ = gathered(dialect, cut(stream, places))
    except EventTooLongError:
        pytest.fail("it is short")
    if result is not None:
        assert 200 <= result[0] <= 599
        json.loads(result[1])
        dialect.engine_error_body(result[0], result[1], "r")
    dialect.engine_error_body(500, stream, "r")
    dialect.find_usage(stream, request())


@pytest.mark.parametrize("dialect", FAMILIES)
@settings(max_examples=campaign_count(15, 600))
@given(code=st.sampled_from(sorted(ERROR_CODES)), message=words, param=st.one_of(st.none(), words))
def test_a_failure_is_read_as_the_familys_own(dialect: Dialect, code: str, message: str, param: str | None) -> None:
    out = dialect.open_stream(request()).fail_stream(RoundhouseError(code, message, param=param), "r")
    again = dialect.open_stream(request())
    assert again.feed_data(out) == out
    assert again.is_complete
    assert again.finish_stream() == b""
    result, _ = gathered(dialect, [out])
    assert result is not None
    assert result[0] == ERROR_CODES[code].status
    expected = message
    if dialect is MESSAGES and code == OVERFLOW_CODE:
        # Anthropic's clients know it by these words.
        expected = f"prompt is too long: {message}" if message else "prompt is too long."
    assert json.loads(result[1])["error"]["message"] == expected
