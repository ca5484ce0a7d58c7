"""Downloads that end early, for want of room too, and begin again: what is kept, not trusted, and removed."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, Fault, FaultPlan, HubRepository
from tests.support.small_disk import mount_small_disk
from tests.support.transfers_harness import (
    SEGMENT_BYTES,
    DownloadSite,
    error_code,
    hash_files,
    list_models,
    list_partials,
    open_site,
)
from transfers.fetch import DownloadProgress
from transfers.models_folder import ModelsFolder

NAME = "model-Q4_K_M.gguf"
CONTENT = random.Random(9).randbytes(9 * SEGMENT_BYTES + 5)
REFERENCE = "hf:some/model:Q4_K_M"
RIGHT = hash_files("some/model", {NAME: CONTENT})
DEAD = Fault("status", status=503, skip=5, times=0)
"""The storage gives five ranges, and no more."""


def make_hub(*faults: Fault) -> FakeHub:
    return FakeHub([HubRepository("some/model", {NAME: CONTENT})], faults=FaultPlan(*faults))


def fail_midway(site: DownloadSite, hub: FakeHub) -> Path:
    """Let a download fail when a part is here, and mend the hub. Returns the partial file."""
    found = site.pull(REFERENCE)
    assert error_code(found) == "source_unavailable"
    hub.faults.clear()
    hub.clear_requests()
    return site.folder.partial_path(found.id, NAME)


def count_bytes(hub: FakeHub) -> int:
    """Bytes of all ranges that the storage was asked for."""
    ranges = (each.headers["range"].removeprefix("bytes=") for each in hub.requests if each.server == "storage")
    return sum(int(last) + 1 - int(first) for first, _, last in (each.partition("-") for each in ranges))


def test_a_download_that_failed_goes_on_with_what_is_here(tmp_path: Path) -> None:
    with make_hub(DEAD) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        fail_midway(site, hub)
        assert site.pull(REFERENCE).state == "finished"
        assert count_bytes(hub) <= len(CONTENT) - 3 * SEGMENT_BYTES
        assert list_models(site.models) == RIGHT
        assert list_partials(site.models) == []


def overwrite(content: bytes) -> Callable[[Path, Path], object]:
    return lambda partial, _: partial.write_bytes(content + partial.read_bytes()[len(content) :])


def note(lines: bytes) -> Callable[[Path, Path], object]:
    return lambda _, journal: journal.write_bytes(journal.read_bytes() + lines)


SPOILED: dict[str, Callable[[Path, Path], object]] = {
    "other bytes": overwrite(b"not what was there"),
    "cut": lambda partial, _: os.truncate(partial, 10),
    "removed": lambda partial, _: partial.unlink(),
    "everything claimed": note(b"\n0 %d\n" % len(CONTENT)),
    "nonsense": note(b"\n7 3\n-1 5\n0 99999999999999\n\xff\xfe\n1 2 3\n12"),
    "other content": lambda _, journal: journal.write_text(f"{len(CONTENT)} {'0' * 64}\n\n0 {len(CONTENT)}\n"),
}
"""What happens to a partial file and its journal."""


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_here_is_not_believed(how: str, tmp_path: Path) -> None:
    """As a power cut leaves it, which may keep the journal and lose bytes."""
    with make_hub(DEAD) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        partial = fail_midway(site, hub)
        SPOILED[how](partial, partial.with_name(f"{partial.name}.journal"))
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == RIGHT
        assert list_partials(site.models) == []


def test_a_download_goes_on_by_itself_with_the_commit_that_it_began_with(tmp_path: Path) -> None:
    models = tmp_path / "models"
    stall = Fault("stall", after_bytes=100, skip=5, times=0)
    with make_hub(stall) as hub:
        with open_site(models, hub.endpoint) as site:
            download = site.order(REFERENCE)
            hub.faults.wait_hit()
        assert list_models(models) == {}
        hub.faults.clear()
        hub.repositories["some/model"].commit({NAME: b"another model"})
        with open_site(models, hub.endpoint) as site:
            assert site.wait_final(download).state == "finished"
        assert list_models(models) == RIGHT
        assert list_partials(models) == []


def test_a_file_that_changed_at_the_source_begins_anew(tmp_path: Path) -> None:
    other = random.Random(10).randbytes(len(CONTENT))
    with make_hub(DEAD) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        fail_midway(site, hub)
        hub.repositories["some/model"].commit({NAME: other})
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == hash_files("some/model", {NAME: other})


def test_why_nothing_comes_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str | None] = []
    monkeypatch.setattr(DownloadProgress, "set_waiting", lambda _self, reason: said.append(reason))
    busy = Fault("status", site="resolve", status=429, retry_after="0")
    with make_hub(busy) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        assert site.pull(REFERENCE).state == "finished"
    assert "127.0.0.1 answers status 429 and asks to wait 0 s" in said
    assert said[-1] is None


def test_a_source_that_asks_to_wait_for_too_long_is_given_up(tmp_path: Path) -> None:
    fault = Fault("status", site="resolve", status=429, retry_after="86400")
    with make_hub(fault) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        found = site.pull(REFERENCE)
    assert found.error is not None
    assert (found.error.code, "86400" in found.error.message) == ("source_unavailable", True)


@pytest.mark.parametrize("faults", [(), (Fault("ignored_range", times=0),)], ids=["range", "whole"])
@pytest.mark.parametrize(
    "other", [CONTENT * 3, CONTENT[:-1], b"", CONTENT[::-1]], ids=["more", "less", "none", "other"]
)
def test_a_hub_that_lies_about_a_file_is_found_out(faults: tuple[Fault, ...], other: bytes, tmp_path: Path) -> None:
    """The storage has another file than the hub's list says. No more is written than was announced."""
    with make_hub(*faults) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        hub.repositories["some/model"].swap_content(NAME, other)
        found = site.pull(REFERENCE)
        sizes = [path.stat().st_size for path in site.folder.own.glob("partial/*/*")]
        assert list_models(site.models) == {}
    assert error_code(found) == "source_mismatch"
    assert max(sizes, default=0) <= len(CONTENT)


