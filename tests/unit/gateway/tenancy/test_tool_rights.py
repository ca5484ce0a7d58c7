"""Which tools a key may call."""

from __future__ import annotations

import pytest

from gateway.tenancy.api_keys import ANONYMOUS, Caller
from gateway.tenancy.name_patterns import NamePatterns
from tests.support.queueing import key


@pytest.mark.parametrize(
    ("patterns", "allowed", "refused"),
    [
        ((), (), ("calculate", "")),
        (("calculate",), ("calculate",), ("calculate2", "Calculate", "*")),
        (("*",), ("calculate", "weather__now", ""), ()),
        (("weather__*",), ("weather__now", "weather__"), ("weather", "other__weather__now")),
        (("*_file", "a*b*c"), ("read_file", "abc", "a1b2c"), ("read_files", "acb", "ab")),
        (("a" + "*a" * 50,), ("a" * 51,), ("a" * 50, "a" * 5000 + "b")),
    ],
)
def test_a_key_calls_what_its_patterns_match(
    patterns: tuple[str, ...], allowed: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    caller = Caller.of(key("alice", tools=patterns))
    assert [name for name in allowed if not caller.may_call_tool(name)] == []
    assert [name for name in refused if caller.may_call_tool(name)] == []


def test_a_key_without_the_field_calls_none() -> None:
    assert not Caller.of(key("alice")).may_call_tool("calculate")


def test_without_keys_everybody_may_call_what_is_enabled() -> None:
    assert ANONYMOUS.may_call_tool("calculate")


def test_patterns_match_whole_names() -> None:
    assert NamePatterns(["a*c"]).matches("abc")
    assert not NamePatterns(["ab*b"]).matches("ab"), "its pieces do not overlap"
    assert NamePatterns(["ab*b"]).matches("abb")
