"""Orders of downloads and of models' sources, over the wire contract of `transfers` on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from contract.downloads import Download, DownloadOrder
from contract.errors import RoundhouseError
from contract.model_files import ModelDownloadOrder, OrderedDownload
from controller.artifacts.model_roots import ModelRoots
from controller.downloads import service
from controller.downloads.service import DownloadLog, DownloadService, SourceDownloadError, SourceDownloads
from controller.hosts import Host
from controller.journal import EventLog
from controller.settings import DownloadPermission, decide_downloads
from controller.state import ObservedState
from controller.transfers_client import TransfersClient, transfers_address
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.gguf_files import write_llama
from tests.support.wait import until

REFERENCE = "hf:user/tiny-GGUF:Q8_0"
PINNED = "hf:user/tiny-GGUF/tiny-Q8_0.gguf@abc123"
MAIN = "user/tiny-GGUF/tiny-Q8_0.gguf"
ORDER = ModelDownloadOrder(reference="user/tiny-GGUF:Q8_0")
OFF = DownloadPermission(False, "ROUNDHOUSE_DOWNLOADS is `off`")
OPEN = ("0.0.0.0",)
LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclass
class Bench:
    """A service, the `transfers` that it requests, and the downloads of models' sources."""

    transfers: FakeTransfers
    client: TransfersClient
    journal: EventLog
    permission: DownloadPermission = field(default_factory=lambda: DownloadPermission(True, "a test"))
    now: float = 1000.0
    looked: int = 0
    placed: set[str] = field(default_factory=set)
    woken: int = 0

    def __post_init__(self) -> None:
        self.restart()
        self.sources = SourceDownloads(self.service, look_for_source=self.look_for_source, wake=self.wake)

    def restart(self) -> None:
        """A service, as a controller that starts has it."""
        self.service = DownloadService(
            self.client,
            get_permission=lambda: self.permission,
            get_observed=lambda: ObservedState(at=1.0, hosts=(Host(memory_mib=64_000),)),
            roots=ModelRoots((self.transfers.models,)),
            download_log=DownloadLog(self.journal, lambda: self.now),
            clock=lambda: self.now,
        )

    async def look_for_source(self, source: str) -> bool:
        self.looked += 1
        return source in self.placed

    def wake(self) -> None:
        self.woken += 1

    async def order(self) -> OrderedDownload:
        return (await self.service.order_download(ORDER, actor="ada"))[0]

    async def download_source(self) -> tuple[asyncio.Task[None], str]:
        """The source, ordered by a model that waits for it; the id of its download."""
        waits = asyncio.create_task(self.sources.download_source(REFERENCE))
        await until("it is under way", lambda: self.transfers.downloads and self.service.known_downloads)
        [download] = self.transfers.downloads
        return waits, download

    def recorded(self) -> list[tuple[str, str]]:
        """Actor and message of the journal's entries, oldest first."""
        return [(each.actor, each.message) for each in reversed(self.journal.read_page(("download",), None, None, 50))]

    def sent(self, method: str, path: str) -> int:
        """How often `transfers` got this request."""
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


@pytest.fixture
async def following(bench: Bench) -> AsyncIterator[Bench]:
    """One that follows what `transfers` sends."""
    follow = asyncio.create_task(bench.service.follow_transfers())
    yield bench
    follow.cancel()
    await asyncio.gather(follow, return_exceptions=True)


async def refusal(request: Coroutine[Any, Any, object], match: str | None = None) -> str:
    with pytest.raises(RoundhouseError, match=match) as refused:
        await request
    return refused.value.entry.code


@pytest.mark.parametrize(
    ("setting", "has_keys", "hosts", "is_allowed"),
    [
        ("on", False, OPEN, True),
        ("off", True, LOCAL, False),
        (None, True, OPEN, True),
        (None, False, LOCAL, True),
        (None, False, (*LOCAL, "192.168.1.5"), False),
        (None, False, ("gpu.example",), False),
    ],
)
def test_downloads_are_allowed_by_setting_keys_and_hosts(
    setting: Literal["on", "off"] | None, has_keys: bool, hosts: tuple[str, ...], is_allowed: bool
) -> None:
    assert decide_downloads(setting, has_keys=has_keys, hosts=hosts).is_allowed is is_allowed


