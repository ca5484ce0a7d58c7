"""GET /openapi.json: the gateway's routes, and the controller's admin routes, which are reached through the gateway.
The inference routes are in `inference`, and `declare` shows them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Final

from fastapi import FastAPI, Response

from common.program_client import ProgramClient, ProgramGoneError
from gateway.api.declare import admin_errors
from gateway.api.openapi_merge import Document, decode_document, merge_documents
from gateway.control.link import check_token_taken
from gateway.ingress.middleware import require_access

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 3.0


def declare(app: FastAPI, controller: ProgramClient) -> None:
    """Add `GET /openapi.json` to `app`, which must not serve an OpenAPI document by itself (`openapi_url=None`).

    The answer is the document of `app`, merged with the admin routes of the controller's. Each request asks
    `controller`, for at most `FETCH_TIMEOUT_S` (3) seconds. Without a usable answer of the controller, the document
    that was merged last is returned, or else that of `app` alone.
    """
    merged_document = _MergedDocument(app, controller)

    @app.get("/openapi.json", include_in_schema=False)
    @require_access("any_key")
    async def document() -> Response:
        return Response(await merged_document.build_json(), media_type="application/json")


class _MergedDocument:
    """Builds the document as JSON. While the controller is away, its part stays as it last was."""

    def __init__(self, app: FastAPI, controller: ProgramClient) -> None:
        self._app = app
        self._controller = controller
        self._controller_json = b""
        self._merged_json: bytes | None = None

    async def build_json(self) -> bytes:
        """Ask the controller for its document and return both merged, as JSON.

        The controller is asked each time, because another version of it may have been started. A failure is logged and
        not raised: the document merged last is returned, or else the gateway's own.
        """
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                self._merge_controller(await self._fetch())
        except (ProgramGoneError, TimeoutError) as error:
            logger.info("no description of the admin routes: %s", error or "the controller takes too long")
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            logger.warning("the controller's description of its routes cannot be used: %r", error)
        return self._merged_json or _encode(self._app.openapi())

    def _merge_controller(self, controller_json: bytes) -> None:
        if controller_json != self._controller_json:
            self._merged_json = _encode(
                merge_documents(self._app.openapi(), decode_document(controller_json), admin_errors())
            )
            self._controller_json = controller_json

    async def _fetch(self) -> bytes:
        async with await self._controller.send_request(
            "GET", "/openapi.json", {"accept": "application/json"}
        ) as answer:
            check_token_taken(answer)
            if answer.status != 200:
                raise ProgramGoneError(f"the controller answered with status {answer.status}")
            return await answer.read_body()


def _encode(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()