def test_a_file_of_an_address_that_claims_to_be_huge_is_not_begun(tmp_path: Path) -> None:
    with make_hub(Fault("huge", times=0)) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        address = hub.store(CONTENT)
        found = site.pull(f"{address}#sha256={'0' * 64}")
        assert len(hub.requests) == 2
    assert error_code(found) == "models_disk_full"


def test_the_main_file_appears_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees the main file sees all of the model."""
    placed: list[str] = []
    place = ModelsFolder.place_file

    def note(self: ModelsFolder, partial: Path, target: str, *, replaces: bool = False) -> object:
        placed.append(target)
        return place(self, partial, target, replaces=replaces)

    monkeypatch.setattr(ModelsFolder, "place_file", note)
    names = [f"a-Q8_0-{number:05d}-of-00003.gguf" for number in (1, 2, 3)] + ["mmproj-F16.gguf"]
    repository = HubRepository("some/model", {name: name.encode() for name in names})
    with FakeHub([repository]) as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        found = site.pull("some/model")
    assert found.main == "some/model/a-Q8_0-00001-of-00003.gguf"
    assert len(placed) == len(names)
    assert placed[-1] == found.main


LARGE: dict[str, bytes | Path] = {"model-Q4_K_M.gguf": random.Random(3).randbytes(20 * SEGMENT_BYTES)}
LARGE_RIGHT = hash_files("some/model", LARGE)


def make_large_hub(*faults: Fault) -> FakeHub:
    return FakeHub([HubRepository("some/model", LARGE)], faults=FaultPlan(*faults))


def test_a_disk_that_fills_up_meanwhile_fails_the_download_which_goes_on_later(tmp_path: Path) -> None:
    models = tmp_path / "models"
    stall = Fault("stall", after_bytes=100, skip=6, times=3)
    with (
        make_large_hub(stall) as hub,
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
        assert list_models(models) == LARGE_RIGHT
        assert list_partials(models) == []
        ranges = [each.headers["range"] for each in hub.requests if each.server == "storage"]
        assert "bytes=0-32767" not in ranges


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_without_room_is_a_full_disk(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, left = os.pwrite, [10 * SEGMENT_BYTES]

    def write_some(descriptor: int, data: memoryview, position: int) -> int:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return write(descriptor, data, position)

    with make_large_hub() as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        monkeypatch.setattr(os, "pwrite", write_some)
        found = site.pull(REFERENCE)
        monkeypatch.undo()
        assert error_code(found) == "models_disk_full"
        assert list_models(site.models) == {}
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == LARGE_RIGHT


def test_a_disk_that_is_full_when_files_are_moved_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def link_nothing(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with make_large_hub() as hub, open_site(tmp_path / "models", hub.endpoint) as site:
        monkeypatch.setattr(os, "link", link_nothing)
        found = site.pull(REFERENCE)
        monkeypatch.undo()
        assert error_code(found) == "models_disk_full"
        assert "the models folder fails: " in caplog.text
        assert "Traceback" not in caplog.text
        assert site.pull(REFERENCE).state == "finished"
        assert list_models(site.models) == LARGE_RIGHT
