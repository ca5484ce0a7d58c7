"""Files of streams: what is in them, when they are given up, and what is made of foreign ones."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assistant.streams import stream_folder
from assistant.streams.registry import StreamRegistry
from assistant.streams.resumable_streams import RecoveredStream, recover_streams
from assistant.streams.stream import (
    FILE_LOST,
    ResumableStream,
    StreamState,
    cut_torn_event,
    end_events,
    gateway_restarted,
    is_complete,
)
from assistant.streams.stream_folder import BURST_S, FORMAT, REST_S, SHARE, DiskPace, StreamFolder
from tests.support.outcomes import present
from tests.support.small_disk import no_space

RING_BYTES = 2000
EVENT = b"data: %04d\n\n"
PATH = "/v1/chat/completions"


HEADER = {
    "format": FORMAT,
    "tenant": "t",
    "id": "id",
    "model": "m",
    "path": PATH,
    "request_id": "r",
    "response_id": None,
    "began_at": 1.0,
    "first_offset": 0,
}


def _registry() -> StreamRegistry:
    return StreamRegistry(ring_bytes=RING_BYTES, max_bytes=10**6, ttl_s=100.0)


def _open(folder: StreamFolder, registry: StreamRegistry, stream_id: str = "id", now: float = 1.0) -> ResumableStream:
    stream = registry.open_stream("t", stream_id, model="m", path=PATH, request_id="r", now=now)
    stream.keep_in_file(present(folder.new_file(stream, None)))
    return stream


def _recover(state: Path, now: float = 3.0, monotonic: float | None = None) -> list[RecoveredStream]:
    """As another gateway finds them."""
    folder = StreamFolder(state, RING_BYTES)
    return list(recover_streams(folder, _registry(), now, now if monotonic is None else monotonic))


def _files(state: Path) -> list[Path]:
    return sorted(path for path in (state / "streams").iterdir() if path.name != "lock")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StreamFolder]:
    folder = StreamFolder(tmp_path, RING_BYTES)
    yield folder
    folder.close()


def test_a_file_has_whose_it_is_and_the_bytes(tmp_path: Path, folder: StreamFolder) -> None:
    registry = _registry()
    stream = _open(folder, registry)
    assert _files(tmp_path) == [], "nothing was sent"
    stream.append(EVENT % 1)
    stream.append(EVENT % 2)
    [path] = _files(tmp_path)
    head, _, events = path.read_bytes().partition(b"\n")
    assert json.loads(head) == HEADER
    assert (events, path.suffix, path.stat().st_mode & 0o777) == (EVENT % 1 + EVENT % 2, ".live", 0o600)
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    assert [path.suffix for path in _files(tmp_path)] == [".done"]
    registry.remove_stream(stream)
    assert _files(tmp_path) == []


def test_a_long_stream_is_written_anew_with_what_is_kept(tmp_path: Path, folder: StreamFolder) -> None:
    stream = _open(folder, _registry())
    for number in range(2000):
        stream.append(EVENT % number)
        [path] = _files(tmp_path)
        assert path.stat().st_size <= 2 * RING_BYTES + 400
    sent = b"".join(EVENT % number for number in range(2000))
    folder.close()
    ring = _recover(tmp_path)[0].stream.ring
    assert ring.read_all() == (sent + ring.read_all()[-ring.end_offset + len(sent) :])[ring.first_offset :]
    assert RING_BYTES - 200 < ring.size <= RING_BYTES


def test_a_disk_without_room_is_said(tmp_path: Path, folder: StreamFolder, caplog: pytest.LogCaptureFixture) -> None:
    registry = _registry()
    streams = [_open(folder, registry, name) for name in ("a", "b")]
    for stream in streams:
        stream.append(EVENT % 1)
    with no_space():
        for stream in streams:
            stream.append(EVENT % 2)
    assert _files(tmp_path) == []
    for stream in streams:
        stream.append(EVENT % 3)
        assert stream.ring.read_all() == EVENT % 1 + EVENT % 2 + FILE_LOST + EVENT % 3
        assert not stream.has_file
        registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    assert folder.lost_count == 2
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1, "told once"
    later = _open(folder, registry, "c")
    later.append(EVENT % 1)
    assert later.has_file


def test_a_disk_that_holds_the_gateway_up_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow:
        """In `time`'s place: each write takes a second."""

        now = 0.0

        def perf_counter(self) -> float:
            self.now += 1.0
            return self.now

        def monotonic(self) -> float:
            return self.now

    monkeypatch.setattr(stream_folder, "time", Slow())
    folder, registry = StreamFolder(tmp_path, RING_BYTES), _registry()
    stream = _open(folder, registry)
    for number in range(int(BURST_S) + 3):
        stream.append(EVENT % number)
    assert not stream.has_file
    assert FILE_LOST in stream.ring.read_all()
    assert folder.new_file(stream, None) is None, "nor are others"
    assert "too slow" in caplog.text
    assert _files(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.live", b""),
        ("b.done", b"not JSON\ndata: x\n\n"),
        ("c.done", {name: HEADER[name] for name in ("format", "tenant", "id", "model", "path", "request_id")}),
        ("d.new", HEADER),
        *(
            ("e.done", HEADER | wrong)
            for wrong in (
                *({"format": FORMAT + 1}, {"tenant": 7}, {"began_at": None}, {"began_at": float("nan")}),
                *({"first_offset": "x"}, {"first_offset": -1}, {"response_id": 7}, {"surplus": 7}),
                {"path": "/v1/nothing"},
            )
        ),
    ],
)
def test_foreign_files_are_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: Any) -> None:
    (tmp_path / "streams").mkdir()
    line = content if isinstance(content, bytes) else json.dumps(content).encode() + b"\n"
    (tmp_path / "streams" / name).write_bytes(line)
    assert (_recover(tmp_path, 1.0), _files(tmp_path)) == ([], [])
    assert f"{name} is no stream of this version" in caplog.text or content in (
        HEADER,
        HEADER | {"path": "/v1/nothing"},
    )


