"""Parser for the head of a CTranslate2 `model.bin`: sizes of the variables, without their values. Pure: the caller
opens the stream."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

from controller.artifacts.facts import ArtifactError, Ct2

_TYPES: Final = ("f32", "i8", "i16", "i32", "f16", "bf16")
"""Element types in the order of CTranslate2's `DataType`."""
_VERSIONS: Final = range(4, 7)
_MOST: Final = 200_000
"""Maximum number of variables."""


def parse_ct2(stream: BinaryIO, size: int) -> Ct2:
    """Sum the bytes of the variables (weights, biases, scales) of a `model.bin` of `size` bytes, by element type, and
    those with two or more dimensions apart from the others. `stream` is at the file's beginning; it must be seekable.
    `Ct2.longest_token` stays None, and `Ct2.size` is `size`.

    Raises ArtifactError where the file is damaged, cut off or of an unknown version.
    """
    try:
        return _parse(stream, size)
    except struct.error:
        raise ArtifactError("ends within its head: was it copied to the end?") from None


def _parse(stream: BinaryIO, size: int) -> Ct2:
    if _number(stream, "I") not in _VERSIONS:
        raise ArtifactError("is not a CTranslate2 model of a version that can be read")
    _skip_text(stream)
    _number(stream, "I")  # revision
    count = _number(stream, "I")
    if count > _MOST:
        raise ArtifactError(f"says it has {count} variables: it is damaged")
    matrices: dict[str, int] = {}
    vectors: dict[str, int] = {}
    for _ in range(count):
        _skip_text(stream)
        rank = _number(stream, "B")
        stream.seek(4 * rank, 1)
        kind, length = _number(stream, "B"), _number(stream, "I")
        if kind >= len(_TYPES) or stream.seek(length, 1) > size:
            raise ArtifactError("ends before its variables do: was it copied to the end?")
        sums = matrices if rank > 1 else vectors
        sums[_TYPES[kind]] = sums.get(_TYPES[kind], 0) + length
    return Ct2(size, matrices, vectors)


def _number(stream: BinaryIO, form: str) -> int:
    form = "<" + form
    [value] = struct.unpack(form, stream.read(struct.calcsize(form)))
    return int(value)


def _skip_text(stream: BinaryIO) -> None:
    stream.seek(_number(stream, "H"), 1)
