"""What is nested too deep in a listing of an MCP server becomes null, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assistant.tools.mcp_client.bounded_transport import DepthCut
from tests.support.campaign import campaign_count

_TEXTS = st.text(alphabet='a"\\[]{}\n\u20ac\ud800', max_size=6)
_VALUES: Any = st.recursive(
    _TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)


def prune(value: Any, levels: int) -> Any:
    """The same without what is below so many levels."""
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [prune(each, levels - 1) for each in value]
    return {name: prune(each, levels - 1) for name, each in value.items()}


@settings(max_examples=campaign_count(100, 5_000), deadline=None)
@given(value=_VALUES, levels=st.integers(1, 4), is_indented=st.booleans())
def test_what_is_deeper_becomes_null(value: Any, levels: int, is_indented: bool) -> None:
    text = json.dumps(value, indent=1 if is_indented else None).encode()
    cut = DepthCut(levels)
    parts = [cut.feed(line) for line in text.splitlines(keepends=True)]
    assert json.loads(b"".join(parts)) == prune(value, levels)


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 500_000, b'"' + b'\\"' * 500_000 + b"\\", b"[" * 500_000, b"]{" * 9])
def test_what_is_no_json_takes_no_longer(text: bytes) -> None:
    """A string without an end was looked for anew at each of its quotation marks: for minutes."""
    assert len(DepthCut(9).feed(text)) <= len(text) + len(b"null")
