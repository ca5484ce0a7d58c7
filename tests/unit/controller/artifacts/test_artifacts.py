"""The models folders, which of them has a model, and what is said of its files."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots, path_below, split_folders
from controller.artifacts.read import is_inside, locate_path
from controller.engines.base import FileCheck
from controller.runtimes.model_files import check_files

Kind = Literal["gguf", "file", "folder", "any"]


def check(root: Path | ModelRoots, path: str, kind: Kind = "gguf", inside: str = "") -> str | None:
    roots = root if isinstance(root, ModelRoots) else ModelRoots((root,))
    return check_files(roots, [FileCheck("model_path", path, kind, inside)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    (root / "llama").mkdir(parents=True)
    (root / "llama" / "llama-3-q4.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    (root / "config.json").write_text("{}")
    (root / "hf").mkdir()
    (root / "hf" / "config.json").write_text("{}")
    return root


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("llama/llama-3-q4.gguf", "gguf"),
        ("llama/llama-3-q4.gguf", "file"),
        ("llama/llama-3-q4.gguf", "any"),
        ("config.json", "file"),
        ("hf", "folder"),
        ("hf", "any"),
        ("./llama/../hf", "folder"),
    ],
)
def test_a_good_file_is_not_spoken_of(root: Path, path: str, kind: Kind) -> None:
    assert check(root, path, kind) is None
    assert check(root, str(root / path), kind) is None


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("llama/llama-3-q5.gguf", "gguf", "is missing from ROOT; did you mean `llama/llama-3-q4.gguf`?"),
        ("llama-3-q4.gguf", "gguf", "is missing from ROOT; did you mean `llama/llama-3-q4.gguf`?"),
        ("somewhere/llama-3-q4.gguf", "gguf", "is missing from ROOT; did you mean `llama/llama-3-q4.gguf`?"),
        ("confg.json", "gguf", "is missing from ROOT"),
        ("confg.json", "file", "is missing from ROOT; did you mean `config.json`?"),
        ("hff", "folder", "is missing from ROOT; did you mean `hf`?"),
        ("config.json/x.gguf", "gguf", "is missing from ROOT: one of its folders is a file"),
        ("llama", "gguf", "is a folder, and a GGUF file is needed: name the file in it, `llama-3-q4.gguf`"),
        ("hf", "gguf", "is a folder, and a GGUF file is needed"),
        ("hf", "file", "is a folder, and a file is needed"),
        ("config.json", "folder", "is a file, and a folder is needed"),
        ("config.json", "gguf", "is not a GGUF file: it begins with b'{}', not b'GGUF'"),
        ("../models.gguf", "gguf", "is outside the models folder ROOT"),
        ("/etc/passwd", "any", "is outside the models folder ROOT"),
    ],
)
def test_a_wrong_path_is_told_with_its_field(root: Path, path: str, kind: Kind, message: str) -> None:
    assert check(root, path, kind) == f"model_path: {path} {message.replace('ROOT', str(root))}"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("b.gguf", "a.gguf"), "is a folder with 2 GGUF models: name one of them (a.gguf, b.gguf)"),
        (("A.GGUF", "b.gguf", "x.txt"), "is a folder with 2 GGUF models: name one of them (A.GGUF, b.gguf)"),
        (
            ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"),
            "is a folder, and a GGUF file is needed: name the file in it, `m-00001-of-00002.gguf`",
        ),
        (tuple(f"{each}.gguf" for each in "abcdefg"), "is a folder with 7 GGUF models: name one of them (a.gguf, b.g"),
    ],
)
def test_a_folder_of_several_models_is_told_as_such(root: Path, names: tuple[str, ...], message: str) -> None:
    (root / "many").mkdir()
    for name in names:
        (root / "many" / name).write_bytes(b"GGUF")
    assert (check(root, "many", "gguf") or "").startswith(f"model_path: many {message}")


def test_contents_that_are_no_model(root: Path) -> None:
    (root / "empty.gguf").touch()
    (root / "lfs.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    (root / "none").mkdir()
    os.mkfifo(root / "pipe.gguf")
    assert check(root, "empty.gguf") == "model_path: empty.gguf is empty"
    assert "is a Git LFS pointer" in (check(root, "lfs.gguf") or "")
    assert check(root, "none", "folder") == "model_path: none is an empty folder"
    assert check(root, "pipe.gguf", "any") == "model_path: pipe.gguf is not a regular file"


def test_links_may_not_leave_the_models_folder(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"GGUF")
    (root / "inside.gguf").symlink_to("llama/llama-3-q4.gguf")
    (root / "outside.gguf").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    (root / "dangling.gguf").symlink_to("nowhere.gguf")
    (root / "circle.gguf").symlink_to("circle.gguf")
    assert check(root, "inside.gguf") is None
    advice = f"`ROUNDHOUSE_MODELS={root},{tmp_path}` (or `--models`) adds the folder {tmp_path}"
    refused = f"is a symbolic link to {outside}, outside the models folder {root}: {advice}"
    assert check(root, "outside.gguf") == f"model_path: outside.gguf {refused}"
    assert check(root, "folder/outside.gguf") == f"model_path: folder/outside.gguf {refused}"
    dangling = "model_path: dangling.gguf is a symbolic link to nowhere.gguf, which does not exist"
    assert check(root, "dangling.gguf") == dangling
    assert re.search("circle|symbolic links", check(root, "circle.gguf") or "")
    # The models folder may be a link itself.
    link = tmp_path / "link"
    link.symlink_to(root)
    assert check(link, "llama/llama-3-q4.gguf") is None
    assert check(link, str(link / "llama/llama-3-q4.gguf")) is None
    assert check(link, str(root / "llama/llama-3-q4.gguf")) is None


@pytest.fixture
def further(root: Path, tmp_path: Path) -> ModelRoots:
    """The models folder, and one beside it."""
    beside = tmp_path / "further"
    (beside / "llama").mkdir(parents=True)
    (beside / "llama" / "other.gguf").write_bytes(b"GGUF")
    return ModelRoots((root, beside))


def test_a_file_may_lie_in_any_models_folder(root: Path, further: ModelRoots) -> None:
    other = further.folders[1]
    (root / "link.gguf").symlink_to(other / "llama" / "other.gguf")
    for path in ("llama/other.gguf", str(other / "llama" / "other.gguf"), "link.gguf"):
        assert check(further, path) is None
    missing = f"is missing from {root} and {other}"
    expected = f"model_path: llama/othr.gguf {missing}; did you mean `llama/other.gguf`?"
    assert check(further, "llama/othr.gguf") == expected
    assert check(further, f"{other}/x") == f"model_path: {other}/x is missing from {other}"
    # What is in a folder of that name elsewhere does not count: the engine is given one folder.
    (other / "hf").mkdir()
    (other / "hf" / "model.bin").touch()
    assert check(further, "hf", "file", "model.bin") == f"model_path: hf/model.bin is missing from {root}"


def test_a_link_out_of_all_models_folders(root: Path, further: ModelRoots, tmp_path: Path) -> None:
    blob = tmp_path / "hub" / "models--a--b" / "blobs" / "0123"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"GGUF")
    (root / "link.gguf").symlink_to(blob)
    advice = f"`ROUNDHOUSE_MODELS={further},{tmp_path}/hub` (or `--models`) adds the folder {tmp_path}/hub"
    assert check(further, "link.gguf") == (
        f"model_path: link.gguf is a symbolic link to {blob}, outside the models folders {root}, "
        f"{further.folders[1]}: {advice}"
    )


def test_models_folders_that_do_not_exist_or_lead_in_a_circle(root: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert check(none, "m.gguf") == f"the models folder {none} does not exist"
    assert check_files(ModelRoots((none,)), []) is None
    away = ModelRoots((none, tmp_path / "nor"))
    assert check(away, "m.gguf") == f"none of the models folders {none}, {tmp_path}/nor exists"
    one_away = ModelRoots((none, root))
    assert check(one_away, "llama/llama-3-q4.gguf") is None
    missing = f"model_path: none.gguf is missing from {none} (which does not exist) and {root}"
    assert check(one_away, "none.gguf") == missing
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    roots = ModelRoots((tmp_path / "a", root))
    assert roots.resolve().folders[1] == root
    assert check(roots, "llama/llama-3-q4.gguf") is None
    assert check(tmp_path / "a", "m.gguf") == f"the models folder {tmp_path / 'a'} does not exist"


def test_the_first_wrong_file_is_told(root: Path) -> None:
    checks = [
        FileCheck("model_path", "llama/llama-3-q4.gguf", "gguf"),
        FileCheck("llama_server_mmproj", "nothing", "gguf"),
        FileCheck("other", "nothing", "gguf"),
    ]
    assert check_files(ModelRoots((root,)), checks) == f"llama_server_mmproj: nothing is missing from {root}"


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A models folder that everybody may enter, seen by a user without rights."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder).resolve()
        root.chmod(0o755)
        (root / "locked").mkdir()
        (root / "locked" / "m.gguf").write_bytes(b"GGUF")
        (root / "m.gguf").write_bytes(b"GGUF")
        (root / "locked").chmod(0)
        (root / "m.gguf").chmod(0)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)
        try:
            yield root
        finally:
            if was_root:
                os.seteuid(0)
            (root / "locked").chmod(0o700)


def test_files_that_may_not_be_read(as_nobody: Path) -> None:
    assert check(as_nobody, "m.gguf") == "model_path: m.gguf cannot be read: Permission denied"
    assert check(as_nobody, "locked/m.gguf") == "model_path: locked/m.gguf cannot be read: Permission denied"


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
def three(tmp_path: Path) -> ModelRoots:
    for name, files in (("a", "x"), ("b", "xy"), ("c", "yz")):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    return ModelRoots(tuple(tmp_path / name for name in "abc"))


def test_a_relative_path_means_the_first_folder_that_has_it(three: ModelRoots) -> None:
    found = {name: locate_path(three, name) for name in ("x", "y", "z", "none")}
    assert {name: each.root.name for name, each in found.items()} == {"x": "a", "y": "b", "z": "c", "none": "a"}
    assert all(each.path == each.root / name for name, each in found.items())
    assert found["none"].searched_roots == three.folders
    # The one that is meant is broken: another file in its place would be a surprise.
    (three.first / "y").symlink_to("nowhere")
    assert locate_path(three, "y").root == three.first


def test_an_absolute_path_means_the_folders_that_it_lies_in(three: ModelRoots, tmp_path: Path) -> None:
    located = locate_path(three, str(three.folders[2] / "x"))
    assert (located.path, located.searched_roots) == (three.folders[2] / "x", (three.folders[2],))
    link = tmp_path / "link"
    link.symlink_to(three.folders[1])
    linked = ModelRoots((three.first, link))
    for spelling in (link / "y", three.folders[1] / "y"):
        assert locate_path(linked, str(spelling)).path == three.folders[1] / "y"
    for outside in ("../d/x", "/etc/passwd", str(tmp_path / "d"), "x/../../d"):
        with pytest.raises(ArtifactError, match=r"is outside the models folders /.*/a, /.*/b, /.*/c"):
            locate_path(three, outside)
    assert is_inside(three, three.folders[1] / "y")
    assert not is_inside(three, tmp_path / "abc")
