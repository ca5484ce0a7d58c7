"""The HTTP routes of transfers, for the controller and for other hosts."""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from typing import Final, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from common.program import answer_error, error_handlers
from contract.downloads import (
    CopyOrder,
    Download,
    DownloadList,
    DownloadOrder,
    RangeOrder,
    RemovalOrder,
    SearchOrder,
    SharePlace,
    StoredFileList,
)
from contract.errors import RoundhouseError
from transfers.downloads.board import DownloadBoard, StoredFiles
from transfers.downloads.inspection import Inspector
from transfers.sharing import SharedModels
from transfers.sources.source_set import read_reference

log = logging.getLogger(__name__)


LONGEST_BODY: Final = 64 * 1024
"""Bytes."""
Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


async def read_order(request: Request, model: type[Model]) -> Model:
    """Return the body of a request as the model. Raises RoundhouseError `body_too_large` as soon as more than
    `LONGEST_BODY` bytes have come, `invalid_json`, or `invalid_request` for the first wrong field; and ClientDisconnect
    if the client leaves before the end."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise RoundhouseError("body_too_large", f"The body is larger than {LONGEST_BODY} bytes.")
    try:
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise RoundhouseError("invalid_json", f"The body is no JSON: {first['msg']}.") from None
        field = ".".join(str(step) for step in first["loc"])
        raise RoundhouseError("invalid_request", f"`{field or 'body'}`: {first['msg']}.", param=field or None) from None


def answer_model(model: BaseModel, status: int = 200) -> Response:
    """Return an answer with this status and the model as JSON."""
    return Response(model.model_dump_json(), status, media_type="application/json")


class Worker:
    """Runs functions that block in the threads of an executor, so that the event loop goes on answering. Who made the
    executor shuts it down."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    async def run(
        self, function: Callable[Arguments, Answer], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Answer:
        """Call the function with these arguments in a thread, and return what it returns or raise what it raises. If
        the caller is cancelled, the function still runs to its end."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))


SAMPLE_S: Final = 0.25
"""Seconds between two looks at the downloads for a follower."""
SILENCE_S: Final = 15.0
"""Seconds after which a follower gets a comment where nothing changes, so that nobody takes the connection for dead."""


class DownloadRoutes:
    """The handlers of `/inspect`, `/ranges`, `/search` and `/downloads`. What they raise (RoundhouseError, OSError of
    the models folder, and ClientDisconnect), `create_app` turns into an answer."""

    def __init__(self, board: DownloadBoard, inspector: Inspector, quick: Worker, slow: Worker) -> None:
        """`quick`: threads for calls that wait for the disk at most. `slow`: threads for calls that wait for a source
        or for the end of a download."""
        self._board = board
        self._inspector = inspector
        self._quick = quick
        self._slow = slow

    def routes(self) -> list[Route]:
        """Return the routes of the handlers below, for `create_app`."""
        return [
            Route("/inspect", self.inspect, methods=["POST"]),
            Route("/ranges", self.read_range, methods=["POST"]),
            Route("/search", self.search, methods=["POST"]),
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

    async def search(self, request: Request) -> Response:
        """Answer what a search of the hub for the words in the body (a `SearchOrder`) finds. Raises RoundhouseError
        `body_too_large`, `invalid_json`, `invalid_request`, or a code that `Inspector.search` raises; and
        ClientDisconnect if the client leaves while it sends the body."""
        order = await read_order(request, SearchOrder)
        return answer_model(await self._slow.run(self._inspector.search, order))

    async def order(self, request: Request) -> Response:
        """Begin the download in the body (a `CopyOrder`), and answer it with status 202; with 200 if it is under
        way already. Does not wait for its end. Raises RoundhouseError `body_too_large`, `invalid_json`,
        `invalid_request` or `reference_invalid`; OSError if it cannot be recorded; and ClientDisconnect if the client
        leaves while it sends the body."""
        order = await read_order(request, CopyOrder)
        reference = read_reference(order.reference)
        download, is_new = await self._quick.run(
            self._board.order, reference, include_pickle=order.include_pickle, peers=tuple(order.peers)
        )
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


class FileRoutes:
    """The handlers of `/files`. What they raise (RoundhouseError, OSError of the models folder, and ClientDisconnect),
    `create_app` turns into an answer."""

    def __init__(self, files: StoredFiles, worker: Worker) -> None:
        self._files = files
        self._worker = worker

    def routes(self) -> list[Route]:
        """Return the routes of the handlers below, for `create_app`."""
        return [
            Route("/files", self.list_files, methods=["GET"]),
            Route("/files", self.remove, methods=["DELETE"]),
        ]

    async def list_files(self, request: Request) -> Response:
        """Answer the files that downloads put into the models folder, by path. Raises OSError if the folder cannot be
        read."""
        return answer_model(StoredFileList(files=await self._worker.run(self._files.list_files)))

    async def remove(self, request: Request) -> Response:
        """Remove what the body (a `RemovalOrder`) names: the files of a download, a file or a folder. Answer what was
        removed. Raises RoundhouseError `body_too_large`, `invalid_json`, `invalid_request` (also unless exactly one of
        `id` and `path` is set), `download_not_found` or `models_file_kept`; OSError if the models folder cannot be
        written, after which some of the files may be removed; and ClientDisconnect if the client leaves while it sends
        the body."""
        order = await read_order(request, RemovalOrder)
        if (order.id is None) == (order.path is None):
            raise RoundhouseError("invalid_request", "Exactly one of `id` and `path` must be set.", param="id")
        if order.id is not None:
            return answer_model(await self._worker.run(self._files.remove_download, order.id))
        assert order.path is not None
        return answer_model(await self._worker.run(self._files.remove_path, order.path))


_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)
_CHUNK: Final = 1024 * 1024
"""Bytes that are read at a time for another host."""


class _FileResponse(StreamingResponse):
    """Bytes of an open file, which is closed at the end, whatever becomes of the client."""

    def __init__(self, descriptor: int, start: int, end: int, worker: Worker, headers: dict[str, str]) -> None:
        self._descriptor, self._worker = descriptor, worker
        super().__init__(self._read(start, end), 206 if "content-range" in headers else 200, headers)
        self.media_type = "application/octet-stream"

    async def _read(self, position: int, end: int) -> AsyncIterator[bytes]:
        while position < end:
            part = await self._worker.run(os.pread, self._descriptor, min(_CHUNK, end - position), position)
            if not part:
                return  # it was cut off: the client sees an answer that ends early
            position += len(part)
            yield part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


class ShareRoutes:
    """The handlers of what other hosts ask: `/models` and `/files` of the second table of `contract.downloads`. What
    they raise (RoundhouseError and OSError), `create_app` turns into an answer."""

    def __init__(self, models: SharedModels, worker: Worker) -> None:
        self._models = models
        self._worker = worker

    def routes(self) -> list[Route]:
        """Return the routes of the handlers below, for `create_app`."""
        return [
            Route("/models/{path:path}", self.list_model, methods=["GET"]),
            Route("/files/{path:path}", self.read_file, methods=["GET"]),
        ]

    async def list_model(self, request: Request) -> Response:
        """Answer the files of the model at the path; status 202 while some are read for their hashes. Raises
        RoundhouseError `source_not_found`, and OSError if the folder cannot be read."""
        model = await self._worker.run(self._models.list_model, request.path_params["path"])
        return answer_model(model, 202 if any(each.sha256 is None for each in model.files) else 200)

    async def read_file(self, request: Request) -> Response:
        """Answer the range of the file at the path that was asked for, of the content that the query names. Raises
        RoundhouseError `source_not_found`."""
        asked = _RANGE.fullmatch(request.headers.get("range", ""))
        start, end = (int(asked[1]), int(asked[2]) + 1) if asked is not None else (0, 2**62)
        path, sha256 = request.path_params["path"], request.query_params.get("sha256", "")
        descriptor, size = await self._worker.run(self._models.open_bytes, path, sha256, start, end)
        end = min(end, size)
        if start >= end and asked is not None:
            os.close(descriptor)
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        headers = {"content-length": str(end - start)}
        if asked is not None:
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        return _FileResponse(descriptor, start, end, self._worker, headers)


class BearerCheck:
    """ASGI middleware that passes requests on which show a token as `Authorization: Bearer`, and those of `/health`.
    Others get the error `invalid_api_key`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._shown = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or pass another ASGI scope on."""
        is_open = scope["type"] != "http" or scope["path"] == "/health"
        if is_open or hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), self._shown):
            await self._app(scope, receive, send)
            return
        error = RoundhouseError("invalid_api_key", "The token of this installation's hosts is missing or wrong.")
        await answer_error(Request(scope), error)(scope, receive, send)


def share_place_route(url: str | None) -> Route:
    """Return the route `/share`, which answers where the models folder is served to other hosts; None: nowhere."""

    async def answer_place(request: Request) -> Response:
        return answer_model(SharePlace(url=url))

    return Route("/share", answer_place, methods=["GET"])


def create_app(routes: Iterable[Route]) -> Starlette:
    """Build the application of these routes and `/health`. A RoundhouseError of a handler becomes an error answer in
    its envelope, an error of the disk `models_disk_full` or `models_folder_failed`; any other exception is logged and
    becomes `internal_error`. No token is checked: see `TokenCheck`."""
    return Starlette(
        routes=[*routes, Route("/health", _answer_health, methods=["GET"])],
        exception_handlers=error_handlers("transfers", _explain_disk, OSError),
    )


def _explain_disk(error: OSError) -> RoundhouseError:
    code = "models_disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "models_folder_failed"
    return RoundhouseError(code, f"The models folder: {error.strerror or error}.")


async def _answer_health(request: Request) -> Response:
    return PlainTextResponse("ok")
