"""Rings: bytes by their offset, whole events, the oldest dropped."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from assistant.hooks.stream_hooks import StreamRun
from assistant.streams.registry import OVERHEAD_BYTES, StreamRegistry
from assistant.streams.resumable_streams import ClientFeed
from assistant.streams.stream import ByteRing, ResumableStream, StreamState, add_ids, find_offset
from contract.errors import RoundhouseError
from gateway.protocols.common.stream_ids import LONGEST_ID, find_stream_id, list_prefixes, name_model
from gateway.server.call import Handler
from tests.support.outcomes import refusal


def _ring(*events: bytes) -> ByteRing:
    ring = ByteRing()
    for event in events:
        ring.append(event)
    return ring


def test_a_ring_tells_its_bytes_from_any_offset() -> None:
    ring = _ring(b"a: 1\n\n", b"b: 2\n\n")
    for offset in range(13):
        assert ring.read(offset) == b"a: 1\n\nb: 2\n\n"[offset:]
    assert (ring.first_offset, ring.end_offset, ring.size) == (0, 12, 12)


def test_of_one_event_that_is_too_long_its_end_stays() -> None:
    ring = _ring(b"data: a\n\n", b"data: " + b"x" * 100 + b"\n\n")
    ring.drop_oldest(60)
    assert ring.read_all() == b"x" * 55 + b"\n\n"
    assert (ring.first_offset, ring.end_offset) == (60, 117)


def test_a_cleared_ring_knows_how_long_it_was() -> None:
    ring = _ring(b"data: a\n\n")
    ring.clear()
    assert (ring.first_offset, ring.end_offset, ring.size) == (9, 9, 0)
    assert ring.read(9) == b""


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_read_ends_with_an_event_and_whole_events_are_dropped(end: bytes) -> None:
    first, second, third = b"data: a" + end, b"data: bb" + end, b"data: ccc" + end
    ring = _ring(first, second, third)
    assert ring.read(0, len(first) + len(second) + 1) == first + second
    assert ring.read(0, len(first)) == first
    assert ring.read(0, 2) == first
    assert ring.read(3, 1) == first[3:]
    assert ring.read(len(first) - 1, 1) == first[-1:]
    assert ring.read(len(first), 1000) == second + third
    first, second = b"data: a" + end, b"data: bb" + end
    ring = _ring(first, second, first)
    ring.drop_oldest(1)
    assert (ring.first_offset, ring.read(ring.first_offset)) == (len(first), second + first)
    ring.drop_oldest(len(second))
    assert ring.read(ring.first_offset) == first


DONE = b"data: [DONE]\n\n"
QUOTED = r"\"sequence_number\":0"


def _event(number: int, text: str = "x") -> bytes:
    if number == 0:
        return b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{}}\n\n'
    return f'event: response.output_text.delta\ndata: {{"delta":"{text}","sequence_number":{number}}}\n\n'.encode()


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_a_reader_gets_the_events_from_a_number_on(count: int) -> None:
    events = [_event(number, QUOTED) for number in range(count)]
    ring = _ring(*events, DONE)
    for number in {0, 1, 2, count // 2, count - 1}:
        offset = find_offset(ring, number)
        assert offset == len(b"".join(events[:number]))
    assert find_offset(ring, count) == find_offset(ring, count + 1000) == ring.end_offset - len(DONE)


def test_comments_have_no_number() -> None:
    beat = b": ka\n\n"
    ring = _ring(beat, _event(0), beat, _event(1), beat)
    after_first = len(beat) + len(_event(0))
    assert find_offset(ring, 0) == 0
    assert find_offset(ring, 1) == after_first
    assert find_offset(ring, 2) == ring.end_offset
    assert find_offset(ByteRing(), 5) == 0


def test_what_the_ring_has_dropped_is_not_there() -> None:
    events = [_event(number) for number in range(6)]
    ring = _ring(*events)
    ring.drop_oldest(len(events[0]) + 1)
    assert find_offset(ring, 0) is None
    assert find_offset(ring, 1) is None
    assert find_offset(ring, 2) == ring.first_offset, "the first one that is there"
    assert find_offset(ring, 4) == len(b"".join(events[:4]))
    assert find_offset(ring, 6) == ring.end_offset
    ring = _ring(_event(0), _event(1, "y" * 500))
    ring.drop_oldest(300)
    assert find_offset(ring, 1) is None
    assert find_offset(ring, 2) == ring.end_offset
    ring.clear()
    assert find_offset(ring, 2) is None


STREAM = b'data: {"a":1}\n\n: ka\n\nevent: x\ndata: y\n\ndata: [DONE]\n\n'


def test_each_event_gets_the_offset_after_it() -> None:
    assert add_ids(b"data: a\n\n: ka\n\n", 100) == b"data: a\nid: 109\n\n: ka\nid: 115\n\n"
    assert add_ids(b"data: a\r\n\r\n", 0) == b"data: a\r\nid: 11\n\r\n"
    assert add_ids(b"", 5) == b""


@pytest.mark.parametrize("offset", range(len(STREAM) + 1))
def test_without_the_lines_the_bytes_are_the_streams(offset: int) -> None:
    numbered = add_ids(STREAM[offset:], offset)
    assert re.sub(rb"id: \d+\n", b"", numbered) == STREAM[offset:]
    for number in map(int, re.findall(rb"id: (\d+)\n", numbered)):
        assert STREAM[:number].endswith(b"\n\n")


HEADER = b"x-conversation-id"


def test_an_id_is_the_headers_text_and_names_a_model() -> None:
    assert find_stream_id([(b"host", b"h"), (HEADER, b" conv/1::m \t")]) == "conv/1::m"
    assert find_stream_id([(HEADER, "häuser".encode())]) == "häuser"
    assert find_stream_id([(HEADER, b"  ")]) is None
    assert find_stream_id([(b"host", b"h")]) is None
    assert name_model([(HEADER, b"conv::org/m:Q8_0")]) == "org/m:Q8_0"
    assert name_model([(HEADER, b"conv::")]) is None
    assert name_model([(HEADER, b"conv")]) is None
    assert name_model([]) is None
    assert list_prefixes("a::b::c") == ["a", "a::b"]
    assert list_prefixes("a:b") == []
    assert list_prefixes("::b") == []


@pytest.mark.parametrize("value", [b"\xff", b"a\x01b", b"x" * (LONGEST_ID + 1)])
def test_what_cannot_be_an_id_is_refused(value: bytes) -> None:
    assert refusal(lambda: find_stream_id([(HEADER, value)])) == ("invalid_request", "X-Conversation-Id")


HEAD = (200, b"x: y\r\n")
LOST = b"data: lost\n\n"
EVENT = b"data: %03d\n\n"


class Call:
    """A client's call that is full after so many parts."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.head: tuple[int, bytes] | None = None
        self.parts: list[bytes] = []
        self.is_ended = False
        self.handler: Handler | None = None
        self.feed: ClientFeed

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        assert self.head is None
        self.head = (status, lines)
        self.send_part(first_part)

    def send_part(self, part: bytes) -> None:
        assert not self.is_ended
        assert part
        self.parts.append(part)
        if len(self.parts) >= self.most:
            self.feed.client_full()

    def end_response(self, last_part: bytes = b"") -> None:
        assert not self.is_ended
        self.is_ended = True
        if last_part:
            self.parts.append(last_part)


