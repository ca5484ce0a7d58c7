"""The user with the least rights that can read a model."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.runtimes.docker.user import UNPRIVILEGED, FileEntry, UserIdentity, choose_identity, entries_to_read

FILE, FOLDER = stat.S_IFREG, stat.S_IFDIR


def file(uid: int, mode: int, gid: int | None = None) -> FileEntry:
    return FileEntry(uid, uid if gid is None else gid, FILE | mode)


def folder(uid: int, mode: int) -> FileEntry:
    return FileEntry(uid, uid, FOLDER | mode)


@pytest.mark.parametrize(
    ("entries", "identity"),
    [
        ([], UserIdentity(UNPRIVILEGED, UNPRIVILEGED)),
        ([file(1000, 0o600), folder(1000, 0o700)], UserIdentity(1000, 1000)),
        ([file(1000, 0o644), folder(0, 0o755)], UserIdentity(1000, 1000)),
        ([file(0, 0o644), folder(0, 0o755)], UserIdentity(UNPRIVILEGED, UNPRIVILEGED)),
        ([file(0, 0o600), folder(0, 0o755)], UserIdentity(0, 0)),
        ([file(0, 0o644), folder(0, 0o700)], UserIdentity(0, 0)),
        # readable, but a folder above it cannot be entered
        ([file(1000, 0o644), folder(0, 0o754)], UserIdentity(0, 0)),
        ([file(1000, 0o600), folder(2000, 0o700)], UserIdentity(0, 0, ("DAC_OVERRIDE",))),
        ([file(1000, 0o600), file(2000, 0o600)], UserIdentity(0, 0, ("DAC_OVERRIDE",))),
        ([file(1000, 0o600), file(0, 0o600)], UserIdentity(0, 0, ("DAC_OVERRIDE",))),
        # the second owner can read what the first one cannot
        ([file(1000, 0o644), file(2000, 0o600)], UserIdentity(2000, 2000)),
        ([file(0, 0o640, gid=50), file(1000, 0o644, gid=50)], UserIdentity(1000, 50)),
        # an owner without the right, although everybody else has it
        ([file(1000, 0o044)], UserIdentity(UNPRIVILEGED, UNPRIVILEGED)),
    ],
)
def test_the_least_rights_that_suffice(entries: list[FileEntry], identity: UserIdentity) -> None:
    assert choose_identity(entries) == identity
    assert identity.user == f"{identity.uid}:{identity.gid}"


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root")
def test_what_must_be_read_is_the_model_all_below_it_and_the_way_to_it(tmp_path: Path) -> None:
    inside = tmp_path / "org" / "model"
    inside.mkdir(parents=True)
    for uid, path in enumerate((tmp_path, tmp_path / "org", inside), start=1):
        os.chown(path, uid, uid)
    for uid, name in ((10, "a"), (11, "b")):
        (inside / name).write_bytes(b"x")
        os.chown(inside / name, uid, uid)
    (tmp_path / "other").write_bytes(b"x")
    os.chown(tmp_path / "other", 99, 99)
    found = [entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), ["org/model"])]
    assert found[0] == 3, "the model's own folder first"
    assert sorted(found[1:3]) == [10, 11]
    assert sorted(found[3:]) == [1, 2]
    assert [entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), [])] == [1]
    assert [entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), ["missing"])] == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root")
def test_links_are_followed_to_what_they_name(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "1").write_bytes(b"x")
    os.chown(blobs / "1", 10, 10)
    os.chown(blobs, 5, 5)
    (tmp_path / "m.gguf").symlink_to("blobs/1")
    assert {entry.uid for entry in entries_to_read(ModelRoots((tmp_path,)), ["m.gguf"])} == {10, 5, 0}


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root")
def test_only_the_folders_on_the_way_count_and_those_on_both_sides_of_a_link(tmp_path: Path) -> None:
    first, hub = tmp_path / "first", tmp_path / "hub"
    snapshot, blobs = hub / "snapshots" / "1", hub / "blobs"
    for folder in (first, snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "b").write_bytes(b"x")
    (snapshot / "m.gguf").symlink_to("../../blobs/b")
    for uid, path in enumerate((first, hub, hub / "snapshots", snapshot, blobs, blobs / "b"), start=1):
        os.chown(path, uid, uid)
    roots = ModelRoots((first, hub))
    for declared in ("snapshots/1/m.gguf", "snapshots/1"):
        assert {entry.uid for entry in entries_to_read(roots, [declared])} == {2, 3, 4, 5, 6}
    assert {entry.uid for entry in entries_to_read(roots, [])} == {1}
