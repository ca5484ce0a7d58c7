"""Routes of what downloads put into the models folder."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from controller.schema.downloads import RemovalOrder, StoredFileList
from controller.schema.errors import RoundhouseError
from transfers.api.requests import Worker, answer_model, read_order
from transfers.downloads.removal import StoredFiles


class FileRoutes:
    """The handlers of `/files`. What they raise (RoundhouseError, OSError of the models folder, and ClientDisconnect),
    `create_app` turns into an answer."""

    def __init__(self, files: StoredFiles, worker: Worker) -> None:
        self._files = files
        self._worker = worker

    def routes(self) -> list[Route]:
        """Return the routes, for `create_app`."""
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
