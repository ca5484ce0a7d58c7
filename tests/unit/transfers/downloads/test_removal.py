"""What downloads put into the models folder, and its removal: nothing else, nothing that was changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.schema.errors import RoundhouseError
from tests.support.file_server import FileServer, file_server
from tests.support.transfers_harness import add_file, fetch, make_transfers, wait_for
from transfers.assembly import Transfers

CONTENT = b"0123456789" * 10
PLACE = "url/127.0.0.1/m.gguf"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


@pytest.fixture
def transfers(tmp_path: Path, server: FileServer) -> Iterator[Transfers]:
    with make_transfers(tmp_path, server) as running:
        yield running
        server.gate.set()


def refuse_path(transfers: Transfers, path: str) -> str:
    with pytest.raises(RoundhouseError) as caught:
        transfers.files.remove_path(path)
    return caught.value.entry.code


def test_a_downloads_files_are_listed_and_removed(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    (listed,) = transfers.files.list_files()
    assert (listed.path, listed.size, listed.download, listed.is_unchanged) == (PLACE, 100, done.id, True)
    removal = transfers.files.remove_download(done.id)
    assert (removal.removed, removal.kept, removal.freed_bytes) == ([PLACE], [], 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".roundhouse"]
    assert transfers.board.list_downloads() == []


@pytest.mark.parametrize("path", [PLACE, "url/127.0.0.1", "url", "url/"])
def test_a_file_or_a_folder_is_removed_by_its_path(
    tmp_path: Path, transfers: Transfers, server: FileServer, path: str
) -> None:
    fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    (tmp_path / "url" / "mine.gguf").write_bytes(b"by hand")
    assert transfers.files.remove_path(path).removed == [PLACE]
    assert (tmp_path / "url" / "mine.gguf").read_bytes() == b"by hand"
    assert transfers.files.list_files() == []


@pytest.mark.parametrize("path", ["url/mine.gguf", "ur", "url/127.0.0.1/m", "..", "/", "", ".roundhouse", "."])
def test_what_no_download_put_there_stays(tmp_path: Path, transfers: Transfers, server: FileServer, path: str) -> None:
    fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    (tmp_path / "url" / "mine.gguf").write_bytes(b"by hand")
    assert refuse_path(transfers, path) == "models_file_kept"
    assert (tmp_path / PLACE).read_bytes() == CONTENT
    assert (tmp_path / "url" / "mine.gguf").exists()


def test_a_changed_file_stays_and_with_it_all_others(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    fetch(transfers, add_file(server, "/n.gguf", CONTENT))
    (tmp_path / PLACE).write_bytes(CONTENT[::-1])
    assert [each.is_unchanged for each in transfers.files.list_files()] == [False, True]
    assert refuse_path(transfers, "url") == "models_file_kept"
    with pytest.raises(RoundhouseError):
        transfers.files.remove_download(done.id)
    assert len(list((tmp_path / "url" / "127.0.0.1").iterdir())) == 2


def test_a_link_in_a_files_place_stays(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    outside = tmp_path.parent / "outside.gguf"
    outside.write_bytes(CONTENT)
    (tmp_path / PLACE).unlink()
    (tmp_path / PLACE).symlink_to(outside)
    assert refuse_path(transfers, PLACE) == "models_file_kept"
    assert outside.read_bytes() == CONTENT


def test_a_file_with_another_time_and_the_same_content_is_removed(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    os.utime(tmp_path / PLACE, (1, 1))
    assert transfers.files.remove_path(PLACE).removed == [PLACE]


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path, transfers: Transfers, server: FileServer) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    (tmp_path / PLACE).unlink()
    removal = transfers.files.remove_download(done.id)
    assert (removal.removed, removal.freed_bytes) == ([], 0)
    assert transfers.files.list_files() == []


def test_a_file_that_two_downloads_have_goes_with_the_second(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    reference = add_file(server, "/m.gguf", CONTENT)
    first = fetch(transfers, reference)
    second_id = transfers.board.order(reference, include_pickle=True)[0].id
    wait_for("the second", lambda: transfers.board.find(second_id).state == "finished")
    assert len(transfers.files.list_files()) == 1
    removal = transfers.files.remove_download(first.id)
    assert (removal.removed, removal.kept) == ([], [PLACE])
    assert (tmp_path / PLACE).exists()
    assert transfers.files.remove_download(second_id).removed == [PLACE]


def test_nothing_is_removed_of_a_download_that_is_under_way(
    tmp_path: Path, transfers: Transfers, server: FileServer
) -> None:
    done = fetch(transfers, add_file(server, "/m.gguf", CONTENT))
    server.gate.clear()
    other, _ = transfers.board.order(add_file(server, "/n.gguf", CONTENT), include_pickle=False)
    wait_for("the fetch", lambda: transfers.board.find(other.id).state == "downloading")
    with pytest.raises(RoundhouseError, match="under way"):
        transfers.files.remove_download(other.id)
    assert refuse_path(transfers, "url/127.0.0.1/n.gguf") == "models_file_kept"
    assert transfers.files.remove_download(done.id).removed == [PLACE]


def test_removal_of_an_unknown_download_is_told(transfers: Transfers) -> None:
    with pytest.raises(RoundhouseError) as caught:
        transfers.files.remove_download("dl_x")
    assert caught.value.entry.code == "download_not_found"