def test_a_refusal_says_what_it_is_for() -> None:
    assert decide_downloads("off", has_keys=True, hosts=LOCAL) == OFF
    reason = decide_downloads(None, has_keys=False, hosts=("127.0.0.1", *OPEN)).reason
    assert reason == "ROUNDHOUSE_DOWNLOADS is not set, no key is declared, and the gateway listens on 0.0.0.0"


async def test_what_a_model_takes_is_known_before_anything_is_fetched(bench: Bench) -> None:
    found = await bench.service.inspect_model(ORDER)
    assert (found.name, found.inspection.pinned, found.inspection.main) == ("tiny", PINNED, MAIN)
    assert found.forecast.summary == "fits in main memory"
    assert found.inspection.missing_bytes == found.inspection.total_bytes > 0
    assert bench.transfers.downloads == {}
    assert not (bench.transfers.models / MAIN).exists()
    download, is_new = await bench.service.order_download(ORDER, actor="ada")
    assert (is_new, download.state, download.reference) == (True, "queued", REFERENCE)
    assert (download.inspection.pinned, download.forecast.summary) == (PINNED, "fits in main memory")
    assert bench.sent("POST", "/inspect") == 1
    bench.now += 61
    await bench.order()
    assert bench.sent("POST", "/inspect") == 2, "what was found a while ago may have changed"


async def test_the_same_reference_is_one_download_and_one_entry(bench: Bench) -> None:
    first = await bench.order()
    second, is_new = await bench.service.order_download(ModelDownloadOrder(reference=REFERENCE), actor="bob")
    assert (second.id, is_new) == (first.id, False)
    assert bench.recorded() == [("ada", f"download of {REFERENCE} started by ada")]


async def test_what_becomes_of_a_download_is_recorded_once_over_restarts(bench: Bench) -> None:
    download = await bench.order()
    bench.transfers.set_state(download.id, "downloading", done=10)
    await bench.service.get_download(download.id)
    bench.restart()
    following = asyncio.create_task(bench.service.follow_transfers())
    await until("it is seen", lambda: download.id in bench.service.known_downloads)
    bench.transfers.set_state(download.id, "finished")
    await until("its end is seen", lambda: bench.service.known_downloads[download.id].state == "finished")
    following.cancel()
    bench.restart()
    await bench.service.list_downloads()
    assert bench.recorded() == [
        ("ada", f"download of {REFERENCE} started by ada"),
        ("controller", f"download of {REFERENCE} finished"),
    ]


async def test_the_end_of_a_download_that_was_started_many_entries_ago_is_recorded(bench: Bench) -> None:
    download = await bench.order()
    log = DownloadLog(bench.journal, lambda: bench.now)
    for number in range(501):
        log.note_order(download.model_copy(update={"id": f"dl_{number}", "reference": f"hf:a/{number}"}), "bob")
    bench.restart()
    bench.transfers.set_state(download.id, "finished")
    await bench.service.list_downloads()
    assert bench.recorded()[-1] == ("controller", f"download of {REFERENCE} finished")


async def test_a_failure_is_recorded_with_its_reason_and_without_secrets(bench: Bench) -> None:
    error = RoundhouseError("source_unavailable", "https://user:pa55word@host/x does not answer.")
    bench.transfers.set_state((await bench.order()).id, "failed", error=error)
    await bench.service.list_downloads()
    entry = bench.journal.read_page(("download",), None, None, 1)[0]
    assert entry.message.startswith(f"download of {REFERENCE} failed: https://")
    assert "pa55word" not in entry.model_dump_json()
    assert (entry.details["code"], entry.details["step"]) == ("source_unavailable", "failed")


async def test_an_old_end_is_no_news(bench: Bench) -> None:
    download, _ = await bench.client.order_download(DownloadOrder(reference=REFERENCE))
    bench.transfers.set_state(download.id, "finished")
    await bench.service.list_downloads()
    assert bench.recorded() == []


async def test_a_cancellation_names_who_did_it(bench: Bench) -> None:
    assert (await bench.service.cancel_download((await bench.order()).id, actor="bob")).state == "cancelled"
    await bench.service.list_downloads()
    assert bench.recorded()[1:] == [("bob", f"download of {REFERENCE} cancelled by bob")]


