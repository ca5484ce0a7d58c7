"""The models folder: what gets into it, where, and with whose rights."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.schema.errors import RoundhouseError
from transfers.folder.models_folder import OWN_FOLDER, ModelsFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ModelsFolder]:
    (tmp_path / "models").mkdir()
    opened = ModelsFolder(tmp_path / "models", 0)
    opened.open()
    yield opened
    opened.close()


def make_partial(folder: ModelsFolder, content: bytes = b"content") -> Path:
    partial = folder.partial_path("dl", "file")
    partial.write_bytes(content)
    return partial


def refused(folder: ModelsFolder, target: str) -> bool:
    """Whether a file is not placed there, and stays where it was."""
    partial = make_partial(folder)
    with pytest.raises(RoundhouseError) as caught:
        folder.place_file(partial, target)
    return caught.value.entry.code == "models_file_conflict" and partial.read_bytes() == b"content"


def test_a_file_gets_into_its_place_whole(folder: ModelsFolder) -> None:
    partial = make_partial(folder)
    placed = folder.place_file(partial, "u/r/m.gguf")
    assert (folder.path / "u/r/m.gguf").read_bytes() == b"content"
    assert (placed.st_size, partial.exists()) == (7, False)
    found = folder.find_file("u/r/m.gguf")
    assert found is not None
    assert found.st_ino == placed.st_ino


@pytest.mark.parametrize(
    "target", ["../m", "/etc/m", "u/../../m", "u//m", "", ".", "u/.", f"{OWN_FOLDER}/lock", f"{OWN_FOLDER}/records/x"]
)
def test_a_path_that_leads_elsewhere_is_refused(folder: ModelsFolder, target: str) -> None:
    assert refused(folder, target)
    for act in (folder.find_file, folder.remove_file):
        with pytest.raises(RoundhouseError):
            act(target)
    assert not (folder.path.parent / "m").exists()


def test_a_link_in_the_way_is_not_followed(folder: ModelsFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "m.gguf").write_bytes(b"theirs")
    (folder.path / "u").symlink_to(outside)
    (folder.path / "r").mkdir()
    (folder.path / "r" / "m.gguf").symlink_to(outside / "m.gguf")
    for target in ("u/m.gguf", "u/new.gguf", "r/m.gguf"):
        assert refused(folder, target)
        with pytest.raises((RoundhouseError, OSError)), folder.open_file(target):
            pass
        if target != "r/m.gguf":
            with pytest.raises(RoundhouseError):
                folder.remove_file(target)
    assert [path.name for path in outside.iterdir()] == ["m.gguf"]
    assert (outside / "m.gguf").read_bytes() == b"theirs"


def test_nothing_is_written_over(folder: ModelsFolder) -> None:
    (folder.path / "m.gguf").write_bytes(b"by hand")
    (folder.path / "file").touch()
    assert refused(folder, "m.gguf")
    assert refused(folder, "file/m.gguf")
    assert (folder.path / "m.gguf").read_bytes() == b"by hand"


def test_without_hard_links_nothing_is_written_over_either(
    folder: ModelsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    folder.place_file(make_partial(folder), "u/m.gguf")
    assert (folder.path / "u/m.gguf").read_bytes() == b"content"
    assert refused(folder, "u/m.gguf")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2775])
def test_what_is_made_has_the_rights_of_the_models_folder(folder: ModelsFolder, mode: int) -> None:
    folder.path.chmod(mode)
    folder.place_file(make_partial(folder), "u/r/m.gguf")
    for name in ("u", "u/r"):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == mode & 0o777
    assert stat.S_IMODE((folder.path / "u/r/m.gguf").stat().st_mode) == mode & 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files away")
def test_what_is_made_has_the_owner_of_the_models_folder(folder: ModelsFolder) -> None:
    os.chown(folder.path, 4321, 8765)
    folder.place_file(make_partial(folder), "u/r/m.gguf")
    for name in ("u", "u/r", "u/r/m.gguf"):
        status = (folder.path / name).stat()
        assert (status.st_uid, status.st_gid) == (4321, 8765), name


def test_a_removed_file_takes_its_empty_folders_along(folder: ModelsFolder) -> None:
    folder.place_file(make_partial(folder), "u/r/a/m.gguf")
    (folder.path / "u" / "mine").touch()
    folder.remove_file("u/r/a/m.gguf")
    assert [path.name for path in (folder.path / "u").iterdir()] == ["mine"]


def test_one_program_has_the_folder(folder: ModelsFolder) -> None:
    with pytest.raises(BlockingIOError):
        ModelsFolder(folder.path, 0).open()
    folder.close()
    other = ModelsFolder(folder.path, 0)
    other.open()
    other.close()


def test_what_is_to_stay_free_is_not_for_downloads(folder: ModelsFolder) -> None:
    assert folder.measure_free() > 0
    assert ModelsFolder(folder.path, 1 << 60).measure_free() == 0
