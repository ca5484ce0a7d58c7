"""Messages between a store and its shards' processes: a JSON object and bytes, each with its length before it; and the
end of such a process with its store.

Vectors travel as bytes: 32-bit floats of this machine, one vector after the other.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import json
import os
import signal
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Make the kernel send SIGKILL to this process when its parent ends, even during a call of Qdrant Edge, which no
    thread could interrupt. `parent`: the process id of the program that started this one. Raises SystemExit with code 1
    where that program has ended already. Linux only."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


_LENGTHS: Final = struct.Struct("<II")


def encode_frame(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the frame: the lengths of both parts in bytes (two little-endian 32-bit integers), the message as JSON,
    and `data` (vectors, see `encode_vector`).

    Raises UnicodeEncodeError for text that is not valid Unicode (lone surrogates), and TypeError for what JSON cannot
    hold.
    """
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Wait for the next frame of a blocking stream, and return its message and its data; None where the stream ends
    between two frames. Raises EOFError if the stream ends within a frame, and ValueError if the message is not JSON."""
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
    """Wait for the next frame, and return its message; the frame's data is dropped. Raises asyncio.IncompleteReadError
    where the stream ends, between two frames too."""
    text_length, data_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    body = await reader.readexactly(text_length + data_length)
    message: dict[str, Any] = json.loads(body[:text_length])
    return message


def encode_vector(vector: Sequence[float]) -> bytes:
    """Return a vector as 32-bit floats of this machine's byte order, 4 bytes each. A float that is too large becomes
    infinity without an error, so callers check vectors before (see `base.check_vector`). Raises OverflowError for an
    integer that no 64-bit float holds."""
    return array("f", vector).tobytes()


def decode_vectors(data: bytes, dimension: int) -> list[list[float]]:
    """Return the vectors in `data`, which holds `encode_vector`'s bytes of each, in their order. Empty data has none.
    Raises ValueError where `data` is no whole number of 32-bit floats."""
    numbers = array("f")
    numbers.frombytes(data)
    values = numbers.tolist()
    return [values[start : start + dimension] for start in range(0, len(values), dimension)]


def encode_vector_text(vector: Sequence[float]) -> str:
    """Return `encode_vector`'s bytes in Base64, for answers, which are JSON alone. Raises OverflowError for an integer
    that no 64-bit float holds."""
    return base64.b64encode(encode_vector(vector)).decode()


def decode_vector_text(text: str) -> list[float]:
    """Return the vector that `encode_vector_text` encoded. Raises ValueError for any other text."""
    numbers = array("f")
    numbers.frombytes(base64.b64decode(text, validate=True))
    return numbers.tolist()
