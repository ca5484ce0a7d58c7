"""Downloads for tests: a models folder with small parts and short waits, a transfers program in this process, a web
server that it may ask."""

from __future__ import annotations

import functools
import hashlib
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from common.network.address_rule import AllowedHosts, parse_allowed_hosts
from common.network.transport import origin_of, resolve_addresses
from contract.downloads import FINAL_STATES, RECORDS_FOLDER, Download
from contract.errors import RoundhouseError
from contract.model_reference import ModelReference, parse_reference
from tests.support.wait import eventually
from transfers.assembly import Transfers
from transfers.downloads.board import DownloadBoard
from transfers.downloads.job import FolderLocks, JobTools
from transfers.fetch import FetchOptions
from transfers.models_folder import OWN_FOLDER, ModelsFolder, RecordStore
from transfers.network import NetworkOptions, RetryPolicy
from transfers.settings import TransfersSettings
from transfers.sources.direct import LocalSource, UrlSource
from transfers.sources.hub import HubSource
from transfers.sources.registry import RegistrySource
from transfers.sources.source_set import SourceSet, read_reference

Answer = tuple[int, dict[str, str], bytes]
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class FileServer:
    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    """By path."""
    answers: dict[str, Callable[[dict[str, str]], Answer]] = field(default_factory=dict)
    """By path without the query, before `files`: from the request's headers to status, headers and body."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path with its query, and headers in lower case, in the order in which they came."""
    gate: threading.Event = field(default_factory=threading.Event)
    """While it is not set, ranges of files that begin behind the first byte wait."""

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def allowed(self) -> AllowedHosts:
        """What lets downloads connect to this server."""
        return AllowedHosts(frozenset({("127.0.0.1", self.port)}))

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        self.requests.append((path, headers))
        name = path.partition("?")[0]
        if name in self.answers:
            return self.answers[name](headers)
        body = self.files.get(name)
        if body is None:
            return 404, {}, b""
        wanted = _RANGE.fullmatch(headers.get("range", ""))
        if wanted is None:
            return 200, {}, body
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(body))
        if start > 0 or end > 1:
            assert self.gate.wait(60), "nobody opened the gate"
        return 206, {"content-range": f"bytes {start}-{end - 1}/{len(body)}"}, body[start:end]


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Run a server whose gate is open. It has ended when the block ends."""
    state = FileServer()
    state.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = state.answer(self.path, {key.lower(): value for key, value in self.headers.items()})
            try:
                self.send_response(status)
                for key, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # the client has gone

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that go away in the middle."""

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


SEGMENT_BYTES = 32 * 1024
QUICK = RetryPolicy(attempts=6, first_delay_s=0.002, longest_delay_s=0.02, longest_asked_s=5.0)
LOOPBACK = parse_allowed_hosts("127.0.0.1")


@functools.cache
def trust_nobody() -> ssl.SSLContext:
    """One context for all tests that speak plain HTTP: making one takes long."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def make_network(
    endpoint: str,
    token: str | None = None,
    allowed: AllowedHosts = LOOPBACK,
    tls: ssl.SSLContext | None = None,
) -> NetworkOptions:
    """How the downloads of tests connect. `token`: for the origin of `endpoint`; None: there is none.
    `tls`: None to trust no certificate."""
    return NetworkOptions(
        allowed=allowed,
        connect_timeout_s=5,
        read_timeout_s=0.5,
        resolver=resolve_addresses,
        tokens={origin_of(httpx2.URL(endpoint)): lambda: token},
        tls=tls or trust_nobody(),
    )


class DownloadSite:
    def __init__(
        self, models: Path, network: NetworkOptions, endpoint: str, token: str | None = None, keep_free_bytes: int = 0
    ) -> None:
        sources = SourceSet(
            hub=HubSource(endpoint, network, lambda: token, QUICK),
            url=UrlSource(network, QUICK),
            local=LocalSource([]),
            registry=RegistrySource(endpoint, network, QUICK),
        )
        self.models = models
        self.folder = ModelsFolder(models, keep_free_bytes)
        fetch = FetchOptions(connections=3, segment_bytes=SEGMENT_BYTES, policy=QUICK)
        self.tools = JobTools(sources, self.folder, FolderLocks(), network, fetch)
        self.board = DownloadBoard(self.tools, RecordStore(models / RECORDS_FOLDER), parallel=2)

    def order(self, reference: str, *, include_pickle: bool = False) -> str:
        """Begin a download. Returns its id."""
        return self.board.order(parse_reference(reference), include_pickle=include_pickle)[0].id

    def wait_final(self, download: str) -> Download:
        return wait_final(self.board, download)

    def pull(self, reference: str, *, include_pickle: bool = False) -> Download:
        """Begin a download, and wait for its end."""
        return self.wait_final(self.order(reference, include_pickle=include_pickle))


def wait_final(board: DownloadBoard, download: str) -> Download:
    """Wait for a download's end."""
    eventually(f"the end of {download}", lambda: board.find(download).state in FINAL_STATES)
    return board.find(download)


