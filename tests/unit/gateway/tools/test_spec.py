"""The cap on what a model reads."""

from __future__ import annotations

import pytest

from gateway.tools.spec import cut_text

MARK = "\n[The output is cut here: it is longer than 8 bytes.]"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", ""),
        ("12345678", "12345678"),
        ("123456789", "12345678" + MARK),
        ("ääää", "ääää"),
        ("äääää", "ääää" + MARK),
        ("aääää", "aäää" + MARK),
        ("\U0001f600\U0001f600", "\U0001f600\U0001f600"),
        ("\ud800", "?"),
        ("x" * 1_000_000, "x" * 8 + MARK),
    ],
)
def test_a_text_is_cut_between_characters(text: str, cut: str) -> None:
    assert cut_text(text, 8) == cut
