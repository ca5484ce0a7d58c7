"""A fake of what the reconciler downloads sources with: downloads end when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.downloads.source_downloads import SourceDownloadError


class FakeDownloader:
    """A `SourceDownloader` without a network. `fractions` is the test's to set."""

    def __init__(self) -> None:
        self.fractions: Mapping[str, float] = {}
        self.ordered: list[str] = []
        """Every source that was ordered, in order."""
        self.cancelled: list[str] = []
        self._waits: dict[str, asyncio.Future[None]] = {}

    async def download_source(self, source: str) -> None:
        """Wait until `finish` or `fail`. See `SourceDownloader`."""
        self.ordered.append(source)
        self._waits[source] = asyncio.get_running_loop().create_future()
        await self._waits[source]

    async def cancel_source(self, source: str) -> None:
        self.cancelled.append(source)
        self.fail(source, "its download was cancelled")

    def finish(self, source: str) -> None:
        """End a download that is under way."""
        self._waits.pop(source).set_result(None)

    def fail(self, source: str, reason: str) -> None:
        """Let a download that is under way fail."""
        self._waits.pop(source).set_exception(SourceDownloadError(reason))
