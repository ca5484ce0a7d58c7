"""What the pool and its processes say to each other: a frame each way per file. Pure.

A frame is 4 bytes of mark, the lengths of its two parts as 32-bit big-endian numbers, a JSON object, and raw bytes. The
raw bytes of an answer are the text in UTF-8; its JSON has the places of chunks in it, not their texts again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from retrieval.parsing.base import (
    ChunkingOptions,
    ChunkSpan,
    ParsedDocument,
    ParsingError,
    ParsingErrorCode,
)

FRAME_HEAD: Final = struct.Struct(">4sII")
_MARK: Final = b"RHP1"
_MOST_JSON_BYTES: Final = 512 * 1024 * 1024


class FrameError(Exception):
    """Bytes that were read are no frame, a frame that is too large, or no answer to a request. The text says which."""


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """One file for a process to parse. The fields are the arguments of `Parser.parse_file`."""

    path: Path
    """Absolute."""
    filename: str | None
    media_type: str | None
    chunking: ChunkingOptions


@dataclass(frozen=True, slots=True)
class ParseAnswer:
    """A process's answer about one file."""

    result: ParsedDocument | ParsingError
    rss_bytes: int
    """Bytes of resident memory that the process holds after the file."""


def encode_request(request: ParseRequest) -> bytes:
    """Return the frame of a request, head included."""
    body = {
        "path": str(request.path),
        "filename": request.filename,
        "media_type": request.media_type,
        "max_tokens": request.chunking.max_tokens,
        "overlap_tokens": request.chunking.overlap_tokens,
    }
    return _encode_frame(body, b"")


def decode_request(body: bytes) -> ParseRequest:
    """Return the request of a frame's JSON part, which `encode_request` wrote. Raises KeyError, TypeError or ValueError
    for anything else."""
    read = json.loads(body)
    chunking = ChunkingOptions(read["max_tokens"], read["overlap_tokens"])
    return ParseRequest(Path(read["path"]), read["filename"], read["media_type"], chunking)


def encode_answer(text: str, media_type: str, chunks: Sequence[ChunkSpan], rss_bytes: int) -> bytes:
    """Return the frame of an answer with a file's text and chunks. `rss_bytes`: resident memory of this process.

    Raises UnicodeEncodeError for text with lone surrogates.
    """
    paths: dict[tuple[str, ...], int] = {}
    places = [(chunk.start, chunk.end, paths.setdefault(chunk.headings, len(paths)), chunk.page) for chunk in chunks]
    return _encode_frame(
        {"media_type": media_type, "chunks": places, "headings": list(paths), "rss": rss_bytes}, text.encode()
    )


def encode_error(error: ParsingError, rss_bytes: int) -> bytes:
    """Return the frame of an answer with an error's code and text. `rss_bytes`: resident memory of this process."""
    return _encode_frame({"code": error.code, "message": str(error), "rss": rss_bytes}, b"")


def read_frame_head(head: bytes, most_raw_bytes: int) -> tuple[int, int]:
    """Return the lengths in bytes of a frame's JSON and of its raw bytes. `head`: exactly `FRAME_HEAD.size` bytes.

    Raises:
        FrameError: the bytes begin no frame, the JSON is larger than 512 MiB, or the raw bytes are more than
            `most_raw_bytes`.
    """
    mark, json_length, raw_length = FRAME_HEAD.unpack(head)
    if mark != _MARK or json_length > _MOST_JSON_BYTES or raw_length > most_raw_bytes:
        raise FrameError(f"no answer begins with {head!r}")
    return json_length, raw_length


def decode_answer(body: bytes, raw: bytes) -> ParseAnswer:
    """Return the answer of a frame's JSON and raw bytes; its result is the document, or the file's ParsingError.

    Blocks for a while if the text is large, so call it in a thread, not in the event loop.

    Raises:
        FrameError: the JSON is no answer, or does not fit the raw bytes.
    """
    try:
        read: dict[str, Any] = json.loads(body)
        rss = int(read["rss"])
        if "code" in read:
            if read["code"] not in get_args(ParsingErrorCode):
                raise FrameError(f"the code {read['code']!r:.80} is unknown")
            return ParseAnswer(ParsingError(cast("ParsingErrorCode", read["code"]), str(read["message"])), rss)
        headings = [tuple(path) for path in read["headings"]]
        chunks = tuple(
            ChunkSpan(start, end, raw[start:end].decode(), headings[path], page)
            for start, end, path, page in read["chunks"]
        )
        return ParseAnswer(ParsedDocument(raw.decode(), read["media_type"], chunks), rss)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FrameError(f"an answer is malformed ({error!r:.200})") from error


def _encode_frame(body: dict[str, Any], raw: bytes) -> bytes:
    encoded = json.dumps(body).encode()
    return FRAME_HEAD.pack(_MARK, len(encoded), len(raw)) + encoded + raw
