"""Where the files of a revision go, beside those of another one."""

from __future__ import annotations

from controller.schema.downloads import PlacedFile
from transfers.downloads.revision_folder import choose_folder
from transfers.sources.base import Resolution, SourceFile

NEW = "b" * 40


def resolution(revision: str | None = NEW, sha256: str | None = "new", size: int = 10) -> Resolution:
    file = SourceFile("m.gguf", size, sha256=sha256, git_sha1="x")
    return Resolution("hf:u/r:Q4", f"hf:u/r:Q4@{revision}", revision, (file,), "u/r", projector="p.gguf")


def placed(path: str, sha256: str, size: int = 10) -> PlacedFile:
    return PlacedFile(path=path, size=size, sha256=sha256, mtime_ns=1)


def test_the_first_revision_has_the_plain_folder() -> None:
    for known in ([], [placed("u/r/m.gguf", "new")], [placed("u/other/m.gguf", "old")]):
        assert choose_folder(resolution(), known).main == "u/r/m.gguf"


def test_another_revision_stands_beside_it() -> None:
    chosen = choose_folder(resolution(), [placed("u/r/m.gguf", "old")])
    assert (chosen.main, chosen.projector_target) == ("u/r@bbbbbbbbbbbb/m.gguf", "u/r@bbbbbbbbbbbb/p.gguf")
    assert choose_folder(resolution(sha256=None), [placed("u/r/m.gguf", "old", 11)]).folder == "u/r@bbbbbbbbbbbb"


def test_it_stays_where_it_is() -> None:
    known = [placed("u/r@bbbbbbbbbbbb/m.gguf", "new")]
    assert choose_folder(resolution(), known).folder == "u/r@bbbbbbbbbbbb", "though the plain folder is free by now"


def test_the_digest_of_a_registry_is_no_part_of_a_path() -> None:
    chosen = choose_folder(resolution(f"sha256:{'c' * 64}"), [placed("u/r/m.gguf", "old")])
    assert chosen.folder == "u/r@cccccccccccc"


def test_a_source_without_revisions_has_one_folder() -> None:
    assert choose_folder(resolution(None), [placed("u/r/m.gguf", "old")]).folder == "u/r"