def _open(
    call: Call, *, sent_bytes: int = 0, ring_bytes: int = 1000
) -> tuple[StreamRegistry, ResumableStream, list[str]]:
    registry = StreamRegistry(ring_bytes=ring_bytes, max_bytes=10**6, ttl_s=10.0)
    stream = registry.open_stream("t", "id", model="m", path="/v1/chat/completions", request_id="r", now=1.0)
    told: list[str] = []
    stream.append(EVENT % 0)
    call.feed = ClientFeed(stream, call, HEAD[1], LOST, lambda: told.append("gone"), sent_bytes=sent_bytes)
    call.feed.wake()
    return registry, stream, told


def test_streams_that_are_recovered_late_are_older_than_those_that_ended_meanwhile() -> None:
    registry = StreamRegistry(ring_bytes=1000, max_bytes=4 * OVERHEAD_BYTES + 100, ttl_s=10.0)

    def new(name: str, kept_until: float | None) -> ResumableStream:
        stream = ResumableStream(registry.make_room, "t", name, model="m", path="/x", request_id="r", now=0.0)
        stream.state, stream.kept_until = StreamState.DONE, kept_until
        return stream

    own = registry.open_stream("t", "own", model="m", path="/x", request_id="r", now=0.0)
    registry.end_stream(own, StreamState.DONE, 20.0, 20.0)
    assert registry.recover_stream(new("a", 22.0))
    assert registry.recover_stream(new("b", 24.0))
    assert registry.recover_stream(new("c", 26.0))
    assert not registry.remove_expired(25.0, 32)
    kept = [each for each in ("a", "b", "c", "own") if registry.find_stream("t", each) is not None]
    assert kept == ["c", "own"], "what is expired is removed, although another ended first"
    assert registry.recover_stream(new("d", 27.0))
    assert registry.recover_stream(new("e", 28.0))
    assert registry.recover_stream(new("f", 29.0))
    kept = [each for each in ("c", "d", "e", "f", "own") if registry.find_stream("t", each) is not None]
    assert kept == ["d", "e", "f", "own"], "the oldest makes room"


