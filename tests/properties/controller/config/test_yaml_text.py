"""What is written as YAML is read again as the same values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.config.yaml12 import read_document, to_plain_value, write_yaml

TEXTS = st.one_of(
    st.sampled_from(
        ["on", "yes", "null", "~", "1_000", "0x1F", "0o17", "1:30", "2027-01-31", ".inf", "- a", "a: b", "#", ""]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Co", "Cn")), max_size=40),
)
VALUES = st.recursive(
    st.one_of(TEXTS, st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS.filter(bool), inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS.filter(bool), VALUES, min_size=1, max_size=3))
def test_a_document_is_read_as_it_was_written(document: dict[str, object]) -> None:
    table, problems = read_document("written.yaml", write_yaml(document).encode())  # type: ignore[arg-type] # JSON values
    assert list(problems) == []
    assert table is not None
    assert to_plain_value(table) == document
