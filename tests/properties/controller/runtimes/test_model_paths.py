"""Whatever links lie in models folders: what may start is read from these folders, by controller and engine alike."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path, PurePosixPath

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below
from controller.engines.base import FileCheck
from controller.runtimes.docker.container_spec import models_targets
from controller.runtimes.model_files import check_files, find_engine_paths, mount_roots
from tests.support.campaign import campaign_count

FILES = ("models/f", "models/a/f", "models/a/a/f", "hub/f", "hub/b/f", "outside/f", "outside/a/f")
"""`models` and `hub` hold models."""
ENDS = ("models", "models/a", "hub", "hub/b", "outside", "outside/a", "models/x", "models/y", "hub/x", "hub/y")
"""Folders, and where links may be made."""
Links = list[tuple[str, str, bool]]
"""Each link's place, what it names, and whether it names that by a relative path."""


@st.composite
def links_and_path(draw: st.DrawFn) -> tuple[Links, str]:
    """Links, and a model path over one of them as a rule; `ROOT` stands for the folder that holds all."""
    places = st.sampled_from(("models/x", "models/y", "models/a/x", "hub/x", "hub/y", "hub/b/x", "outside/x"))
    link = st.tuples(places, st.sampled_from((*FILES, *FILES, *ENDS)), st.booleans())
    links = draw(st.lists(link, min_size=1, max_size=6, unique_by=lambda each: each[0]))
    start = draw(st.sampled_from((*(place for place, _, _ in links), "models", "hub")))
    path = "/".join((start, *draw(st.lists(st.sampled_from(("x", "y", "a", "f", "f", "..")), max_size=2))))
    return links, f"ROOT/{path}" if draw(st.booleans()) else path.partition("/")[2] or path


def make_folders(root: Path, links: Links) -> ModelRoots:
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(file)
    for place, end, is_relative in links:
        (root / place).symlink_to(os.path.relpath(root / end, (root / place).parent) if is_relative else root / end)
    return ModelRoots((root / "models", root / "hub"))


def read_in_container(path: PurePosixPath, mounts: dict[PurePosixPath, Path]) -> Path | None:
    """What the kernel finds at a path in a container that has these mounts and nothing else; None: nothing."""
    done, todo = PurePosixPath("/"), [*path.parts[1:]]
    for _ in range(200):
        if not todo:
            break
        part = todo.pop(0)
        if part == "..":
            done = done.parent
            continue
        done /= part
        outside = next(
            (folder / done.relative_to(target) for target, folder in mounts.items() if done.is_relative_to(target)),
            None,
        )
        if outside is None or not os.path.lexists(outside):
            return None
        if outside.is_symlink():
            text = PurePosixPath(os.readlink(outside))  # noqa: PTH115 - as it is written
            done = PurePosixPath("/") if text.is_absolute() else done.parent
            todo[:0] = text.parts[1:] if text.is_absolute() else text.parts
    else:
        return None
    return next(
        (folder / done.relative_to(target) for target, folder in mounts.items() if done.is_relative_to(target)), None
    )


@settings(max_examples=campaign_count(60, 2_000), deadline=None)
@given(case=links_and_path())
def test_what_may_start_is_read_from_the_models_folders(case: tuple[Links, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        root = Path(folder).resolve()
        roots, path = make_folders(root, case[0]), case[1].replace("ROOT", str(root))
        if check_files(roots, [FileCheck("model_path", path, "file")]) is not None:
            return
        target = Path(find_engine_paths(roots, [path])[path]).resolve(strict=True)
        assert target.read_text().startswith(("models/", "hub/"))
        mounts = mount_roots(roots, models_targets(2))
        inside = PurePosixPath(find_engine_paths(roots, [path], mounts)[path])
        seen = read_in_container(inside, {target: each for each, target in mounts.items()})
        assert seen == target, "an engine in a container reads the same file"


@settings(max_examples=campaign_count(60, 2_000), deadline=None)
@given(case=links_and_path())
def test_no_head_is_read_outside_of_the_models_folders(case: tuple[Links, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        root = Path(folder).resolve()
        roots, path = make_folders(root, case[0]), case[1].replace("ROOT", str(root))
        try:
            files = files_below(roots, path)
        except ArtifactError:
            return
        if len(files) == 1:  # what lies in a folder is the folder's affair
            assert any(files[0].resolve().is_relative_to(each) for each in roots.folders)
