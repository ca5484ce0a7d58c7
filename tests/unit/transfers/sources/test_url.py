"""The sources of files at an address, and of this machine's own files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.model_reference import LocalReference, UrlReference
from controller.schema.errors import RoundhouseError
from tests.support.file_server import Answer, FileServer, file_server
from tests.support.transfers_harness import refused
from transfers.network.client import NetworkOptions
from transfers.network.retry import RetryPolicy
from transfers.sources.base import Resolution
from transfers.sources.local import LocalSource
from transfers.sources.url import UrlSource

HASH = "a" * 64


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        running.files["/d/m%20x.gguf"] = b"0123456789"
        yield running


def resolve(server: FileServer, path: str = "/d/m%20x.gguf") -> Resolution:
    options = NetworkOptions(allowed=server.allowed)
    source = UrlSource(options, RetryPolicy(attempts=1))
    return source.resolve(UrlReference(f"{server.url}{path}", HASH))


def test_the_size_is_the_servers_and_the_hash_the_references(server: FileServer) -> None:
    found = resolve(server)
    assert found.main == "url/127.0.0.1/m x.gguf"
    assert found.reference == found.pinned == f"{server.url}/d/m%20x.gguf#sha256={HASH}"
    assert (found.files[0].size, found.files[0].sha256) == (10, HASH)


def test_a_server_without_ranges_tells_the_size_too(server: FileServer) -> None:
    server.answers["/whole.gguf"] = lambda headers: (200, {}, b"0123456")
    assert resolve(server, "/whole.gguf").files[0].size == 7


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((404, {}, b""), "source_not_found"),
        ((401, {}, b""), "source_forbidden"),
        ((418, {}, b""), "source_unavailable"),
        ((500, {}, b""), "source_unavailable"),
        ((206, {"content-range": "bytes 5-6/9"}, b"ab"), "source_unavailable"),
        ((200, {"content-encoding": "gzip"}, b"ab"), "source_mismatch"),
        ((302, {"location": "http://[::1]:1/"}, b""), "source_address_refused"),
        ((302, {"location": "ftp://a/"}, b""), "source_address_refused"),
    ],
)
def test_a_server_that_names_no_size_is_told(server: FileServer, answer: Answer, code: str) -> None:
    server.answers["/m.gguf"] = lambda headers: answer
    with refused(code):
        resolve(server, "/m.gguf")


def resolve_local(root: Path | None, path: Path) -> Resolution:
    source = LocalSource([] if root is None else [root])
    return source.resolve(LocalReference(str(path)), include_pickle=False)


def code_of(root: Path | None, path: Path) -> str:
    with pytest.raises(RoundhouseError) as caught:
        resolve_local(root, path)
    return caught.value.entry.code


def test_a_file_of_a_named_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"12345")
    found = resolve_local(tmp_path, tmp_path / "m.gguf")
    assert (found.main, found.files[0].size) == ("local/m.gguf", 5)
    assert found.files[0].local_path == tmp_path / "m.gguf"


def test_a_folder_is_taken_as_a_repository_is(tmp_path: Path) -> None:
    folder = tmp_path / "qwen"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "README.md", "pytorch_model.bin"):
        (folder / name).write_bytes(b"1")
    found = resolve_local(tmp_path, folder)
    assert (found.main, found.is_folder) == ("local/qwen", True)
    assert {each.path for each in found.files} == {"config.json", "model.safetensors"}


def test_nothing_is_taken_from_elsewhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "m.gguf").write_bytes(b"1")
    (inside / "link.gguf").symlink_to(outside / "m.gguf")
    assert code_of(inside, outside / "m.gguf") == "source_forbidden"
    assert code_of(inside, inside / "link.gguf") == "source_forbidden"
    assert code_of(None, outside / "m.gguf") == "source_forbidden"


def test_links_in_a_folder_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret.gguf").write_bytes(b"1")
    (folder / "m.gguf").symlink_to(tmp_path / "secret.gguf")
    assert code_of(folder, folder) == "source_not_found"


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    assert code_of(tmp_path, tmp_path / "x.gguf") == "source_not_found"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert code_of(tmp_path, tmp_path / "loop") == "source_not_found"
    (tmp_path / "empty").mkdir()
    assert code_of(tmp_path, tmp_path / "empty") == "source_not_found"
