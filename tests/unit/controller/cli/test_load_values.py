"""The values of `load --set`."""

from __future__ import annotations

import pytest

from controller.cli.exit_codes import CommandError, ExitCode
from controller.cli.load_values import load_values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("", None),
        ("true", True),
        ("8192", 8192),
        ("-1", -1),
        ("0x10", 16),
        ("0.25", 0.25),
        ("on", "on"),
        ("yes", "yes"),
        ("q8_0", "q8_0"),
        ("8,4", "8,4"),
        ("a: b # c", "a: b # c"),
        ("[1]", "[1]"),
        ("a=b", "a=b"),
        ('"8"', "8"),
        ("'null'", "null"),
        ('"a\\nb"', "a\nb"),
        (" 8 ", 8),
    ],
)
def test_values_are_read_as_the_files_are(text: str, value: object) -> None:
    [read] = load_values([f"key={text}"]).values()
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["gguf_n_ctx"], "takes key=value"),
        (["=8"], "takes key=value"),
        (["a=1", "a=2"], "--set a stands twice"),
        (["a='x"], "--set a: not YAML 1.2"),
        (['a="x" y'], "--set a: "),
        (["a=99999999999999999999"], "too large a number"),
        (["a=.inf"], "not a finite number"),
    ],
)
def test_values_that_are_none(given: list[str], words: str) -> None:
    with pytest.raises(CommandError, match="--set") as caught:
        load_values(given)
    assert words in str(caught.value)
    assert caught.value.code is ExitCode.USAGE
