"""The command line's questions to a gateway about documents."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, Self
from urllib.parse import quote

import aiohttp

from controller import __version__
from controller.cli.exit_codes import CommandError, ExitCode

KEY_VARIABLE: Final = "ROUNDHOUSE_KEY"
"""Environment variable with the secret of an API key of the gateway."""
USUAL_TENANT: Final = "roundhouse"
"""Tenant of a client that names none, while no keys are declared."""
PAGE: Final = 100
_CONNECT_S: Final = 5.0
_PART: Final = 256 * 1024
_TENANT_HEADER: Final = "x-tenant-id"


class RefusedError(CommandError):
    """The gateway refused a request; the message is the gateway's own, the exit code FAILED. `error_code` and
    `retry_after_s` (seconds) are None where the answer does not say them."""

    def __init__(self, message: str, error_code: str | None, retry_after_s: float | None) -> None:
        """`error_code`: such as `document_not_found`; None: the answer named none. `retry_after_s`: seconds after which
        the same request may be accepted; None: the answer does not say."""
        super().__init__(message, ExitCode.FAILED)
        self.error_code = error_code
        self.retry_after_s = retry_after_s


class AnswerObject(dict[str, Any]):
    """A JSON object of a gateway's answer. Taking a field that is missing raises CommandError: the gateway is of
    another version."""

    def __missing__(self, name: str) -> NoReturn:
        message = f"the gateway is of another version than this command, {__version__}: its answer has no `{name}`"
        raise CommandError(message, ExitCode.FAILED)


class RagClient:
    """Asks one gateway about documents and searches, with the API key in `ROUNDHOUSE_KEY`, if that is set. Use it in
    `async with`.

    Methods raise RefusedError, a CommandError with the gateway's own message and the code FAILED, where it refuses the
    request, CommandError with the code NO_CONTROLLER where it does not answer, or answers no JSON, and with the code
    FAILED where the JSON is no object. The objects of an answer are `AnswerObject`s. Only the connection has a timeout
    (5 s): an answer may take any time. Where the connection breaks before the answer, the gateway may have carried out
    the request.
    """

    def __init__(self, url: str, tenant: str | None, *, verifies: bool) -> None:
        """Connect to nothing yet. `url`: the gateway's address, without a path.

        `tenant`: sent as `X-Client-Id`, which names the tenant while the gateway has no keys; None: `USUAL_TENANT`.
        `verifies`: whether the certificate of an `https` address is checked.
        """
        self._url = url.rstrip("/")
        self._ssl = verifies
        self._headers = {"user-agent": f"roundhouse/{__version__}"}
        # Without a name of its own, the tenant would be the User-Agent, which changes with each version.
        self._headers["x-client-id"] = tenant or USUAL_TENANT
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
        """Send a file, and return the document as it was accepted, as `/v1/documents` answers it. It is searchable
        later, when `get_document` has the status `ready`. A document with this id is replaced. `metadata`: its
        attributes, as JSON can hold them.

        Raises OSError where the file cannot be opened, RefusedError where the gateway refuses, and CommandError where
        it does not answer, or not as a gateway does; the document may be added all the same.
        """
        with path.open("rb") as content:
            form = aiohttp.FormData()
            form.add_field("file", content, filename=path.name)
            form.add_field("id", document_id)
            form.add_field("metadata", json.dumps(metadata))
            return await self._ask("POST", "/v1/documents", data=form)

    async def add_original(
        self, fields: Mapping[str, str], media_type: str | None, content: AsyncIterator[bytes]
    ) -> dict[str, Any]:
        """Send a document, and return it as it was accepted, as `/v1/documents` answers it; it is searchable later. A
        document with the same id is replaced.

        `fields`: of the form, beside the file: `id`, `filename`, `metadata` (as JSON text) and others that the route
        takes. `media_type`: of the content; None: not said. Raises RefusedError where the gateway refuses, and
        CommandError where it does not answer, or not as a gateway does, after which the document may be added all the
        same. What `content` raises becomes a CommandError, too.
        """
        form = aiohttp.FormData()
        # Named by a field of the form, because not every name survives in the header of a file.
        form.add_field("file", content, filename="", content_type=media_type or "application/octet-stream")
        for name, value in fields.items():
            form.add_field(name, value)
        return await self._ask("POST", "/v1/documents", data=form)

    async def read_tenant(self) -> str:
        """Ask the gateway for which tenant this client asks, and return its name, as the gateway writes it in a header
        (`?` for what a header cannot carry); empty where the answer names none. Raises RefusedError where the
        gateway refuses, and CommandError where it does not answer."""
        async with self._open("GET", "/v1/documents", params={"limit": "1"}) as answer:
            return answer.headers.get(_TENANT_HEADER, "")

    async def read_content(self, document_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the parts of the original (the file as it was sent) of a document's newest version. Close the generator
        (`aclosing`) if it is not read to its end. Raises RefusedError where the gateway refuses
        (`document_not_found`: the tenant has no such document), and CommandError where it does not answer or the
        connection breaks."""
        path = f"/v1/documents/{quote(document_id, safe='')}/content"
        async with self._open("GET", path) as answer:
            async for part in answer.content.iter_chunked(_PART):
                yield part

    async def get_document(self, document_id: str) -> dict[str, Any]:
        """Return the document with this id, as `/v1/documents/{id}` answers it. Raises RefusedError where the gateway
        refuses (`document_not_found`: the tenant has none), and CommandError where it does not answer, or not as a
        gateway does."""
        return await self._ask("GET", f"/v1/documents/{quote(document_id, safe='')}")

    async def list_documents(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all documents of the tenant, the oldest first, and end. Asks for 100 at a time, as they are consumed.

        Raises RefusedError where the gateway refuses (`invalid_request`: the last document of a page was deleted before
        the next page was asked for), and CommandError where it does not answer, or not as a gateway of this version
        does.
        """
        after: dict[str, str] = {}
        while True:
            page = await self._ask("GET", "/v1/documents", params={"limit": str(PAGE), "order": "asc", **after})
            for document in page["data"]:
                yield document
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    async def list_chunks(self, document_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a document's searchable version, in their order, and end. Raises RefusedError where the
        gateway refuses (`document_not_found`, with the first chunk: the tenant has no such document), and CommandError
        where it does not answer, or not as a gateway of this version does."""
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
        """Delete the document with this id: no search finds it when this returns. Raises RefusedError where the gateway
        refuses (`document_not_found`: the tenant has none), and CommandError where it does not answer, or not as a
        gateway does; the document may be gone all the same."""
        await self._ask("DELETE", f"/v1/documents/{quote(document_id, safe='')}")

    async def search(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of `/v1/search`, whose `data` is the list of hits, best first. `request`: the body, as
        JSON. Raises RefusedError where the gateway refuses, and CommandError where it does not answer, or not as a
        gateway does."""
        return await self._ask("POST", "/v1/search", json=request)

    async def get_status(self) -> dict[str, Any]:
        """Return the answer of `/v1/retrieval`: the state of retrieval. Needs a key with the scope `admin`. Raises
        RefusedError where the gateway refuses, and CommandError where it does not answer, or not as a gateway does."""
        return await self._ask("GET", "/v1/retrieval")

    async def start_reindex(self) -> dict[str, Any]:
        """Start a reindex in the background, and return the state of retrieval as it began. Needs a key with the scope
        `admin`. Raises RefusedError where the gateway refuses, and CommandError where it does not answer, or not as a
        gateway does; the reindex may have begun all the same."""
        return await self._ask("POST", "/v1/retrieval/reindex")

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with self._open(method, path, **options) as answer:
            body = await answer.json(content_type=None, loads=_decode)
        if not isinstance(body, dict):
            raise CommandError(f"{self._url} is no gateway of Roundhouse: {path} is no JSON object", ExitCode.FAILED)
        return body

    @asynccontextmanager
    async def _open(self, method: str, path: str, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the answer where it is good. Errors while the block reads it are CommandErrors,
        too."""
        try:
            async with self._session.request(method, self._url + path, **options) as answer:
                if answer.status >= 400:
                    raise await _read_refusal(answer)
                yield answer
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CommandError(f"no gateway answers at {self._url}: {error}", ExitCode.NO_CONTROLLER) from None


def _decode(text: str) -> Any:
    return json.loads(text, object_hook=AnswerObject)


async def _read_refusal(answer: aiohttp.ClientResponse) -> RefusedError:
    body = json.loads(await answer.read() or b"null")
    error = body.get("error") if isinstance(body, dict) else None
    after = answer.headers.get("retry-after", "")
    retry_after_s = float(after) if after.isdigit() else None
    if not isinstance(error, dict):
        return RefusedError(f"the answer has status {answer.status}", None, retry_after_s)
    steps = " ".join(error.get("next_steps", ()))
    return RefusedError(f"{error.get('message', '')} {steps}".strip(), error.get("code"), retry_after_s)
