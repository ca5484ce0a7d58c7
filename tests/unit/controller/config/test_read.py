"""The folder as the file system gives it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import MAX_FILE_BYTES, parse_folder, read_folder

GOOD = "models: {a: {backend: stub}}\n"


def test_which_files_are_read_and_in_which_order(tmp_path: Path) -> None:
    for name in ("local.yaml", "b.yml", "a.json", "z.yaml", ".hidden.yaml", "schema.json", "notes.txt", "c.yaml~"):
        (tmp_path / name).write_text(GOOD)
    (tmp_path / "folder.yaml").mkdir()
    snapshot = read_folder(tmp_path)
    assert list(snapshot.files) == ["a.json", "b.yml", "z.yaml", "local.yaml"]
    assert snapshot.problems == ()
    assert snapshot.files["b.yml"] == GOOD.encode()


def test_what_is_no_folder_is_an_error(tmp_path: Path) -> None:
    parsed = parse_folder(read_folder(tmp_path / "none"), ModelRoots((tmp_path,)))
    [problem] = parsed.problems
    assert str(problem) == f"{tmp_path}/none: the desired-state folder cannot be read: No such file or directory"
    (tmp_path / "models.yaml").write_text(GOOD)
    assert "Not a directory" in str(read_folder(tmp_path / "models.yaml").problems[0])


def test_a_file_that_cannot_be_read_is_an_error_and_others_are_still_read(tmp_path: Path) -> None:
    (tmp_path / "data").write_text(GOOD)
    (tmp_path / "a.yaml").symlink_to("data")
    assert list(parse_folder(read_folder(tmp_path), ModelRoots((tmp_path,))).definitions) == ["a"]
    (tmp_path / "b.yaml").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "c.yaml")
    with (tmp_path / "d.yaml").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    snapshot = read_folder(tmp_path)
    assert list(snapshot.files) == ["a.yaml"]
    nowhere, pipe, huge = map(str, snapshot.problems)
    assert nowhere == f"{tmp_path}/b.yaml: cannot be read: No such file or directory"
    assert pipe == f"{tmp_path}/c.yaml: cannot be read: not a regular file", "and it is not waited for"
    assert "d.yaml" in huge
    assert "larger than 4 MiB" in huge
    assert not parse_folder(snapshot, ModelRoots((tmp_path,))).is_valid


def test_problems_name_files_as_the_operator_named_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desired").mkdir()
    (tmp_path / "desired" / "models.yaml").write_text("models: 3")
    problem = parse_folder(read_folder(Path("desired")), ModelRoots((tmp_path,))).problems[0]
    assert (problem.file, problem.line) == ("desired/models.yaml", 1)
