"""Orders of downloads, over the wire contract of `transfers` on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.downloads.download_log import DownloadLog
from controller.downloads.permission import DownloadPermission
from controller.downloads.service import DownloadService
from controller.downloads.transfers_client import TransfersClient, transfers_address
from controller.journal.event_log import EventLog
from controller.schema.downloads import DownloadOrder
from controller.schema.errors import RoundhouseError
from controller.schema.model_files import ModelDownloadOrder
from controller.state import ObservedState
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.gguf_files import write_llama
from tests.support.wait import until

REFERENCE = "hf:user/tiny-GGUF:Q8_0"
PINNED = "hf:user/tiny-GGUF/tiny-Q8_0.gguf@abc123"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"
ORDER = ModelDownloadOrder(reference="user/tiny-GGUF:Q8_0")


@dataclass
class Bench:
    """A service, and the `transfers` that it asks."""

    transfers: FakeTransfers
    client: TransfersClient
    journal: EventLog
    permission: DownloadPermission = field(default_factory=lambda: DownloadPermission(True, "a test"))
    now: list[float] = field(default_factory=lambda: [1000.0])
    service: DownloadService = field(init=False)

    def __post_init__(self) -> None:
        self.service = self.make_service()

    def make_service(self) -> DownloadService:
        """A service, as a controller that starts has it."""
        return DownloadService(
            self.client,
            get_permission=lambda: self.permission,
            get_observed=lambda: ObservedState(at=1.0, host_mib=64_000),
            roots=ModelRoots((self.transfers.models,)),
            download_log=DownloadLog(self.journal, lambda: self.now[0]),
            clock=lambda: self.now[0],
        )

    def told(self) -> list[tuple[str, str]]:
        """Actor and message of the journal's entries, oldest first."""
        return [(each.actor, each.message) for each in reversed(self.journal.read_page(("download",), None, None, 50))]

    def sent(self, method: str, path: str) -> int:
        """How often `transfers` was asked so."""
        return self.transfers.requests.count((method, path))


