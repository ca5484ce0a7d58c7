"""What must never change by accident: each golden is what the code makes now (see tests/support/goldens)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.goldens.catalog import GOLDENS, SUBJECTS
from tests.support.goldens.definitions import DEFINITIONS
from tests.support.goldens.golden import FOLDER, Golden, without_prose
from tests.support.goldens.product import ENGINES


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_golden_is_as_the_code_makes_it(golden: Golden) -> None:
    difference = golden.difference()
    if difference is not None:
        pytest.fail(difference, pytrace=False)


def test_no_file_is_left_that_nothing_compares() -> None:
    kept = {path for subject in SUBJECTS for path in (FOLDER / subject).rglob("*") if path.is_file()}
    assert kept == {golden.path for golden in GOLDENS}


@pytest.mark.parametrize("backend", ENGINES)
def test_the_definitions_of_a_backend_set_every_option(backend: str) -> None:
    set_somewhere = {field for fields in DEFINITIONS[backend].values() for field in fields}
    # Either of both says how many GPUs there are; what else `device` does is said once, of vLLM. No engine knows of
    # `hosts`.
    elsewhere = {"device", "backend", "hosts"}
    assert set_somewhere - elsewhere == set(ENGINES[backend].definition.model_fields) - elsewhere


def test_a_difference_is_shown_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.goldens.golden.FOLDER", tmp_path / "tests" / "golden")
    content: dict[str, Any] = {"b": [2, 1], "a": "ä" * 110}
    golden = Golden("subject", "name", lambda: content)
    assert golden.difference() is not None
    assert golden.write()
    assert golden.path.read_text() == f'{{\n  "a": "{content["a"]}",\n  "b": [2, 1]\n}}\n'
    assert (golden.difference(), golden.write()) == (None, False)
    content["b"] = [2, 3]
    difference = golden.difference() or ""
    assert difference.startswith("golden subject/name differs from what the code makes.\n")
    assert "--- tests/golden/subject/name.json" in difference
    assert '\n-  "b": [2, 1]\n+  "b": [2, 3]\n' in difference
    assert "`python -m tests.support.goldens --write subject`" in difference


def test_the_form_of_a_file_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.goldens.golden.FOLDER", tmp_path / "tests" / "golden")
    golden = Golden("subject", "name", lambda: [1, 2])
    golden.write()
    golden.path.write_text("[\n  1,\n  2\n]\n")
    assert (golden.difference() or "").startswith("golden subject/name differs from what the code makes, in its form")
    golden.path.write_text("<<<<<<<\n")
    assert (golden.difference() or "").startswith("golden subject/name differs from what the code makes.\n")


def test_a_setting_of_the_operator_changes_no_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_ENGINE_STATE_ROUTES", "1")
    monkeypatch.setenv("ROUNDHOUSE_INSTANCE", "another")
    for golden in GOLDENS:
        if golden.subject in ("openapi", "names"):
            assert golden.difference() is None


def test_prose_is_left_out_and_fields_that_are_called_so_are_not() -> None:
    schema = {"description": "x", "properties": {"description": {"description": "y", "type": "string"}}, "summary": "z"}
    assert without_prose(schema) == {"properties": {"description": {"type": "string"}}}
