"""Parser for the head of a GGUF file. Pure.

Written by hand because the `gguf` package takes 20 s for a vocabulary of 256,000 tokens, and maps the file, so that the
process dies if somebody truncates the file meanwhile. This parser keeps single texts and no arrays of texts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller.artifacts.facts import ArtifactError, Field, Gguf, show_text
from controller.artifacts.vocabulary import measure_gguf_vocabulary

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT: Final = 8
_TEXTS: Final = ""
_ARRAY: Final = 9
_KEPT: Final = 4096
"""Maximum number of elements of an array that is kept: enough for one per block, too few for one per token."""
_MOST: Final = 1_000_000
"""Maximum number of keys, and of tensors, of a file."""
_LONGEST_NAME: Final = 65_535
_LONGEST_TEXT: Final = 2**24
"""Maximum number of bytes of a text. A text longer than _LONGEST_NAME is not kept."""
_TOKENS: Final = "tokenizer.ggml.tokens"
_TYPES_OF_TOKENS: Final = "tokenizer.ggml.token_type"
_REWRITING: Final = ("tokenizer.ggml.normalizer", "tokenizer.ggml.precompiled_charsmap")
"""Prefixes of keys that make the tokenizer change a text before it becomes tokens."""
_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\.")


class TooShort(Exception):  # noqa: N818 - no error: the caller reads more and parses again
    """Raised by `parse_head` where the head is longer than the bytes that the caller has read so far. It is no fault of
    the file: the caller reads more bytes and parses again."""


@dataclass(frozen=True, slots=True)
class GgufHead:
    """Parsed head (metadata and list of tensors) of one GGUF file, as `parse_head` returns it."""

    fields: Mapping[str, Field]
    """Metadata by full key, as `Gguf.fields`."""
    lengths: Mapping[str, int]
    """Size of what `fields` leaves out: the number of elements of an array, the number of bytes of a text."""
    tensors: Mapping[str, tuple[int, tuple[int, ...]]]
    """Tensor name to the offset of its data, counted from `data_start`, and its dimensions, the fastest-varying
    first."""
    data_start: int
    """Offset in the file at which tensor data begins."""
    longest_token: int | None = None
    """As `Gguf.longest_token`."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def read_scalar(self, form: str) -> int | float | bool:
        form = "<" + form
        try:
            value: int | float | bool = struct.unpack_from(form, self.data, self.offset)[0]
        except struct.error:
            raise TooShort from None
        self.offset += struct.calcsize(form)
        return value

    def read_count(self, form: str, limit: int, subject: str) -> int:
        number = int(self.read_scalar(form))
        if number > limit:
            raise ArtifactError(f"says it has {number} {subject}: it is damaged")
        return number

    def read_name(self) -> str:
        length = self.read_count("Q", _LONGEST_NAME, "bytes in a name")
        return self.read_bytes(length).decode("utf-8", "replace")

    def read_bytes(self, length: int) -> bytes:
        self.skip_bytes(length)
        return self.data[self.offset - length : self.offset]

    def skip_bytes(self, length: int) -> None:
        if self.offset + length > len(self.data):
            raise TooShort
        self.offset += length

    def list_texts(self, count: int) -> Iterator[bytes]:
        """Yield `count` texts from the current offset. `skip_texts` must have passed over them before."""
        data, offset, unpack = self.data, self.offset, struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = offset + 8
            offset = start + unpack(data, offset)[0]
            yield data[start:offset]

    def skip_texts(self, count: int) -> None:
        data, offset, unpack, end = self.data, self.offset, struct.Struct("<Q").unpack_from, len(self.data)
        for _ in range(count):
            if offset + 8 > end:
                raise TooShort
            offset += 8 + unpack(data, offset)[0]
        if offset > end:
            raise TooShort
        self.offset = offset


