"""GET / and GET /page/{path}: the page for a browser, without a key and before the first routing table."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from contract.errors import RoundhouseError
from gateway.ingress.middleware import require_access
from gateway.page.page_files import INDEX, PageFile, PageFiles, security_headers

logger = logging.getLogger(__name__)

PATH: Final = "/"
FILES_PATH: Final = "/page/{path:path}"
_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Roundhouse</title>
<p>Roundhouse runs, and its API is served at this address (<a href="openapi.json">OpenAPI document</a>). This page is
not built yet: <code>make up</code> builds it after the first model is ready, <code>make page</code> at once, and the
gateway's image holds it. Reload this page then.</p>
</html>
"""


def declare(app: FastAPI, files: PageFiles | None, path_prefix: str = "") -> None:
    """Add the page's routes to `app`. `files` None: the page is off, and there are no such routes. `path_prefix`: where
    a proxy serves the page, without a slash at its end, which browsers are then sent to: the page's addresses are
    relative."""
    if files is None:
        return
    if path_prefix:

        @app.get(path_prefix, include_in_schema=False)
        @require_access("page")
        async def add_slash(request: Request) -> Response:
            query = request.scope["query_string"].decode("latin-1")
            return RedirectResponse(f"{path_prefix}/{'?' if query else ''}{query}", 308)

    @app.api_route(PATH, methods=["GET", "HEAD"], include_in_schema=False)
    @require_access("page")
    async def get_page(request: Request) -> Response:
        file = await _find_file(files, INDEX)
        if file is None:
            return HTMLResponse(_NOT_BUILT, headers=security_headers(INDEX) | {"cache-control": "no-store"})
        return _answer_file(request, INDEX, file)

    @app.api_route(FILES_PATH, methods=["GET", "HEAD"], include_in_schema=False)
    @require_access("page")
    async def get_page_file(request: Request, path: str) -> Response:
        file = await _find_file(files, path)
        if file is None or path == INDEX:
            raise RoundhouseError("unknown_route", f"There is no /page/{path:.200}.")
        return _answer_file(request, path, file)


async def _find_file(files: PageFiles, path: str) -> PageFile | None:
    if not files.is_current():
        try:
            await asyncio.to_thread(files.read_files)
        except OSError as error:
            logger.warning("the page's files cannot be read, and those read before are served: %s", error)
    return files.find_file(path)


def _answer_file(request: Request, path: str, file: PageFile) -> Response:
    headers = security_headers(path) | {
        "etag": file.etag,
        "cache-control": "public, max-age=31536000, immutable" if file.is_immutable else "no-cache",
        "vary": "accept-encoding",
    }
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if file.gzipped is not None and _accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(file.gzipped, media_type=file.content_type, headers=headers | {"content-encoding": "gzip"})
    return Response(file.body, media_type=file.content_type, headers=headers)


def _accepts_gzip(accept_encoding: str) -> bool:
    for part in accept_encoding.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False
