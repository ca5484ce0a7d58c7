"""Sources whose answers have no end, come a byte at a time, or are not what they should be: a clear error, soon, and
without the memory of the program."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.network.transport import Pace
from contract.errors import RoundhouseError
from contract.model_reference import parse_reference
from tests.support.campaign import campaign_count
from tests.support.fake_hub import FakeHub, Fault, HubRepository
from tests.support.transfers_harness import (
    LOOPBACK,
    QUICK,
    SEGMENT_BYTES,
    error_code,
    file_server,
    open_site,
    refused,
    trust_nobody,
)
from transfers.network import NetworkOptions, SourceClient
from transfers.sources.direct import UrlSource
from transfers.sources.hub import HubSource
from transfers.sources.registry import RegistrySource

CLEAR_CODES = {"source_mismatch", "source_unavailable", "source_not_found"}
MOST_SENT = 32 * 1024 * 1024
"""Bytes that a server gets rid of before somebody says enough, with what its own socket takes."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
Speak = Callable[[Callable[[bytes], None]], None]


@contextmanager
def speaking(speak: Speak) -> Iterator[tuple[str, list[int]]]:
    """A server that says something to everybody who has sent a head. Gives its URL, and one number: bytes sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    sent, is_over = [0], threading.Event()

    def talk(connection: socket.socket) -> None:
        def say(data: bytes) -> None:
            if is_over.is_set():
                raise OSError
            connection.sendall(data)
            sent[0] += len(data)

        with suppress(OSError), connection:
            connection.recv(65536)
            speak(say)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent
    finally:
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def options(**more: Any) -> NetworkOptions:
    return NetworkOptions(allowed=LOOPBACK, tls=trust_nobody(), **more)


def fetch(kind: str, url: str, network: NetworkOptions) -> None:
    """Ask the server at `url` what a reference is."""
    if kind == "hub":
        HubSource(url, network, lambda: None, QUICK).resolve(parse_reference("hf:u/r"), include_pickle=False)  # type: ignore[arg-type]
    elif kind == "registry":
        reference = parse_reference("ollama:some/model:1")
        RegistrySource(url, network, QUICK).resolve(reference, include_pickle=False)  # type: ignore[arg-type]
    else:
        UrlSource(network, QUICK).resolve(parse_reference(f"{url}/m.gguf#sha256={'a' * 64}"))  # type: ignore[arg-type]


def without_end(head: bytes, part: bytes) -> Speak:
    def speak(say: Callable[[bytes], None]) -> None:
        say(head)
        while True:
            say(part)

    return speak


@pytest.mark.parametrize("kind", ["hub", "registry"])
@pytest.mark.parametrize("status", ["200 OK", "404 No", "500 No", "307 There"])
def test_an_answer_without_an_end_is_given_up(kind: str, status: str) -> None:
    head = HEAD.replace(b"200 OK", status.encode()).replace(b"\r\n\r\n", b"\r\nlocation: /elsewhere\r\n\r\n")
    with speaking(without_end(head, b'{"siblings":[' + b"0," * 30_000)) as (url, sent):
        with pytest.raises(RoundhouseError) as caught:
            fetch(kind, url, options())
        assert caught.value.entry.code in CLEAR_CODES
        assert sent[0] < MOST_SENT * (QUICK.attempts if status.startswith("5") else 10 if status.startswith("3") else 1)


def test_a_token_without_an_end_is_none() -> None:
    with speaking(without_end(HEAD, b'{"token":"' + b"a" * 30_000)) as (url, sent), file_server() as registry:
        challenge = {"www-authenticate": f'Bearer realm="{url}/token"'}
        registry.answers["/v2/some/model/manifests/1"] = lambda headers: (401, challenge, b"")
        with refused("source_forbidden"):
            fetch("registry", registry.url, options())
        assert sent[0] < MOST_SENT


@pytest.mark.parametrize("before", [b"", HEAD])
@pytest.mark.parametrize("kind", ["hub", "registry", "url"])
def test_a_byte_at_a_time_ends(kind: str, before: bytes) -> None:
    """In the head as in the body: no wait is long, and there is no end."""

    def speak(say: Callable[[bytes], None]) -> None:
        say(before or b"HTTP/1.1 200 OK\r\nx-slow: ")
        while True:
            time.sleep(0.01)
            say(b" ")

    network = options(answer_s=0.2, pace=Pace(0.2, 1024))
    # A file without a length is none.
    code = "source_mismatch" if kind == "url" and before else "source_unavailable"
    with speaking(speak) as (url, _), refused(code):
        fetch(kind, url, network)


def test_steady_bytes_of_no_file_end_too() -> None:
    """The pace is kept, and the whole takes too long."""

    def speak(say: Callable[[bytes], None]) -> None:
        say(HEAD)
        while True:
            time.sleep(0.01)
            say(b" " * 100)

    with speaking(speak) as (url, _), pytest.raises(RoundhouseError, match=r"not complete after 0\.2 s") as caught:
        fetch("hub", url, options(answer_s=0.2, pace=Pace(0.1, 10)))
    assert caught.value.entry.code == "source_unavailable"


def test_a_download_that_trickles_fails_and_goes_on_later(tmp_path: Path) -> None:
    content = bytes(range(256)) * (SEGMENT_BYTES // 64)
    repository = HubRepository("some/model", {"model-Q4_K_M.gguf": content})
    with FakeHub([repository]) as hub:
        network = options(pace=Pace(0.1, 4096))
        with open_site(tmp_path / "models", hub.endpoint, network=network) as site:
            hub.faults.add(Fault("slow", bytes_per_s=500, skip=1, times=0))
            failed = site.pull("hf:some/model:Q4_K_M")
            assert (failed.state, error_code(failed)) == ("failed", "source_unavailable")
            hub.faults.clear()
            hub.clear_requests()
            assert site.pull("hf:some/model:Q4_K_M").state == "finished"
            ranges = [each.headers["range"] for each in hub.requests if each.server == "storage"]
            assert f"bytes=0-{SEGMENT_BYTES - 1}" not in ranges, "what was here stays"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_compressed_answer_is_not_unpacked(encoding: str) -> None:
    with file_server() as server:
        server.answers["/api/models/u/r"] = lambda headers: (200, {"content-encoding": encoding}, bytes(1000))
        with pytest.raises(RoundhouseError, match="compressed, which was not asked for") as caught:
            fetch("hub", server.url, options())
        assert caught.value.entry.code == "source_mismatch"
        server.answers["/api/models/u/r"] = lambda headers: (404, {"content-encoding": encoding}, bytes(1000))
        with pytest.raises(RoundhouseError, match="answers status 404"):
            fetch("hub", server.url, options())
        assert server.requests[0][1]["accept-encoding"] == "identity"


_ODDS: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, [], {}, [[]], {"a": []}),
    *("", "x", "\ud800", "a\u202eb", "../x", "/x", "x" * 5000),
)
_ODD = st.sampled_from(_ODDS)
_PLACES = st.lists(st.integers(0, 50), max_size=6)
_RAW = st.sampled_from(
    [b"", b"null", b"[]", b"1", b"NaN", b'"x"', b"{", b"\xff", b"[" * 5000, b"{}", b"1" * 5000, b'{"a":Infinity}']
)


def spoil(value: Any, places: list[int], odd: Any) -> Any:
    """The same with something odd at a place: an item, or the whole."""
    if not places or not isinstance(value, dict | list) or not value:
        return odd
    at, rest = places[0] % (len(value) + 1), places[1:]
    if isinstance(value, list):
        return [*value, odd] if at == len(value) else [*value[:at], spoil(value[at], rest, odd), *value[at + 1 :]]
    if at == len(value):
        return {name: each for name, each in value.items() if name != min(value)}
    name = sorted(value)[at]
    return {**value, name: spoil(value[name], rest, odd)}


def find_good_answers() -> dict[str, Any]:
    """What the fake hub says of a model, and a manifest, by kind."""
    with FakeHub([HubRepository("u/r", {"m-Q4_K_M.gguf": b"x" * 10, "README.md": b"#"})]) as hub:
        client = SourceClient(options())
        try:
            with client.open(f"{hub.endpoint}/api/models/u/r?blobs=true", {}) as (response, _):
                model = json.loads(response.read())
        finally:
            client.close()
    media_type, title = "application/vnd.ollama.image.model", {"org.opencontainers.image.title": "m.gguf"}
    layer = {"mediaType": media_type, "digest": f"sha256:{'a' * 64}", "size": 9, "annotations": title}
    return {"hub": model, "registry": {"schemaVersion": 2, "layers": [layer]}}


@pytest.mark.parametrize("kind", ["hub", "registry"])
def test_any_answer_is_files_or_a_clear_error(kind: str) -> None:
    good = find_good_answers()[kind]
    network, seen = options(), set()
    body = [b""]
    with file_server() as server:
        for path in ("/api/models/u/r", "/v2/some/model/manifests/1"):
            server.answers[path] = lambda headers: (200, {"content-type": "application/json"}, body[0])

        @settings(max_examples=campaign_count(60, 3_000), deadline=None)
        @given(places=_PLACES, odd=_ODD, raw=st.none() | _RAW)
        def check(places: list[int], odd: Any, raw: bytes | None) -> None:
            body[0] = json.dumps(spoil(good, places, odd)).encode() if raw is None else raw
            with suppress(RoundhouseError):
                fetch(kind, server.url, network)
                return
            with pytest.raises(RoundhouseError) as caught:
                fetch(kind, server.url, network)
            assert caught.value.json_bytes()
            seen.add(caught.value.entry.code)

        check()
        body[0] = json.dumps(good).encode()
        fetch(kind, server.url, network)
    assert "source_mismatch" in seen
    assert seen <= CLEAR_CODES


@pytest.mark.parametrize("field", ["sha", "siblings", "rfilename", "size", "blobId", "lfs"])
def test_a_field_of_a_hubs_list_may_be_anything(field: str) -> None:
    good = find_good_answers()["hub"]
    with file_server() as server:
        for odd in _ODDS:
            siblings = [{**each, field: odd} for each in good["siblings"]]
            told = {**good, field: odd} if field in good else {**good, "siblings": siblings}
            server.answers["/api/models/u/r"] = lambda headers, told=told: (200, {}, json.dumps(told).encode())  # type: ignore[misc]
            try:
                fetch("hub", server.url, options())
            except RoundhouseError as error:
                code = error.entry.code
                assert code in CLEAR_CODES
            else:
                assert field in ("siblings", "size", "lfs", "blobId"), odd


def test_names_of_files_do_not_break_the_error(tmp_path: Path) -> None:
    """A hub lists a name that no text of an answer can hold."""
    names = ["\ud800.txt", "a\nb.txt", "x" * 4000 + ".txt"]
    described = {"id": "u/r", "sha": "c" * 40, "siblings": [{"rfilename": each} for each in names]}
    with file_server() as server:
        server.answers["/api/models/u/r"] = lambda headers: (200, {}, json.dumps(described).encode())
        with pytest.raises(RoundhouseError) as caught:
            fetch("hub", server.url, options())
        assert caught.value.entry.code == "source_not_found"
        assert len(caught.value.json_bytes()) < 2000
        assert httpx2.Response(200, content=caught.value.json_bytes()).json()
