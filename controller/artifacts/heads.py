"""Heads of model files (GGUF, folders of Hugging Face, CTranslate2's `model.bin`), parsed to the facts that the
memory formulas need. Pure; sizes in bytes.

The parser of GGUF is written by hand because the `gguf` package takes 20 s for a vocabulary of 256,000 tokens, and
maps the file, so that the process dies if somebody truncates the file meanwhile. It keeps single texts and no arrays
of texts.

From the largest token follows the minimum number of tokens of a text. That holds only where tokens cover a text byte
by byte: every byte has a token of its own, so that no stretch of text becomes one unknown token, and nothing rewrites
the text before. White space is not counted: chat templates strip it at the ends of messages, and special tokens
absorb it.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, Final

LONGEST_SHOWN: Final = 100
"""Maximum number of characters of a file's own text in an error message."""

Scalar = int | float | bool | str
Field = Scalar | tuple[int | float | bool, ...]


class ArtifactError(ValueError):
    """A model's file or folder cannot be read, lies outside the models folders, is damaged, or is not what its name
    says. The message continues a sentence whose subject is the model's path; that of `read_custom_code` begins with a
    file's name instead."""


def show_text(text: str) -> str:
    """Return a text from a model file in a form that is safe in an error message: cut to 100 characters
    (`LONGEST_SHOWN`) and `...` if it is longer. A text with unprintable characters (control characters, lone
    surrogates, direction marks) is first turned into quoted ASCII with escapes, as by `ascii`."""
    shown = text if text.isprintable() else ascii(text[:LONGEST_SHOWN])
    return shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + "..."


@dataclass(frozen=True, slots=True)
class Gguf:
    """Facts of a GGUF file, or of a split set of GGUF files. Sizes are in bytes."""

    size: int
    """Bytes of all files of the model."""
    architecture: str
    """`general.architecture`, the prefix of the architecture's own metadata keys."""
    fields: Mapping[str, Field]
    """Metadata by full key. Arrays of texts (the vocabulary), texts above 65,535 bytes and arrays above 4,096 elements
    are left out."""
    blocks: tuple[int, ...]
    """Bytes of the weights of each block (`blk.N.`), in order."""
    embedding: int
    """Bytes of the token embeddings."""
    output: int
    """Bytes of the tensors named `output*`: the output matrix and its norm."""
    rest: int
    """Bytes of all tensors that are neither in a block, nor embedding, nor output."""
    vocabulary: int
    """Number of tokens in the vocabulary; 0 means unknown."""
    has_tied_embeddings: bool
    """Whether the token embeddings also serve as the output matrix."""
    longest_token: int | None = None
    """Maximum number of text bytes that one token stands for. None means unknown: the tokenizer may not cover a text
    byte by byte (`controller.artifacts.heads`)."""

    @property
    def weights(self) -> int:
        """Total size of all tensors in bytes."""
        return sum(self.blocks) + self.embedding + self.output + self.rest

    def get_number(self, name: str, default: int | None = None) -> int | None:
        """Return the integer of a metadata key, given without the architecture's prefix; of an array, the largest.
        Returns `default` where the key is missing or holds no integer of 0 or more. A boolean counts as 0 or 1."""
        return max(self.get_numbers(name), default=default)

    def get_numbers(self, name: str) -> tuple[int, ...]:
        """Return the integers of a metadata key, given without the architecture's prefix: the value itself, or the
        elements of an array in order, such as one per block. Negative integers are left out, so that the result may be
        shorter than the array; a boolean counts as 0 or 1. Empty where the key is missing or holds no integer."""
        value = self.fields.get(f"{self.architecture}.{name}")
        values = value if isinstance(value, tuple) else (value,)
        return tuple(int(each) for each in values if isinstance(each, int) and each >= 0)


