"""What the watch of the desired files does while their folder is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
import watchfiles

from controller import reconciler
from controller.desired.source import DesiredStateSource
from controller.reconciler import follow_files
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
