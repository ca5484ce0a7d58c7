"""Downloads from the order to the end and to their removal, and what is said of a reference before one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from contract.downloads import Download, DownloadRecord, Inspection, PlacedFile
from contract.errors import RoundhouseError
from contract.model_reference import ModelReference
from tests.support.transfers_harness import (
    Answer,
    FileServer,
    add_file,
    error_code,
    fetch,
    make_transfers,
    refused,
    wait_for,
    wait_for_end,
)
from transfers.assembly import Transfers
from transfers.downloads.board import _find_lost
from transfers.downloads.job import RoomLedger, choose_folder
from transfers.models_folder import ModelsFolder, RecordStore
from transfers.sources.base import Resolution, SourceFile
from transfers.sources.source_set import read_reference

CONTENT = bytes(range(256)) * 64


def is_downloading(transfers: Transfers, download: str) -> bool:
    return transfers.board.find(download).state == "downloading"


def test_a_download_ends_with_its_files_in_place(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    assert (done.state, done.error, done.has_finished) == ("finished", None, True)
    assert (done.done_bytes, done.total_bytes, done.main) == (len(CONTENT), len(CONTENT), "url/127.0.0.1/m.gguf")
    assert (tmp_path / str(done.main)).read_bytes() == CONTENT
    assert not list((tmp_path / ".roundhouse" / "partial").glob("*"))


def test_the_same_order_twice_is_one_download(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    server.gate.clear()
    first, is_new = transfers.board.order(reference, include_pickle=False)
    second, is_new_again = transfers.board.order(reference, include_pickle=False)
    assert (first.id, is_new, is_new_again) == (second.id, True, False)
    server.gate.set()
    assert wait_for_end(transfers, first.id).state == "finished"
    assert len(transfers.board.list_downloads()) == 1


def test_an_order_of_what_is_here_fetches_nothing(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    first = fetch(transfers, reference)
    asked = len(server.requests)
    second = fetch(transfers, reference)
    assert (second.state, second.id) == ("finished", first.id)
    assert [headers["range"] for _, headers in server.requests[asked:]] == ["bytes=0-0"]


def test_a_cancelled_download_leaves_nothing(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    server.gate.clear()
    ordered, _ = transfers.board.order(reference, include_pickle=False)
    wait_for("the fetch", lambda: is_downloading(transfers, ordered.id))
    assert transfers.board.cancel(ordered.id).state == "cancelled"
    assert not list(tmp_path.rglob("*.gguf"))
    assert not list((tmp_path / ".roundhouse" / "partial").glob("*"))
    assert transfers.board.cancel(ordered.id).state == "cancelled"
    server.gate.set()
    assert fetch(transfers, reference).state == "finished"


def test_one_that_waits_for_its_turn_can_be_cancelled(tmp_path: Path, server: FileServer) -> None:
    with make_transfers(tmp_path, server, transfers_parallel=1) as transfers:
        server.gate.clear()
        running, _ = transfers.board.order(add_file(server, "/a.gguf", CONTENT), include_pickle=False)
        wait_for("the fetch", lambda: is_downloading(transfers, running.id))
        waiting, _ = transfers.board.order(add_file(server, "/b.gguf", CONTENT), include_pickle=False)
        assert transfers.board.find(waiting.id).state == "queued"
        assert transfers.board.cancel(waiting.id).state == "cancelled"
        server.gate.set()
        assert wait_for_end(transfers, running.id).state == "finished"


def test_two_cancellations_end_it_once(tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with make_transfers(tmp_path, server, transfers_parallel=1) as transfers:
        server.gate.clear()
        running, _ = transfers.board.order(add_file(server, "/a.gguf", CONTENT), include_pickle=False)
        wait_for("the fetch", lambda: is_downloading(transfers, running.id))
        waiting, _ = transfers.board.order(add_file(server, "/b.gguf", CONTENT), include_pickle=False)
        run = transfers.board._runs[waiting.id]
        cancel, both = run.cancel, threading.Barrier(2)

        def cancel_together() -> bool:
            is_cancelled = cancel()
            both.wait(60)
            return is_cancelled

        # Only here: the board's end calls the method, too.
        with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
            patch.setattr(run, "cancel", cancel_together)
            states = list(pool.map(lambda _: transfers.board.cancel(waiting.id).state, range(2)))
        assert states == ["cancelled", "cancelled"]
        assert transfers.board.find(waiting.id).state == "cancelled"
        server.gate.set()


def test_what_was_under_way_goes_on_after_a_restart(tmp_path: Path, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    server.gate.clear()
    with make_transfers(tmp_path, server) as first:
        ordered, _ = first.board.order(reference, include_pickle=False)
        wait_for("the fetch", lambda: is_downloading(first, ordered.id))
    server.gate.set()
    with make_transfers(tmp_path, server) as second:
        done = wait_for_end(second, ordered.id)
        assert (done.state, done.created_at) == ("finished", ordered.created_at)
    with make_transfers(tmp_path, server) as third:
        assert third.board.find(ordered.id) == done


def test_what_nobody_goes_on_with_is_removed_at_the_start(tmp_path: Path, server: FileServer) -> None:
    with make_transfers(tmp_path, server) as first:
        done = fetch(first, add_file(server, "/m.gguf", CONTENT))
        failed = fetch(first, read_reference(f"{server.url}/gone.gguf#sha256={'a' * 64}"))
        for name in (done.id, failed.id, "dl_nobody"):
            first.folder.partial_path(name, "file").write_bytes(b"part")
    with make_transfers(tmp_path, server) as second:
        assert second.folder.list_partials() == [failed.id]


def test_a_download_that_fails_says_why_and_can_be_ordered_again(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    server.files["/m.gguf"] = CONTENT[:-1] + b"!"
    failed = fetch(transfers, reference)
    assert (failed.state, error_code(failed)) == ("failed", "source_mismatch")
    assert failed.ended_at is not None
    server.files["/m.gguf"] = CONTENT
    done = fetch(transfers, reference)
    assert (done.state, done.error) == ("finished", None)


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_local_file_of_another_file_system_is_copied(
    chunks: int, tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, models = tmp_path / "m.gguf", tmp_path / "models"
    models.mkdir()
    here.write_bytes(CONTENT)
    copied: list[int] = []

    def copy_some(source: int, copy: int, _count: int, *offsets: int) -> int:
        if len(copied) == chunks:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        copied.append(copy_file_range(source, copy, 1000, *offsets))
        return copied[-1]

    copy_file_range = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", copy_some)
    with make_transfers(models, server, transfers_local_folders=str(tmp_path)) as transfers:
        done = fetch(transfers, read_reference(f"file:{here}"))
    assert (done.state, done.error) == ("finished", None)
    assert (models / str(done.main)).read_bytes() == CONTENT
    assert done.files[0].sha256 == sha256(CONTENT)


def test_a_source_without_ranges_that_always_breaks_off_is_given_up(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT * 40)
    body = server.files["/m.gguf"]
    sent: list[str] = []

    def cut(headers: dict[str, str]) -> Answer:
        sent.append(headers.get("range", ""))
        return 200, {"content-length": str(len(body)), "connection": "close"}, body[:300_000]

    server.answers["/m.gguf"] = cut
    failed = fetch(transfers, reference)
    assert (failed.state, error_code(failed)) == ("failed", "source_unavailable")
    assert len(sent) < 12


def test_a_finished_download_may_fail_later(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    """Without a network, another order of what is here must not make the model look as if it were gone."""
    reference = add_file(server, "/m.gguf", CONTENT)
    first = fetch(transfers, reference)
    server.answers["/m.gguf"] = lambda headers: (404, {}, b"")
    second = fetch(transfers, reference)
    assert (second.state, second.has_finished) == ("failed", True)
    assert (second.main, second.pinned, second.files) == (first.main, first.pinned, first.files)
    assert (tmp_path / str(second.main)).read_bytes() == CONTENT


def test_a_full_disk_is_told_before_the_first_byte(tmp_path: Path, server: FileServer) -> None:
    with make_transfers(tmp_path, server, transfers_keep_free_gb=1e9) as transfers:
        failed = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    assert error_code(failed) == "models_disk_full"
    assert [headers["range"] for _, headers in server.requests] == ["bytes=0-0"]


def test_two_downloads_do_not_count_on_the_same_room() -> None:
    ledger, written = RoomLedger(), [0]
    with ledger.reserve(lambda: 60 - written[0], lambda: 100 - written[0]):
        with refused("models_disk_full", "beside those that are under way"), ledger.reserve(lambda: 41, lambda: 100):
            pass
        written[0] = 30
        with ledger.reserve(lambda: 40, lambda: 70):
            pass
    with ledger.reserve(lambda: 70, lambda: 70):
        pass


def test_a_file_put_there_by_hand_is_kept(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    place = tmp_path / "url" / "127.0.0.1" / "m.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    right = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    assert (right.state, right.done_bytes) == ("finished", len(CONTENT))
    assert transfers.board.list_placed() == []
    place.write_bytes(b"theirs")
    wrong = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    assert error_code(wrong) == "models_file_conflict"
    assert place.read_bytes() == b"theirs"


def test_a_record_that_names_no_reference_ends_as_failed(tmp_path: Path, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    with make_transfers(tmp_path, server) as first:
        done = fetch(first, reference)
    (record,) = (tmp_path / ".roundhouse" / "records").glob("dl_*.json")
    text = record.read_text().replace('"finished"', '"queued"').replace("#sha256=", "#md5=")
    record.write_text(text)
    with make_transfers(tmp_path, server) as second:
        found = second.board.find(done.id)
    assert (found.state, error_code(found)) == ("failed", "reference_invalid")


def test_no_log_has_the_query_of_an_address(
    transfers: Transfers, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secret = read_reference(f"{server.url}/m.gguf?signature=hunter2#sha256={'a' * 64}")
    assert fetch(transfers, secret).state == "failed"

    def find_lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name.startswith("transfers.")]

    wait_for("the end in the log", lambda: any("m.gguf" in line for line in find_lines()))
    assert not any("hunter2" in line for line in find_lines())


def publish(server: FileServer, content: bytes) -> ModelReference:
    """Put a model of this content, with a projector, into the registry, in place of the one that was there."""
    contents = {"model": content, "projector": content[:100], "license": b"free"}
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{sha256(each)}", "size": len(each)}
        for kind, each in contents.items()
    ]
    manifest = json.dumps({"layers": layers}).encode()
    server.files["/v2/library/m/manifests/1b"] = server.files[f"/v2/library/m/manifests/sha256:{sha256(manifest)}"] = (
        manifest
    )
    for each in (content, content[:100]):
        server.files[f"/v2/library/m/blobs/sha256:{sha256(each)}"] = each
    return read_reference("ollama:m:1b")


def test_a_registry_s_model_has_its_projector(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, publish(server, CONTENT))
    assert (done.state, done.main) == ("finished", "ollama/library/m/m-1b.gguf")
    assert (tmp_path / str(done.main)).read_bytes() == CONTENT
    assert done.projector == "ollama/library/m/mmproj-m-1b.gguf"
    assert (tmp_path / str(done.projector)).read_bytes() == CONTENT[:100]
    assert done.pinned is not None
    assert str(read_reference(done.pinned)) == done.pinned


NEWER = CONTENT[::-1]


def read_record(models: Path) -> DownloadRecord:
    (path,) = (models / ".roundhouse" / "records").glob("dl_*.json")
    return DownloadRecord.model_validate_json(path.read_bytes())


def check_told(models: Path, told: Download | DownloadRecord, older: Download | None) -> None:
    """What is said of the model is there whole, and of the revision that is named. `older`: the run that had finished
    before; None: there was none, and nothing is said."""
    if older is None and not told.has_finished:
        if isinstance(told, DownloadRecord) or told.state == "failed":
            assert (told.main, told.projector) == (None, None)
        return
    content = CONTENT if older is not None and told.pinned == older.pinned else NEWER
    assert (models / str(told.main)).read_bytes() == content
    assert (models / str(told.projector)).read_bytes() == content[:100]


class Breaks:
    """Breaks what a download does to the disk off at one step: a write of a record, a file that is put into its place,
    the removal of partial files; each before (even) or after (odd) it is done."""

    def __init__(self, patch: pytest.MonkeyPatch, error: BaseException) -> None:
        self.at = -1
        self.count = 0
        self._error = error
        for owner, name in ((RecordStore, "write"), (ModelsFolder, "place_file"), (ModelsFolder, "remove_partials")):
            patch.setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            self._step()
            result = function(*args, **options)
            self._step()
            return result

        return run

    def _step(self) -> None:
        self.count += 1
        if self.count - 1 == self.at:
            raise self._error


class Killed(BaseException):
    pass


@pytest.mark.parametrize("has_older", [False, True])
def test_a_kill_at_any_step_leaves_what_goes_on_and_nothing_false(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, has_older: bool
) -> None:
    breaks, step, ended = Breaks(monkeypatch, Killed()), -1, False
    while not ended:
        step += 1
        models = tmp_path / str(step)
        models.mkdir()
        older, breaks.at = None, -1
        with make_transfers(models, server) as transfers:
            if has_older:
                older = fetch(transfers, publish(server, CONTENT))
            reference = publish(server, NEWER)
            breaks.count, breaks.at = 0, step
            try:
                download = transfers.board.order(reference, include_pickle=False)[0].id
                ended = not isinstance(transfers.board._runs[download].exception(60), Killed)
            except (Killed, KeyError):
                pass
            breaks.at = -1
        for record in [] if older is None and step == 0 else [read_record(models)]:
            check_told(models, record, older)
        with make_transfers(models, server) as transfers:
            done = fetch(transfers, reference)
            assert (step, done.state) == (step, "finished")
            check_told(models, done, None)
            assert len(transfers.files.list_files()) == (4 if has_older else 2)
            assert all(each.is_unchanged for each in transfers.files.list_files())
            assert transfers.folder.list_partials() == []
    assert step == 14


@pytest.mark.parametrize("has_older", [False, True])
def test_a_disk_that_fails_at_any_step_leaves_what_can_be_ordered_again_and_nothing_false(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, has_older: bool
) -> None:
    breaks, step, failed = Breaks(monkeypatch, OSError(errno.ENOSPC, "No space left on device")), -1, True
    while failed:
        step += 1
        models = tmp_path / str(step)
        models.mkdir()
        older, breaks.at = None, -1
        with make_transfers(models, server) as transfers:
            if has_older:
                older = fetch(transfers, publish(server, CONTENT))
            reference = publish(server, NEWER)
            breaks.count, breaks.at = 0, step
            try:
                ended = fetch(transfers, reference)
                failed = breaks.count > step
                check_told(models, ended, older)
                assert ended.state == "finished" or error_code(ended) == "models_disk_full"
            except OSError:
                pass  # the order itself was refused
            breaks.at = -1
            told = {each.path for each in transfers.files.list_files()}
            assert told == {path for path in told if (models / path).exists()}
            done = fetch(transfers, reference)
            assert (step, done.state) == (step, "finished")
            check_told(models, done, None)
            check_told(models, read_record(models), None)
            assert len(transfers.files.list_files()) == (4 if has_older else 2)
    assert step == 14


def test_a_restart_goes_on_with_the_revision_that_was_being_fetched(tmp_path: Path, server: FileServer) -> None:
    with make_transfers(tmp_path, server) as first:
        older = fetch(first, publish(server, CONTENT))
        server.gate.clear()
        download = first.board.order(publish(server, NEWER), include_pickle=False)[0].id
        wait_for("the fetch", lambda: is_downloading(first, download))
        assert first.board.find(download).main == older.main
    check_told(tmp_path, read_record(tmp_path), older)
    server.gate.set()
    publish(server, b"!" * 500)
    with make_transfers(tmp_path, server) as second:
        done = wait_for_end(second, download)
    assert (tmp_path / str(done.main)).read_bytes() == NEWER
    assert done.main != older.main


def test_what_is_ordered_while_it_is_cancelled_runs_again(tmp_path: Path, server: FileServer) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hold(headers: dict[str, str]) -> Answer:
        asked.set()
        assert answered.wait(60)
        return 404, {}, b""

    reference = publish(server, CONTENT)
    (manifest,) = [server.files[path] for path in server.files if path.endswith("/1b")]
    server.answers["/v2/library/m/manifests/1b"] = hold
    with make_transfers(tmp_path, server) as transfers, ThreadPoolExecutor(2) as threads:
        first, _ = transfers.board.order(reference, include_pickle=False)
        assert asked.wait(60)
        cancelling = threads.submit(transfers.board.cancel, first.id)
        wait_for("the cancellation", lambda: first.id in transfers.board._cancelled)
        second, is_new = transfers.board.order(reference, include_pickle=False)
        assert (second.id, second.state, second.created_at > first.created_at, is_new) == (
            first.id,
            "queued",
            True,
            True,
        )
        assert transfers.board.order(reference, include_pickle=False) == (second, False)
        assert transfers.board.find(first.id) == second
        server.answers["/v2/library/m/manifests/1b"] = lambda headers: (200, {}, manifest)
        answered.set()
        ended = cancelling.result(60)
        assert (ended.state, ended.created_at) == ("cancelled", first.created_at)
        done = wait_for_end(transfers, first.id)
        assert (done.state, done.created_at) == ("finished", second.created_at)


@pytest.mark.parametrize("then", ["cancel", "close"])
def test_what_is_ordered_while_it_is_cancelled_can_be_cancelled_and_goes_on_after_a_restart(
    tmp_path: Path, server: FileServer, then: str
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hold(headers: dict[str, str]) -> Answer:
        asked.set()
        assert answered.wait(60)
        return 404, {}, b""

    reference = publish(server, CONTENT)
    server.answers["/v2/library/m/manifests/1b"] = hold
    with ThreadPoolExecutor(2) as threads:
        with make_transfers(tmp_path, server) as transfers:
            download = transfers.board.order(reference, include_pickle=False)[0].id
            assert asked.wait(60)
            cancelling = [threads.submit(transfers.board.cancel, download)]
            wait_for("the cancellation", lambda: download in transfers.board._cancelled)
            transfers.board.order(reference, include_pickle=False)
            if then == "cancel":
                cancelling.append(threads.submit(transfers.board.cancel, download))
                wait_for("the second cancellation", lambda: download not in transfers.board._reordered)
                answered.set()
                assert [each.result(60).state for each in cancelling] == ["cancelled", "cancelled"]
            else:
                transfers.board.stop()
                answered.set()
        server.answers.clear()
        with make_transfers(tmp_path, server) as again:
            assert wait_for_end(again, download).state == ("cancelled" if then == "cancel" else "finished")


@pytest.mark.parametrize(
    ("main", "removed", "is_lost"),
    [
        ("o/r/new.gguf", "o/r/old.gguf", False),
        ("o/r/new.gguf", "o/r/new.gguf", True),
        ("o/r", "o/r/model.safetensors", True),
        ("o/r/m-00001-of-00002.gguf", "o/r/m-00002-of-00002.gguf", True),
        ("o/r/m-00001-of-00002.gguf", "o/r/m-00002-of-00003.gguf", False),
        ("o/r/m.onnx", "o/r/m.onnx_data", True),
    ],
)
def test_of_files_in_one_folder_those_of_the_newest_run_count(main: str, removed: str, is_lost: bool) -> None:
    record = DownloadRecord(id="dl_1", reference="hf:o/r", created_at=1.0, pinned="hf:o/r@1", main=main)
    lost = {"pinned": None, "main": None, "projector": None, "has_finished": False} if is_lost else {}
    assert _find_lost(record, [removed]) == lost


def test_a_revision_that_was_removed_is_no_longer_told(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    older = fetch(transfers, publish(server, CONTENT))
    newer = fetch(transfers, publish(server, NEWER))
    transfers.files.remove_path(str(newer.projector))
    assert transfers.board.find(newer.id).main == newer.main
    assert transfers.board.find(newer.id).projector is None
    transfers.files.remove_path(str(newer.main))
    left = transfers.board.find(newer.id)
    assert (left.pinned, left.main, left.projector, left.has_finished) == (None, None, None, False)
    assert [each.path for each in left.files] == [each.path for each in older.files]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


SMALL = bytes(range(100))


def inspect(transfers: Transfers, reference: ModelReference) -> Inspection:
    return transfers.inspector.inspect(reference, include_pickle=False)


def test_it_says_what_is_here_and_what_is_missing(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    before = inspect(transfers, reference)
    assert (before.total_bytes, before.missing_bytes, before.files[0].is_present) == (100, 100, False)
    assert before.files[0].target == before.main == "url/127.0.0.1/m.gguf"
    assert before.free_bytes > 0
    assert not list(tmp_path.rglob("*.gguf"))
    fetch(transfers, reference)
    after = inspect(transfers, reference)
    assert (after.missing_bytes, after.files[0].is_present) == (0, True)


@pytest.mark.parametrize(("start", "length", "expected"), [(0, 4, SMALL[:4]), (96, 50, SMALL[96:]), (100, 1, b"")])
def test_a_range_is_read(transfers: Transfers, server: FileServer, start: int, length: int, expected: bytes) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    assert transfers.inspector.read_range(reference, "m.gguf", start, length) == expected


def test_the_source_is_not_asked_again_for_each_range(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    inspect(transfers, reference)
    for start in (0, 10, 20):
        transfers.inspector.read_range(reference, "m.gguf", start, 10)
    ranges = [headers["range"] for _, headers in server.requests]
    assert ranges == [f"bytes={each}" for each in ("0-0", "0-9", "10-19", "20-29")]


def test_a_source_that_ignores_ranges_is_read_from_its_beginning(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    server.answers["/m.gguf"] = lambda headers: (200, {}, SMALL)
    assert transfers.inspector.read_range(reference, "m.gguf", 50, 10) == SMALL[50:60]


def test_a_local_file_is_read_too_and_one_that_is_not_there_is_refused(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    (tmp_path / "m.gguf").write_bytes(SMALL)
    local = read_reference(f"file:{tmp_path}/m.gguf")
    assert transfers.inspector.read_range(local, "m.gguf", 90, 50) == SMALL[90:]
    for reference in (local, add_file(server, "/m.gguf", SMALL)):
        with refused("source_not_found"):
            transfers.inspector.read_range(reference, "x.gguf", 0, 1)


def test_a_source_that_changed_in_between_is_told(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    inspect(transfers, reference)
    server.files["/m.gguf"] = SMALL * 2
    with refused("source_mismatch"):
        transfers.inspector.read_range(reference, "m.gguf", 0, 10)


def test_the_end_of_the_program_waits_for_no_source(tmp_path: Path, server: FileServer) -> None:
    """Neither for an inspection nor for a download whose source says nothing."""
    answered = threading.Event()

    def hold(headers: dict[str, str]) -> Answer:
        answered.wait(60)
        return 200, {}, b""

    server.answers = {"/m.gguf": hold, "/n.gguf": hold}
    try:
        with ThreadPoolExecutor(1) as threads:
            with make_transfers(tmp_path / "models", server) as running:
                looking = threads.submit(inspect, running, add_file(server, "/m.gguf", SMALL))
                download, _ = running.board.order(add_file(server, "/n.gguf", SMALL), include_pickle=False)
                wait_for("both requests", lambda: len(server.requests) == 2)
            with pytest.raises(RoundhouseError) as caught:
                looking.result(60)
            assert "in time" not in caught.value.message
            assert not answered.is_set()
    finally:
        answered.set()
    server.answers = {}
    with make_transfers(tmp_path / "models", server) as again:
        assert wait_for_end(again, download.id).state == "finished"


def test_a_source_that_asks_to_wait_long_is_not_waited_for(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    server.answers["/m.gguf"] = lambda headers: (429, {"retry-after": "200"}, b"")
    with pytest.raises(RoundhouseError) as caught:
        inspect(transfers, reference)
    assert (caught.value.entry.code, caught.value.retry_after_s) == ("source_unavailable", 200)
    assert "200" in caught.value.message


PLACE = "url/127.0.0.1/m.gguf"


def refuse_path(transfers: Transfers, path: str) -> str:
    with pytest.raises(RoundhouseError) as caught:
        transfers.files.remove_path(path)
    return caught.value.entry.code


def test_a_downloads_files_are_listed_and_removed(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", SMALL))
    (listed,) = transfers.files.list_files()
    assert (listed.path, listed.size, listed.download, listed.is_unchanged) == (PLACE, 100, done.id, True)
    removal = transfers.files.remove_download(done.id)
    assert (removal.removed, removal.kept, removal.freed_bytes) == ([PLACE], [], 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".roundhouse"]
    assert transfers.board.list_downloads() == []


@pytest.mark.parametrize("path", [PLACE, "url/127.0.0.1", "url", "url/"])
def test_a_path_is_removed(tmp_path: Path, transfers: Transfers, server: FileServer, path: str) -> None:
    fetch(transfers, add_file(server, "/m.gguf", SMALL))
    (tmp_path / "url" / "mine.gguf").write_bytes(b"by hand")
    assert transfers.files.remove_path(path).removed == [PLACE]
    assert (tmp_path / "url" / "mine.gguf").read_bytes() == b"by hand"
    assert transfers.files.list_files() == []


@pytest.mark.parametrize("path", ["url/mine.gguf", "ur", "url/127.0.0.1/m", "..", "/", "", ".roundhouse", "."])
def test_what_no_download_put_there_stays(tmp_path: Path, transfers: Transfers, server: FileServer, path: str) -> None:
    fetch(transfers, add_file(server, "/m.gguf", SMALL))
    (tmp_path / "url" / "mine.gguf").write_bytes(b"by hand")
    assert refuse_path(transfers, path) == "models_file_kept"
    assert (tmp_path / PLACE).read_bytes() == SMALL
    assert (tmp_path / "url" / "mine.gguf").exists()


def test_a_changed_file_stays_and_with_it_all_others(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", SMALL))
    fetch(transfers, add_file(server, "/n.gguf", SMALL))
    (tmp_path / PLACE).write_bytes(SMALL[::-1])
    assert [each.is_unchanged for each in transfers.files.list_files()] == [False, True]
    assert refuse_path(transfers, "url") == "models_file_kept"
    with pytest.raises(RoundhouseError):
        transfers.files.remove_download(done.id)
    assert len(list((tmp_path / "url" / "127.0.0.1").iterdir())) == 2


def test_a_link_in_a_files_place_stays(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    fetch(transfers, add_file(server, "/m.gguf", SMALL))
    outside = tmp_path.parent / "outside.gguf"
    outside.write_bytes(SMALL)
    (tmp_path / PLACE).unlink()
    (tmp_path / PLACE).symlink_to(outside)
    assert refuse_path(transfers, PLACE) == "models_file_kept"
    assert outside.read_bytes() == SMALL


def test_a_file_with_another_time_is_removed(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    fetch(transfers, add_file(server, "/m.gguf", SMALL))
    os.utime(tmp_path / PLACE, (1, 1))
    assert transfers.files.remove_path(PLACE).removed == [PLACE]


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", SMALL))
    (tmp_path / PLACE).unlink()
    removal = transfers.files.remove_download(done.id)
    assert (removal.removed, removal.freed_bytes) == ([], 0)
    assert transfers.files.list_files() == []


def test_a_file_that_came_while_its_removal_was_looked_at_stays(
    tmp_path: Path, transfers: Transfers, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    done = fetch(transfers, reference)
    (tmp_path / PLACE).unlink()
    hold_still = transfers.board.hold_still

    def fetch_first() -> AbstractContextManager[None]:
        fetch(transfers, reference)
        return hold_still()

    monkeypatch.setattr(transfers.board, "hold_still", fetch_first)
    assert refuse_path(transfers, PLACE) == "models_file_kept"
    assert [each.path for each in transfers.files.list_files()] == [PLACE]
    assert transfers.board.find(done.id).has_finished


def test_a_shared_file_goes_with_the_second_download(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", SMALL)
    first = fetch(transfers, reference)
    second_id = transfers.board.order(reference, include_pickle=True)[0].id
    wait_for("the second", lambda: transfers.board.find(second_id).state == "finished")
    assert len(transfers.files.list_files()) == 1
    removal = transfers.files.remove_download(first.id)
    assert (removal.removed, removal.kept) == ([], [PLACE])
    assert (tmp_path / PLACE).exists()
    assert transfers.files.remove_download(second_id).removed == [PLACE]


def test_nothing_is_removed_of_a_running_download(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", SMALL))
    server.gate.clear()
    other, _ = transfers.board.order(add_file(server, "/n.gguf", SMALL), include_pickle=False)
    wait_for("the fetch", lambda: transfers.board.find(other.id).state == "downloading")
    with pytest.raises(RoundhouseError, match="under way"):
        transfers.files.remove_download(other.id)
    assert refuse_path(transfers, "url/127.0.0.1/n.gguf") == "models_file_kept"
    assert transfers.files.remove_download(done.id).removed == [PLACE]


NEW = "b" * 40


def resolution(revision: str | None = NEW, sha256: str | None = "new", size: int = 10) -> Resolution:
    file = SourceFile("m.gguf", size, sha256=sha256, git_sha1="x")
    return Resolution("hf:u/r:Q4", f"hf:u/r:Q4@{revision}", revision, (file,), "u/r", projector="p.gguf")


def placed(path: str, sha256: str, size: int = 10) -> PlacedFile:
    return PlacedFile(path=path, size=size, sha256=sha256, mtime_ns=1)


def test_the_first_revision_has_the_plain_folder() -> None:
    for known in ([], [placed("u/r/m.gguf", "new")], [placed("u/other/m.gguf", "old")]):
        assert choose_folder(resolution(), known).main == "u/r/m.gguf"


def test_another_revision_stands_beside_it() -> None:
    chosen = choose_folder(resolution(), [placed("u/r/m.gguf", "old")])
    assert (chosen.main, chosen.projector_target) == ("u/r@bbbbbbbbbbbb/m.gguf", "u/r@bbbbbbbbbbbb/p.gguf")
    assert choose_folder(resolution(sha256=None), [placed("u/r/m.gguf", "old", 11)]).folder == "u/r@bbbbbbbbbbbb"


def test_it_stays_where_it_is() -> None:
    known = [placed("u/r@bbbbbbbbbbbb/m.gguf", "new")]
    assert choose_folder(resolution(), known).folder == "u/r@bbbbbbbbbbbb", "though the plain folder is free by now"


def test_the_digest_of_a_registry_is_no_part_of_a_path() -> None:
    chosen = choose_folder(resolution(f"sha256:{'c' * 64}"), [placed("u/r/m.gguf", "old")])
    assert chosen.folder == "u/r@cccccccccccc"


def test_a_source_without_revisions_has_one_folder() -> None:
    assert choose_folder(resolution(None), [placed("u/r/m.gguf", "old")]).folder == "u/r"
