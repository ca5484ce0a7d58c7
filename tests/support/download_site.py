"""A models folder with its downloads, for tests: real downloads from a fake hub, with small parts and short waits."""

from __future__ import annotations

import functools
import hashlib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from common.model_reference import parse_reference
from common.network.address_rule import AllowedHosts, parse_allowed_hosts
from common.network.backend import Resolver, resolve_addresses
from common.network.transport import origin_of
from controller.schema.downloads import FINAL_STATES, RECORDS_FOLDER, Download
from tests.support.wait import eventually
from transfers.downloads.board import DownloadBoard
from transfers.downloads.job import FolderLocks, JobTools
from transfers.fetch.file_fetch import FetchOptions
from transfers.folder.models_folder import OWN_FOLDER, ModelsFolder
from transfers.folder.records import RecordStore
from transfers.network.client import NetworkOptions
from transfers.network.retry import RetryPolicy
from transfers.sources.hub import HubSource
from transfers.sources.local import LocalSource
from transfers.sources.registry import RegistrySource
from transfers.sources.source_set import SourceSet
from transfers.sources.url import UrlSource

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
    resolver: Resolver = resolve_addresses,
    tls: ssl.SSLContext | None = None,
) -> NetworkOptions:
    """How the downloads of tests connect. `token`: for the origin of `endpoint`; None: there is none.
    `tls`: None to trust no certificate."""
    return NetworkOptions(
        allowed=allowed,
        connect_timeout_s=5,
        read_timeout_s=0.5,
        resolver=resolver,
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