def test_of_two_streams_of_an_id_the_later_one_is_kept(tmp_path: Path, folder: StreamFolder) -> None:
    for began_at, number in ((1.0, 1), (2.0, 2)):  # killed between the two: the first was to be removed
        _open(folder, _registry(), now=began_at).append(EVENT % number)
    assert len(_files(tmp_path)) == 2
    folder.close()
    [recovered] = _recover(tmp_path)
    assert recovered.stream.ring.read_all().startswith(EVENT % 2)
    assert len(_files(tmp_path)) == 1


def test_what_is_over_for_long_is_not_read_again(tmp_path: Path, folder: StreamFolder) -> None:
    registry = _registry()
    for name, ended_at in (("old", 50.0), ("new", 150.0)):
        stream = _open(folder, registry, name)
        stream.append(EVENT % 1)
        registry.end_stream(stream, StreamState.CUT, ended_at, ended_at)
        [path] = [path for path in _files(tmp_path) if path.stat().st_mtime > 1000]
        os.utime(path, (ended_at, ended_at))
    folder.close()
    [recovered] = _recover(tmp_path, 200.0)
    assert (recovered.stream.id, recovered.stream.ended_at) == ("new", 150.0)
    assert len(_files(tmp_path)) == 1


def test_a_file_of_a_clock_that_was_ahead_is_kept_no_longer_than_others(tmp_path: Path) -> None:
    folder, registry = StreamFolder(tmp_path, RING_BYTES), _registry()
    stream = _open(folder, registry)
    stream.append(EVENT % 1)
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    [path] = _files(tmp_path)
    os.utime(path, (40 * 86_400.0, 40 * 86_400.0))
    folder.close()
    again = _registry()
    [recovered] = recover_streams(StreamFolder(tmp_path, RING_BYTES), again, 200.0, 7.0)
    assert recovered.stream.kept_until == 7.0 + again.ttl_s
    assert not again.remove_expired(6.0 + again.ttl_s, 2)
    assert again.ended_count == 1
    again.remove_expired(7.0 + again.ttl_s, 2)
    assert again.ended_count == 0


def test_an_end_that_cannot_be_written_is_told_all_the_same(tmp_path: Path, folder: StreamFolder) -> None:
    _open(folder, _registry()).append(EVENT % 1)
    folder.close()
    with no_space():
        [recovered] = _recover(tmp_path)
    assert recovered.stream.state is StreamState.CUT
    assert b"gateway_restarted" in recovered.stream.ring.read_all()


