"""What servers answer in odd forms is in the translated answer, or that is an error: nothing is lost in silence."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import RoundhouseError
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.fakes.fake_controller import route
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from tests.support.responses import context

Fields = dict[str, Any]
SCHEMA = {"type": "object", "properties": {}}
ASKED: list[tuple[Dialect, Fields]] = [
    (
        MESSAGES_VIA_CHAT,
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Hi"}],
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "tools": [{"name": "f", "input_schema": SCHEMA}],
        },
    ),
    (RESPONSES_VIA_CHAT, {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]}),
]
DIALECTS = [MESSAGES_VIA_CHAT, RESPONSES_VIA_CHAT]
texts = st.integers(0, 10**6).map(lambda number: f"said{number}x")
objects = st.dictionaries(texts, texts | st.integers() | st.lists(texts, max_size=2), min_size=1, max_size=2)
parts = st.one_of(
    texts,
    texts.map(lambda text: {"type": "text", "text": text}),
    texts.map(lambda text: {"text": text}),
    texts.map(lambda text: {"type": "thinking", "thinking": [{"type": "text", "text": text}]}),
    texts.map(lambda text: {"type": "reasoning", "text": text}),
    texts.map(lambda text: {"type": "refusal", "refusal": text}),
    texts.map(lambda text: {"type": "image_url", "image_url": {"url": text}}),
    texts.map(lambda text: {"type": "text", "text": {"value": text}}),
    st.sampled_from([None, 7, {}, []]),
)
functions = st.fixed_dictionaries({"name": st.just("f"), "arguments": objects | objects.map(json.dumps)})
calls = st.fixed_dictionaries(
    {"function": functions}, optional={"id": st.sampled_from([None, "", "c1"]), "index": st.just(0)}
)
messages = st.fixed_dictionaries(
    {"role": st.just("assistant")},
    optional={
        "content": st.one_of(st.none(), texts, st.lists(parts, max_size=3), objects, st.integers()),
        "tool_calls": st.one_of(st.none(), st.lists(calls, max_size=1), objects, st.just(["f"])),
        "function_call": st.one_of(st.none(), functions),
        "reasoning_details": st.lists(texts.map(lambda text: {"type": "reasoning.text", "text": text}), max_size=2),
    },
).filter(lambda message: not (message.get("tool_calls") and message.get("function_call")))


def read_request(dialect: Dialect, *, stream: bool) -> InferenceRequest:
    fields = next(fields for each, fields in ASKED if each is dialect)
    request = parse_request(json.dumps({"model": "m", "stream": stream, **fields}).encode(), may_stream=True)
    request.state = context()
    dialect.check_request(request, route("m"))
    return request


def find_said(value: Any) -> set[str]:
    """Everything that was said, wherever it is: of a text, an object or bytes."""
    return set(re.findall(r"said\d+x", value.decode() if isinstance(value, bytes) else json.dumps(value)))


def answer_whole(dialect: Dialect, message: Fields) -> bytes | None:
    """The translated answer to a blocking request; None: it is an error."""
    convert = present(dialect.get_body_converter(read_request(dialect, stream=False)))
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    try:
        return convert(json.dumps({"id": "a", "object": "chat.completion", "choices": [choice]}).encode())
    except RoundhouseError:
        return None


def answer_stream(dialect: Dialect, *chunks: bytes) -> bytes | None:
    """The events of the translated stream; None: it ends with an error, or breaks off."""
    events = dialect.open_stream(read_request(dialect, stream=True))
    out = b"".join(map(events.feed_data, chunks)) + events.finish_stream()
    failed = b"event: error" in out or b"response.failed" in out or not events.is_complete
    return None if failed else out


def chunk_of(delta: Any, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "a", "choices": [choice]}).encode() + b"\n\n"


END = chunk_of({}, "stop") + b"data: [DONE]\n\n"


@settings(max_examples=campaign_count(60, 3_000))
@given(message=messages, stream=st.booleans(), dialect=st.sampled_from(DIALECTS))
def test_no_answer_completes_with_less_than_was_said(message: Fields, stream: bool, dialect: Dialect) -> None:
    out = answer_stream(dialect, chunk_of(message), END) if stream else answer_whole(dialect, message)
    if out is not None:
        assert find_said(out.replace(b"\\", b"")) >= find_said(message)


CONVERTED: list[Fields] = [
    {"content": [{"type": "text", "text": "said1x"}, {"type": "text", "text": "said2x"}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "said1x"}]}, "said2x"]},
    {"content": None, "tool_calls": [{"id": None, "function": {"name": "f", "arguments": {"a": "said1x"}}}]},
    {"content": None, "function_call": {"name": "f", "arguments": '{"a": "said1x"}'}},
    {"content": "said1x", "reasoning_details": [{"type": "reasoning.text", "text": "said2x"}]},
]


@pytest.mark.parametrize("message", CONVERTED)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_other_servers_send_is_converted(message: Fields, dialect: Dialect) -> None:
    for out in (answer_whole(dialect, message), answer_stream(dialect, chunk_of(message), END)):
        assert find_said(present(out)) == find_said(message)


@pytest.mark.parametrize(
    "message", [{"content": {"text": "said1x"}}, {"content": 7}, {"content": [{"type": "audio"}]}, {"tool_calls": [7]}]
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_has_no_place_in_an_answer_is_an_error(message: Fields, dialect: Dialect) -> None:
    assert answer_whole(dialect, message) is None
    assert answer_stream(dialect, chunk_of(message), END) is None


@pytest.mark.parametrize("event", [b'data: {"id": broken\n\n', b"data: 7\n\n", b"data: [1]\n\n"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_event_that_cannot_be_read_is_an_error(event: bytes, dialect: Dialect) -> None:
    assert answer_stream(dialect, chunk_of({"content": "said1x"}), event, END) is None
    collector = dialect.open_collector(read_request(dialect, stream=False))
    if collector is not None:
        collector.feed_data(chunk_of({"content": "said1x"}) + event + END)
        assert present(collector.build_result())[0] >= 400


@pytest.mark.parametrize("event", [b"data:\n\n", b": ping\n\n", b"data: {}\n\n", b"event: ping\n\n", b"data: null\n\n"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_event_that_says_nothing_harms_nothing(event: bytes, dialect: Dialect) -> None:
    assert find_said(present(answer_stream(dialect, event, chunk_of({"content": "said1x"}), event, END))) == {"said1x"}
