"""Reads the head of a GGUF file from bytes. Pure.

Written by hand because the `gguf` package takes 20 s over a vocabulary of 256,000 tokens, and maps the file, which ends
the process if somebody truncates it meanwhile. This reader keeps no text but single ones.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.artifacts.facts import ArtifactError, Field, Gguf

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT: Final = 8
_ARRAY: Final = 9
_KEPT: Final = 4096
"""Elements of an array that is kept: one for each block, not one for each token."""
_MOST: Final = 1_000_000
"""Keys and tensors of a file at most."""
_LONGEST_NAME: Final = 65_535
_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\.")


class TooShort(Exception):  # noqa: N818 - no error: whoever reads brings more
    """The head is longer than the bytes at hand."""


@dataclass(frozen=True, slots=True)
class GgufHead:
    """One file's head."""

    fields: Mapping[str, Field]
    lengths: Mapping[str, int]
    """Elements of the arrays that are not kept."""
    tensors: Mapping[str, tuple[int, tuple[int, ...]]]
    """By name: offset of the data after the head, and dimensions, the fastest first."""
    data_start: int


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> int | float | bool:
        form = "<" + form
        try:
            value: int | float | bool = struct.unpack_from(form, self.data, self.at)[0]
        except struct.error:
            raise TooShort from None
        self.at += struct.calcsize(form)
        return value

    def count(self, form: str, limit: int, subject: str) -> int:
        number = int(self.take(form))
        if number > limit:
            raise ArtifactError(f"says it has {number} {subject}: it is damaged")
        return number

    def text(self, limit: int) -> str:
        length = self.count("Q", limit, "bytes in a name")
        return self.raw(length).decode("utf-8", "replace")

    def raw(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise TooShort
        self.at += length
        return self.data[self.at - length : self.at]

    def skip_texts(self, count: int) -> None:
        data, offset, unpack, end = self.data, self.at, struct.Struct("<Q").unpack_from, len(self.data)
        for _ in range(count):
            if offset + 8 > end:
                raise TooShort
            offset += 8 + unpack(data, offset)[0]
        if offset > end:
            raise TooShort
        self.at = offset


def parse_head(data: bytes) -> GgufHead:
    """The head that `data` begins with.

    Raises:
        TooShort: it goes on after `data`.
        ArtifactError: it is no GGUF file of a version that is known, or damaged.
    """
    reader = _Reader(data)
    if reader.raw(4) != b"GGUF":
        raise ArtifactError("is not a GGUF file")
    version = int(reader.take("I"))
    if version not in (2, 3):
        raise ArtifactError(f"is GGUF of version {version}; 2 and 3 can be read")
    tensor_count = reader.count("Q", _MOST, "tensors")
    key_count = reader.count("Q", _MOST, "keys")
    fields: dict[str, Field] = {}
    lengths: dict[str, int] = {}
    for _ in range(key_count):
        key = reader.text(_LONGEST_NAME)
        value = _value(reader, int(reader.take("I")))
        if isinstance(value, _Left):
            lengths[key] = value.count
        else:
            fields[key] = value
    tensors = dict(_tensor(reader) for _ in range(tensor_count))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ArtifactError(f"says its alignment is {alignment!r}: it is damaged")
    return GgufHead(fields, lengths, tensors, -(-reader.at // alignment) * alignment)


@dataclass(frozen=True, slots=True)
class _Left:
    count: int


def _value(reader: _Reader, kind: int) -> Field | _Left:
    if kind == _TEXT:
        return reader.text(2**24)
    if kind == _ARRAY:
        return _array(reader)
    if kind not in _SCALARS:
        raise ArtifactError(f"holds a value of the unknown type {kind}: it is damaged, or newer than this reader")
    return reader.take(_SCALARS[kind])


def _array(reader: _Reader) -> Field | _Left:
    kind = int(reader.take("I"))
    count = reader.count("Q", 2**32, "elements in an array")
    if kind == _TEXT:
        reader.skip_texts(count)
        return _Left(count)
    if kind not in _SCALARS:
        raise ArtifactError(f"holds an array of the unknown type {kind}: it is damaged, or newer than this reader")
    form = struct.Struct(f"<{_SCALARS[kind]}")
    data = reader.raw(count * form.size)
    return tuple(value for (value,) in form.iter_unpack(data)) if count <= _KEPT else _Left(count)


def _tensor(reader: _Reader) -> tuple[str, tuple[int, tuple[int, ...]]]:
    name = reader.text(_LONGEST_NAME)
    dimensions = tuple(int(reader.take("Q")) for _ in range(reader.count("I", 8, "dimensions")))
    reader.take("I")  # its type, which the offsets tell more about
    return name, (int(reader.take("Q")), dimensions)


def gguf_of(heads: Sequence[tuple[GgufHead, int]]) -> Gguf:
    """The model in these files, each with its size: one, or a split set in order.

    Raises:
        ArtifactError: the head names no architecture, a file of the set is missing, or one ends before its tensors do.
    """
    fields = heads[0][0].fields
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise ArtifactError("does not name its architecture")
    expected_count = fields.get("split.count", 0)
    if isinstance(expected_count, int) and expected_count > 1 and len(heads) != expected_count:
        raise ArtifactError(f"is one of {expected_count} files, of which {len(heads)} are here")
    blocks: dict[int, int] = {}
    part_sizes = {"embedding": 0, "output": 0, "rest": 0}
    for head, size in heads:
        for name, length in _lengths(head, size):
            if block := _BLOCK.match(name):
                blocks[int(block[1])] = blocks.get(int(block[1]), 0) + length
            else:
                part_sizes[_place(name)] += length
    dimensions = [head.tensors["token_embd.weight"][1] for head, _ in heads if "token_embd.weight" in head.tensors]
    return Gguf(
        size=sum(size for _, size in heads),
        architecture=architecture,
        fields=fields,
        blocks=tuple(blocks.get(number, 0) for number in range(max(blocks, default=-1) + 1)),
        vocabulary=dimensions[0][1] if dimensions and len(dimensions[0]) > 1 else 0,
        tied=not any("output.weight" in head.tensors for head, _ in heads),
        **part_sizes,
    )


def _place(name: str) -> str:
    if name.startswith(("token_embd.", "per_layer_token_embd.")):
        return "embedding"
    return "output" if name.startswith("output") else "rest"


def _lengths(head: GgufHead, size: int) -> list[tuple[str, int]]:
    """Tensors with their bytes, which reach from one to the next: true of every type of quantisation."""
    in_order = sorted((offset, name) for name, (offset, _) in head.tensors.items())
    starts = [head.data_start + offset for offset, _ in in_order]
    ends = [*starts[1:], size][: len(starts)]
    if starts and starts[-1] >= size:
        raise ArtifactError("ends before its tensors do: was it copied to the end?")
    return [(name, end - start) for (_, name), start, end in zip(in_order, starts, ends, strict=True)]
