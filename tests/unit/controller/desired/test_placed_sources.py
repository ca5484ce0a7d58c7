"""Which sources are here, and under which paths their models' files are looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.downloads import RECORDS_FOLDER, DownloadRecord
from controller.config.validate import PlacedSource
from controller.desired.file_source import find_placed_sources, place_models
from controller.engines.llama_server import LlamaServerDefinition

SOURCE, PINNED = "hf:a/b", "hf:a/b@abc"
MAIN, PROJECTOR = "a/b/m.gguf", "a/b/mmproj.gguf"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / RECORDS_FOLDER).mkdir(parents=True)
    return tmp_path


def put(models: Path, *paths: str) -> None:
    for path in paths:
        (models / path).parent.mkdir(parents=True, exist_ok=True)
        (models / path).touch()


def record(models: Path, **fields: Any) -> None:
    """Store the record of a download of `SOURCE` that has finished, unless `fields` say otherwise."""
    fields = {"id": "dl_1", "reference": SOURCE, "state": "finished", "main": MAIN, "created_at": 1.0} | fields
    written = DownloadRecord.model_validate(fields)
    (models / RECORDS_FOLDER / f"{written.id}.json").write_text(written.model_dump_json())


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"projector": PROJECTOR}, {SOURCE: PlacedSource(MAIN, PROJECTOR)}),
        ({"state": "downloading"}, {}),
        ({"state": "failed"}, {}),
        ({"state": "downloading", "has_finished": True}, {SOURCE: PlacedSource(MAIN)}),  # it is looked for anew
        ({"pinned": PINNED}, {SOURCE: PlacedSource(MAIN), PINNED: PlacedSource(MAIN)}),
        ({"main": None}, {}),
        ({"main": "a/b/gone.gguf"}, {}),
        ({"projector": "a/b/gone.gguf"}, {SOURCE: PlacedSource(MAIN)}),
    ],
)
def test_what_is_here_of_a_download(models: Path, fields: dict[str, Any], found: dict[str, PlacedSource]) -> None:
    put(models, MAIN, PROJECTOR)
    record(models, **fields)
    assert find_placed_sources(models, [SOURCE, PINNED, "hf:a/other"]) == found


def test_a_file_that_was_put_by_hand_is_here_where_its_reference_says(models: Path) -> None:
    put(models, "a/b/own.gguf")
    sources = ["hf:a/b/own.gguf", "hf:a/b/other.gguf", "no reference"]
    assert find_placed_sources(models, sources) == {"hf:a/b/own.gguf": PlacedSource("a/b/own.gguf")}


def test_what_cannot_be_looked_at_is_not_here(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    record(models, main="x" * 300)
    assert find_placed_sources(models, [SOURCE]) == {}
    assert f"{'x' * 300} cannot be looked at: " in caplog.text


def test_models_are_placed_or_their_source_is_missing(models: Path) -> None:
    put(models, MAIN)
    record(models)
    raw_fields: dict[str, dict[str, Any]] = {
        "here": {"backend": "llama_server", "source": SOURCE},
        "missing": {"backend": "llama_server", "source": "hf:a/other"},
        "by_path": {"backend": "llama_server", "model_path": "p.gguf"},
    }
    # A definition without a path has a placeholder.
    definitions = {
        name: LlamaServerDefinition.model_validate({"model_path": "placeholder.gguf"} | fields)
        for name, fields in raw_fields.items()
    }
    placed, missing = place_models(models, definitions, raw_fields)
    assert {name: each.model_path for name, each in placed.items()} == {"here": MAIN, "by_path": "p.gguf"}
    assert missing == {"missing": "hf:a/other"}
