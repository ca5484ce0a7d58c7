"""Frames between the pool and its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.parsing.base import (
    FRAME_HEAD,
    ChunkingOptions,
    ChunkSpan,
    FrameError,
    ParsedDocument,
    ParseRequest,
    ParsingError,
    decode_answer,
    decode_request,
    encode_answer,
    encode_error,
    encode_request,
    read_frame_head,
)


def _split(frame: bytes) -> tuple[bytes, bytes]:
    head, rest = frame[: FRAME_HEAD.size], frame[FRAME_HEAD.size :]
    json_length, raw_length = read_frame_head(head, 1000)
    assert len(rest) == json_length + raw_length
    return rest[:json_length], rest[json_length:]


@pytest.mark.parametrize("name", ["a.txt", "größe\udcff.txt", None])
def test_a_request_arrives_as_it_was(name: str | None) -> None:
    request = ParseRequest(Path("/a/b\udcff"), name, "text/plain", ChunkingOptions(10, 5))
    assert decode_request(_split(encode_request(request))[0]) == request


def test_an_answer_arrives_as_it_was() -> None:
    chunks = (ChunkSpan(0, 4, "grö", ("A", "B"), 1), ChunkSpan(6, 7, "e", (), None))
    answer = decode_answer(*_split(encode_answer("größe", "text/plain", chunks, 7)))
    assert answer.rss_bytes == 7
    assert answer.result == ParsedDocument("größe", "text/plain", chunks)


def test_an_error_arrives_as_it_was() -> None:
    error = decode_answer(*_split(encode_error(ParsingError("document_empty", "empty"), 7))).result
    assert isinstance(error, ParsingError)
    assert (error.code, str(error)) == ("document_empty", "empty")


@pytest.mark.parametrize(
    "head", [b"garbage 1234", FRAME_HEAD.pack(b"RHP1", 2**31, 0), FRAME_HEAD.pack(b"RHP1", 1, 1001)]
)
def test_what_is_no_frame_is_refused(head: bytes) -> None:
    with pytest.raises(FrameError, match="no answer begins with"):
        read_frame_head(head, 1000)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"rss": 1}',
        b'{"rss": 1, "code": "other"}',
        b'{"rss": 1, "headings": [], "media_type": "", "chunks": [[0, 1, 0, null]]}',
        b'{"rss": 1, "headings": [[]], "media_type": "", "chunks": [[0, 1, 0]]}',
        b'{"rss": 1, "headings": [[]], "media_type": "", "chunks": [[0, 1, 0, null]]}',
    ],
)
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_answer(body, "ö".encode())
