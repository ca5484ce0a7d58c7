"""The client of a stream's own request: sent what it takes, told when it lost a part, and free to leave."""

from __future__ import annotations

from gateway.server.call import Handler
from gateway.streams.client_feed import ClientFeed
from gateway.streams.registry import StreamRegistry
from gateway.streams.stream import ResumableStream, StreamState

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
        """See ClientCall."""
        assert self.head is None
        self.head = (status, lines)
        self.send_part(first_part)

    def send_part(self, part: bytes) -> None:
        """See ClientCall."""
        assert not self.is_ended
        assert part
        self.parts.append(part)
        if len(self.parts) >= self.most:
            self.feed.client_full()

    def end_response(self, last_part: bytes = b"") -> None:
        """See ClientCall."""
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


def test_a_client_gets_the_head_every_event_and_the_end() -> None:
    call = Call()
    registry, stream, told = _open(call)
    stream.append(EVENT % 1)
    assert (call.head, call.parts) == (HEAD, [EVENT % 0, EVENT % 1])
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    assert call.is_ended
    call.feed.client_gone()
    assert (stream.readers, told) == (set(), [])


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


def test_a_client_that_leaves_ends_nothing() -> None:
    call = Call()
    _, stream, told = _open(call)
    call.feed.client_gone()
    stream.append(EVENT % 1)
    assert (call.parts, call.is_ended, told) == ([EVENT % 0], False, ["gone"])
    assert stream.state is StreamState.LIVE


def test_a_client_that_was_sent_the_beginning_is_sent_the_rest() -> None:
    call = Call()
    _, stream, _ = _open(call, sent_bytes=len(EVENT % 0))
    stream.append(EVENT % 1)
    assert (call.head, call.parts) == (None, [EVENT % 1])


def test_a_client_of_a_removed_stream_is_told_why() -> None:
    for told_events, last in ((b"data: why\n\n", b"data: why\n\n"), (b"", LOST)):
        call = Call()
        registry, stream, _ = _open(call)
        registry.remove_stream(stream, told_events)
        assert (call.parts, call.is_ended) == ([EVENT % 0, last], True)


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
