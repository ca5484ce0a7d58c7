"""Estimates of memory by the sizes of files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controller import estimates
from controller.engines import ENGINES, engine_of
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.estimates import FRESH_S, ArtifactSizes, estimate
from controller.runtimes.artifacts import artifact_mib
from controller.schema.desired import Definition
from controller.state import DesiredModel, Statement


def model(name: str, definition: Definition) -> DesiredModel:
    return DesiredModel(name, definition, engine_of(definition).name, "h", 1, Statement("file", 0.0, ""))


def gguf(name: str, path: str, **fields: Any) -> DesiredModel:
    return model(name, LlamaServerDefinition.model_validate({"model_path": path, **fields}))


def file(path: Path, mib: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(mib * 2**20)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    def counted(root: Path, path: str) -> int | None:
        asked.append(path)
        return artifact_mib(root, path)

    monkeypatch.setattr(estimates, "artifact_mib", counted)
    return asked


def test_an_estimate_is_for_all_replicas() -> None:
    assert estimate(10, 3) == (30, 3, "model_artifact_size")
    assert estimate(None, 2) == (None, 2, "unavailable")
    assert estimate(0, 2) == (0, 2, "model_artifact_size")


async def test_a_model_s_files_count_together(tmp_path: Path) -> None:
    file(tmp_path / "a.gguf", 3)
    file(tmp_path / "draft.gguf", 2)
    file(tmp_path / "split-00001-of-00002.gguf", 4)
    file(tmp_path / "split-00002-of-00002.gguf", 5)
    sizes = await ArtifactSizes(tmp_path, Clock()).of(
        [
            gguf("one", "a.gguf"),
            gguf("two", "a.gguf", llama_server_draft_model_path="draft.gguf"),
            gguf("half", "a.gguf", llama_server_draft_model_path="gone.gguf"),
            gguf("split", "split-00001-of-00002.gguf"),
            gguf("gone", "gone.gguf"),
            gguf("outside", "../other.gguf"),
            gguf("odd", "a\0.gguf"),
            model("stub", StubDefinition(backend="stub")),
        ]
    )
    assert dict(sizes) == {
        "one": 3, "two": 5, "half": None, "split": 9, "gone": None, "outside": None, "odd": None, "stub": None
    }  # fmt: skip


async def test_sizes_are_read_once_and_again_when_they_are_old(tmp_path: Path, reads: list[str]) -> None:
    file(tmp_path / "a.gguf", 3)
    clock = Clock()
    sizes = ArtifactSizes(tmp_path, clock)
    models = [gguf("one", "a.gguf"), gguf("two", "a.gguf")]
    for answer in await asyncio.gather(*(sizes.of(models) for _ in range(5))):
        assert dict(answer) == {"one": 3, "two": 3}
    assert reads == ["a.gguf"]
    file(tmp_path / "a.gguf", 4)
    clock.now += FRESH_S - 1
    assert (await sizes.of(models))["one"] == 3
    clock.now += 1
    assert (await sizes.of(models))["one"] == 4
    assert reads == ["a.gguf", "a.gguf"]
    clock.now -= 3600
    await sizes.of(models)
    assert len(reads) == 3, "a clock that was set back does not make an old size fresh"


async def test_who_stops_waiting_takes_the_answer_from_nobody(tmp_path: Path, reads: list[str]) -> None:
    file(tmp_path / "a.gguf", 3)
    sizes = ArtifactSizes(tmp_path, Clock())
    first, second = (asyncio.create_task(_one(sizes)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 3
    assert reads == ["a.gguf"]
    with pytest.raises(asyncio.CancelledError):
        await first


async def _one(sizes: ArtifactSizes) -> int | None:
    return (await sizes.of([gguf("one", "a.gguf")]))["one"]


def test_no_backend_names_an_artifact_that_is_not_a_path() -> None:
    assert {engine.artifacts(StubDefinition(backend="stub")) for engine in (ENGINES["stub"],)} == {()}
