"""Disks without room: said before the first byte where it can be known, else at once, and gone on with later."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.support.download_site import (
    SEGMENT_BYTES,
    hash_files,
    list_models,
    list_partials,
    open_site,
)
from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository
from tests.support.small_disk import mount_small_disk
from tests.support.transfers_harness import error_code

FILES: dict[str, bytes | Path] = {"model-Q4_K_M.gguf": random.Random(3).randbytes(20 * SEGMENT_BYTES)}
REFERENCE = "hf:some/model:Q4_K_M"
RIGHT = hash_files("some/model", FILES)


def make_hub(*faults: Fault) -> FakeHub:
    return FakeHub([HubRepository("some/model", FILES)], faults=FaultPlan(*faults))


def test_a_disk_that_fills_up_meanwhile_fails_the_download_which_goes_on_later(tmp_path: Path) -> None:
    models = tmp_path / "models"
    stall = Fault("stall", after_bytes=100, skip=6, times=3)
    with (
        make_hub(stall) as hub,
        mount_small_disk(models, kib=1200) as disk,
        open_site(models, hub.endpoint) as site,
    ):
        download = site.order(REFERENCE)
        hub.faults.wait_hit()
        disk.fill()
        found = site.wait_final(download)
        assert found.state == "failed"
        assert error_code(found) == "models_disk_full"
        hub.faults.clear()
        hub.clear_requests()
        disk.free()
        assert list_models(models) == {}
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(models) == RIGHT
        assert list_partials(models) == []
        ranges = [each.headers["range"] for each in hub.requests if each.server == "storage"]
        assert "bytes=0-32767" not in ranges


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_without_room_is_a_full_disk_on_any_file_system(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.pwrite, [10 * SEGMENT_BYTES]

    def write_some(descriptor: int, data: memoryview, position: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return write(descriptor, data, position)

    with make_hub() as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        monkeypatch.setattr(os, "pwrite", write_some)
        found = site.pull(REFERENCE)
        monkeypatch.undo()
        assert error_code(found) == "models_disk_full"
        assert list_models(site.models) == {}
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == RIGHT


def test_a_disk_that_is_full_when_the_files_are_moved_is_said_to_be_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def link_nothing(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with make_hub() as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        monkeypatch.setattr(os, "link", link_nothing)
        found = site.pull(REFERENCE)
        monkeypatch.undo()
        assert error_code(found) == "models_disk_full"
        assert "the models folder fails: " in caplog.text
        assert "Traceback" not in caplog.text
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == RIGHT