@dataclass(frozen=True, slots=True)
class HfFolder:
    """Facts of a folder in the layout of the Hugging Face Hub: `config.json` beside weights. Sizes are in bytes."""

    size: int
    """Bytes of all files of the model."""
    config: Mapping[str, object]
    """`config.json`; where it describes several models, the fields of the text model override the others."""
    weights: Mapping[str, int]
    """Bytes of the weights by element type, in lower case as in safetensors (`bf16`). The key is empty where types are
    unknown."""
    longest_token: int | None = None
    """As `Gguf.longest_token`, from the folder's `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class Ct2:
    """Facts of a CTranslate2 model, from its `model.bin`. Sizes are in bytes."""

    size: int
    """Bytes of all files of the model."""
    matrices: Mapping[str, int]
    """Bytes of the weights with two or more dimensions, by element type (`f32`, `i8`)."""
    vectors: Mapping[str, int]
    """Bytes of all other weights (biases, norms, scales), by element type."""
    longest_token: int | None = None
    """As `Gguf.longest_token`, from the model's `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class SizedArtifact:
    """A model file or folder of a kind that is not read any further: only its size in bytes is known."""

    size: int


@dataclass(frozen=True, slots=True)
class UnreadArtifact:
    """A model file or folder that cannot be read, or is not what its name says: the reason, and the size in bytes
    (None: unknown)."""

    reason: str
    """What is wrong: a sentence that begins with the file's name."""
    size: int | None = None


Artifact = Gguf | HfFolder | Ct2 | SizedArtifact | UnreadArtifact


def longest_token_at(path: str, artifacts: Mapping[str, Artifact]) -> int | None:
    """Return the maximum number of text bytes, without white space, that one token of the model at `path`, a key of
    `artifacts`, stands for. None means unknown, also where there is no such artifact."""
    artifact = artifacts.get(path)
    return artifact.longest_token if isinstance(artifact, Gguf | HfFolder | Ct2) else None


_TYPES: Final = ("f32", "i8", "i16", "i32", "f16", "bf16")
"""Element types in the order of CTranslate2's `DataType`."""
_VERSIONS: Final = range(4, 7)
_MOST_VARIABLES: Final = 200_000
"""Maximum number of variables."""


def parse_ct2(stream: BinaryIO, size: int) -> Ct2:
    """Sum the bytes of the variables (weights, biases, scales) of a `model.bin` of `size` bytes, by element type, and
    those with two or more dimensions apart from the others. `stream` is at the file's beginning; it must be seekable.
    `Ct2.longest_token` stays None, and `Ct2.size` is `size`. Raises ArtifactError where the file is damaged, cut off or
    of an unknown version."""
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
    if count > _MOST_VARIABLES:
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


HEAD_LENGTH: Final = 8
"""Bytes at the beginning of a safetensors file that hold the length of its header."""
_LONGEST_HEAD: Final = 100_000_000
"""Maximum header length in bytes that the safetensors library accepts."""
LONGEST_READ_HEAD: Final = 2**25
"""Maximum header length in bytes that is read, enough for 200,000 tensors. Python objects of the worst JSON take thirty
times as much memory."""
_MOST_VALUES: Final = 2_000_000
"""Maximum number of values of a JSON text, counted by its commas and brackets."""
_TEXT_MODELS: Final = ("text_config", "llm_config", "language_config")


def head_length(data: bytes, size: int) -> int:
    """Return the length in bytes of the JSON header that follows the first 8 bytes (`HEAD_LENGTH`) of a safetensors
    file. `data`: these first bytes, which hold that length and are not part of it. `size`: bytes of the whole file.
    Raises ArtifactError where the file is damaged, cut off, or no safetensors file, and where its header is longer than
    32 MiB (`LONGEST_READ_HEAD`)."""
    length = int.from_bytes(data, "little")
    if len(data) < HEAD_LENGTH or not 0 < length <= _LONGEST_HEAD:
        raise ArtifactError("is not a safetensors file")
    if HEAD_LENGTH + length > size:
        raise ArtifactError("ends within its head: was it copied to the end?")
    if length > LONGEST_READ_HEAD:
        raise ArtifactError(f"has a head of more than {LONGEST_READ_HEAD // 2**20} MiB")
    return length