def test_a_stream_whose_end_cannot_be_recorded_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, registry = StreamFolder(tmp_path, RING_BYTES), _registry()
    stream = _open(folder, registry)
    stream.append(EVENT % 1)

    def refuse(*_: object) -> Path:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    registry.end_stream(stream, StreamState.DONE, 2.0, 2.0)
    assert (stream.has_file, folder.lost_count, _files(tmp_path)) == (False, 1, [])
    assert stream.ring.read_all() == EVENT % 1
    folder.close()


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    folder, registry = StreamFolder(tmp_path / "file", RING_BYTES), _registry()
    stream = registry.open_stream("t", "id", model="m", path=PATH, request_id="r", now=1.0)
    assert folder.new_file(stream, None) is None
    assert "Not a directory" in caplog.text


def test_slow_writes_use_up_a_burst_and_then_the_disk_rests() -> None:
    pace = DiskPace()
    assert not pace.record_slow_write(BURST_S / 2, 10.0)
    assert not pace.record_slow_write(BURST_S / 2, 10.0)
    assert pace.record_slow_write(0.1, 10.0)
    assert pace.rests_until == 10.0 + REST_S
    assert not pace.record_slow_write(0.1, 100.0), "it begins anew"


def test_slow_writes_that_are_rare_are_borne() -> None:
    pace, now = DiskPace(), 0.0
    for _ in range(1000):
        assert not pace.record_slow_write(1.0, now)
        now += 1.0 / SHARE


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "created_at": 7,
    "status": "in_progress",
    "output": [],
    "error": None,
    "metadata": {"sequence_number": "9"},
}


def _event(number: int, kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, "sequence_number": number, **fields}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


def _data_of(events: bytes) -> list[Any]:
    lines = [line for line in events.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("torn", [b"", b"d", b"data: x", b"data: x\n"])
def test_a_torn_event_is_cut_off(torn: bytes) -> None:
    assert cut_torn_event(b"data: a\n\n: ka\n\n" + torn) == b"data: a\n\n: ka\n\n"


@pytest.mark.parametrize(
    ("path", "last", "is_last"),
    [
        (CHAT, b"data: [DONE]\n\n", True),
        (CHAT, b"data:[DONE]\r\n\r\n", True),
        (CHAT, b'data: {"choices":[]}\n\n', False),
        (CHAT, b'data: {"choices":[{"text":"data: [DONE]"}]}\n\n', False),
        (CHAT, b": ka\n\n", False),
        (RESPONSES, b"data: [DONE]\n\n", True),
        (MESSAGES, b'event: message_stop\ndata: {"type": "message_stop"}\n\n', True),
        (MESSAGES, b'event: error\ndata: {"type":"error","error":{}}\n\n', True),
        (MESSAGES, b'event: ping\ndata: {"type": "ping"}\n\n', False),
    ],
)
def test_a_complete_stream_is_known_by_its_last_event(path: str, last: bytes, is_last: bool) -> None:
    assert is_complete(path, b"data: x\n\n" + last) is is_last


def test_interrupted_streams_end_with_an_error() -> None:
    events = end_events(CHAT, b"data: {}\n\n", gateway_restarted(), "req-1")
    assert events.endswith(b"\n\ndata: [DONE]\n\n")
    [data] = _data_of(events)
    assert (data["error"]["code"], data["error"]["request_id"]) == ("gateway_restarted", "req-1")
    events = end_events(MESSAGES, b"", gateway_restarted(), "req-1")
    assert events.startswith(b"event: error\n")
    [data] = _data_of(events)
    assert (data["type"], data["error"]["code"]) == ("error", "gateway_restarted")
    sent = _event(0, "response.created", response=RESPONSE) + _event(1, "response.output_text.delta", delta="x")
    events = end_events(RESPONSES, sent + b": ka\n\n", gateway_restarted(), "req-1")
    error, failed = _data_of(events)
    assert (error["type"], error["sequence_number"], error["code"]) == ("error", 2, "gateway_restarted")
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 3)
    assert failed["response"]["id"] == "resp_1"
    assert failed["response"]["error"]["reason"] == "gateway_restarted"
    assert is_complete(RESPONSES, events)
    [error] = _data_of(end_events(RESPONSES, _event(41, "response.output_text.delta"), gateway_restarted(), "req-1"))
    assert error["sequence_number"] == 42
    [error] = _data_of(end_events(RESPONSES, b"", gateway_restarted(), "req-1"))
    assert error["sequence_number"] == 0
