"""What is said of a reference before anything is downloaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.model_reference import ModelReference
from controller.schema.downloads import Inspection
from controller.schema.errors import RoundhouseError
from tests.support.file_server import Answer, FileServer, file_server
from tests.support.transfers_harness import add_file, fetch, make_transfers, wait_for, wait_for_end
from transfers.assembly import Transfers
from transfers.sources.source_set import read_reference

CONTENT = bytes(range(100))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def transfers(tmp_path: Path, server: FileServer) -> Iterator[Transfers]:
    with make_transfers(tmp_path, server, transfers_local_folders=str(tmp_path)) as running:
        yield running


def inspect(transfers: Transfers, reference: ModelReference) -> Inspection:
    return transfers.inspector.inspect(reference, include_pickle=False)


def test_it_says_what_is_here_and_what_is_missing(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    before = inspect(transfers, reference)
    assert (before.total_bytes, before.missing_bytes, before.files[0].is_present) == (100, 100, False)
    assert before.files[0].target == before.main == "url/127.0.0.1/m.gguf"
    assert before.free_bytes > 0
    assert not list(tmp_path.rglob("*.gguf"))
    fetch(transfers, reference)
    after = inspect(transfers, reference)
    assert (after.missing_bytes, after.files[0].is_present) == (0, True)


@pytest.mark.parametrize(("start", "length", "expected"), [(0, 4, CONTENT[:4]), (96, 50, CONTENT[96:]), (100, 1, b"")])
def test_a_range_is_read(transfers: Transfers, server: FileServer, start: int, length: int, expected: bytes) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    assert transfers.inspector.read_range(reference, "m.gguf", start, length) == expected


def test_the_source_is_not_asked_again_for_each_range(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    inspect(transfers, reference)
    for start in (0, 10, 20):
        transfers.inspector.read_range(reference, "m.gguf", start, 10)
    assert [headers["range"] for _, headers in server.requests] == [
        "bytes=0-0",
        "bytes=0-9",
        "bytes=10-19",
        "bytes=20-29",
    ]


def test_a_source_that_ignores_ranges_is_read_from_its_beginning(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    server.answers["/m.gguf"] = lambda headers: (200, {}, CONTENT)
    assert transfers.inspector.read_range(reference, "m.gguf", 50, 10) == CONTENT[50:60]


def test_a_local_file_is_read_too(tmp_path: Path, transfers: Transfers) -> None:
    (tmp_path / "m.gguf").write_bytes(CONTENT)
    reference = read_reference(f"file:{tmp_path}/m.gguf")
    assert transfers.inspector.read_range(reference, "m.gguf", 90, 50) == CONTENT[90:]


def test_a_file_that_is_not_there_is_told(transfers: Transfers, server: FileServer) -> None:
    with pytest.raises(RoundhouseError) as caught:
        transfers.inspector.read_range(add_file(server, "/m.gguf", CONTENT), "x.gguf", 0, 1)
    assert caught.value.entry.code == "source_not_found"


def test_a_source_that_changed_in_between_is_told(transfers: Transfers, server: FileServer) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    inspect(transfers, reference)
    server.files["/m.gguf"] = CONTENT * 2
    with pytest.raises(RoundhouseError) as caught:
        transfers.inspector.read_range(reference, "m.gguf", 0, 10)
    assert caught.value.entry.code == "source_mismatch"


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
                looking = threads.submit(inspect, running, add_file(server, "/m.gguf", CONTENT))
                download, _ = running.board.order(add_file(server, "/n.gguf", CONTENT), include_pickle=False)
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
    reference = add_file(server, "/m.gguf", CONTENT)
    server.answers["/m.gguf"] = lambda headers: (429, {"retry-after": "200"}, b"")
    with pytest.raises(RoundhouseError) as caught:
        inspect(transfers, reference)
    assert (caught.value.entry.code, caught.value.retry_after_s) == ("source_unavailable", 200)