def tensor_bytes(head: bytes, data_size: int) -> dict[str, int]:
    """Sum the bytes of a safetensors file's tensors by element type, in lower case (`bf16`). `head` is the JSON header,
    `data_size` the number of bytes after it. Raises ArtifactError if the header is damaged or the file is cut off."""
    sums: dict[str, int] = {}
    for name, tensor in json_object(head).items():
        if name == "__metadata__":
            continue
        match tensor:
            case {"dtype": str(kind), "data_offsets": [int(start), int(end)]}:
                pass
            case _:
                raise ArtifactError(f"has no type and offsets of the tensor {show_text(name)}: it is damaged")
        if not 0 <= start <= end:
            raise ArtifactError(f"has wrong offsets of the tensor {show_text(name)}: it is damaged")
        sums[kind.lower()] = sums.get(kind.lower(), 0) + end - start
        if end > data_size:
            raise ArtifactError("ends before its tensors do: was it copied to the end?")
    if sum(sums.values()) > data_size:
        raise ArtifactError("has tensors that overlap: it is damaged")
    return sums


def text_config(data: bytes) -> Mapping[str, object]:
    """Return the fields of a `config.json`. If it has a part that describes the text model (`text_config`, `llm_config`
    or `language_config`), the fields of that part override the top-level ones. Raises ArtifactError where `data` is
    not a JSON object, or has more than 2,000,000 values."""
    config = json_object(data)
    for name in _TEXT_MODELS:
        inner = config.get(name)
        if isinstance(inner, dict):
            return {**config, **inner}
    return config


