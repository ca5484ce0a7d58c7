"""Downloads from the order to the end: once, cancelled, gone on with, and what stays of them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.schema.errors import RoundhouseError
from tests.support.file_server import FileServer, file_server
from tests.support.transfers_harness import add_file, fetch, make_transfers, wait_for, wait_for_end
from transfers.assembly import Transfers
from transfers.sources.source_set import read_reference

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def transfers(tmp_path: Path, server: FileServer) -> Iterator[Transfers]:
    with make_transfers(tmp_path, server) as running:
        yield running
        server.gate.set()


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


def test_two_who_cancel_the_same_waiting_download_end_it_once(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert failed.error is not None
    assert (failed.state, failed.error.code) == ("failed", "source_mismatch")
    assert failed.ended_at is not None
    server.files["/m.gguf"] = CONTENT
    done = fetch(transfers, reference)
    assert (done.state, done.error) == ("finished", None)


def test_a_finished_download_that_fails_later_is_still_here(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
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
    assert failed.error is not None
    assert failed.error.code == "models_disk_full"
    assert [headers["range"] for _, headers in server.requests] == ["bytes=0-0"]


def test_a_file_that_is_there_by_hand_is_compared_and_kept(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    place = tmp_path / "url" / "127.0.0.1" / "m.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    right = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    assert (right.state, right.done_bytes) == ("finished", len(CONTENT))
    assert transfers.board.list_placed() == []
    place.write_bytes(b"theirs")
    wrong = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    assert wrong.error is not None
    assert wrong.error.code == "models_file_conflict"
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
    assert found.error is not None
    assert (found.state, found.error.code) == ("failed", "reference_invalid")


def test_an_unknown_download_is_told(transfers: Transfers) -> None:
    for act in (transfers.board.find, transfers.board.cancel):
        with pytest.raises(RoundhouseError) as caught:
            act("dl_x")
        assert caught.value.entry.code == "download_not_found"


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


def test_a_model_of_a_registry_comes_with_its_projector(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    layers = [
        {
            "mediaType": f"application/vnd.ollama.image.{kind}",
            "digest": f"sha256:{sha256(content)}",
            "size": len(content),
        }
        for kind, content in (("model", CONTENT), ("projector", CONTENT[:100]), ("license", b"free"))
    ]
    server.files["/v2/library/m/manifests/1b"] = json.dumps({"layers": layers}).encode()
    for content in (CONTENT, CONTENT[:100]):
        server.files[f"/v2/library/m/blobs/sha256:{sha256(content)}"] = content
    done = fetch(transfers, read_reference("ollama:m:1b"))
    assert (done.state, done.main) == ("finished", "ollama/library/m/m-1b.gguf")
    assert (tmp_path / str(done.main)).read_bytes() == CONTENT
    assert done.projector == "ollama/library/m/mmproj-m-1b.gguf"
    assert (tmp_path / str(done.projector)).read_bytes() == CONTENT[:100]
    assert done.pinned is not None
    assert str(read_reference(done.pinned)) == done.pinned


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
