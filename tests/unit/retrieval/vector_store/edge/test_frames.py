"""Messages between a store and its shards' processes, and the log of them."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from retrieval.vector_store.edge.frames import decode_vectors, encode_frame, encode_vector, read_frame, receive_frame
from retrieval.vector_store.edge.write_log import WriteLog
from tests.support.small_disk import no_space


def test_a_frame_is_read_as_it_was_written() -> None:
    stream = io.BytesIO(encode_frame({"text": "ß\x00\n"}, b"\x00\x01") + encode_frame({}))
    assert read_frame(stream) == ({"text": "ß\x00\n"}, b"\x00\x01")
    assert read_frame(stream) == ({}, b"")
    assert read_frame(stream) is None


@pytest.mark.parametrize("cut", [1, 7, 9, 14])
def test_a_frame_that_ends_early_is_no_frame(cut: int) -> None:
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(encode_frame({"a": 1}, b"data")[:cut]))


async def test_a_frame_is_received_from_a_stream() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(encode_frame({"result": [1, None]}))
    reader.feed_eof()
    assert await receive_frame(reader) == {"result": [1, None]}
    with pytest.raises(asyncio.IncompleteReadError):
        await receive_frame(reader)


def test_vectors_travel_as_32_bit_floats() -> None:
    data = encode_vector([1, 0.5]) + encode_vector((-2.0, 1e-3))
    assert len(data) == 16
    assert decode_vectors(data, 2) == [[1.0, 0.5], [-2.0, pytest.approx(1e-3, rel=1e-6)]]


def test_a_log_returns_what_was_noted_in_its_order_and_leaves_no_file(tmp_path: Path) -> None:
    log = WriteLog(tmp_path)
    log.append(b"first")
    log.append(b"")
    assert (log.pending_count, log.pending_bytes) == (2, 13)
    assert log.take() == b"first"
    log.append(b"third")
    assert [log.take(), log.take(), log.take()] == [b"", b"third", None]
    assert (log.pending_count, log.pending_bytes) == (0, 0)
    assert list(tmp_path.iterdir()) == []
    log.close()


def test_a_full_disk_fails_the_request_that_does_not_fit_and_nothing_else_of_a_log(tmp_path: Path) -> None:
    log = WriteLog(tmp_path)
    log.append(b"first")
    with no_space(after_bytes=100):
        with pytest.raises(OSError, match="File too large"):
            log.append(bytes(200))
        assert (log.pending_count, log.pending_bytes) == (1, 9)
        log.append(b"second")
        assert [log.take(), log.take(), log.take()] == [b"first", b"second", None]
        log.close()
