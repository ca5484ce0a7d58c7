"""Messages between a store and its shards' processes: a JSON object and bytes, each with its length before it.

Vectors travel as bytes: 32-bit floats of this machine, one vector after the other.
"""

from __future__ import annotations

import asyncio
import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

_LENGTHS: Final = struct.Struct("<II")
FLOAT_BYTES: Final = 4


def encode_frame(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the frame's bytes. Raises UnicodeEncodeError for text that is not valid Unicode (lone surrogates)."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Return the next message of a blocking stream, None at its end. Raises EOFError where it ends within a frame."""
    head = stream.read(_LENGTHS.size)
    if not head:
        return None
    if len(head) < _LENGTHS.size:
        raise EOFError
    text_length, data_length = _LENGTHS.unpack(head)
    body = stream.read(text_length + data_length)
    if len(body) < text_length + data_length:
        raise EOFError
    return json.loads(body[:text_length]), body[text_length:]


async def receive_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next message. Raises asyncio.IncompleteReadError where the stream ends."""
    text_length, data_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    body = await reader.readexactly(text_length + data_length)
    message: dict[str, Any] = json.loads(body[:text_length])
    return message


def encode_vector(vector: Sequence[float]) -> bytes:
    """Return a vector's bytes. Raises OverflowError for a number that is no 32-bit float."""
    return array("f", vector).tobytes()


def decode_vectors(data: bytes, dimension: int) -> list[list[float]]:
    """Return the vectors of this dimension that follow each other in `data`."""
    numbers = array("f")
    numbers.frombytes(data)
    values = numbers.tolist()
    return [values[start : start + dimension] for start in range(0, len(values), dimension)]
