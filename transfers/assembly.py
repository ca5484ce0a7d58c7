"""Assembly of one transfers program from its parts, and their end."""

from __future__ import annotations

import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from httpx2 import URL
from starlette.applications import Starlette

from common.network.transport import origin_of
from common.shared_token import read_token
from contract.downloads import RECORDS_FOLDER
from transfers.api import (
    BearerCheck,
    DownloadRoutes,
    FileRoutes,
    ShareRoutes,
    Worker,
    create_app,
    share_place_route,
)
from transfers.downloads.board import DownloadBoard, StoredFiles
from transfers.downloads.inspection import Inspector
from transfers.downloads.job import FolderLocks, JobTools
from transfers.fetch import FetchOptions
from transfers.models_folder import ModelsFolder, RecordStore
from transfers.network import NetworkOptions, RetryPolicy
from transfers.settings import TransfersSettings
from transfers.sharing import DigestStore, SharedModels, derive_share_token, load_host_certificate
from transfers.sources.direct import HeadSource, LocalSource, UrlSource
from transfers.sources.hub import HubSource
from transfers.sources.registry import RegistrySource
from transfers.sources.source_set import SourceSet

QUICK_THREADS: Final = 4
DIGESTS_NAME: Final = "digests.json"
"""File in the downloads' own folder with the hashes of files."""
SLOW_THREADS: Final = 16
"""Inspections and cancellations at the same time; more wait."""


class Transfers:
    """All parts of one transfers program. A context manager, entered once; entering raises BlockingIOError if another
    program has the models folder, and OSError if it cannot be written. While it is entered, it holds the lock of the
    models folder, and downloads run; leaving it stops them, blocks until their threads have ended, and gives the lock
    back."""

    def __init__(self, settings: TransfersSettings) -> None:
        self._network = network = NetworkOptions(
            allowed=settings.allowed, tokens={origin_of(URL(settings.hub_endpoint)): settings.read_hub_token}
        )
        policy = RetryPolicy()
        self.share_url = settings.share_url
        self._share_token, head = None, None
        self.share_tls: ssl.SSLContext | None = None
        """What other hosts are served with; None: without encryption."""
        if settings.transfers_share_token_file is not None:
            self._share_token, head = self._open_head(settings, policy)
        sources = SourceSet(
            hub=HubSource(settings.hub_endpoint, network, settings.read_hub_token, policy),
            url=UrlSource(network, policy),
            local=LocalSource(settings.local_folders),
            registry=RegistrySource(settings.transfers_ollama_registry, network, policy),
            head=head,
        )
        self._listen = settings.transfers_listen
        self.folder = ModelsFolder(settings.models_folder, settings.keep_free_bytes)
        self._digests = DigestStore(self.folder.own / DIGESTS_NAME)
        self._tools = tools = JobTools(
            sources,
            self.folder,
            FolderLocks(),
            network,
            FetchOptions(settings.transfers_connections, policy=policy),
            digests=self._digests,
        )
        self.board = DownloadBoard(tools, RecordStore(self.folder.path / RECORDS_FOLDER), settings.transfers_parallel)
        self.inspector = Inspector(
            sources, self.folder, network, lambda: [placed for _, placed in self.board.list_placed()]
        )
        self.files = StoredFiles(self.board, self.folder)
        folders = [self.folder, *(ModelsFolder(each, 0) for each in settings.further_folders)]
        self._shared = SharedModels(folders, self._digests, self.board.find_partial)
        self._quick = ThreadPoolExecutor(QUICK_THREADS, "quick")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "slow")
        self._share = ThreadPoolExecutor(SLOW_THREADS, "share")

    def _open_head(self, settings: TransfersSettings, policy: RetryPolicy) -> tuple[str, HeadSource]:
        """Read what this host shows to others. Blocks. Raises ValueError."""
        assert settings.transfers_share_token_file is not None
        token, folder = read_token(settings.transfers_share_token_file), settings.transfers_share_certificates
        if token is None:
            raise ValueError(f"ROUNDHOUSE_TRANSFERS_SHARE_TOKEN_FILE: {settings.transfers_share_token_file} has none")
        network = self._network
        if folder is not None:
            try:
                network = replace(network, tls=load_host_certificate(folder, ssl.Purpose.SERVER_AUTH))
                self.share_tls = load_host_certificate(folder, ssl.Purpose.CLIENT_AUTH)
            except OSError as error:
                raise ValueError(f"ROUNDHOUSE_TRANSFERS_SHARE_CERTIFICATES: {folder}: {error}") from None
        token = derive_share_token(token)
        return token, HeadSource(network, token, replace(policy, attempts=3))

    def build_share_app(self) -> BearerCheck:
        """Return a new ASGI application of what other hosts ask, which checks their token. It can serve only while the
        context is entered."""
        assert self._share_token is not None, "who listens for hosts has the token"
        return BearerCheck(create_app(ShareRoutes(self._shared, Worker(self._share)).routes()), self._share_token)

    def build_app(self) -> Starlette:
        """Return a new ASGI application with all routes. It checks no token (wrap it in
        `common.program.TokenCheck` for that), and can serve only while the context is entered."""
        quick, slow = Worker(self._quick), Worker(self._slow)
        downloads = DownloadRoutes(self.board, self.inspector, quick, slow)
        files = FileRoutes(self.files, slow)
        return create_app([*downloads.routes(), *files.routes(), share_place_route(self.share_url)])

    def __enter__(self) -> Transfers:
        """Take the lock of the models folder, and go on with the downloads that were under way. Blocks on the disk.

        Raises:
            BlockingIOError: another program has the models folder.
            OSError: the models folder cannot be written.
        """
        self.folder.open(f"process {os.getpid()}, which listens on {self._listen}")
        try:
            self._digests.open()
            self.board.open()
        except BaseException:
            self.folder.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.board.stop()
        self._shared.close()
        self._network.open_backends.interrupt()
        self.board.close()
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._share.shutdown(wait=False, cancel_futures=True)
        self.folder.close()