async def test_a_follower_sees_every_download_and_then_each_change(following: Bench) -> None:
    service, transfers = following.service, following.transfers
    download = await following.order()
    changed, version = await service.wait_for_changes(0)
    assert [each.id for each in changed] == [download.id]
    waiting = asyncio.create_task(service.wait_for_changes(version))
    transfers.set_state(download.id, "downloading", done=100)
    changed, version = await waiting
    assert [(each.state, each.done_bytes) for each in changed] == [("downloading", 100)]
    waiting = asyncio.create_task(service.wait_for_changes(version))
    await transfers.close()
    await transfers.open()
    transfers.set_state(download.id, "finished")
    assert (await waiting)[0][0].state == "finished"


async def test_a_reply_that_an_event_overtook_does_not_undo_an_end(bench: Bench) -> None:
    download = await bench.order()
    before = bench.transfers.downloads[download.id]
    bench.transfers.set_state(download.id, "finished")
    await bench.service.list_downloads()
    bench.transfers.downloads[download.id] = before
    await bench.service.get_download(download.id)
    assert bench.service.known_downloads[download.id].state == "finished"


async def test_a_new_run_is_seen_also_where_the_clock_was_set_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    download = await bench.order()
    bench.transfers.set_state(download.id, "failed", error=RoundhouseError("models_disk_full", "The disk is full."))
    await bench.service.list_downloads()
    monkeypatch.setattr("tests.fakes.fake_transfers.time.time", lambda: 100.0)
    again = await bench.order()
    assert (again.id, again.created_at) == (download.id, 100.0)
    assert bench.service.known_downloads[download.id].state == "queued"


async def test_where_downloads_are_off_nothing_is_requested(bench: Bench) -> None:
    bench.permission = OFF
    for request in (
        bench.service.inspect_model(ORDER),
        bench.service.order_download(ORDER, actor="ada"),
        bench.service.order_plain(REFERENCE, actor="ada"),
    ):
        assert await refusal(request, "ROUNDHOUSE_DOWNLOADS is `off`") == "downloads_disabled"
    assert bench.transfers.requests == []
    assert await bench.service.list_downloads() == [], "what there is may be looked at, and cancelled"


async def test_without_transfers_each_request_is_refused_at_once(bench: Bench) -> None:
    await bench.transfers.close()
    refused = await refusal(bench.service.inspect_model(ORDER), "transfers accepts no connection")
    assert refused == await refusal(bench.service.list_downloads()) == "transfers_unreachable"
    bench.permission = OFF
    refused = await refusal(bench.service.list_downloads())
    assert refused == "downloads_disabled", "nobody looks for a program that is not meant to run"
    await bench.transfers.open()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RoundhouseError("source_forbidden", "Accept the terms."), "source_forbidden"),
        (RoundhouseError("models_disk_full", "No room."), "models_disk_full"),
        (RoundhouseError("invalid_api_key", "The token is wrong."), "transfers_unreachable"),
        (None, "transfers_unreachable"),
    ],
)
async def test_its_errors_are_passed_on_but_those_about_the_controller_and_what_is_no_transfers(
    bench: Bench, error: RoundhouseError | None, expected: str
) -> None:
    bench.transfers.refusal, bench.transfers.garbage = error, error is None
    words = "no `transfers` of this version" if error is None else error.message
    assert await refusal(bench.service.inspect_model(ORDER), words) == expected


@pytest.mark.parametrize("reference", ["", "nothing", "hf:a", "user/repo:../../x"])
async def test_what_is_no_reference_is_refused_by_the_controller(bench: Bench, reference: str) -> None:
    order = ModelDownloadOrder.model_construct(reference=reference, include_pickle=False, backend=None)
    assert await refusal(bench.service.inspect_model(order)) == "reference_invalid"
    assert bench.transfers.requests == []


@pytest.mark.parametrize("download", ["../files", "a/b", "dl_\u00e9", ""])
async def test_an_id_never_becomes_another_path(bench: Bench, download: str) -> None:
    assert await refusal(bench.service.get_download(download)) == "download_not_found"
    assert bench.transfers.requests == []


# Sources of models