def parse_head(data: bytes) -> GgufHead:
    """Parse the head at the beginning of `data`, the first bytes of a GGUF file. The file's end is not checked (see
    `measure_tensors`).

    Raises:
        TooShort: the head continues after `data`; call again with more bytes.
        ArtifactError: `data` is not a GGUF file of version 2 or 3, or the file is damaged.
    """
    reader = _Reader(data)
    if reader.read_bytes(4) != b"GGUF":
        raise ArtifactError("is not a GGUF file")
    version = int(reader.read_scalar("I"))
    if version not in (2, 3):
        raise ArtifactError(f"is GGUF of version {version}; 2 and 3 can be read")
    tensor_count = reader.read_count("Q", _MOST, "tensors")
    key_count = reader.read_count("Q", _MOST, "keys")
    fields: dict[str, Field] = {}
    lengths: dict[str, int] = {}
    skipped: dict[str, _Skipped] = {}
    for _ in range(key_count):
        key = reader.read_name()
        value = _read_value(reader, int(reader.read_scalar("I")))
        if isinstance(value, _Skipped):
            skipped[key] = value
            lengths[key] = value.count
        else:
            fields[key] = value
    tensors = dict(_read_tensor(reader) for _ in range(tensor_count))
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ArtifactError(f"says its alignment is {show_text(str(alignment))}: it is damaged")
    data_start = -(-reader.offset // alignment) * alignment
    return GgufHead(fields, lengths, tensors, data_start, _measure_vocabulary(data, fields, skipped))


def _measure_vocabulary(data: bytes, fields: Mapping[str, Field], skipped: Mapping[str, _Skipped]) -> int | None:
    tokens = skipped.get(_TOKENS)
    if tokens is None or tokens.form != _TEXTS or any(key.startswith(_REWRITING) for key in (*fields, *skipped)):
        return None
    reader = _Reader(data)
    reader.offset = tokens.offset
    types = _read_types(data, fields, skipped)
    return measure_gguf_vocabulary(fields.get("tokenizer.ggml.model"), reader.list_texts(tokens.count), types)


def _read_types(data: bytes, fields: Mapping[str, Field], skipped: Mapping[str, _Skipped]) -> Sequence[int]:
    """Return the types of the tokens. Empty where the file has none."""
    kept_types, array = fields.get(_TYPES_OF_TOKENS), skipped.get(_TYPES_OF_TOKENS)
    if isinstance(kept_types, tuple):
        return [int(each) for each in kept_types]
    if array is None or array.form != "i":
        return ()
    return struct.unpack_from(f"<{array.count}i", data, array.offset)


@dataclass(frozen=True, slots=True)
class _Skipped:
    count: int
    offset: int
    """Offset of the first element."""
    form: str
    """`struct` format of the elements, as in `_SCALARS`; `_TEXTS` for texts."""


def _read_value(reader: _Reader, kind: int) -> Field | _Skipped:
    if kind == _TEXT:
        return _read_text(reader)
    if kind == _ARRAY:
        return _read_array(reader)
    if kind not in _SCALARS:
        raise ArtifactError(f"holds a value of the unknown type {kind}: it is damaged, or newer than this reader")
    return reader.read_scalar(_SCALARS[kind])


def _read_text(reader: _Reader) -> str | _Skipped:
    length = reader.read_count("Q", _LONGEST_TEXT, "bytes in a text")
    if length <= _LONGEST_NAME:
        return reader.read_bytes(length).decode("utf-8", "replace")
    reader.skip_bytes(length)
    return _Skipped(length, reader.offset - length, "B")


def _read_array(reader: _Reader) -> Field | _Skipped:
    kind = int(reader.read_scalar("I"))
    count = reader.read_count("Q", 2**32, "elements in an array")
    start = reader.offset
    if kind == _TEXT:
        reader.skip_texts(count)
        return _Skipped(count, start, _TEXTS)
    if kind not in _SCALARS:
        raise ArtifactError(f"holds an array of the unknown type {kind}: it is damaged, or newer than this reader")
    form = struct.Struct(f"<{_SCALARS[kind]}")
    if count > _KEPT:
        reader.skip_bytes(count * form.size)
        return _Skipped(count, start, _SCALARS[kind])
    return tuple(value for (value,) in form.iter_unpack(reader.read_bytes(count * form.size)))


def _read_tensor(reader: _Reader) -> tuple[str, tuple[int, tuple[int, ...]]]:
    name = reader.read_name()
    dimensions = tuple(int(reader.read_scalar("Q")) for _ in range(reader.read_count("I", 8, "dimensions")))
    reader.read_scalar("I")  # its type; sizes follow from the offsets
    return name, (int(reader.read_scalar("Q")), dimensions)


def build_gguf(heads: Sequence[tuple[GgufHead, int]]) -> Gguf:
    """Combine the heads of one model's files, each with its file's size in bytes: one file, or a split set in order. At
    least one; metadata and vocabulary are those of the first.

    Raises:
        ArtifactError: the head names no architecture, a file of the set is missing, or a file ends before its tensors.
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
        for name, length in measure_tensors(head, size):
            if block := _BLOCK.match(name):
                blocks[int(block[1])] = blocks.get(int(block[1]), 0) + length
            else:
                part_sizes[_part_name(name)] += length
    dimensions = [head.tensors["token_embd.weight"][1] for head, _ in heads if "token_embd.weight" in head.tensors]
    return Gguf(
        size=sum(size for _, size in heads),
        architecture=architecture,
        fields=fields,
        blocks=tuple(blocks.get(number, 0) for number in range(max(blocks, default=-1) + 1)),
        vocabulary=dimensions[0][1] if dimensions and len(dimensions[0]) > 1 else 0,
        has_tied_embeddings=not any("output.weight" in head.tensors for head, _ in heads),
        longest_token=heads[0][0].longest_token,
        **part_sizes,
    )


def _part_name(name: str) -> str:
    if name.startswith(("token_embd.", "per_layer_token_embd.")):
        return "embedding"
    return "output" if name.startswith("output") else "rest"


def measure_tensors(head: GgufHead, size: int) -> list[tuple[str, int]]:
    """Return (name, bytes) of each tensor of a file of `size` bytes, in the order of the file.

    A tensor reaches from its offset to that of the next tensor, or to the end of the file, whatever its quantization;
    padding counts. Raises ArtifactError where the last tensor begins at or after the end of the file.
    """
    in_order = sorted((offset, name) for name, (offset, _) in head.tensors.items())
    starts = [head.data_start + offset for offset, _ in in_order]
    ends = [*starts[1:], size][: len(starts)]
    if starts and starts[-1] >= size:
        raise ArtifactError("ends before its tensors do: was it copied to the end?")
    return [(name, end - start) for (_, name), start, end in zip(in_order, starts, ends, strict=True)]
