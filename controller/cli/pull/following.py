"""Follows one download to its end, over lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from controller.cli.client_errors import NoControllerError, RequestRefusedError
from controller.cli.exit_codes import CommandError
from controller.cli.follow import FIRST_PAUSE_S, LONGEST_PAUSE_S
from controller.cli.output import print_error
from controller.schema.downloads import FINAL_STATES, Download

if TYPE_CHECKING:
    from controller.cli.admin_client import AdminClient


LISTED_EVERY_S = 5.0
"""Seconds without a change after which the list of downloads is asked for."""


class DownloadFollower:
    """Waits for the end of one download. Uses an open `client`, and does not close it."""

    def __init__(self, client: AdminClient, ordered: Download, show: Callable[[Download], None]) -> None:
        """`ordered`: the download as its order was answered. `show` is called with each change."""
        self._client = client
        self._ordered = ordered
        self._show = show
        self._is_reported = False
        self._pause_s = FIRST_PAUSE_S

    async def wait_for_end(self) -> Download:
        """Wait without a limit, and return the download in its final state. A lost connection is reported once on
        stderr and made again. Call once. Raises RequestRefusedError where the controller refuses with a status below
        500, and CommandError where its TLS fails, it is of another version, or it does not list the download any
        more."""
        while True:
            try:
                if (end := await self._follow_once()) is not None:
                    return end
                reason = "the stream ended"
            except NoControllerError as error:
                reason = error.reason
            except RequestRefusedError as error:
                # While `transfers` or the controller is away, the answer is 5xx.
                if error.status < 500:
                    raise
                reason = str(error)
            if not self._is_reported:
                print_error(f"the connection broke ({reason}); the download goes on, and is asked for again")
                self._is_reported = True
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    async def _follow_once(self) -> Download | None:
        """Follow over one connection. None: it ended before the download."""
        await self._check_listed()
        downloads = self._client.follow_downloads()
        async with aclosing(downloads):
            while (each := await self._take_next(downloads)) is not None:
                if not self._is_ordered(each):
                    continue
                self._is_reported, self._pause_s = False, FIRST_PAUSE_S
                self._show(each)
                if each.state in FINAL_STATES:
                    return each
        return None

    async def _take_next(self, downloads: AsyncGenerator[Download, None]) -> Download | None:
        """Return the next change; None: the stream ended. The stream does not tell of a download that is forgotten, so
        the list is asked for while nothing comes."""
        arriving = asyncio.ensure_future(anext(downloads, None))
        try:
            while not (await asyncio.wait((arriving,), timeout=LISTED_EVERY_S))[0]:
                await self._check_listed()
            return await arriving
        finally:
            if not arriving.done():
                arriving.cancel()
                await asyncio.wait((arriving,))

    async def _check_listed(self) -> None:
        if not any(map(self._is_ordered, (await self._client.list_downloads()).downloads)):
            raise CommandError(f"the download of {self._ordered.reference} is listed no more: its files were removed")

    def _is_ordered(self, download: Download) -> bool:
        # An earlier run of the same reference has the same id.
        return download.id == self._ordered.id and download.created_at >= self._ordered.created_at
