"""Model files that are damaged or hostile, made from valid ones by a chance of their own."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.support.gguf_files import gguf_head

Files = dict[str, bytes]
"""A model by the names of its files."""

TENSORS: Final = {
    "token_embd.weight": (60, 8),
    "blk.0.attn_q.weight": (8, 8),
    "blk.1.attn_q.weight": (8, 8),
    "output_norm.weight": (8,),
}
FIELDS: Final[dict[str, Any]] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.attention.head_count_kv": [1, 2],
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": [f"token {number}" for number in range(60)],
    "tokenizer.ggml.scores": list(range(60)),
}
SPLIT_NAMES: Final = tuple(f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3))
_COUNTS: Final = (0, 1, 2**8 - 1, 2**16, 2**20, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1)
_NAMES: Final = ("", "a" * 5000, "\x1b[2J", "a\nb", "\ud800", "\U0001f600" * 200, "a\0b", "../../etc/passwd", "\u202e")
_JSON_TEXTS: Final = (
    *("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000, "-1", "0", "1.5", "null", "true"),
    *(
        '""',
        "[]",
        "{}",
        '"\\ud800"',
        '"\\u001b[2J"',
        '"\\u0000"',
        "[" * 3000 + "]" * 3000,
        '{"a":' * 3000 + "1" + "}" * 3000,
    ),
    *("[" * 200_000, "[1,2,3]", '["9","8"]', '{"a":1,"b":2}', "[1e999,1]", "[true,false]", "[[],[]]"),
)
"""Values in place of others, as they are written."""


def gguf_model() -> Files:
    return {"a.gguf": gguf_head(FIELDS, TENSORS) + bytes(4 * sum(_size(shape) for shape in TENSORS.values()))}


def split_model() -> Files:
    names = list(TENSORS)
    files: Files = {}
    for number, part in enumerate((names[:2], names[2:3], names[3:])):
        fields = {"split.count": 3, "split.no": number} | (FIELDS if number == 0 else {})
        tensors = {name: TENSORS[name] for name in part}
        data = bytes(4 * sum(_size(shape) for shape in tensors.values()))
        files[SPLIT_NAMES[number]] = gguf_head(fields, tensors) + data
    return files


def hub_model() -> Files:
    """A folder of the Hugging Face hub: two shards, an index, configurations."""
    shards = {"model-1.safetensors": {"a": ("BF16", 100), "b": ("I32", 40)}, "model-2.safetensors": {"c": ("BF16", 10)}}
    names = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    config = {"model_type": "gemma3", "hidden_size": 1, "text_config": {"hidden_size": 64, "num_hidden_layers": 2}}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer_config.json": b'{"tokenizer_class": "LlamaTokenizer", "model_max_length": 512}',
        "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": names}).encode(),
        **{shard: safetensors_file(tensors) for shard, tensors in shards.items()},
    }


def safetensors_file(tensors: Mapping[str, tuple[str, int]]) -> bytes:
    """A file of tensors, each with its type and its length in bytes."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, length) in tensors.items():
        head[name] = {"dtype": kind, "shape": [length], "data_offsets": [offset, offset + length]}
        offset += length
    return _with_length(json.dumps(head).encode()) + bytes(offset)


def ct2_model() -> Files:
    parts = [struct.pack("<I", 6), _ct2_text("Spec"), struct.pack("<II", 8, 2)]
    for name, shape, kind, length in (("a/weight", (4, 8), 4, 64), ("a/bias", (4,), 0, 16)):
        parts.append(_ct2_text(name) + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, length))
        parts.append(bytes(length))
    return {"config.json": b"{}", "model.bin": b"".join(parts) + struct.pack("<I", 0)}


def mutate_model(files: Files, chance: random.Random) -> Files:
    """A copy with one to three mutations."""
    mutated = dict(files)
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(sorted(mutated))
        if chance.random() < 0.03:
            _change_files(mutated, name, chance)
            continue
        change = chance.choice(_changes_of(name))
        mutated[name] = change(mutated[name], chance)
    return mutated


def _changes_of(name: str) -> tuple[Callable[[bytes, random.Random], bytes], ...]:
    if name.endswith(".gguf"):
        return (*_OF_BYTES, _change_gguf_value, _change_gguf_value, _repeat_gguf_key)
    if name.endswith(".safetensors"):
        return (*_OF_BYTES, _change_length, _change_head, _change_head, _change_head)
    if name.endswith(".json"):
        return (_flip_bits, _cut, _spoil_text, _change_json, _change_json, _change_json)
    return _OF_BYTES


def _change_files(files: Files, name: str, chance: random.Random) -> None:
    match chance.randrange(3):
        case 0 if len(files) > 1:
            del files[name]
        case 1:
            files[name] = b""
        case _:
            files[name] = files[chance.choice(sorted(files))]


# Bytes


