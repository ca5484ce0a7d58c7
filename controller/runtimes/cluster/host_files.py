"""The model files of one host: which are there, and how its `transfers` fetches them from other hosts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from contract.downloads import FINAL_STATES, CopyOrder, Download
from contract.errors import RoundhouseError
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import Stamp, read_stamps
from controller.runtimes.base import RuntimeUnavailableError, StartError
from controller.transfers_client import TransfersClient

log = logging.getLogger(__name__)

FRESH_S: Final = 5.0
"""Seconds for which a look at the model files answers every round."""
POLL_S: Final = 0.5
"""Seconds between two looks at a fetch."""
FIRST_WAIT_S: Final = 0.3
"""Seconds that a look waits to hear where the files are served, while that is not known."""
PATIENCE_S: Final = 60.0
"""Seconds for which `transfers` may not answer during a fetch, which goes on by itself when it is there again."""


class HostFiles:
    """Knows the files of one host's models folders. Use one object in one event loop. `close` it at the end."""

    def __init__(
        self, models: ModelRoots, transfers: TransfersClient | None = None, *, is_client_open: bool = False
    ) -> None:
        """`transfers`: the host's own; None: nothing is fetched, and no other host gets anything. `is_client_open`:
        whether the caller has entered it, and will leave it."""
        self._models = models
        self._transfers = transfers
        self._is_open = is_client_open
        self._is_mine = not is_client_open
        self._looked_at = -FRESH_S
        self._paths: frozenset[str] = frozenset()
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.missing: frozenset[str] = frozenset()
        """Those of the paths that were looked for last that are not there."""
        self.stamps: Mapping[str, str] = {}
        """Path to a text that is the same as long as names, sizes and times of its files are, also on another host.
        Nothing of files behind a symbolic link, which are not copied. Empty without a `transfers`."""
        self.mark = ""
        """A text that changes with `stamps`."""
        self.url: str | None = None
        """Address at which other hosts get these files. None: not known, or there is none."""
        self.fractions: dict[str, float] = {}
        """Path to the part of its bytes, 0 to 1, that is here, while it is fetched."""

    async def look(self, paths: Collection[str]) -> None:
        """Look at the files at these model paths, unless that was done less than `FRESH_S` ago."""
        wanted, now = frozenset(paths), time.monotonic()
        if wanted == self._paths and now - self._looked_at < FRESH_S:
            return
        if self._transfers is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_place())
            if self.url is None:
                await asyncio.wait({self._asking}, timeout=FIRST_WAIT_S)
        found = await asyncio.to_thread(self._read, wanted) if wanted else {}
        self.missing = frozenset(path for path, stamp in found.items() if stamp is None)
        if self._transfers is not None:
            self.stamps = {path: stamp for path, stamp in sorted(found.items()) if stamp}
            self.mark = hashlib.sha256(repr(self.stamps).encode()).hexdigest()[:16]
        self._looked_at, self._paths = now, wanted

    async def look_within(self, paths: Collection[str], wait_s: float) -> None:
        """Do as `look`, and wait for it at most `wait_s`: it goes on. What it raises is logged."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self.look(paths))
        await asyncio.wait({self._looking}, timeout=wait_s)
        is_over = self._looking.done() and not self._looking.cancelled()
        if is_over and (error := self._looking.exception()) is not None:
            log.error("the look at the model files failed", exc_info=error)

    def _read(self, paths: Collection[str]) -> dict[str, str | None]:
        """Return what `stamps` says of each path; empty for files behind a link, None where they are missing. Blocks on
        the disk."""
        stamps = read_stamps(self._models, paths)
        return {path: None if stamp is None else _describe(stamp) for path, stamp in stamps.items()}

    async def _open(self) -> TransfersClient:
        if self._transfers is None:
            raise StartError("this host has no `transfers`, which fetches files")
        if not self._is_open:
            self._is_open = True
            await self._transfers.__aenter__()
        return self._transfers

    async def _ask_place(self) -> None:
        try:
            self.url = (await (await self._open()).get_share_place()).url
        except RoundhouseError as error:
            log.debug("where files are served to other hosts is not known: %s", error)

    async def fetch(self, paths: Iterable[str], peers: Collection[str]) -> None:
        """Have the files at these model paths fetched that are not there as the first of `peers` has them. Returns when
        all are there. If the caller is cancelled, a fetch goes on; one that is asked for again is the same.

        Raises:
            StartError: a file cannot be fetched; the message says why.
            RuntimeUnavailableError: this host's `transfers` does not answer.
        """
        client, wanted = await self._open(), tuple(paths)
        try:
            for path in wanted:
                await self._fetch_path(client, path, list(peers))
        finally:
            for path in wanted:
                self.fractions.pop(path, None)
            self._looked_at = -FRESH_S
        await self.look(self._paths | set(wanted))
        lacking = sorted(self.missing.intersection(wanted))
        if lacking:
            raise StartError(f"{lacking[0]} was fetched, and is not found below {self._models.describe()}")

    async def _fetch_path(self, client: TransfersClient, path: str, peers: list[str]) -> None:
        order = CopyOrder(reference=f"head:{path}", peers=peers)
        found: Download | None = None
        answered_at = time.monotonic()
        while found is None or found.state not in FINAL_STATES:
            try:
                if found is None:
                    found, _ = await client.order_download(order)
                else:
                    await asyncio.sleep(POLL_S)
                    found = await client.get_download(found.id)
            except RoundhouseError as error:
                if error.entry.code != "transfers_unreachable":
                    raise StartError(error.message) from error
                if time.monotonic() - answered_at > PATIENCE_S:
                    raise RuntimeUnavailableError(f"`transfers` there does not answer: {error.message}") from error
                await asyncio.sleep(POLL_S)
                continue
            answered_at = time.monotonic()
            if found.total_bytes:
                self.fractions[path] = found.done_bytes / found.total_bytes
        if found.state != "finished":
            raise StartError(found.error.message if found.error is not None else f"the fetch of {path} was cancelled")

    async def cancel(self, paths: Iterable[str]) -> None:
        """End the fetches of the files at these model paths that are under way, also those that nobody waits for, and
        remove what failed ones have left. Raises StartError without a `transfers`, and RuntimeUnavailableError if it
        does not answer."""
        client, references = await self._open(), {f"head:{path}" for path in paths}
        try:
            for each in await client.list_downloads():
                if each.reference in references and each.state not in ("finished", "cancelled"):
                    await client.cancel_download(each.id)
        except RoundhouseError as error:
            raise RuntimeUnavailableError(error.message) from error

    async def close(self) -> None:
        """End the connection to `transfers`. Fetches go on."""
        tasks = [each for each in (self._looking, self._asking) if each is not None]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._is_open and self._is_mine and self._transfers is not None:
            await self._transfers.__aexit__(None, None, None)


def _describe(stamp: Stamp) -> str:
    if any(os.path.realpath(name) != name for name, _, _ in stamp):  # the models folders are resolved
        return ""  # links are not copied between hosts: such a model is the host's own
    folder = os.path.commonpath([Path(name).parent for name, _, _ in stamp]) if stamp else ""
    files = sorted((os.path.relpath(name, folder), size, mtime) for name, size, mtime in stamp)
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
