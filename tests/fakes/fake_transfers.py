"""A fake of the program `transfers`: its wire contract on a real unix socket, over sources that a test makes. It
downloads nothing by itself: the test says how far each download is."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from contract.downloads import (
    FINAL_STATES,
    RECORDS_FOLDER,
    Download,
    DownloadFile,
    DownloadList,
    DownloadOrder,
    DownloadRecord,
    DownloadState,
    FoundModels,
    FoundRepository,
    Inspection,
    PlacedFile,
    RangeOrder,
    RemoteFile,
    Removal,
    RemovalOrder,
    SearchOrder,
)
from contract.errors import RoundhouseError


@dataclass
class FakeSource:
    """What a reference resolves to: content by path at the source, which is also the path below the models folder."""

    files: Mapping[str, bytes]
    main: str
    pinned: str
    projector: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes that the source tells, of files whose content here is only their beginning."""

    def size_of(self, path: str) -> int:
        """Bytes of a file, as the source tells them."""
        return self.sizes.get(path, len(self.files[path]))


class FakeTransfers:
    """Answers by the wire contract. Downloads are in the state that the test sets."""

    def __init__(self, root: Path, models: Path | None = None) -> None:
        """`root`: short folder for the socket. `models`: the models folder; None: `root / "models"`."""
        self.models = models or root / "models"
        self.models.mkdir(exist_ok=True)
        self.socket = root / "transfers.sock"
        self.url = f"unix:{self.socket}"
        self.sources: dict[str, FakeSource] = {}
        """By canonical reference."""
        self.found: list[FoundRepository] = []
        """What a search finds: those whose name has the words."""
        self.downloads: dict[str, Download] = {}
        self.requests: list[tuple[str, str]] = []
        """Method and path of each request."""
        self.ranges: list[RangeOrder] = []
        self.refusal: RoundhouseError | None = None
        """Answered to everything, where it is set."""
        self.garbage = False
        """Answer what is no JSON."""
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.socket))
        self._listener.listen()
        config = uvicorn.Config(self._build_app(), log_config=None, access_log=False, lifespan="off")
        config.load()
        # Not `serve`, which looks every 0.1 s whether it is to end.
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._listener])

    async def close(self) -> None:
        """Stop listening, and break all connections."""
        self._server.should_exit = self._server.force_exit = True
        await self._server.shutdown(sockets=[self._listener])
        self.socket.unlink(missing_ok=True)

    def set_state(
        self, download: str, state: DownloadState, *, done: int = 0, error: RoundhouseError | None = None
    ) -> None:
        """Say how far a download is. `finished` puts its files into the models folder, with a record."""
        known = self.downloads[download]
        source = self.sources[known.reference]
        if state == "finished":
            done = sum(map(source.size_of, source.files))
            self._place(known, source)
        files, left = [], done
        for path in source.files:
            size = source.size_of(path)
            files.append(DownloadFile(path=path, size=size, done_bytes=min(size, left)))
            left -= files[-1].done_bytes
        fields = {
            "state": state,
            "files": files,
            "pinned": source.pinned,
            "main": source.main,
            "projector": source.projector,
            "total_bytes": sum(each.size for each in files),
            "done_bytes": done,
            "bytes_per_s": 1000.0 if state == "downloading" else None,
            "remaining_s": 5.0 if state == "downloading" else None,
            "error": None if error is None else error.build_envelope().error,
            "ended_at": time.time() if state in FINAL_STATES else None,
        }
        self._put(known.model_copy(update=fields))

    def _place(self, download: Download, source: FakeSource) -> None:
        placed = []
        for path, content in source.files.items():
            target = self.models / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            placed.append(PlacedFile(path=path, size=len(content), sha256=digest, mtime_ns=target.stat().st_mtime_ns))
        record = DownloadRecord(
            id=download.id,
            reference=download.reference,
            pinned=source.pinned,
            state="finished",
            main=source.main,
            projector=source.projector,
            placed=placed,
            has_finished=True,
            created_at=download.created_at,
        )
        folder = self.models / RECORDS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{download.id}.json").write_text(record.model_dump_json())

    def _put(self, download: Download) -> None:
        self.downloads[download.id] = download
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _build_app(self) -> Starlette:
        routes = [
            Route("/inspect", self._inspect, methods=["POST"]),
            Route("/ranges", self._ranges, methods=["POST"]),
            Route("/search", self._search, methods=["POST"]),
            Route("/downloads", self._order, methods=["POST"]),
            Route("/downloads", self._list, methods=["GET"]),
            Route("/downloads/events", self._events, methods=["GET"]),
            Route("/downloads/{download}", self._get, methods=["GET"]),
            Route("/downloads/{download}", self._cancel, methods=["DELETE"]),
            Route("/files", self._remove, methods=["DELETE"]),
        ]
        return Starlette(routes=routes, exception_handlers={RoundhouseError: _answer_error})

    def _note(self, request: Request) -> None:
        self.requests.append((request.method, request.url.path))
        if self.refusal is not None:
            raise self.refusal

    def _find_source(self, reference: str) -> FakeSource:
        by_pinned = {each.pinned: each for each in self.sources.values()}
        source = self.sources.get(reference) or by_pinned.get(reference)
        if source is None:
            raise RoundhouseError("source_not_found", f"There is no {reference}.", param="reference")
        return source

    async def _inspect(self, request: Request) -> Response:
        self._note(request)
        if self.garbage:
            return JSONResponse({"what": "is this"})
        order = DownloadOrder.model_validate_json(await request.body())
        source = self._find_source(order.reference)
        files = [
            RemoteFile(path=path, target=path, size=source.size_of(path), is_present=(self.models / path).is_file())
            for path in source.files
        ]
        return _json(
            Inspection(
                reference=order.reference,
                pinned=source.pinned,
                files=files,
                main=source.main,
                projector=source.projector,
                total_bytes=sum(each.size for each in files),
                missing_bytes=sum(each.size for each in files if not each.is_present),
                free_bytes=10**12,
            ).model_dump_json()
        )

    async def _ranges(self, request: Request) -> Response:
        self._note(request)
        order = RangeOrder.model_validate_json(await request.body())
        self.ranges.append(order)
        content = self._find_source(order.reference).files[order.path]
        return Response(content[order.start : order.start + order.length], media_type="application/octet-stream")

    async def _search(self, request: Request) -> Response:
        self._note(request)
        order = SearchOrder.model_validate_json(await request.body())
        found = [each for each in self.found if order.words in each.repository][: order.limit]
        return _json(FoundModels(repositories=found).model_dump_json())

    async def _order(self, request: Request) -> Response:
        self._note(request)
        order = DownloadOrder.model_validate_json(await request.body())
        self._find_source(order.reference)
        download = f"dl_{hashlib.sha256(order.reference.encode()).hexdigest()[:24]}"
        known = self.downloads.get(download)
        if known is not None and known.state not in FINAL_STATES:
            return _json(known.model_dump_json())
        self._put(Download(id=download, reference=order.reference, state="queued", created_at=time.time()))
        return _json(self.downloads[download].model_dump_json(), 202)

    async def _list(self, request: Request) -> Response:
        self._note(request)
        newest = sorted(self.downloads.values(), key=lambda each: -each.created_at)
        return _json(DownloadList(downloads=newest).model_dump_json())

    async def _get(self, request: Request) -> Response:
        self._note(request)
        return _json(self._find(request).model_dump_json())

    async def _cancel(self, request: Request) -> Response:
        self._note(request)
        found = self._find(request)
        if found.state not in FINAL_STATES:
            self._put(found.model_copy(update={"state": "cancelled", "ended_at": time.time()}))
        return _json(self.downloads[found.id].model_dump_json())

    def _find(self, request: Request) -> Download:
        found = self.downloads.get(request.path_params["download"])
        if found is None:
            raise RoundhouseError("download_not_found", "There is no such download.")
        return found

    async def _events(self, request: Request) -> Response:
        self._note(request)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        sent: dict[str, Download] = {}
        yield b": downloads\n\n"
        while not self._server.should_exit:
            changed = self._changed
            for each in self.downloads.values():
                if sent.get(each.id) != each:
                    sent[each.id] = each
                    yield b"event: download\ndata: " + each.model_dump_json().encode() + b"\n\n"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), 0.1)

    async def _remove(self, request: Request) -> Response:
        self._note(request)
        order = RemovalOrder.model_validate_json(await request.body())
        folder = self.models / RECORDS_FOLDER
        records = [DownloadRecord.model_validate_json(each.read_bytes()) for each in folder.glob("dl_*.json")]
        meant = {
            each.path: each.size
            for record in records
            for each in record.placed
            if order.id == record.id or (order.path is not None and f"{each.path}/".startswith(f"{order.path}/"))
        }
        others = {each.path for record in records if order.id not in (None, record.id) for each in record.placed}
        removed = sorted(meant.keys() - others)
        for path in removed:
            (self.models / path).unlink()
        for record in records:
            if order.id == record.id or any(each.path in removed for each in record.placed):
                (folder / f"{record.id}.json").unlink()
        return _json(
            Removal(
                removed=removed,
                kept=sorted(meant.keys() & others),
                freed_bytes=sum(meant[path] for path in removed),
            ).model_dump_json()
        )


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


async def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RoundhouseError)
    return Response(error.json_bytes(), error.entry.status, error.build_headers(), media_type="application/json")
