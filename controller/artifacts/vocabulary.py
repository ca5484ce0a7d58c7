"""Maximum number of text bytes that one token of a vocabulary stands for. Pure.

From this follows the minimum number of tokens of a text. That holds only where tokens cover a text byte by byte: every
byte has a token of its own, so that no stretch of text becomes one unknown token, and nothing rewrites the text before.
White space is not counted: chat templates strip it at the ends of messages, and special tokens absorb it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from controller.artifacts.hf import json_object

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
    """Return the maximum number of text bytes, without white space, that one token stands for.

    `model` is `tokenizer.ggml.model`, `tokens` is `tokenizer.ggml.tokens`, `types` the type of each token, or empty
    where types are unknown. None means that the tokenizer is not known to cover a text byte by byte, also for any
    `model` but `gpt2` and `llama`.
    """
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
    `tokenizer.json`. None means that the tokenizer is not known to cover a text byte by byte.

    Raises ArtifactError where `data` is not a JSON object, or has more than 2,000,000 values; RecursionError where its
    steps are nested too deeply.
    """
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
