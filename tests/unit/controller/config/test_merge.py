"""Files over files."""

from __future__ import annotations

from tests.support.definitions import parse_text, problems_of


def declared(text: str, **files: str) -> object:
    parsed = parse_text(text, **files)
    assert parsed.is_valid, [str(problem) for problem in parsed.problems]
    return parsed.declared_models


def test_mappings_are_merged_deep_lists_replaced_and_null_removes_a_field_and_a_model() -> None:
    assert declared(
        "models: {a: {backend: stub, env: {X: '1', Y: '2'}, aliases: [one, two], replicas: 2}, b: {backend: stub}}",
        local="models: {a: {env: {Y: '3'}, aliases: [three], replicas: null}, b: null}",
    ) == {"a": {"backend": "stub", "env": {"X": "1", "Y": "3"}, "aliases": ["three"]}}


def test_a_model_that_was_removed_may_be_declared_anew_without_what_it_was() -> None:
    removed, anew = "models: {a: null}", "models: {a: {backend: stub}}"
    merged = declared("models: {a: {backend: stub, replicas: 2}}", n2=removed, n3=anew, local="{}")
    assert merged == {"a": {"backend": "stub"}}


def test_files_are_merged_in_name_order_and_local_comes_last() -> None:
    assert declared(
        "models: {a: {backend: stub, stub_text: models}}",
        zz="models: {a: {stub_text: zz}}",
        local="models: {a: {stub_text: local}}",
        aa="models: {a: {stub_text: aa}}",
    ) == {"a": {"backend": "stub", "stub_text": "local"}}


def test_a_problem_is_placed_in_the_file_that_has_the_last_word() -> None:
    assert problems_of(
        "models:\n  a: {backend: stub, replicas: 2}\n", local="\nmodels:\n  a:\n    replicas: none\n"
    ) == ['desired-state/local.yaml:4: models.a.replicas: must be a whole number, is the text "none"']


def test_what_a_null_took_away_is_missing_there() -> None:
    assert problems_of(
        "models: {a: {backend: openai_remote, base_url: 'http://x'}}", local="models:\n  a:\n    base_url: null\n"
    ) == ["desired-state/local.yaml:3: models.a.base_url: is required"]
