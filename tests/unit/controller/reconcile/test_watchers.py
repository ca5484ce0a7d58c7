"""What the watch of the desired files does while their folder is missing, and that of models' files."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import watchfiles

from controller import reconciler
from controller.artifacts.model_roots import ModelRoots
from controller.desired.source import DesiredStateSource
from controller.engines.llama_server import LlamaServerDefinition
from controller.reconciler import follow_files, follow_model_files
from controller.state import DesiredModel, Statement
from tests.support.wait import until

NO_FILES = cast("DesiredStateSource", None)
"""They are not read before the folder is there."""


async def test_a_missing_folder_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def watch(folder: Path, **settings: Any) -> Any:
        tries.append(folder)
        return watchfiles.awatch(folder, **settings)

    monkeypatch.setattr(reconciler, "awatch", watch)
    monkeypatch.setattr(reconciler, "WATCH_RETRY_S", 0.001)
    stop = asyncio.Event()
    task = asyncio.create_task(follow_files(NO_FILES, tmp_path / "missing", lambda: None, stop))
    await until("it was tried again", lambda: len(tries) > 3)
    stop.set()
    await task
    assert len(caplog.messages) == 1
    assert "cannot be watched" in caplog.text


async def test_the_end_does_not_wait_for_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconciler, "WATCH_RETRY_S", 3600.0)
    stop = asyncio.Event()
    task = asyncio.create_task(follow_files(NO_FILES, tmp_path / "missing", lambda: None, stop))
    await until("it failed", lambda: bool(caplog.messages))
    stop.set()
    async with asyncio.timeout(30):
        await task


KEY = ("m", "hash")


@pytest.mark.parametrize(
    ("seen", "retried_at"),
    [
        ([None, None, None], []),
        ([None, 10, 10, 10], [2]),
        ([None, 3, 6, 10, 10], [4]),
        ([5, 5, 10, 10, 10, 12, 12], [3, 6]),
        ([5, None, None, None], [2]),
        ([None, 10, None, None], []),
        ([None, 10, 20, 20, None, None], [3, 5]),
    ],
    ids=["missing", "moved in", "copied slowly", "grows twice", "goes away", "comes and goes", "comes late, and goes"],
)
def test_a_model_is_tried_again_once_its_files_are_others_and_whole(
    seen: list[int | None], retried_at: list[int]
) -> None:
    """`seen`: the size of the one file at each look, while the model goes on to fail."""
    looks: reconciler.FileLooks = {}
    retried = []
    for number, size in enumerate(seen):
        stamps = {"m.gguf": None if size is None else (("/models/m.gguf", size, 0),)}
        looks, changed = reconciler.find_changed_files(looks, {KEY: stamps})
        if changed:
            assert changed == [KEY]
            retried.append(number)
    assert retried == retried_at


def test_a_model_that_fails_no_more_is_seen_anew_when_it_fails_again() -> None:
    before, after = ({"m.gguf": each} for each in (None, (("/models/m.gguf", 1, 0),)))
    looks, _ = reconciler.find_changed_files({}, {KEY: before})
    looks, _ = reconciler.find_changed_files(looks, {})
    assert looks == {}
    looks, _ = reconciler.find_changed_files(looks, {KEY: after})
    assert reconciler.find_changed_files(looks, {KEY: after}) == ({KEY: (after, after)}, [])


async def test_files_are_looked_at_below_the_models_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "FILE_LOOK_S", 0.001)
    definition = LlamaServerDefinition.model_validate({"model_path": "sub/m.gguf", "llama_server_mmproj": "eye.gguf"})
    model = DesiredModel("m", definition, "llama_server", "hash", 1, Statement("file", 0.0, "enabled"))
    looked: list[DesiredModel] = []
    retried: list[DesiredModel] = []

    def list_failed() -> list[DesiredModel]:
        looked.append(model)
        return [model]

    def is_retried(times: int) -> bool:
        return len(retried) == times

    async def retry(tried: DesiredModel) -> None:
        retried.append(tried)

    task = asyncio.create_task(follow_model_files(list_failed, ModelRoots((tmp_path,)), retry))
    for tries, name in enumerate(("sub/m.gguf", "eye.gguf")):
        looked.clear()
        await until("some looks", lambda: len(looked) > 3)
        assert len(retried) == tries, "nothing has changed"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
        await until(f"{name} is seen", partial(is_retried, tries + 1))
    assert retried == [model, model]
    task.cancel()
    await asyncio.wait({task})
