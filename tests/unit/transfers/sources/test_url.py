"""The source of files at an address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.model_reference import UrlReference
from controller.schema.errors import RoundhouseError
from tests.support.file_server import Answer, FileServer, file_server
from transfers.network.client import NetworkOptions
from transfers.network.retry import RetryPolicy
from transfers.sources.base import Resolution
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
    with pytest.raises(RoundhouseError) as caught:
        resolve(server, "/m.gguf")
    assert caught.value.entry.code == code
