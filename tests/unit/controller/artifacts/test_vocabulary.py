"""How much text a token stands for at most, by the files of models."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.artifacts.heads import Gguf, HfFolder, measure_gguf_vocabulary, measure_tokenizer
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below, read_artifact
from tests.support.clockwork_folders import make_hf
from worker.clockwork import SPECIAL, make_model
from worker.text.answer_text import byte_alphabet

LETTERS = byte_alphabet()
BYTES = [letter.encode() for letter in LETTERS.values()]
PIECES = [f"<0x{byte:02X}>".encode() for byte in range(256)]
NORMAL, CONTROL = 1, 3


def letters(text: str) -> bytes:
    """A token as byte-level vocabularies store it."""
    return "".join(LETTERS[byte] for byte in text.encode()).encode()


def longest(model: str, *tokens: bytes, kind: int = NORMAL) -> int | None:
    """Of a vocabulary of all bytes and these tokens, which are of one kind."""
    content = [*(BYTES if model == "gpt2" else PIECES), *tokens]
    return measure_gguf_vocabulary(model, content, [NORMAL] * 256 + [kind] * len(tokens))


@pytest.mark.parametrize(
    ("model", "token", "kind", "length"),
    [
        ("gpt2", letters(" jumps"), NORMAL, 5),
        ("gpt2", letters("您好您好"), NORMAL, 12),
        ("gpt2", letters(" " * 128), NORMAL, 1),
        ("gpt2", letters("\t\n\r x"), NORMAL, 1),
        ("gpt2", b"<|end|>", CONTROL, 7),
        ("gpt2", "<\uff5cend\u2581of\uff5c>".encode(), CONTROL, 16),
        # Stored as it is, where a byte-level vocabulary would take each of its letters for one byte.
        ("gpt2", "ÀÀÀÀ".encode(), CONTROL, 8),
        ("gpt2", "ÀÀÀÀ".encode(), NORMAL, 4),
        ("llama", "▁jumps".encode(), NORMAL, 6),
        ("llama", "▁▁▁▁▁▁▁▁jumps!".encode(), NORMAL, 6),
        ("llama", "您好您好".encode(), NORMAL, 12),
    ],
)
def test_the_longest_token_counts_by_the_bytes_that_it_stands_for(
    model: str, token: bytes, kind: int, length: int
) -> None:
    shortest = 1 if model == "gpt2" else 6
    assert longest(model, token, kind=kind) == max(length, shortest)


def test_where_no_types_are_told_a_token_may_be_its_text() -> None:
    assert measure_gguf_vocabulary("gpt2", [*BYTES, "ÀÀÀÀ".encode()], ()) == 8


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_a_vocabulary_that_lacks_a_byte_may_swallow_any_length_of_text(model: str) -> None:
    content = BYTES if model == "gpt2" else PIECES
    assert measure_gguf_vocabulary(model, content[1:], [NORMAL] * 255) is None
    assert measure_gguf_vocabulary(model, content, [NORMAL] * 256) is not None
    assert measure_gguf_vocabulary("bert", content, [NORMAL] * 256) is None


def test_a_gguf_file_and_a_folder_of_the_same_model_tell_the_same(tmp_path: Path) -> None:
    make_model(tmp_path / "m.gguf")
    make_hf(tmp_path / "hf")
    gguf, folder = (read_below(tmp_path, name) for name in ("m.gguf", "hf"))
    assert isinstance(gguf, Gguf)
    assert isinstance(folder, HfFolder)
    assert gguf.longest_token == folder.longest_token == max(map(len, SPECIAL))


def test_a_tokenizer_that_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    make_hf(tmp_path / "hf")
    for content in ("{", "[]", '{"model": ' + '{"a": ' * 900 + "1" + "}" * 901):
        (tmp_path / "hf" / "tokenizer.json").write_text(content)
        folder = read_below(tmp_path, "hf")
        assert isinstance(folder, HfFolder)
        assert (folder.longest_token, bool(folder.weights)) == (None, True)


def read_below(root: Path, path: str) -> Any:
    return read_artifact(path, files_below(ModelRoots((root,)), path))


def byte_level() -> dict[str, Any]:
    """A tokenizer of bytes and one longer token."""
    vocab = {letter: number for number, letter in enumerate([*LETTERS.values(), "abcde"])}
    return {
        "added_tokens": [{"id": 300, "content": "<|end|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel"},
        "truncation": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def pieces() -> dict[str, Any]:
    """The same in SentencePiece's manner."""
    vocab = {piece.decode(): number for number, piece in enumerate([*PIECES, "▁▁abcdefgh".encode()])}
    marks = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": marks},
        "pre_tokenizer": None,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True},
    }


def with_model(tokenizer: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A tokenizer whose model has other fields."""
    return tokenizer | {"model": tokenizer["model"] | fields}


def with_steps(*steps: dict[str, Any]) -> dict[str, Any]:
    """One that is byte-level, after these steps."""
    return byte_level() | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel"}]}}


def nfc(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """One that composes characters first."""
    return tokenizer | {"normalizer": {"type": "NFC"}}


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (byte_level, 7),
        (pieces, 8),
        (lambda: nfc(byte_level()), 28),
        (lambda: with_steps({"type": "Split", "behavior": "Isolated"}, {"type": "Digits"}), 7),
        (lambda: with_steps({"type": "Split", "behavior": "Removed"}), None),
        (lambda: with_steps({"type": "Whitespace"}), None),
        (lambda: byte_level() | {"normalizer": {"type": "NFKC"}}, None),
        (lambda: byte_level() | {"normalizer": {"type": "Lowercase"}}, None),
        (lambda: byte_level() | {"normalizer": "lower"}, None),
        (lambda: byte_level() | {"truncation": {"max_length": 512}}, None),
        (lambda: byte_level() | {"pre_tokenizer": None}, None),
        (lambda: with_model(byte_level(), vocab={"a": 0}), None),
        (lambda: with_model(byte_level(), vocab=[["a", 0.0]]), None),
        (lambda: with_model(pieces(), byte_fallback=False), None),
        (lambda: with_model(pieces(), continuing_subword_prefix="##"), None),
        (dict, None),
    ],
)
def test_a_tokenizer_counts_where_it_keeps_every_byte(make: Callable[[], dict[str, Any]], length: int | None) -> None:
    assert measure_tokenizer(json.dumps(make()).encode()) == length


def test_composing_makes_at_most_four_bytes_one() -> None:
    """Of every character the longest text that is composed into it: its parts, each by the longest of its names."""
    names: dict[str, str] = {}
    composed = []
    for number in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(character := chr(number))
        if parts and not parts.startswith("<"):
            plain = unicodedata.normalize("NFD", character)
            composed.append(plain)
            if len(plain) == 1:
                names[plain] = max(names.get(plain, plain), character, key=lambda name: len(name.encode()))
    ratios = []
    for plain in composed:
        text = "".join(names.get(part, part) for part in plain)
        made = unicodedata.normalize("NFC", text)
        ratios.append(len(text.encode()) / len(made.encode()))
    assert 3 < max(ratios) <= 4
