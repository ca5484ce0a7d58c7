"""Follows the controller's downloads, so that clients of llama-server's router see them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import ValidationError

from common.program_client import ProgramClient, ProgramGoneError
from controller.schema.downloads import Download, DownloadList
from controller.schema.errors import RoundhouseError
from gateway.control.admin_requests import AdminRequests
from gateway.control.link import check_token_taken
from gateway.protocols.common.sse import data_of, end_of_events, split_events

LIST_S: Final = 5.0
"""Seconds that the list of downloads may take."""
FIRST_PAUSE_S: Final = 0.5
"""Seconds before the first try to follow the downloads again."""
LONGEST_PAUSE_S: Final = 30.0
LONGEST_EVENT: Final = 4 * 1024 * 1024
"""Bytes of an event above which the stream is given up."""

log = logging.getLogger(__name__)


class DownloadFeed:
    """Follows the downloads of the controller as long as `run` runs.

    Calls `on_downloads` with all of them whenever one has changed. A download that the controller has forgotten stays
    as it was seen last until the list is read anew; all stay so while the controller is away.
    """

    def __init__(self, controller: ProgramClient, on_downloads: Callable[[Sequence[Download]], None]) -> None:
        """`controller`: an entered client, which the caller closes. `on_downloads` is called with all downloads:
        whenever `run` has read the list, at the beginning and after each break of the connection, and after each
        change."""
        self._controller = controller
        self._admin = AdminRequests(controller)
        self._on_downloads = on_downloads
        self._downloads: dict[str, Download] = {}

    async def run(self) -> None:
        """Follow the downloads until cancelled, also over restarts of the controller. Never returns. An error of the
        controller, or a ValueError of `on_downloads`, is only logged: the list is read anew after a pause that grows up
        to `LONGEST_PAUSE_S` (30 s). Any other error of `on_downloads` is raised, and ends the feed."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self.refresh_list()
                pause_s = FIRST_PAUSE_S
                await self._follow_events()
            except (RoundhouseError, ProgramGoneError, ValidationError, ValueError, TimeoutError) as error:
                log.debug("the downloads cannot be followed: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def refresh_list(self) -> None:
        """Ask the controller for all downloads, and call `on_downloads` with them. After an error it is not called.

        Raises:
            RoundhouseError: as `AdminRequests.send_request`, for example `downloads_disabled` or
                `controller_unavailable`.
            ValueError: the answer is not a list of downloads (pydantic's ValidationError).
        """
        answered = await self._admin.send_request("GET", "downloads", within_s=LIST_S)
        listed = DownloadList.model_validate(answered).downloads
        self._downloads = {each.id: each for each in listed}
        self._on_downloads(listed)

    async def _follow_events(self) -> None:
        """Tell what changes, until the stream ends."""
        async with await self._controller.send_request("GET", "/v1/admin/downloads/events", {}) as answer:
            check_token_taken(answer)
            held = b""
            while answer.status == 200 and (part := await answer.read_part()):
                held += part
                end = end_of_events(held)
                self._take_events(held[:end])
                held = held[end:]
                if len(held) > LONGEST_EVENT:
                    raise ValueError("an event is too long")

    def _take_events(self, events: bytes) -> None:
        changed = [Download.model_validate_json(data) for each in split_events(events) if (data := data_of(each))]
        news = [each for each in changed if self._downloads.get(each.id) != each]
        if news:
            self._downloads |= {each.id: each for each in news}
            self._on_downloads(list(self._downloads.values()))
