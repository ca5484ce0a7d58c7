"""What differs between two declared states, as one reads it."""

from __future__ import annotations

from typing import Any

from contract.admin import FieldChange
from controller.desired.differences import diff_models


def _edited(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, object, object]]:
    [edit] = diff_models({"m": before}, {"m": after})
    assert (edit.model, edit.change) == ("m", "edited")
    return [(change.field, change.before, change.after) for change in edit.fields]


def test_models_that_stay_as_they_are_are_left_out_and_others_come_in_name_order() -> None:
    before: dict[str, dict[str, Any]] = {"same": {"replicas": 1}, "gone": {"backend": "stub"}, "b": {"replicas": 1}}
    after: dict[str, dict[str, Any]] = {"same": {"replicas": 1}, "new": {"backend": "stub"}, "b": {"replicas": 2}}
    assert [(edit.model, edit.change) for edit in diff_models(before, after)] == [
        ("b", "edited"),
        ("gone", "removed"),
        ("new", "added"),
    ]
    assert diff_models(before, before) == []


def test_fields_come_with_both_values_and_null_where_there_is_none() -> None:
    before = {"replicas": 1, "gpus": 2, "aliases": ["a"]}
    after = {"replicas": 2, "vram_mib": 100, "aliases": ["a"]}
    assert _edited(before, after) == [("gpus", 2, None), ("replicas", 1, 2), ("vram_mib", None, 100)]


def test_an_added_model_shows_all_its_fields_and_a_removed_one_too() -> None:
    [edit] = diff_models({}, {"m": {"backend": "stub", "env": {"A": "b"}}})
    assert edit.fields == (
        FieldChange(field="backend", before=None, after="stub"),
        FieldChange(field="env.A", before=None, after="***"),
    )
    [edit] = diff_models({"m": {"backend": "stub"}}, {})
    assert edit.fields == (FieldChange(field="backend", before="stub", after=None),)


def test_a_secret_that_changed_counts_and_is_not_shown() -> None:
    assert _edited({"env": {"A": "one", "B": "x"}}, {"env": {"A": "two", "B": "x"}}) == [("env.A", "***", "***")]
    assert _edited({"extra_args": ["--api-key", "one"]}, {"extra_args": ["--api-key", "two"]}) == [
        ("extra_args", ["--api-key", "***"], ["--api-key", "***"])
    ]
    assert _edited({"base_url": "https://u:one@h"}, {"base_url": "https://u:two@h"}) == [
        ("base_url", "https://***@h", "https://***@h")
    ]


def test_a_secret_that_moved_to_where_nothing_marks_it_is_not_shown() -> None:
    before = {"extra_args": ["--api-key", "s3cret-s3cret"]}
    assert _edited(before, {"extra_args": ["s3cret-s3cret"]}) == [("extra_args", ["--api-key", "***"], ["***"])]


def test_mappings_are_taken_apart_even_where_one_side_has_none() -> None:
    assert _edited({"env": {"A": "b"}}, {}) == [("env.A", "***", None)]
    assert _edited({}, {"env": {}}) == [("env", None, {})]
    assert _edited({"kwargs": {"a": 1, "b": 2}}, {"kwargs": {"a": 1, "b": 3}}) == [("kwargs.b", 2, 3)]