@contextmanager
def open_site(
    models: Path, endpoint: str, *, token: str | None = None, network: NetworkOptions | None = None
) -> Iterator[DownloadSite]:
    """The downloads into a folder, which is made; what was under way goes on. `network`: None for loopback alone."""
    models.mkdir(exist_ok=True)
    site = DownloadSite(models, network or make_network(endpoint, token), endpoint, token)
    site.folder.open()
    try:
        site.board.open()
        try:
            yield site
        finally:
            site.board.close()
    finally:
        site.folder.close()


def list_models(models: Path) -> dict[str, str]:
    """SHA-256 by path of all that is in a models folder, but for the downloads' own folder. A link is `link`."""
    return {
        path.relative_to(models).as_posix(): "link" if path.is_symlink() else _hash(path)
        for path in sorted(models.rglob("*"))
        if (path.is_symlink() or path.is_file()) and OWN_FOLDER not in path.relative_to(models).parts
    }


def list_partials(models: Path) -> list[str]:
    return sorted(path.name for path in (models / OWN_FOLDER / "partial").rglob("*"))


def hash_files(folder: str, files: Mapping[str, bytes | Path]) -> dict[str, str]:
    """SHA-256 by path in the models folder of files that were downloaded into `folder`."""
    contents = {path: each if isinstance(each, bytes) else each.read_bytes() for path, each in files.items()}
    return {f"{folder}/{path}": hashlib.sha256(content).hexdigest() for path, content in sorted(contents.items())}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_transfers(models: Path, server: FileServer, **settings: Any) -> Transfers:
    """Return a program, to be entered, that has room on any disk."""
    defaults = {"transfers_keep_free_gb": 0.0, "transfers_ollama_registry": server.url, "hub_endpoint": server.url}
    return Transfers(
        TransfersSettings.model_validate(
            {"models": str(models), "transfers_allow_hosts": f"127.0.0.1:{server.port}", **defaults, **settings}
        )
    )


def add_file(server: FileServer, path: str, content: bytes) -> ModelReference:
    server.files[path] = content
    return read_reference(f"{server.url}{path}#sha256={hashlib.sha256(content).hexdigest()}")


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    """Return the first true answer of `look`. Raises AssertionError where none comes in time."""
    return eventually(what, look)


def wait_for_end(transfers: Transfers, download: str) -> Download:
    return wait_final(transfers.board, download)


def fetch(transfers: Transfers, reference: ModelReference) -> Download:
    """Order a download, and return it when it has ended."""
    return wait_for_end(transfers, transfers.board.order(reference, include_pickle=False)[0].id)


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """What the block does is an error with this code, whose message has these words."""
    with pytest.raises(RoundhouseError) as raised:
        yield
    assert raised.value.entry.code == code, raised.value
    assert all(each in raised.value.message for each in words), raised.value.message


def error_code(download: Download) -> str | None:
    """Why a download failed; None: it did not."""
    return None if download.error is None else download.error.code
