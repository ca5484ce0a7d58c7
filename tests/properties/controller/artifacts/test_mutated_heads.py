"""Whatever a model's files hold: what they say, or what is wrong with them; in little memory, after few steps."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from controller.artifacts.heads import Artifact, ArtifactError, Ct2, Gguf, HfFolder, SizedArtifact, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import files_below, read_artifact, read_custom_code
from tests.support.campaign import RecordProperty, campaign_count, campaign_seed, record_figure
from tests.support.mutated_models import SPLIT_NAMES, Files, ct2_model, gguf_model, hub_model, mutate_model, split_model

LONGEST_REASON = 400
MEMORY = (2**19, 40)
"""Most bytes that reading takes at a time: so many, and so many for each byte of the files."""
STEPS = (20_000, 10)
"""Calls of functions likewise, C's included."""
MODELS: dict[str, tuple[Callable[[], Files], str, int]] = {
    "gguf": (gguf_model, "a.gguf", 40_000),
    "split gguf": (split_model, SPLIT_NAMES[0], 15_000),
    "safetensors": (hub_model, "m", 40_000),
    "ct2": (ct2_model, "m", 5_000),
}
"""A valid model, its path, and how many mutations a campaign tries."""


class Steps:
    """Counts the calls of this thread's functions."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Steps:
        sys.setprofile(self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _notice(self, frame: FrameType, event: str, argument: Any) -> None:
        if event.endswith("call"):
            self.count += 1


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def write_files(folder: Path, files: Files, written: Files) -> None:
    """Make the folder hold these files; `written` says what it holds."""
    for name in written.keys() - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        if written.get(name) != content:
            (folder / name).write_bytes(content)
    written.clear()
    written.update(files)


def read_measured(root: Path, path: str) -> tuple[Artifact, int, int]:
    """What is read, the most bytes that it took, and its steps."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with Steps() as steps:
        artifact = read_artifact(path, files_below(ModelRoots((root,)), path))
        with suppress(ArtifactError):
            read_custom_code(root / path)
    return artifact, tracemalloc.get_traced_memory()[1] - before, steps.count


def check_artifact(artifact: Artifact, path: str, files: Files) -> None:
    if not isinstance(artifact, UnreadArtifact):
        assert isinstance(artifact, Gguf | HfFolder | Ct2 | SizedArtifact)
        return
    reason = artifact.reason
    assert reason.isprintable(), "no control characters, no lone surrogates"
    assert len(reason) <= LONGEST_REASON
    assert reason.startswith((path, *SPLIT_NAMES))
    if path == "m":
        names = (name for name in (*files, *hub_model()) if f"m/{name} " in reason)
        assert any(names) or "which its index names" in reason, "which file it is"


@pytest.mark.parametrize("kind", MODELS)
def test_any_head_is_read_or_refused_in_bounded_memory(
    tmp_path: Path, kind: str, traced: None, record_property: RecordProperty
) -> None:
    make, path, full = MODELS[kind]
    valid, written = make(), Files()
    folder = tmp_path / path if path == "m" else tmp_path
    folder.mkdir(exist_ok=True)
    write_files(folder, valid, written)
    artifact, _, _ = read_measured(tmp_path, path)
    assert not isinstance(artifact, UnreadArtifact | SizedArtifact), "the one that is mutated is valid"
    outcomes, most_memory, most_steps = Counter[str](), 0, 0
    for number in range(campaign_count(100, full)):
        files = mutate_model(valid, random.Random(f"{campaign_seed()} {kind} {number}"))
        write_files(folder, files, written)
        if path not in files and path != "m":
            continue
        size = sum(map(len, files.values()))
        try:
            artifact, memory, steps = read_measured(tmp_path, path)
            check_artifact(artifact, path, files)
            if memory > MEMORY[0] + MEMORY[1] * size:
                # A table of the interpreter's own (interned names) grew: not what these files take.
                _, memory, _ = read_measured(tmp_path, path)
            assert memory <= MEMORY[0] + MEMORY[1] * size, f"{memory} bytes for {size}"
            assert steps <= STEPS[0] + STEPS[1] * size, f"{steps} steps for {size} bytes"
        except Exception as error:
            error.add_note(f"{kind}, mutation {number} of seed {campaign_seed()}")
            raise
        outcomes["refused" if isinstance(artifact, UnreadArtifact) else "read"] += 1
        most_memory, most_steps = max(most_memory, memory), max(most_steps, steps)
    record_figure(record_property, "read", outcomes["read"])
    record_figure(record_property, "refused", outcomes["refused"])
    record_figure(record_property, "most KiB of memory", most_memory // 1024)
    record_figure(record_property, "most calls", most_steps)