@pytest.fixture
async def bench(folder: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    write_llama(tmp_path / "m.gguf", layers=1)
    transfers = FakeTransfers(folder)
    transfers.sources[REFERENCE] = FakeSource({MAIN: (tmp_path / "m.gguf").read_bytes()}, MAIN, PINNED)
    journal = EventLog(folder / "journal.db")
    async with transfers, TransfersClient(transfers_address(transfers.url, None)) as client:
        yield Bench(transfers, client, journal)
    journal.close()


def code(refused: pytest.ExceptionInfo[RoundhouseError]) -> str:
    return refused.value.entry.code


async def test_what_a_model_takes_is_said_before_anything_is_fetched(bench: Bench) -> None:
    found = await bench.service.inspect_model(ORDER)
    assert (found.name, found.inspection.pinned, found.inspection.main) == ("tiny", PINNED, MAIN)
    assert found.forecast.summary == "fits in main memory"
    assert found.inspection.missing_bytes == found.inspection.total_bytes > 0
    assert bench.transfers.downloads == {}
    assert not (bench.transfers.models / MAIN).exists()


async def test_an_order_says_it_too_and_asks_the_source_once(bench: Bench) -> None:
    await bench.service.inspect_model(ORDER)
    download, is_new = await bench.service.order_download(ORDER, actor="ada")
    assert (is_new, download.state, download.reference) == (True, "queued", REFERENCE)
    assert (download.inspection.pinned, download.forecast.summary) == (PINNED, "fits in main memory")
    assert bench.sent("POST", "/inspect") == 1
    bench.now[0] += 61
    await bench.service.order_download(ORDER, actor="ada")
    assert bench.sent("POST", "/inspect") == 2, "what was said a while ago may have changed"


async def test_the_same_reference_is_one_download_and_one_entry(bench: Bench) -> None:
    first, _ = await bench.service.order_download(ORDER, actor="ada")
    other = ModelDownloadOrder(reference=REFERENCE)
    second, is_new = await bench.service.order_download(other, actor="bob")
    assert (second.id, is_new) == (first.id, False)
    assert bench.told() == [("ada", f"download of {REFERENCE} started by ada")]


async def test_what_becomes_of_a_download_is_told_once_over_restarts(bench: Bench) -> None:
    download, _ = await bench.service.order_download(ORDER, actor="ada")
    bench.transfers.set_state(download.id, "downloading", done=10)
    await bench.service.get_download(download.id)
    bench.service = bench.make_service()
    following = asyncio.create_task(bench.service.follow_transfers())
    await until("it is seen", lambda: download.id in bench.service.known_downloads)
    bench.transfers.set_state(download.id, "finished")
    await until("its end is seen", lambda: bench.service.known_downloads[download.id].state == "finished")
    following.cancel()
    bench.service = bench.make_service()
    await bench.service.list_downloads()
    assert bench.told() == [
        ("ada", f"download of {REFERENCE} started by ada"),
        ("controller", f"download of {REFERENCE} finished"),
    ]


async def test_a_failure_is_told_with_its_reason_and_without_secrets(bench: Bench) -> None:
    download, _ = await bench.service.order_download(ORDER, actor="ada")
    error = RoundhouseError("source_unavailable", "https://user:pa55word@host/x does not answer.")
    bench.transfers.set_state(download.id, "failed", error=error)
    await bench.service.list_downloads()
    entry = bench.journal.read_page(("download",), None, None, 1)[0]
    assert entry.message.startswith(f"download of {REFERENCE} failed: https://")
    assert "pa55word" not in entry.model_dump_json()
    assert (entry.details["code"], entry.details["step"]) == ("source_unavailable", "failed")


async def test_an_old_end_is_no_news(bench: Bench) -> None:
    download, _ = await bench.client.order_download(DownloadOrder(reference=REFERENCE))
    bench.transfers.set_state(download.id, "finished")
    await bench.service.list_downloads()
    assert bench.told() == []


async def test_a_cancellation_names_who_did_it(bench: Bench) -> None:
    download, _ = await bench.service.order_download(ORDER, actor="ada")
    found = await bench.service.cancel_download(download.id, actor="bob")
    assert found.state == "cancelled"
    await bench.service.list_downloads()
    assert bench.told()[1:] == [("bob", f"download of {REFERENCE} cancelled by bob")]


async def test_a_follower_sees_every_download_and_then_each_change(bench: Bench) -> None:
    download, _ = await bench.service.order_download(ORDER, actor="ada")
    following = asyncio.create_task(bench.service.follow_transfers())
    changed, version = await bench.service.wait_for_changes(0)
    assert [each.id for each in changed] == [download.id]
    waiting = asyncio.create_task(bench.service.wait_for_changes(version))
    bench.transfers.set_state(download.id, "downloading", done=100)
    changed, version = await waiting
    assert [(each.state, each.done_bytes) for each in changed] == [("downloading", 100)]
    waiting = asyncio.create_task(bench.service.wait_for_changes(version))
    await bench.transfers.close()
    await bench.transfers.open()
    bench.transfers.set_state(download.id, "finished")
    changed, _ = await waiting
    assert changed[0].state == "finished"
    following.cancel()


async def test_an_answer_that_an_event_overtook_does_not_undo_an_end(bench: Bench) -> None:
    download, _ = await bench.service.order_download(ORDER, actor="ada")
    before = bench.transfers.downloads[download.id]
    bench.transfers.set_state(download.id, "finished")
    await bench.service.list_downloads()
    bench.transfers.downloads[download.id] = before
    await bench.service.get_download(download.id)
    assert bench.service.known_downloads[download.id].state == "finished"


async def test_a_refusal_asks_nobody(bench: Bench) -> None:
    bench.permission = DownloadPermission(False, "ROUNDHOUSE_DOWNLOADS is `off`")
    for question in (
        bench.service.inspect_model(ORDER),
        bench.service.order_download(ORDER, actor="ada"),
        bench.service.order_plain(REFERENCE, actor="ada"),
    ):
        with pytest.raises(RoundhouseError, match="ROUNDHOUSE_DOWNLOADS is `off`") as refused:
            await question
        assert code(refused) == "downloads_disabled"
    assert bench.transfers.requests == []
    assert await bench.service.list_downloads() == [], "what there is may be looked at, and cancelled"


async def test_without_transfers_each_question_says_so_at_once(bench: Bench) -> None:
    await bench.transfers.close()
    with pytest.raises(RoundhouseError, match="transfers accepts no connection") as refused:
        await bench.service.inspect_model(ORDER)
    assert code(refused) == "transfers_unreachable"
    with pytest.raises(RoundhouseError) as refused:
        await bench.service.list_downloads()
    assert code(refused) == "transfers_unreachable"
    bench.permission = DownloadPermission(False, "it is off")
    with pytest.raises(RoundhouseError) as refused:
        await bench.service.list_downloads()
    assert code(refused) == "downloads_disabled", "nobody looks for a program that is not meant to run"
    await bench.transfers.open()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RoundhouseError("source_forbidden", "Accept the terms."), "source_forbidden"),
        (RoundhouseError("models_disk_full", "No room."), "models_disk_full"),
        (RoundhouseError("invalid_api_key", "The token is wrong."), "transfers_unreachable"),
    ],
)
async def test_its_errors_are_passed_on_but_those_about_the_controller(
    bench: Bench, error: RoundhouseError, expected: str
) -> None:
    bench.transfers.refusal = error
    with pytest.raises(RoundhouseError, match=error.message) as refused:
        await bench.service.inspect_model(ORDER)
    assert code(refused) == expected


async def test_what_is_no_transfers_is_said(bench: Bench) -> None:
    bench.transfers.garbage = True
    with pytest.raises(RoundhouseError, match="no `transfers` of this version") as refused:
        await bench.service.inspect_model(ORDER)
    assert code(refused) == "transfers_unreachable"


@pytest.mark.parametrize("reference", ["", "nothing", "hf:a", "user/repo:../../x"])
async def test_what_is_no_reference_is_said_here(bench: Bench, reference: str) -> None:
    order = ModelDownloadOrder.model_construct(reference=reference, include_pickle=False, backend=None)
    with pytest.raises(RoundhouseError) as refused:
        await bench.service.inspect_model(order)
    assert code(refused) == "reference_invalid"
    assert bench.transfers.requests == []


@pytest.mark.parametrize("download", ["../files", "a/b", "dl_\u00e9", ""])
async def test_an_id_never_becomes_another_path(bench: Bench, download: str) -> None:
    with pytest.raises(RoundhouseError) as refused:
        await bench.service.get_download(download)
    assert code(refused) == "download_not_found"
    assert bench.transfers.requests == []