def find_custom_code(data: bytes) -> str | None:
    """Return the first class that an `auto_map` names, at any depth of a model's JSON file, shortened and escaped for
    messages. None means that no `auto_map` names any. Such code comes with the model. transformers imports it where
    remote code is trusted, and vLLM did so where it was not trusted (CVE-2025-66448, CVE-2026-22807). Raises
    ArtifactError where `data` is not a JSON object, or has more than 2,000,000 values."""
    values: list[object] = [json_object(data)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            if auto_map := value.get("auto_map"):
                return show_text(_first_text(auto_map))
            values += value.values()
        elif isinstance(value, list):
            values += value
    return None


def _first_text(value: object) -> str:
    while isinstance(value, dict | list) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return str(value)


def shard_names(index: bytes) -> frozenset[str]:
    """Return the file names in a `model.safetensors.index.json`, without checking that they exist. Raises ArtifactError
    where it is not a JSON object, has no `weight_map` of texts, or has more than 2,000,000 values."""
    files = json_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ArtifactError("has no `weight_map`")
    return frozenset(files.values())


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ArtifactError where `data` is not one, or has so many values (more than 2,000,000)
    that it would fill the memory."""
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ArtifactError(f"holds more than {_MOST_VALUES:,} values")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ArtifactError("is not JSON") from None
    if not isinstance(value, dict):
        raise ArtifactError("is not a JSON object")
    return value


_WHITE_SPACE: Final = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "
_SPACE_MARK: Final = "\u2581"
"""Character that SentencePiece writes for a space."""
_BYTES: Final = 256
_LETTERS: Final = frozenset({*map(chr, range(33, 127)), *map(chr, range(161, 173)), *map(chr, range(174, _BYTES + 68))})
"""GPT-2's letters for the 256 bytes: printable bytes stand for themselves, the others for code points from 256 on."""
_LETTER_TOKENS: Final = frozenset(letter.encode() for letter in _LETTERS)
_BYTE_PIECES: Final = frozenset(b"<0x%02X>" % byte for byte in range(_BYTES))
_WHITE_LETTERS: Final = frozenset(chr(_BYTES + byte) for byte in _WHITE_SPACE)
_RAW_TYPES: Final = (2, 3, 4)
"""llama.cpp's token types whose stored text is literal: unknown, control, user defined."""
_SHRINKS: Final = 4
"""Maximum number of text bytes that NFC turns into one byte: 3.5, rounded up."""
_KEEPING_SPLITS: Final = ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
"""Behaviors of tokenizers' `Split` that keep the matched text."""


def measure_gguf_vocabulary(model: object, tokens: Iterable[bytes], types: Sequence[int]) -> int | None:
    """Return the maximum number of text bytes, without white space, that one token stands for. `model` is
    `tokenizer.ggml.model`, `tokens` is `tokenizer.ggml.tokens`, `types` the type of each token, or empty where types
    are unknown. None means that the tokenizer is not known to cover a text byte by byte, also for any `model` but
    `gpt2` and `llama`."""
    if model not in ("gpt2", "llama"):
        return None
    measure, byte_tokens = (_measure_letters, _LETTER_TOKENS) if model == "gpt2" else (_measure_piece, _BYTE_PIECES)
    longest = 0
    missing_bytes = set(byte_tokens)
    for number, token in enumerate(tokens):
        missing_bytes.discard(token)
        if len(token) > longest:
            is_raw = number >= len(types) or types[number] in _RAW_TYPES
            longest = max(longest, _measure_text(token) if is_raw else measure(token.decode(errors="replace")))
    return None if missing_bytes else longest


def measure_tokenizer(data: bytes) -> int | None:
    """Return the maximum number of text bytes, without white space, that one token stands for, by the content of a
    `tokenizer.json`. None means that the tokenizer is not known to cover a text byte by byte. Raises ArtifactError
    where `data` is not a JSON object, or has more than 2,000,000 values; RecursionError where its steps are nested too
    deeply."""
    fields = json_object(data)
    model = fields.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or "merges" not in model:
        return None
    shrinks = _find_shrinking(fields.get("normalizer"))
    steps = _list_steps(fields.get("pre_tokenizer"), "pretokenizers")
    if shrinks is None or not all(map(_keeps_text, steps)) or fields.get("truncation") is not None:
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    if not is_byte_level and not model.get("byte_fallback"):
        return None
    longest = measure_gguf_vocabulary(
        "gpt2" if is_byte_level else "llama",
        chain((str(token).encode(errors="replace") for token in model["vocab"]), _special_tokens(fields)),
        [1] * len(model["vocab"]),
    )
    return None if longest is None else longest * shrinks


def _special_tokens(fields: Mapping[str, Any]) -> Iterator[bytes]:
    added_tokens = fields.get("added_tokens")
    for token in added_tokens if isinstance(added_tokens, list) else ():
        if isinstance(token, dict):
            yield str(token.get("content")).encode(errors="replace")


def _list_steps(step: object, name: str) -> list[dict[str, Any]]:
    """Return the single steps of a step that may be a sequence. A step that is not understood becomes an empty one."""
    if step is None:
        return []
    if isinstance(step, dict) and step.get("type") == "Sequence" and isinstance(step.get(name), list):
        return [inner for each in step[name] for inner in _list_steps(each, name)]
    return [step if isinstance(step, dict) else {}]


def _find_shrinking(normalizer: object) -> int | None:
    """Return the maximum number of text bytes that a normalizer turns into one. None means unknown."""
    shrinks = 1
    for step in _list_steps(normalizer, "normalizers"):
        if step.get("type") == "NFC":
            shrinks = _SHRINKS
        elif step.get("type") != "Prepend" and not _is_space_marking(step):
            return None
    return shrinks


def _is_space_marking(step: Mapping[str, Any]) -> bool:
    return (step.get("type"), step.get("pattern"), step.get("content")) == ("Replace", {"String": " "}, _SPACE_MARK)


def _keeps_text(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    return kind in ("ByteLevel", "Metaspace", "Digits") or (kind == "Split" and step.get("behavior") in _KEEPING_SPLITS)


def _measure_letters(token: str) -> int:
    """Return the number of text bytes of a token in GPT-2's letters."""
    if not _LETTERS.issuperset(token):
        return _measure_text(token.encode())
    return sum(letter not in _WHITE_LETTERS for letter in token)


def _measure_piece(token: str) -> int:
    """Return the number of text bytes of a SentencePiece token."""
    return _measure_text(token.replace(_SPACE_MARK, " ").encode())


def _measure_text(token: bytes) -> int:
    return len(token.translate(None, _WHITE_SPACE))


_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK_SIZES: Final = {
    1: {0: 4, 1: 2, 24: 1, 25: 2, 26: 4, 27: 8, 28: 8, 30: 2},
    32: {2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 20: 18, 39: 17},
    256: {10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 16: 66, 17: 74, 18: 98, 19: 50, 21: 110, 22: 82, 23: 136, 29: 56}
    | {34: 54, 35: 66},
}
TYPE_SIZES: Final = {kind: (values, sizes[kind]) for values, sizes in _BLOCK_SIZES.items() for kind in sizes}
"""Number of a tensor's type (`ggml_type`) to the values of one block, and the bytes that they take together."""
_TEXT: Final = 8
_TEXTS: Final = ""
_ARRAY: Final = 9
_KEPT: Final = 4096
"""Maximum number of elements of an array that is kept: enough for one per block, too few for one per token."""
_MOST_ENTRIES: Final = 1_000_000
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
    """Tensor name to the offset of its data from `data_start`, and its dimensions, the fastest-varying first."""
    data_start: int
    """Offset in the file at which tensor data begins."""
    longest_token: int | None = None
    """As `Gguf.longest_token`."""
    data_length: int = 0
    """Bytes from `data_start` to the end of the last tensor, as far as the sizes of the tensors' types are known."""


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
    tensor_count = reader.read_count("Q", _MOST_ENTRIES, "tensors")
    key_count = reader.read_count("Q", _MOST_ENTRIES, "keys")
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
    tensors: dict[str, tuple[int, tuple[int, ...]]] = {}
    data_length = 0
    for _ in range(tensor_count):
        name, dimensions, kind, offset = _read_tensor(reader)
        tensors[name] = (offset, dimensions)
        values, length = TYPE_SIZES.get(kind, (1, 0))
        data_length = max(data_length, offset + math.prod(dimensions) // values * length)
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ArtifactError(f"says its alignment is {show_text(str(alignment))}: it is damaged")
    data_start = -(-reader.offset // alignment) * alignment
    vocabulary = _measure_vocabulary(data, fields, skipped)
    return GgufHead(fields, lengths, tensors, data_start, vocabulary, data_length)


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


def _read_tensor(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    """Return a tensor's name, dimensions, type, and the offset of its data."""
    name = reader.read_name()
    dimensions = tuple(int(reader.read_scalar("Q")) for _ in range(reader.read_count("I", 8, "dimensions")))
    return name, dimensions, int(reader.read_scalar("I")), int(reader.read_scalar("Q"))


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
    """Return (name, bytes) of each tensor of a file of `size` bytes, in the order of the file. A tensor reaches from
    its offset to that of the next tensor, or to the end of the file, whatever its quantization; padding counts. Raises
    ArtifactError where the file ends before a tensor begins, or before it ends if the size of its type is known."""
    in_order = sorted((offset, name) for name, (offset, _) in head.tensors.items())
    starts = [head.data_start + offset for offset, _ in in_order]
    ends = [*starts[1:], size][: len(starts)]
    if starts and (starts[-1] >= size or head.data_start + head.data_length > size):
        raise ArtifactError("ends before its tensors do: was it copied to the end?")
    return [(name, end - start) for (_, name), start, end in zip(in_order, starts, ends, strict=True)]
