"""The source of this machine's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model_reference import LocalReference
from controller.schema.errors import RoundhouseError
from transfers.sources.base import Resolution
from transfers.sources.local import LocalSource


def resolve(root: Path | None, path: Path) -> Resolution:
    source = LocalSource([] if root is None else [root])
    return source.resolve(LocalReference(str(path)), include_pickle=False)


def code_of(root: Path | None, path: Path) -> str:
    with pytest.raises(RoundhouseError) as caught:
        resolve(root, path)
    return caught.value.entry.code


def test_a_file_of_a_named_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"12345")
    found = resolve(tmp_path, tmp_path / "m.gguf")
    assert (found.main, found.files[0].size) == ("local/m.gguf", 5)
    assert found.files[0].local_path == tmp_path / "m.gguf"


def test_a_folder_is_taken_as_a_repository_is(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "README.md", "pytorch_model.bin"):
        (folder / name).write_bytes(b"1")
    found = resolve(tmp_path, folder)
    assert (found.main, found.is_folder) == ("local/qwen", True)
    assert {each.path for each in found.files} == {"config.json", "model.safetensors"}


def test_nothing_is_taken_from_elsewhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "m.gguf").write_bytes(b"1")
    (inside / "link.gguf").symlink_to(outside / "m.gguf")
    assert code_of(inside, outside / "m.gguf") == "source_forbidden"
    assert code_of(inside, inside / "link.gguf") == "source_forbidden"
    assert code_of(None, outside / "m.gguf") == "source_forbidden"


def test_links_in_a_folder_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret.gguf").write_bytes(b"1")
    (folder / "m.gguf").symlink_to(tmp_path / "secret.gguf")
    assert code_of(folder, folder) == "source_not_found"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    assert code_of(tmp_path, tmp_path / "x.gguf") == "source_not_found"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert code_of(tmp_path, tmp_path / "loop") == "source_not_found"
    (tmp_path / "empty").mkdir()
    assert code_of(tmp_path, tmp_path / "empty") == "source_not_found"
