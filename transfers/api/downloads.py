"""Routes of downloads: looking at references, orders, cancellations, and the events of all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controller.schema.downloads import Download, DownloadList, DownloadOrder, RangeOrder
from transfers.api.requests import Worker, answer_model, read_order
from transfers.downloads.board import DownloadBoard
from transfers.downloads.inspection import Inspector
from transfers.sources.source_set import read_reference

SAMPLE_S: Final = 0.25
"""Seconds between two looks at the downloads for a follower."""
SILENCE_S: Final = 15.0
"""Seconds after which a follower gets a comment where nothing changes, so that nobody takes the connection for dead."""


class DownloadRoutes:
    """The handlers of `/inspect`, `/ranges` and `/downloads`. What they raise (RoundhouseError, OSError of the models
    folder, and ClientDisconnect), `create_app` turns into an answer."""

    def __init__(self, board: DownloadBoard, inspector: Inspector, quick: Worker, slow: Worker) -> None:
        """`quick`: threads for calls that wait for the disk at most. `slow`: threads for calls that wait for a source
        or for the end of a download."""
        self._board = board
        self._inspector = inspector
        self._quick = quick
        self._slow = slow

    def routes(self) -> list[Route]:
        """Return the routes, for `create_app`."""
        return [
            Route("/inspect", self.inspect, methods=["POST"]),
            Route("/ranges", self.read_range, methods=["POST"]),
            Route("/downloads", self.order, methods=["POST"]),
            Route("/downloads", self.list_downloads, methods=["GET"]),
            Route("/downloads/events", self.follow_events, methods=["GET"]),
            Route("/downloads/{download}", self.get_download, methods=["GET"]),
            Route("/downloads/{download}", self.cancel, methods=["DELETE"]),
        ]

    async def inspect(self, request: Request) -> Response:
        """Answer what the reference in the body (a `DownloadOrder`) resolves to now. Raises RoundhouseError
        `body_too_large`, `invalid_json`, `invalid_request`, `reference_invalid`, or a code that `Inspector.inspect`
        raises; OSError if the models folder cannot be read; and ClientDisconnect if the client leaves while it sends
        the body."""
        order = await read_order(request, DownloadOrder)
        reference = read_reference(order.reference)
        return answer_model(
            await self._slow.run(self._inspector.inspect, reference, include_pickle=order.include_pickle)
        )

    async def read_range(self, request: Request) -> Response:
        """Answer bytes of a file at the source, as the body (a `RangeOrder`) names them; fewer at the end of the file.
        Raises RoundhouseError `body_too_large`, `invalid_json`, `invalid_request`, `reference_invalid`, or a code that
        `Inspector.read_range` raises; and ClientDisconnect if the client leaves while it sends the body."""
        order = await read_order(request, RangeOrder)
        reference = read_reference(order.reference)
        found = await self._slow.run(self._inspector.read_range, reference, order.path, order.start, order.length)
        return Response(found, media_type="application/octet-stream")

    async def order(self, request: Request) -> Response:
        """Begin the download in the body (a `DownloadOrder`), and answer it with status 202; with 200 if it is under
        way already. Does not wait for its end. Raises RoundhouseError `body_too_large`, `invalid_json`,
        `invalid_request` or `reference_invalid`; OSError if it cannot be recorded; and ClientDisconnect if the client
        leaves while it sends the body."""
        order = await read_order(request, DownloadOrder)
        reference = read_reference(order.reference)
        download, is_new = await self._quick.run(self._board.order, reference, include_pickle=order.include_pickle)
        return answer_model(download, 202 if is_new else 200)

    async def list_downloads(self, request: Request) -> Response:
        """Answer all downloads, newest first."""
        return answer_model(DownloadList(downloads=await self._quick.run(self._board.list_downloads)))

    async def get_download(self, request: Request) -> Response:
        """Answer one download as it is now. Raises RoundhouseError `download_not_found`."""
        return answer_model(await self._quick.run(self._board.find, request.path_params["download"]))

    async def cancel(self, request: Request) -> Response:
        """End a download, and answer it as it is after at most `CANCEL_WAIT_S` of waiting; one that has finished stays
        as it is. Raises RoundhouseError `download_not_found`, and OSError if the models folder cannot be written."""
        return answer_model(await self._slow.run(self._board.cancel, request.path_params["download"]))

    async def follow_events(self, request: Request) -> Response:
        """Answer an endless stream of server-sent events `download`: first each download as it is, then each one that
        has changed. Downloads that are forgotten get no event. A comment comes after `SILENCE_S` without an event."""
        headers = {"cache-control": "no-cache"}
        return _EndlessResponse(self._stream_events(), media_type="text/event-stream", headers=headers)

    async def _stream_events(self) -> AsyncIterator[bytes]:
        told: dict[str, Download] = {}
        seen: int | None = None
        spoken_at = time.monotonic()
        yield b": downloads\n\n"
        while True:
            changes = await self._quick.run(self._board.count_changes)
            if changes is None or changes != seen:
                now = {each.id: each for each in await self._quick.run(self._board.list_downloads)}
                changed = [each for each in now.values() if told.get(each.id) != each]
                # The oldest first: who follows sees them in the order in which they were made.
                for each in reversed(changed):
                    yield b"event: download\ndata: " + each.model_dump_json().encode() + b"\n\n"
                if changed:
                    spoken_at = time.monotonic()
                told, seen = now, changes
            if time.monotonic() - spoken_at >= SILENCE_S:
                yield b": nothing new\n\n"
                spoken_at = time.monotonic()
            await asyncio.sleep(SAMPLE_S)


class _EndlessResponse(StreamingResponse):
    """A stream that the end of the program ends, too, as if it were complete: it is no error for the log."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            # Not raised again: the task ends here, as its canceller wants.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