def _flip_bits(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8) if changed else 0):
        changed[_place(changed, chance)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: _place(data, chance)]


def _remove_bytes(data: bytes, chance: random.Random) -> bytes:
    start = _place(data, chance)
    return data[:start] + data[start + chance.randint(1, 64) :]


def _repeat_bytes(data: bytes, chance: random.Random) -> bytes:
    start = _place(data, chance)
    return data[:start] + data[start : start + 64] * chance.randint(2, 20) + data[start:]


def _write_extreme(data: bytes, chance: random.Random) -> bytes:
    """A number of 4 or 8 bytes anywhere: lengths, counts, types, offsets, dimensions."""
    start, width = _place(data, chance), chance.choice((4, 8))
    number = chance.choice(_COUNTS).to_bytes(8, "little")[:width]
    return data[:start] + number + data[start + width :]


def _spoil_text(data: bytes, chance: random.Random) -> bytes:
    start = _place(data, chance)
    return data[:start] + chance.choice((b"\xff\xfe", b"\x80", b"\xed\xa0\x80", b"\0", b"\xf8\x88")) + data[start + 1 :]


_OF_BYTES: Final = (_flip_bits, _cut, _remove_bytes, _repeat_bytes, _write_extreme, _write_extreme, _spoil_text)


def _place(data: bytes | bytearray, chance: random.Random) -> int:
    """Often within the first bytes, where the counts are."""
    return chance.randrange(min(len(data), chance.choice((32, len(data)))) or 1) if data else 0


# GGUF


def _change_gguf_value(data: bytes, chance: random.Random) -> bytes:
    """A key whose value has another type: nested arrays, endless arrays, texts where numbers are expected."""
    key = chance.choice((*(name for name in FIELDS), "general.alignment", "split.count", *_NAMES[:2]))
    value = chance.choice(
        (
            struct.pack("<I", chance.choice((13, 255, 2**32 - 1))),
            struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * chance.choice((1, 500)),
            struct.pack("<IIQ", 9, chance.randrange(14), chance.choice(_COUNTS)),
            struct.pack("<II", 8, 4) + bytes(4) + b"\xff\x00\x1b\n",
            struct.pack("<IQ", 8, 6000) + b"\x1b" * 6000,
            struct.pack("<IQ", 8, chance.choice(_COUNTS)),
            struct.pack("<IB", 7, chance.randrange(256)),
            struct.pack("<IQ", 10, chance.choice(_COUNTS)),
            struct.pack("<Id", 12, chance.choice((float("nan"), float("inf"), -1.0))),
            struct.pack("<IIQ", 9, 5, 3000) + struct.pack("<i", -1) * 3000,
        )
    )
    return _insert_key(data, key, value)


def _repeat_gguf_key(data: bytes, chance: random.Random) -> bytes:
    return _insert_key(data, chance.choice(tuple(FIELDS)), struct.pack("<II", 4, chance.choice(_COUNTS) % 2**32))


def _insert_key(data: bytes, key: str, value: bytes) -> bytes:
    if len(data) < 24:
        return data
    count = (int.from_bytes(data[16:24], "little") + 1) % 2**64
    name = key.encode("utf-8", "surrogatepass")
    return data[:16] + count.to_bytes(8, "little") + len(name).to_bytes(8, "little") + name + value + data[24:]


# JSON


def _change_length(data: bytes, chance: random.Random) -> bytes:
    return chance.choice((*_COUNTS, 99_999_999, 100_000_000, 100_000_001)).to_bytes(8, "little") + data[8:]


def _change_head(data: bytes, chance: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    head = _change_json(data[8 : 8 + length], chance)
    return _with_length(head) + data[8 + length :]


def _change_json(data: bytes, chance: random.Random) -> bytes:
    """One value, name or pair is another. What is no JSON any more stays as it is."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    mark = "the place of another value"
    change = chance.choice((_replace_value, _replace_value, _rename_key))
    text: str = json.dumps(change(value, mark, chance))
    text = text.replace(json.dumps(mark), chance.choice(_JSON_TEXTS))
    if chance.random() < 0.1 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every key twice
    return text.encode(chance.choice(("utf-8",) * 9 + ("utf-16",)))


def _replace_value(value: Any, mark: str, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(sorted(value))
        return {**value, key: _replace_value(value[key], mark, chance)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], _replace_value(value[place], mark, chance), *value[place + 1 :]]
    return chance.choice(_NAMES) if isinstance(value, str) and chance.random() < 0.5 else mark


def _rename_key(value: Any, mark: str, chance: random.Random) -> Any:
    if not isinstance(value, dict) or not value:
        return value
    key = chance.choice(sorted(value))
    if chance.random() < 0.4:
        return {**value, key: _rename_key(value[key], mark, chance)}
    return {(chance.choice(_NAMES) if each == key else each): inner for each, inner in value.items()}


def _with_length(head: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def _ct2_text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"
