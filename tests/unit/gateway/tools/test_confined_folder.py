"""The walk into a folder: what is put in its way meanwhile leads nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.files.confined_folder import ConfinedFolder, FileProblem, split_path
from gateway.tools.files.file_jobs import list_files, search_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "a" / "b").mkdir(parents=True)
    (made / "a" / "b" / "file").write_text("inside")
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b" / "file").write_text("the secret")
    return made


def read(folder: Path, path: str) -> str:
    with ConfinedFolder(str(folder)).open_file(split_path(path)) as descriptor:
        return os.read(descriptor, 100).decode()


def swap_before(monkeypatch: pytest.MonkeyPatch, name: str, swap: Any) -> None:
    """Have `swap` done once, just before the part `name` of a path is opened: as another program may."""
    opened, waiting = os.open, [swap]

    def open_after_swap(path: Any, *arguments: Any, **more: Any) -> int:
        if path == name and waiting:
            waiting.pop()()
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", open_after_swap)


def replace_by_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(f"{path.name}-before"))
    path.symlink_to(target)


def test_a_folder_that_becomes_a_link_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_before(monkeypatch, "a", lambda: replace_by_link(folder / "a", folder.parent / "outside"))
    with pytest.raises(FileProblem, match="links are not followed"):
        read(folder, "a/b/file")


def test_a_folder_that_becomes_a_link_after_it_was_opened_is_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_before(monkeypatch, "b", lambda: replace_by_link(folder / "a", folder.parent / "outside"))
    assert read(folder, "a/b/file") == "inside"


def test_a_file_that_becomes_a_link_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was looked at, and before it is opened."""
    file = folder / "a" / "b" / "file"
    swap_before(monkeypatch, "file", lambda: replace_by_link(file, folder.parent / "outside" / "b" / "file"))
    with pytest.raises(FileProblem, match="links are not followed"):
        read(folder, "a/b/file")


def test_a_file_that_becomes_a_pipe_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "a" / "b" / "file"

    def swap() -> None:
        file.unlink()
        os.mkfifo(file)

    swap_before(monkeypatch, "file", swap)
    with pytest.raises(FileProblem, match="no regular file"):
        read(folder, "a/b/file")


def test_a_link_that_appears_where_a_file_is_written_is_replaced_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = folder.parent / "outside" / "b" / "file"
    replaced = os.replace

    def link_and_replace(source: str, target: str, **more: Any) -> None:
        (folder / "new").symlink_to(secret)
        replaced(source, target, **more)

    monkeypatch.setattr(os, "replace", link_and_replace)
    ConfinedFolder(str(folder)).write_file(["new"], b"written", may_replace=False)
    assert secret.read_text() == "the secret"
    assert not (folder / "new").is_symlink()
    assert (folder / "new").read_text() == "written"


def test_a_write_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileProblem, match="No space left"):
        ConfinedFolder(str(folder)).write_file(["a", "b", "file"], b"new", may_replace=True)
    assert (folder / "a" / "b" / "file").read_text() == "inside"
    assert [each.name for each in (folder / "a" / "b").iterdir()] == ["file"]


def test_no_descriptor_stays_open(folder: Path) -> None:
    before = sorted(each.name for each in Path("/proc/self/fd").iterdir())
    read(folder, "a/b/file")
    for path in ("a/b", "a/x/y", "a/b/file/x"):
        with pytest.raises(FileProblem):
            read(folder, path)
    ConfinedFolder(str(folder)).write_file(["n", "m"], b"x", may_replace=False)
    assert sorted(each.name for each in Path("/proc/self/fd").iterdir()) == before


def test_the_declared_folder_may_be_a_link(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert read(folder.parent / "link", "a/b/file") == "inside"


def test_a_hard_link_is_neither_read_nor_replaced_nor_searched(folder: Path) -> None:
    """It may be a second name of a file outside."""
    secret = folder.parent / "outside" / "b" / "file"
    (folder / "a" / "linked").hardlink_to(secret)
    with pytest.raises(FileProblem, match=r"a/linked has a second name \(a hard link\)"):
        read(folder, "a/linked")
    with pytest.raises(FileProblem, match="a hard link"):
        ConfinedFolder(str(folder)).write_file(["a", "linked"], b"new", may_replace=True)
    assert secret.read_text() == "the secret"
    assert list_files(str(folder), "a") == "b/\nlinked (a hard link, which is not opened)"
    found = search_files(str(folder), "", "e", is_regex=False, ignores_case=False, files="*", within_s=10)
    assert found == "a/b/file:1: inside"
    secret.unlink()
    assert read(folder, "a/linked") == "the secret", "it has one name now"
