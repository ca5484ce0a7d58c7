"""Desired-state files for tests: text by name, parsed against a models folder that need not exist."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import ParsedFolder, parse_folder
from controller.config.read import FolderSnapshot, merge_order

FOLDER = "desired-state"
MODELS_ROOT = ModelRoots((Path("/srv/models"),))


def snapshot(files: dict[str, str | bytes]) -> FolderSnapshot:
    """A read of a folder that holds these files."""
    content = {
        name: files[name].encode() if isinstance(files[name], str) else files[name]  # type: ignore[union-attr]
        for name in sorted(files, key=merge_order)
    }
    return FolderSnapshot(FOLDER, content)  # type: ignore[arg-type]


def parse_text(text: str | bytes = "", **files: str | bytes) -> ParsedFolder:
    """What `models.yaml` with this text declares; further files by stem, `local="..."`."""
    all_files: dict[str, str | bytes] = {"models.yaml": text} if text else {}
    all_files.update({f"{stem}.yaml": content for stem, content in files.items()})
    return parse_folder(
        snapshot({name: dedent(c) if isinstance(c, str) else c for name, c in all_files.items()}), MODELS_ROOT
    )


def problems_of(text: str | bytes = "", **files: str | bytes) -> list[str]:
    """The problems of these files, as an operator reads them."""
    return [str(problem) for problem in parse_text(text, **files).problems]
