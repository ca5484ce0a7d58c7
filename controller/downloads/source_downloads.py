"""Downloads the files of models' sources for the reconciler."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from controller.downloads.service import DownloadService
from controller.schema.downloads import FINAL_STATES, Download
from controller.schema.errors import RoundhouseError

ACTOR: Final = "controller"
"""Who orders the downloads, as the history names it."""
LOOK_S: Final = 20.0
"""Seconds without news of a download after which `transfers` is asked for it: it may be gone."""
STEPS: Final = 20
"""The reconciler is woken at each twentieth; finer steps would wake it for nothing."""


class SourceDownloadError(Exception):
    """A source was not downloaded. The message says why, as the second half of a sentence."""


class SourceDownloader(Protocol):
    """What the reconciler downloads sources with. Sources are references in their canonical form."""

    @property
    def fractions(self) -> Mapping[str, float]:
        """Source to the part of its bytes, 0 to 1, that is here, for downloads under way. A source whose part is not
        known is absent."""

    async def download_source(self, source: str) -> None:
        """Download a source, and return when its files are in the models folder and the desired state has their paths.
        A download of it that is under way already, for anybody, is waited for. Cancelling the call does not end the
        download. Raises SourceDownloadError if the download cannot be ordered, fails or is cancelled."""

    async def cancel_source(self, source: str) -> None:
        """End the download of a source that `download_source` waits for; do nothing if there is none. Raises
        SourceDownloadError if it cannot be ended."""


class SourceDownloads:
    """The `SourceDownloader` of a controller: its downloads are those of the admin API."""

    def __init__(
        self, downloads: DownloadService, *, refresh: Callable[[], Awaitable[None]], wake: Callable[[], None]
    ) -> None:
        """`refresh` looks for the files of all sources again. `wake` wakes the reconciler, for each twentieth of a
        download."""
        self._downloads = downloads
        self._refresh = refresh
        self._wake = wake
        self._ids: dict[str, str] = {}

    @property
    def fractions(self) -> Mapping[str, float]:
        """See `SourceDownloader.fractions`."""
        known = self._downloads.known_downloads
        found = {source: _fraction(known.get(download)) for source, download in self._ids.items()}
        return {source: fraction for source, fraction in found.items() if fraction is not None}

    async def download_source(self, source: str) -> None:
        """See `SourceDownloader.download_source`."""
        try:
            ordered = await self._downloads.order_plain(source, actor=ACTOR)
            self._ids[source] = ordered.id
            ended = await self._wait_until_final(ordered)
        except RoundhouseError as error:
            raise SourceDownloadError(str(error)) from None
        finally:
            self._ids.pop(source, None)
        if ended.state == "cancelled":
            raise SourceDownloadError("its download was cancelled")
        if ended.state == "failed":
            raise SourceDownloadError("its download failed" if ended.error is None else ended.error.message)
        await self._refresh()

    async def cancel_source(self, source: str) -> None:
        """See `SourceDownloader.cancel_source`."""
        download = self._ids.get(source)
        if download is None:
            return
        try:
            await self._downloads.cancel_download(download, actor=ACTOR)
        except RoundhouseError as error:
            raise SourceDownloadError(str(error)) from None

    async def _wait_until_final(self, download: Download) -> Download:
        version, step = 0, -1
        while download.state not in FINAL_STATES:
            try:
                async with asyncio.timeout(LOOK_S):
                    changed, version = await self._downloads.wait_for_changes(version)
                    download = next((each for each in changed if each.id == download.id), download)
            except TimeoutError:
                download = await self._downloads.get_download(download.id)
            reached = math.floor((_fraction(download) or 0.0) * STEPS)
            if reached != step:
                step = reached
                self._wake()
        return download


def _fraction(download: Download | None) -> float | None:
    if download is None or not download.total_bytes:
        return None
    return min(1.0, download.done_bytes / download.total_bytes)
