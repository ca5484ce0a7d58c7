"""Assembly of one transfers program from its parts, and their end."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from httpx2 import URL
from starlette.applications import Starlette

from common.network.transport import origin_of
from contract.downloads import RECORDS_FOLDER
from transfers.api import DownloadRoutes, FileRoutes, Worker, create_app
from transfers.downloads.board import DownloadBoard, StoredFiles
from transfers.downloads.inspection import Inspector
from transfers.downloads.job import FolderLocks, JobTools
from transfers.fetch import FetchOptions
from transfers.models_folder import ModelsFolder, RecordStore
from transfers.network import NetworkOptions, RetryPolicy
from transfers.settings import TransfersSettings
from transfers.sources.direct import LocalSource, UrlSource
from transfers.sources.hub import HubSource
from transfers.sources.registry import RegistrySource
from transfers.sources.source_set import SourceSet

QUICK_THREADS: Final = 4
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
        sources = SourceSet(
            hub=HubSource(settings.hub_endpoint, network, settings.read_hub_token, policy),
            url=UrlSource(network, policy),
            local=LocalSource(settings.local_folders),
            registry=RegistrySource(settings.transfers_ollama_registry, network, policy),
        )
        self._listen = settings.transfers_listen
        self.folder = ModelsFolder(settings.models_folder, settings.keep_free_bytes)
        tools = JobTools(
            sources, self.folder, FolderLocks(), network, FetchOptions(settings.transfers_connections, policy=policy)
        )
        self.board = DownloadBoard(tools, RecordStore(self.folder.path / RECORDS_FOLDER), settings.transfers_parallel)
        self.inspector = Inspector(
            sources, self.folder, network, lambda: [placed for _, placed in self.board.list_placed()]
        )
        self.files = StoredFiles(self.board, self.folder)
        self._quick = ThreadPoolExecutor(QUICK_THREADS, "quick")
        self._slow = ThreadPoolExecutor(SLOW_THREADS, "slow")

    def build_app(self) -> Starlette:
        """Return a new ASGI application with all routes. It checks no token (wrap it in
        `common.program.TokenCheck` for that), and can serve only while the context is entered."""
        quick, slow = Worker(self._quick), Worker(self._slow)
        downloads = DownloadRoutes(self.board, self.inspector, quick, slow)
        return create_app([*downloads.routes(), *FileRoutes(self.files, slow).routes()])

    def __enter__(self) -> Transfers:
        """Take the lock of the models folder, and go on with the downloads that were under way. Blocks on the disk.

        Raises:
            BlockingIOError: another program has the models folder.
            OSError: the models folder cannot be written.
        """
        self.folder.open(f"process {os.getpid()}, which listens on {self._listen}")
        try:
            self.board.open()
        except BaseException:
            self.folder.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.board.stop()
        self._network.open_backends.interrupt()
        self.board.close()
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        self.folder.close()
