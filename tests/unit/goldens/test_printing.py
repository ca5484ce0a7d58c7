"""How goldens are printed, and the campaign that changes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaigns.campaign_goldens import CHANGES, Change, files_with, scratch_copy, try_change
from tests.campaigns.record import REPOSITORY
from tests.support.goldens.catalog import GOLDENS
from tests.support.goldens.golden import COLUMNS, print_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(max_size=20), values),
    max_leaves=60,
)


@given(VALUES)
def test_the_value_is_read_again(value: object) -> None:
    assert json.loads(print_json(value)) == value


def test_what_fits_stands_on_one_line_and_the_rest_has_a_line_per_entry() -> None:
    long_word = "x" * (COLUMNS - 12)
    value: dict[str, Any] = {"b": [1, {"c": long_word}, {"c": long_word + "y"}], "a": {"d": [], "e": {}}, "ä": None}
    assert print_json(value).splitlines() == [
        "{",
        '  "a": {"d": [], "e": {}},',
        '  "b": [',
        "    1,",
        "    {",
        f'      "c": "{long_word}"',
        "    },",
        "    {",
        f'      "c": "{long_word}y"',
        "    }",
        "  ],",
        '  "ä": null',
        "}",
    ]


def test_the_comma_counts_in_a_lines_width() -> None:
    fits = ["x" * (COLUMNS - 7)]
    assert [len(line) for line in print_json([fits, 1]).splitlines()] == [1, COLUMNS, 3, 1]
    fits[0] += "x"
    assert print_json([fits, 1]).splitlines()[1:4] == ["  [", f'    "{fits[0]}"', "  ],"]
    assert print_json([1, fits]).splitlines()[2] == f"  {json.dumps(fits)}"


def test_keys_are_sorted_as_they_are_made() -> None:
    assert print_json({10: 1, 9: {"b": 1, "a": 2}}) == '{"9": {"a": 2, "b": 1}, "10": 1}\n'


def test_each_golden_has_a_change() -> None:
    changed = {change.golden for change in CHANGES if change.subject != "state-folders"}
    assert changed == {str(golden) for golden in GOLDENS}
    assert {change.subject for change in CHANGES} >= {"state-folders"}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.golden}: {change.what}")
def test_the_text_of_a_change_is_there_once(change: Change) -> None:
    assert len(files_with(REPOSITORY, change)) == 1


@pytest.mark.slow
def test_a_golden_fails_where_its_subject_changes() -> None:
    [change] = [change for change in CHANGES if change.subject == "errors"]
    harmless = Change(change.golden, "nothing", change.find, change.find)
    with scratch_copy() as copy:
        assert try_change(copy, change) == (["test_a_golden_is_as_the_code_makes_it[errors/codes]"], None)
        assert try_change(copy, harmless) == ([], "errors/codes does not fail")
