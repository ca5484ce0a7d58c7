"""Routes of the admin API for downloads of models, and for what lies in the models folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Response
from fastapi.responses import StreamingResponse

from contract.downloads import MOST_FOUND, Download, DownloadList, Removal, SearchOrder, SearchWords
from contract.model_files import (
    FileDeclaration,
    FileDeclarationOrder,
    InspectedModel,
    ModelDownloadOrder,
    ModelFileList,
    ModelSearch,
    OrderedDownload,
)
from controller.api.admin_journal import HEARTBEAT, HEARTBEAT_S
from controller.api.examples import (
    FILE_DECLARATION,
    INSPECTED,
    MODEL_FILES,
    MODEL_SEARCH,
    ORDERED,
    REMOVAL,
    example_response,
)
from controller.api.requests import Actor, error_responses
from controller.downloads.file_service import ModelFileService
from controller.downloads.service import DownloadService

_TAGS: list[Any] = ["admin"]
_SOURCE_ERRORS = (
    "reference_invalid",
    "source_not_found",
    "source_forbidden",
    "source_address_refused",
    "source_unavailable",
    "source_mismatch",
)
_SEARCH_ERRORS = _SOURCE_ERRORS[2:]
_AWAY = ("downloads_disabled", "transfers_unreachable", "models_folder_failed")
_EVENT = {
    "type": "object",
    "description": "One event.",
    "properties": {
        "event": {"const": "download"},
        "data": {"type": "string", "description": "The download as JSON.", "contentMediaType": "application/json"},
    },
    "required": ["event", "data"],
}
_UNDER_WAY: dict[int | str, dict[str, Any]] = {
    202: {
        "model": OrderedDownload,
        "description": "The download begins.",
        "content": {"application/json": {"example": ORDERED}},
    }
}
DownloadId = Annotated[
    str, Path(description="Id of the download.", examples=[ORDERED["id"]], min_length=1, max_length=100)
]


def declare_downloads(app: FastAPI, downloads: DownloadService, files: ModelFileService) -> None:
    """Add the routes `/v1/admin/downloads...` and `/v1/admin/models/files` to `app`. Call it before `declare_models`,
    whose route of one model matches the latter path too."""
    _declare_search(app, downloads, files)
    _declare_orders(app, downloads)
    _declare_downloads(app, downloads)
    _declare_files(app, files)


def _declare_search(app: FastAPI, downloads: DownloadService, files: ModelFileService) -> None:
    @app.get(
        "/v1/admin/downloads/search",
        tags=_TAGS,
        summary="Find a model on the hub",
        responses=example_response(MODEL_SEARCH) | error_responses(*_SEARCH_ERRORS, *_AWAY[:2]),
    )
    async def search(
        words: Annotated[
            SearchWords, Query(description="Words that names of repositories have.", examples=["gemma 4b"])
        ],
        limit: Annotated[int, Query(ge=1, le=MOST_FOUND, description="Repositories at most.")] = 10,
    ) -> ModelSearch:
        """Models of the Hugging Face hub: of each repository its quantisations in GGUF, or its folder of safetensors,
        with their sizes, about where each fits, and whether it is here. `reference` is what an order names. Nothing is
        downloaded."""
        found = await downloads.search_models(SearchOrder(words=words, limit=limit))
        return await files.mark_present(found)


def _declare_orders(app: FastAPI, downloads: DownloadService) -> None:
    @app.post(
        "/v1/admin/downloads/inspect",
        tags=_TAGS,
        summary="What a download will take",
        responses=example_response(INSPECTED) | error_responses(*_SOURCE_ERRORS, *_AWAY),
    )
    async def inspect(order: ModelDownloadOrder) -> InspectedModel:
        """What a reference resolves to now, its files and sizes, the memory that the model will take at its default
        context, and for each GPU and main memory whether it fits, beside which models. Nothing is downloaded but the
        heads of the files."""
        return await downloads.inspect_model(order)

    @app.post(
        "/v1/admin/downloads",
        tags=_TAGS,
        summary="Download a model",
        response_model=OrderedDownload,
        responses=example_response(ORDERED) | _UNDER_WAY | error_responses(*_SOURCE_ERRORS, *_AWAY, "models_disk_full"),
    )
    async def order(order: ModelDownloadOrder, actor: Actor) -> Response:
        """Begin a download into the models folder, and answer at once with how far it is, what the model will take and
        where it fits. The same reference again is the same download: status 200 where it is under way. One that was
        broken off goes on. Nothing is declared by it."""
        found, is_new = await downloads.order_download(order, actor=actor)
        return Response(found.model_dump_json(), 202 if is_new else 200, media_type="application/json")


def _declare_downloads(app: FastAPI, downloads: DownloadService) -> None:
    @app.get(
        "/v1/admin/downloads",
        tags=_TAGS,
        summary="Downloads",
        responses=error_responses(*_AWAY),
    )
    async def list_downloads() -> DownloadList:
        """All downloads, newest first: those under way, and those that have ended, as long as their files are there."""
        return DownloadList(downloads=await downloads.list_downloads())

    @app.get(
        "/v1/admin/downloads/events",
        tags=_TAGS,
        summary="Progress of downloads",
        response_class=StreamingResponse,
        responses={
            200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": _EVENT}}},
            **error_responses(*_AWAY),
        },
    )
    async def events(
        for_s: Annotated[
            float | None,
            Query(
                gt=0,
                le=86400,
                allow_inf_nan=False,
                description="End the stream after this many seconds; default: never.",
            ),
        ] = None,
    ) -> StreamingResponse:
        """Progress of all downloads, as server-sent events `download`, each with a whole download. The stream begins
        with every download, so that a client that connects again misses no end."""
        await downloads.list_downloads()
        return StreamingResponse(
            _events(downloads, for_s), media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )

    @app.get(
        "/v1/admin/downloads/{download}",
        tags=_TAGS,
        summary="One download",
        responses=error_responses("download_not_found", *_AWAY),
    )
    async def get_download(download: DownloadId) -> Download:
        """One download, and how far it is."""
        return await downloads.get_download(download)

    @app.delete(
        "/v1/admin/downloads/{download}",
        tags=_TAGS,
        summary="Cancel a download",
        responses=error_responses("download_not_found", *_AWAY),
    )
    async def cancel(download: DownloadId, actor: Actor) -> Download:
        """End a download, and remove what was fetched of it. One that has ended stays as it is: its files are removed
        with `DELETE /v1/admin/models/files`."""
        return await downloads.cancel_download(download, actor=actor)


def _declare_files(app: FastAPI, files: ModelFileService) -> None:
    @app.get(
        "/v1/admin/models/files",
        tags=_TAGS,
        summary="Models in the models folders",
        responses=example_response(MODEL_FILES) | error_responses(),
    )
    async def list_files() -> ModelFileList:
        """What lies in the models folders, with its size, whether it was downloaded or put there by hand, which
        declared models use it, and the memory of a replica; of what no model uses, also the name under which it can be
        declared, or why it cannot. Needs no `transfers`."""
        return await files.list_files()

    @app.post(
        "/v1/admin/models/files",
        tags=_TAGS,
        summary="Serve a model file",
        responses=example_response(FILE_DECLARATION) | error_responses("invalid_declaration", "declared_in_files"),
    )
    async def serve(order: FileDeclarationOrder, actor: Actor) -> FileDeclaration:
        """Declare a file or folder of the models folders at run time, with what it says of itself: backend, embeddings
        or rankings, the projector beside it, and the GPUs and the context that fit. Answers at once: a new model is
        then being loaded. Without a name, what a model serves already is answered and not declared again. With
        `dry_run` nothing is declared, and `reason` says why it cannot be."""
        return await files.declare_model(order, actor=actor)

    @app.delete(
        "/v1/admin/models/files",
        tags=_TAGS,
        summary="Remove a downloaded model",
        responses=example_response(REMOVAL) | error_responses("models_file_kept", "models_file_in_use", *_AWAY),
    )
    async def remove(
        model: Annotated[
            str,
            Query(
                min_length=1,
                max_length=2048,
                description="Path below the models folder, of a file or a folder; else a reference.",
            ),
        ],
        actor: Actor,
    ) -> Removal:
        """Remove the files of a download. What is declared or in use, what somebody put there by hand, and what was
        changed since stays, and nothing is removed then. The main file of a download stands for all of its files."""
        return await files.remove_model(model, actor=actor)


async def _events(downloads: DownloadService, for_s: float | None) -> AsyncIterator[bytes]:
    yield HEARTBEAT  # so that the headers leave at once
    loop = asyncio.get_running_loop()
    ends_at = float("inf") if for_s is None else loop.time() + for_s
    version = 0
    while (now := loop.time()) < ends_at:
        try:
            async with asyncio.timeout(min(HEARTBEAT_S, ends_at - now)):
                changed, version = await downloads.wait_for_changes(version)
        except TimeoutError:
            yield HEARTBEAT
            continue
        yield b"".join(b"event: download\ndata: %b\n\n" % each.model_dump_json().encode() for each in changed)
