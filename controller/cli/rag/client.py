"""The command line's questions to a gateway about documents."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp

from controller import __version__
from controller.cli.exit_codes import CommandError, ExitCode

KEY_VARIABLE: Final = "ROUNDHOUSE_KEY"
"""Environment variable with the secret of a key."""
PAGE: Final = 100
_CONNECT_S: Final = 5.0


class RagClient:
    """Asks one gateway. An async context manager.

    Methods raise CommandError with the gateway's own words where it refuses (FAILED), and where nobody answers.
    """

    def __init__(self, url: str, tenant: str | None, *, verifies: bool) -> None:
        """`tenant`: what this program calls itself; without keys, that is the tenant. None: this program's name.
        `verifies`: whether the gateway's certificate must be for the address."""
        self._url = url.rstrip("/")
        self._ssl = verifies
        self._headers = {"user-agent": f"roundhouse/{__version__}"}
        if tenant is not None:
            self._headers["x-client-id"] = tenant
        if key := os.environ.get(KEY_VARIABLE):
            self._headers["authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(ssl=self._ssl),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def add_file(self, path: Path, document_id: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Send a file, and return the document as it was accepted. Raises OSError where the file cannot be read."""
        import json

        with path.open("rb") as content:
            form = aiohttp.FormData()
            form.add_field("file", content, filename=path.name)
            form.add_field("id", document_id)
            form.add_field("metadata", json.dumps(metadata))
            return await self._ask("POST", "/v1/documents", data=form)

    async def get_document(self, document_id: str) -> dict[str, Any]:
        """Return a document."""
        return await self._ask("GET", f"/v1/documents/{quote(document_id, safe='')}")

    async def list_documents(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all documents of the tenant, the oldest first."""
        after: dict[str, str] = {}
        while True:
            page = await self._ask("GET", "/v1/documents", params={"limit": str(PAGE), "order": "asc", **after})
            for document in page["data"]:
                yield document
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    async def list_chunks(self, document_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a document's searchable version, in their order."""
        path = f"/v1/documents/{quote(document_id, safe='')}/chunks"
        after: dict[str, str] = {}
        while True:
            page = await self._ask("GET", path, params={"limit": str(PAGE), **after})
            for chunk in page["data"]:
                yield chunk
            if not page["has_more"]:
                return
            after = {"after": str(page["data"][-1]["index"])}

    async def delete_document(self, document_id: str) -> None:
        """Delete a document."""
        await self._ask("DELETE", f"/v1/documents/{quote(document_id, safe='')}")

    async def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a search. `request`: the body of `/v1/search`."""
        return await self._ask("POST", "/v1/search", json=request)

    async def get_status(self) -> dict[str, Any]:
        """Return the state of retrieval. Needs the scope `admin`."""
        return await self._ask("GET", "/v1/retrieval")

    async def start_reindex(self) -> dict[str, Any]:
        """Start a reindex in the background, and return the state of retrieval. Needs the scope `admin`."""
        return await self._ask("POST", "/v1/retrieval/reindex")

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            async with self._session.request(method, self._url + path, **options) as answer:
                body = await answer.json(content_type=None)
                status = answer.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CommandError(f"no gateway answers at {self._url}: {error}", ExitCode.NO_CONTROLLER) from None
        if status >= 400 or not isinstance(body, dict):
            error_body = body.get("error") if isinstance(body, dict) else None
            message = error_body.get("message") if isinstance(error_body, dict) else f"the answer has status {status}"
            steps = " ".join(error_body.get("next_steps", ())) if isinstance(error_body, dict) else ""
            raise CommandError(f"{message} {steps}".strip(), ExitCode.FAILED)
        return body