async def test_a_source_is_downloaded_until_its_files_are_placed(following: Bench) -> None:
    waits, download = await following.download_source()
    size = len(following.transfers.sources[REFERENCE].files[MAIN])
    following.transfers.set_state(download, "downloading", done=size // 2)
    await until("half of it is loaded", lambda: following.sources.fractions == {REFERENCE: size // 2 / size})
    assert not waits.done()
    assert following.woken > 0
    following.placed.add(REFERENCE)
    following.transfers.set_state(download, "finished")
    await asyncio.wait_for(waits, 10)
    assert (following.looked, following.sources.fractions) == (2, {})


async def test_a_source_that_somebody_else_has_downloaded_is_not_ordered_again(following: Bench) -> None:
    following.placed.add(REFERENCE)
    await following.sources.download_source(REFERENCE)
    assert following.transfers.requests == []


async def test_a_download_whose_files_are_not_seen_is_no_success(following: Bench) -> None:
    waits, download = await following.download_source()
    following.transfers.set_state(download, "finished")
    with pytest.raises(SourceDownloadError, match="its files are not seen in the models folder"):
        await asyncio.wait_for(waits, 10)
    assert following.sent("POST", "/downloads") == 1


async def test_a_source_that_two_wait_for_can_be_cancelled_after_one_is_gone(following: Bench) -> None:
    first, download = await following.download_source()
    second = asyncio.create_task(following.sources.download_source(REFERENCE))
    await until("it is ordered twice", lambda: following.sent("POST", "/downloads") == 2)
    await until("the second waits", lambda: following.woken >= 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await following.sources.cancel_source(REFERENCE)
    assert following.transfers.downloads[download].state == "cancelled"
    with pytest.raises(SourceDownloadError, match="cancelled"):
        await asyncio.wait_for(second, 10)


async def test_a_source_that_is_just_being_ordered_can_be_cancelled(
    following: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, is_ordered, may_answer = following.client.order_download, asyncio.Event(), asyncio.Event()

    async def answer_late(each: DownloadOrder) -> tuple[Download, bool]:
        answer = await order(each)
        is_ordered.set()
        await may_answer.wait()
        return answer

    monkeypatch.setattr(following.client, "order_download", answer_late)
    waits = asyncio.create_task(following.sources.download_source(REFERENCE))
    await asyncio.wait_for(is_ordered.wait(), 10)
    cancelling = asyncio.create_task(following.sources.cancel_source(REFERENCE))
    await asyncio.sleep(0)
    may_answer.set()
    await asyncio.wait_for(cancelling, 10)
    assert [each.state for each in following.transfers.downloads.values()] == ["cancelled"]
    with pytest.raises(SourceDownloadError, match="cancelled"):
        await asyncio.wait_for(waits, 10)


async def test_a_failure_of_a_source_is_in_the_words_of_transfers(following: Bench) -> None:
    with pytest.raises(SourceDownloadError, match="There is no"):
        await following.sources.download_source("hf:user/nothing:Q4")
    waits, download = await following.download_source()
    following.transfers.set_state(download, "failed", error=RoundhouseError("models_disk_full", "The disk is full."))
    with pytest.raises(SourceDownloadError, match="The disk is full"):
        await asyncio.wait_for(waits, 10)
    assert following.looked == 2, "once before each order"


async def test_a_cancelled_source_is_no_success(following: Bench) -> None:
    waits, _ = await following.download_source()
    await following.sources.cancel_source(REFERENCE)
    with pytest.raises(SourceDownloadError, match="cancelled"):
        await asyncio.wait_for(waits, 10)
    await following.sources.cancel_source(REFERENCE)  # nothing is under way


async def test_a_download_that_an_operator_ordered_is_not_cancelled(following: Bench) -> None:
    ordered = await following.order()
    waits, download = await following.download_source()
    await until("it waits", lambda: following.woken > 0)
    await following.sources.cancel_source(REFERENCE)
    assert (download, following.transfers.downloads[download].state) == (ordered.id, "queued")
    waits.cancel()


async def test_a_transfers_that_is_gone_is_an_error_and_no_wait_without_end(
    following: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.05)
    waits, _ = await following.download_source()
    await following.transfers.close()
    with pytest.raises(SourceDownloadError, match="cannot be downloaded now"):
        await asyncio.wait_for(waits, 10)


async def test_a_download_that_is_gone_is_seen_though_others_progress(
    following: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = (await following.order()).model_copy(update={"id": "dl_other"})

    async def news_of_others(after: int) -> tuple[list[Download], int]:
        await asyncio.sleep(0.001)
        return [other], after

    monkeypatch.setattr(service, "LOOK_S", 0.05)
    monkeypatch.setattr(following.service, "wait_for_changes", news_of_others)
    waits, download = await following.download_source()
    await until("it is ordered twice", lambda: following.sent("POST", "/downloads") == 2)
    del following.transfers.downloads[download]
    with pytest.raises(SourceDownloadError, match="no such download"):
        await asyncio.wait_for(waits, 3)
