"""Merging is associative, and as simple as it sounds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.config.yaml12 import Plain, SourcePlace, Table, merge_all, merge_nodes, to_plain_value, with_place
from tests.support.campaign import campaign_count

KEYS = st.sampled_from(["a", "b", "c"])
SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "on"])
VALUES = st.recursive(SCALARS | st.lists(SCALARS, max_size=2), lambda inner: st.dictionaries(KEYS, inner, max_size=3))
FILES = st.dictionaries(KEYS, VALUES, max_size=3)


def table(value: Plain, file: str = "f") -> Table:
    made = with_place(value, SourcePlace(file, 1))
    assert isinstance(made, Table)
    return made


@settings(max_examples=campaign_count(50, 1_000))
@given(FILES, FILES, FILES)
def test_neighbours_may_be_merged_first(first: Plain, second: Plain, third: Plain) -> None:
    a, b, c = table(first, "1"), table(second, "2"), table(third, "3")
    assert merge_nodes(merge_nodes(a, b), c) == merge_nodes(a, merge_nodes(b, c))


@settings(max_examples=campaign_count(50, 1_000))
@given(st.lists(FILES, max_size=4))
def test_one_after_the_other_is_the_plain_rule(files: list[dict[str, Any]]) -> None:
    expected: Any = {}
    for file in files:
        expected = rule(expected, file)
    assert to_plain_value(merge_all(table(file) for file in files)) == expected


def rule(earlier: Any, later: Any) -> Any:
    """Mappings deep-merged, all else replaced, null removes a key: written once more, for values without places."""
    if not isinstance(later, dict):
        return later
    merged = dict(earlier) if isinstance(earlier, dict) else {}
    for key, value in later.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = rule(merged.get(key), value)
    return merged


@settings(max_examples=campaign_count(50, 1_000))
@given(FILES)
def test_a_file_merged_with_itself_or_with_nothing_is_itself(file: Plain) -> None:
    once = to_plain_value(merge_all([table(file)]))
    assert to_plain_value(merge_all([table(file), table(file)])) == once
    assert to_plain_value(merge_all([table({}), table(file), table({})])) == once


@settings(max_examples=campaign_count(50, 1_000))
@given(FILES, FILES)
def test_every_value_stands_in_a_file_that_says_it(first: Plain, second: Plain) -> None:
    merged = merge_nodes(table(first, "1"), table(second, "2"))
    assert isinstance(merged, Table)
    for key, entry in merged.iterate_entries():
        said = {"1": first, "2": second}[entry.place.file]
        assert isinstance(said, dict)
        assert key in said