def test_a_client_gets_the_head_every_event_and_the_end_and_is_told_why() -> None:
    call = Call()
    registry, stream, told = _open(call)
    stream.append(EVENT % 1)
    assert (call.head, call.parts) == (HEAD, [EVENT % 0, EVENT % 1])
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    assert call.is_ended
    call.feed.client_gone()
    assert (stream.readers, told) == (set(), [])
    for told_events, last in ((b"data: why\n\n", b"data: why\n\n"), (b"", LOST)):
        call = Call()
        registry, stream, _ = _open(call)
        registry.remove_stream(stream, told_events)
        assert (call.parts, call.is_ended) == ([EVENT % 0, last], True)


def test_a_full_client_is_sent_nothing_and_then_the_rest_at_once() -> None:
    call = Call(most=1)
    registry, stream, _ = _open(call)
    for number in range(1, 5):
        stream.append(EVENT % number)
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    assert (len(call.parts), call.is_ended) == (1, False)
    call.most = 1000
    call.feed.client_ready()
    assert b"".join(call.parts) == b"".join(EVENT % number for number in range(5))
    assert call.is_ended


def test_a_client_that_was_too_slow_is_told_so() -> None:
    call = Call(most=1)
    registry, stream, _ = _open(call, ring_bytes=40)
    for number in range(1, 50):
        stream.append(EVENT % number)
    call.feed.client_ready()
    assert (call.parts, call.is_ended) == ([EVENT % 0, LOST], True)
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)


def test_a_client_that_leaves_ends_nothing_and_one_that_was_sent_the_beginning_is_sent_the_rest() -> None:
    call = Call()
    _, stream, told = _open(call)
    call.feed.client_gone()
    stream.append(EVENT % 1)
    assert (call.parts, call.is_ended, told) == ([EVENT % 0], False, ["gone"])
    assert stream.state is StreamState.LIVE
    call = Call()
    _, stream, _ = _open(call, sent_bytes=len(EVENT % 0))
    stream.append(EVENT % 1)
    assert (call.head, call.parts) == (None, [EVENT % 1])


def test_a_client_that_keeps_up_is_sent_the_events_themselves_and_one_that_lags_reads_the_ring() -> None:
    call = Call(most=3)
    _, stream, _ = _open(call)
    sent = EVENT % 1
    stream.append(sent)
    assert call.parts[1] is sent
    stream.append(EVENT % 2)  # now it is full
    stream.append(EVENT % 3)
    call.most = 1000
    call.feed.client_ready()
    stream.append(EVENT % 4)
    assert call.parts == [EVENT % number for number in range(5)]


def test_of_a_background_response_for_whose_stream_there_is_no_room_nothing_is_kept() -> None:
    def refuse(*_: Any, **__: Any) -> ResumableStream:
        raise RoundhouseError("streams_full", "There is no room.")

    account, api = SimpleNamespace(model="m"), SimpleNamespace(path="/v1/responses")
    answer = SimpleNamespace(request_id="r", is_stream=True)
    exchange: Any = SimpleNamespace(account=account, api=api, answer=answer, caller=None)
    streams: Any = SimpleNamespace(open_stream=refuse)
    responses: Any = None
    run = StreamRun(exchange, streams, responses, None, "resp_1")
    hooks = run.hooks()
    hooks.on_event[0](EVENT % 0)  # before it is admitted: the client's own
    hooks.before_admission[0](exchange)
    for _ in range(3):
        hooks.on_event[0](EVENT % 1)
    assert run._early_events == b""
