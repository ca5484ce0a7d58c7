"""Attributes on the command line."""

from __future__ import annotations

import pytest

from controller.cli.rag.command import parse_attributes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("7", 7),
        ("-1.5", -1.5),
        ("1e3", 1000.0),
        ("nan", "nan"),
        ("inf", "inf"),
        ("1e999", "1e999"),
        ("0123", "0123"),
        ("1_000", "1_000"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("", ""),
    ],
)
def test_numbers_are_those_of_json(text: str, value: object) -> None:
    [(name, found)] = parse_attributes([f"a={text}"]).items()
    assert (name, found, type(found)) == ("a", value, type(value))
