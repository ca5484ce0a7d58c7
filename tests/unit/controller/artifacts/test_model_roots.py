"""The models folders: how they are written, where they are, and which of them has a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.artifacts.facts import ArtifactError
from controller.artifacts.locate import is_inside, locate_path
from controller.artifacts.model_roots import ModelRoots, path_below, split_folders


def test_a_list_names_each_folder_once_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    roots = split_folders(" models , ~/hub,/data/new folder,, models/")
    assert str(roots) == "models,~/hub,/data/new folder,models"
    assert roots.absolute() == ModelRoots(
        (tmp_path / "models", Path("/home/ann/hub"), Path("/data/new folder")), home=Path("/home/ann")
    )
    assert roots.absolute().absolute() == roots.absolute()
    for text in ("", " , "):
        with pytest.raises(ValueError, match="names no folder"):
            split_folders(text)


@pytest.mark.parametrize(
    ("path", "folder", "inner"),
    [
        ("/a/b", "/a", "b"),
        ("//a//./b/", "/a/", "b"),
        ("/a", "/a", "."),
        ("/ab", "/a", None),
        ("/a/../b", "/a", None),
        ("/b", "/", "b"),
        ("/a/..b", "/a", "..b"),
    ],
)
def test_what_lies_below_a_folder(path: str, folder: str, inner: str | None) -> None:
    assert path_below(path, Path(folder)) == inner


@pytest.fixture
def roots(tmp_path: Path) -> ModelRoots:
    made = ModelRoots(tuple(tmp_path / name for name in ("a", "b", "c")))
    for folder, files in zip(made.folders, (["x"], ["x", "y"], ["y", "z"]), strict=True):
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    return made


def test_a_relative_path_means_the_first_folder_that_has_it(roots: ModelRoots) -> None:
    found = {name: locate_path(roots, name) for name in ("x", "y", "z", "none")}
    assert {name: each.root.name for name, each in found.items()} == {"x": "a", "y": "b", "z": "c", "none": "a"}
    assert all(each.path == each.root / name for name, each in found.items())
    assert found["none"].searched_roots == roots.folders


def test_a_broken_link_is_what_a_folder_has(roots: ModelRoots) -> None:
    # The one that is meant is broken: another file in its place would be a surprise.
    (roots.first / "y").symlink_to("nowhere")
    assert locate_path(roots, "y").root == roots.first


def test_an_absolute_path_means_the_folders_that_it_lies_in(roots: ModelRoots, tmp_path: Path) -> None:
    located = locate_path(roots, str(roots.folders[2] / "x"))
    assert (located.path, located.searched_roots) == (roots.folders[2] / "x", (roots.folders[2],))
    link = tmp_path / "link"
    link.symlink_to(roots.folders[1])
    linked = ModelRoots((roots.first, link))
    for spelling in (link / "y", roots.folders[1] / "y"):
        assert locate_path(linked, str(spelling)).path == roots.folders[1] / "y"
    for outside in ("../d/x", "/etc/passwd", str(tmp_path / "d"), "x/../../d"):
        with pytest.raises(ArtifactError, match=r"is outside the models folders /.*/a, /.*/b, /.*/c"):
            locate_path(roots, outside)


def test_whether_a_target_lies_in_a_folder(roots: ModelRoots, tmp_path: Path) -> None:
    assert is_inside(roots, roots.folders[1] / "y")
    assert not is_inside(roots, tmp_path / "abc")
