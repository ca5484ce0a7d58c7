"""Sources of models, downloaded by orders over the wire contract of `transfers`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.desired.placed_sources import find_placed_sources
from controller.downloads import source_downloads
from controller.downloads.download_log import DownloadLog
from controller.downloads.permission import DownloadPermission
from controller.downloads.service import DownloadService
from controller.downloads.source_downloads import SourceDownloadError, SourceDownloads
from controller.downloads.transfers_client import TransfersClient, transfers_address
from controller.journal.event_log import EventLog
from controller.schema.errors import RoundhouseError
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.wait import until

SOURCE = "hf:user/tiny-GGUF:Q8_0"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"


class Harness:
    """The downloads of sources, and the `transfers` that makes them."""

    def __init__(self, transfers: FakeTransfers, client: TransfersClient, journal: EventLog) -> None:
        self.transfers = transfers
        self.refreshed = self.woken = 0
        self.service = DownloadService(
            client,
            get_permission=lambda: DownloadPermission(True, "a test"),
            get_observed=lambda: None,
            roots=ModelRoots((transfers.models,)),
            download_log=DownloadLog(journal, lambda: 1.0),
            clock=lambda: 1.0,
        )
        self.sources = SourceDownloads(self.service, refresh=self.refresh, wake=self.wake)

    async def refresh(self) -> None:
        """Count it."""
        self.refreshed += 1

    def wake(self) -> None:
        """Count it."""
        self.woken += 1


@pytest.fixture
async def harness(folder: Path) -> AsyncIterator[Harness]:
    transfers = FakeTransfers(folder)
    transfers.sources[SOURCE] = FakeSource({MAIN: b"x" * 1000}, MAIN, "hf:user/tiny-GGUF:Q8_0@abc")
    journal = EventLog(folder / "journal.db")
    async with transfers, TransfersClient(transfers_address(transfers.url, None)) as client:
        made = Harness(transfers, client, journal)
        follow = asyncio.create_task(made.service.follow_transfers())
        yield made
        follow.cancel()
        await asyncio.gather(follow, return_exceptions=True)
    journal.close()


async def test_it_returns_once_the_files_are_here(harness: Harness) -> None:
    waits = asyncio.create_task(harness.sources.download_source(SOURCE))
    await until("it is ordered", lambda: bool(harness.transfers.downloads))
    [download] = harness.transfers.downloads
    harness.transfers.set_state(download, "downloading", done=500)
    await until("half of it is here", lambda: harness.sources.fractions == {SOURCE: 0.5})
    assert not waits.done()
    assert harness.woken > 0
    harness.transfers.set_state(download, "finished")
    await asyncio.wait_for(waits, 10)
    assert harness.refreshed == 1
    assert harness.sources.fractions == {}


async def test_a_failure_is_told_in_the_words_of_transfers(harness: Harness) -> None:
    with pytest.raises(SourceDownloadError, match="There is no"):
        await harness.sources.download_source("hf:user/nothing:Q4")
    waits = asyncio.create_task(harness.sources.download_source(SOURCE))
    await until("it is ordered", lambda: bool(harness.transfers.downloads))
    [download] = harness.transfers.downloads
    harness.transfers.set_state(download, "failed", error=RoundhouseError("models_disk_full", "The disk is full."))
    with pytest.raises(SourceDownloadError, match="The disk is full"):
        await asyncio.wait_for(waits, 10)
    assert harness.refreshed == 0


async def test_a_cancelled_one_is_no_success(harness: Harness) -> None:
    waits = asyncio.create_task(harness.sources.download_source(SOURCE))
    await until("it is under way", lambda: bool(harness.transfers.downloads) and bool(harness.service.known_downloads))
    await harness.sources.cancel_source(SOURCE)
    with pytest.raises(SourceDownloadError, match="cancelled"):
        await asyncio.wait_for(waits, 10)
    await harness.sources.cancel_source(SOURCE)  # nothing is under way


async def test_a_transfers_that_is_gone_is_an_error_and_no_wait_without_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_downloads, "LOOK_S", 0.05)
    waits = asyncio.create_task(harness.sources.download_source(SOURCE))
    await until("it is ordered", lambda: bool(harness.transfers.downloads))
    await harness.transfers.close()
    with pytest.raises(SourceDownloadError, match="cannot be downloaded now"):
        await asyncio.wait_for(waits, 10)


async def test_records_say_where_the_files_are_without_asking(harness: Harness) -> None:
    models = harness.transfers.models
    assert find_placed_sources(models, [SOURCE]) == {}
    waits = asyncio.create_task(harness.sources.download_source(SOURCE))
    await until("it is ordered", lambda: bool(harness.transfers.downloads))
    harness.transfers.set_state(next(iter(harness.transfers.downloads)), "finished")
    await asyncio.wait_for(waits, 10)
    found = find_placed_sources(models, [SOURCE, "hf:user/tiny-GGUF:Q8_0@abc", "hf:user/other:Q4"])
    assert {source: placed.model_path for source, placed in found.items()} == {
        SOURCE: MAIN,
        "hf:user/tiny-GGUF:Q8_0@abc": MAIN,
    }
    (models / MAIN).unlink()
    assert find_placed_sources(models, [SOURCE]) == {}, "the record alone is no model"
    (models / MAIN).touch()
    assert find_placed_sources(models, [f"hf:{MAIN}"])[f"hf:{MAIN}"].model_path == MAIN, "put there by hand"
