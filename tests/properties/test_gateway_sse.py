"""Properties of the event filter: whatever the cuts, the client gets the same whole events, less the usage event."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import HOLD_LIMIT, EventFilter, EventTooLongError, Usage, split_events, usage_in

USAGE = {"prompt_tokens": 7, "completion_tokens": 13, "total_tokens": 20}
TRICKY = ['"usage":{"prompt_tokens":99}', "data: [DONE]", "\n\n", "\r\n\r\n", '{"error"', "usage", "Grüße 😀"]

contents = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=8)), max_size=6)
line_ends = st.sampled_from([b"\n", b"\r\n"])
usage_keys = st.sampled_from([{}, {"usage": None}, {"usage": USAGE}])


def event(payload: Any, line_end: bytes, *, spaced: bool = False) -> bytes:
    separators = None if spaced else (",", ":")
    return b"data: " + json.dumps(payload, separators=separators).encode() + line_end * 2


def chunk(content: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}}], **extra}


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


def passed(stream: bytes, places: list[int], *, strip: bool) -> tuple[bytes, EventFilter]:
    events = EventFilter(strip_usage=strip)
    out = []
    for part in cut(stream, places):
        whole = events.feed(part)
        assert whole == b"" or whole.endswith((b"\n\n", b"\n\r\n")), "a heartbeat may follow anything that is passed on"
        out.append(whole)
    out.append(events.finish())
    return b"".join(out), events


cuts = st.lists(st.integers(0, 5000), max_size=40)


@given(contents, line_ends, usage_keys, st.booleans(), cuts)
def test_the_usage_event_is_stripped_wherever_the_stream_is_cut(
    words: list[str], line_end: bytes, extra: dict[str, Any], spaced: bool, places: list[int]
) -> None:
    kept = b"".join(event(chunk(word, extra), line_end, spaced=spaced) for word in words)
    done = b"data: [DONE]" + line_end * 2
    stream = kept + event({"choices": [], "usage": USAGE}, line_end, spaced=spaced) + done
    out, events = passed(stream, places, strip=True)
    assert out == kept + done
    assert events.usage == Usage(7, 13)
    assert events.is_done
    assert not events.is_error


@given(contents, line_ends, cuts)
def test_a_client_that_asked_for_usage_gets_every_byte(words: list[str], line_end: bytes, places: list[int]) -> None:
    stream = b"".join(event(chunk(word, {}), line_end) for word in words)
    stream += event({"choices": [], "usage": USAGE}, line_end) + b"data: [DONE]" + line_end * 2
    out, events = passed(stream, places, strip=False)
    assert out == stream
    assert events.usage == Usage(7, 13)


@given(contents, cuts)
def test_half_an_event_is_never_passed_on(words: list[str], places: list[int]) -> None:
    whole = b"".join(event(chunk(word, {}), b"\n") for word in words)
    out, events = passed(whole + b'data: {"choices":[{"del', places, strip=True)
    assert out == whole
    assert not events.is_done


@given(contents, st.sampled_from([b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"]), cuts)
def test_a_done_without_its_blank_line_counts(words: list[str], done: bytes, places: list[int]) -> None:
    whole = b"".join(event(chunk(word, {}), b"\n") for word in words)
    out, events = passed(whole + done, places, strip=True)
    assert out == whole + b"data: [DONE]\n\n"
    assert events.is_done


@given(
    contents, cuts, st.sampled_from([b'data: {"error":{"message":"x"}}', b'data: {"error": {}}', b'error: {"code":1}'])
)
def test_a_last_error_event_is_noticed(words: list[str], places: list[int], error: bytes) -> None:
    stream = b"".join(event(chunk(word, {}), b"\n") for word in words) + error + b"\n\n"
    out, events = passed(stream, places, strip=True)
    assert out == stream
    assert events.is_error
    assert not events.is_done


@given(st.binary(max_size=300), cuts)
def test_arbitrary_bytes_lose_nothing_but_an_unfinished_end(stream: bytes, places: list[int]) -> None:
    out, _ = passed(stream, places, strip=False)
    assert stream.startswith(out) or out.endswith(b"data: [DONE]\n\n")


@given(st.binary(max_size=200))
def test_split_events_joined_is_the_original(events: bytes) -> None:
    assert b"".join(split_events(events)) == events


def test_an_endless_event_is_an_error() -> None:
    events = EventFilter(strip_usage=True)
    assert events.feed(b"x" * HOLD_LIMIT) == b""
    with pytest.raises(EventTooLongError):
        events.feed(b"x")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from([*TRICKY, '"usage"']), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5), st.integers(0, 5), st.booleans())
def test_usage_is_found_wherever_it_stands_in_a_blocking_answer(rest: dict[str, Any], at: int, spaced: bool) -> None:
    items = [(key, value) for key, value in rest.items() if key != "usage"]
    items.insert(min(at, len(items)), ("usage", USAGE))
    body = json.dumps(dict(items), separators=None if spaced else (",", ":")).encode()
    assert usage_in(body) == Usage(7, 13)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"usage":null}', b'{"usage":{"prompt_tokens":', b"\xff", b'{"a":"\\"usage\\":{}"}']
)
def test_no_usage(body: bytes) -> None:
    assert usage_in(body) is None
