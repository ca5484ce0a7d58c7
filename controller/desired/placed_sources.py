"""Looks for the files of sources in the models folder. Asks nobody: no network is needed for a model that is here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.model_reference import InvalidReferenceError, parse_reference
from controller.config.model_sources import PlacedSource, list_sources, named_path, place_source
from controller.schema.desired import Definition
from controller.schema.downloads import DownloadRecord
from controller.storage.download_records import find_by_reference, read_records

log = logging.getLogger(__name__)


def find_placed_sources(models_folder: Path, sources: Iterable[str]) -> dict[str, PlacedSource]:
    """Return, by source, where the files are of the sources that are here: downloaded, or put by hand where the
    reference says. The paths are below `models_folder`. `sources` are canonical; one that is no reference of a model is
    not here. Blocks. What cannot be looked at counts as not here, with a warning in the log."""
    wanted = list(sources)
    records = read_records(models_folder) if wanted else []
    found = {source: _find_placed(models_folder, records, source) for source in wanted}
    return {source: placed for source, placed in found.items() if placed is not None}


def place_models(
    models_folder: Path, definitions: Mapping[str, Definition], raw_fields: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Definition], dict[str, str]]:
    """Return the definitions whose files are looked for under paths, with these paths, and the models whose files must
    be downloaded first, with their sources; both by model name. `raw_fields`: the fields as declared. Blocks."""
    sources = find_placed_sources(models_folder, list_sources(definitions.values()))
    placed: dict[str, Definition] = {}
    missing: dict[str, str] = {}
    for name, declared in definitions.items():
        definition, source = place_source(declared, raw_fields[name], sources)
        if source is None:
            placed[name] = definition
        else:
            missing[name] = source
    return placed, missing


def _find_placed(models_folder: Path, records: list[DownloadRecord], source: str) -> PlacedSource | None:
    record = find_by_reference(records, source)
    has_finished = record is not None and (record.has_finished or record.state == "finished")
    if record is not None and has_finished and record.main is not None and _exists(models_folder, record.main):
        has_projector = record.projector is not None and _exists(models_folder, record.projector)
        return PlacedSource(record.main, record.projector if has_projector else None)
    try:
        path = named_path(parse_reference(source))
    except InvalidReferenceError:
        return None
    return None if path is None or not _exists(models_folder, path) else PlacedSource(path)


def _exists(models_folder: Path, path: str) -> bool:
    try:
        return (models_folder / path).exists()
    except OSError as error:
        log.warning("%s cannot be looked at: %s", path, error)
        return False
