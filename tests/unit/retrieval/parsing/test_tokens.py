"""Estimated tokens."""

from __future__ import annotations

import pytest

from retrieval.parsing.tokens import count_tokens_between, estimate_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \n\t ", 0),
        ("word", 1),
        ("words, words", 3),
        ("tokenizer", 2),
        ("größer", 2),
        ("2026-11-23", 6),
        ("漢字かな", 4),
        ("Привет", 3),
        ("สวัสดี", 6),
        ("a_b", 3),
        (" " * 32, 2),
        ("\n" * 32, 2),
        ("x" * 50, 10),
    ],
)
def test_tokens_of_a_text(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


def test_tokens_between_two_characters() -> None:
    assert count_tokens_between("one two three", 4, 7) == 1
