"""Requests about documents through the gateway: what retrieval gets, what the client gets, and what is refused.

The retrieval program is the real one, over fakes of its parts, on a port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from tests.fakes.gateway_harness import gateway_harness
from tests.support.retrieval_gateway import retrieval_gateway


async def test_a_document_goes_through_with_its_tenant(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        form = aiohttp.FormData()
        form.add_field("file", b"A fox.", filename="fox.txt")
        headers = {"x-client-id": "Alice B", "x-roundhouse-tenant": "bob", "x-roundhouse-admin": "1"}
        url = f"{gateway.url}/v1/documents"
        async with gateway.client.post(f"{url}?wait=true", data=form, headers=headers) as answer:
            assert (answer.status, answer.headers["x-tenant-id"]) == (200, "Alice B")
            document = await answer.json()
            assert answer.headers["location"] == f"/v1/documents/{document['id']}"
        assert await retrieval.texts("fox", tenant="Alice B") == ["A fox."]
        async with gateway.client.get(f"{url}/{document['id']}/content", headers=headers) as answer:
            assert await answer.read() == b"A fox."
            assert answer.headers["content-disposition"] == 'attachment; filename="fox.txt"'
        async with gateway.client.get(f"{url}/{document['id']}/events", headers=headers) as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.text()).startswith("event: document\ndata: {")
        async with gateway.client.get(f"{url}/{document['id']}", headers={"x-client-id": "bob"}) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (404, "document_not_found")
            assert error["request_id"] == answer.headers["x-request-id"]


async def test_a_download_is_called_by_a_name_without_a_path(tmp_path: Path) -> None:
    name = "../a\\x\0\u202efdp.txt"
    async with retrieval_gateway(tmp_path) as (gateway, _):
        made = {"text": "A fox.", "filename": name}
        async with gateway.post("/v1/documents", made) as answer:
            document = await answer.json()
            assert answer.status < 300, document
        form = aiohttp.FormData({"purpose": "assistants"}, quote_fields=False)
        form.add_field("file", b"A fox.", filename="a/b\u202ec.txt")
        async with gateway.request("POST", "/v1/files", data=form) as answer:
            file = await answer.json()
            assert file["filename"] == "bc.txt"
        for path, shown in ((f"/v1/documents/{document['id']}", "xfdp.txt"), (f"/v1/files/{file['id']}", "bc.txt")):
            async with gateway.get(f"{path}/content") as answer:
                assert answer.headers["content-disposition"] == f'attachment; filename="{shown}"'


async def test_a_document_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        for size in (1024 * 1024 + 1, 20 * 1024 * 1024):
            form = aiohttp.FormData()
            form.add_field("file", b"x" * size, filename="x.txt")
            async with gateway.request("POST", "/v1/documents", data=form) as answer:
                assert answer.status == 413, await answer.text()
        assert list(retrieval.retrieval.originals.list_originals()) == []


async def test_another_token_is_told_as_what_it_is(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path, gateway_token="another-token-than-that") as (gateway, _):
        reply = await gateway.get("/v1/documents")
        assert reply.refusal == (503, "retrieval_unavailable")
        assert "refuses the gateway's token" in reply.error["message"]
        assert reply.headers["retry-after"] == "5"


async def test_a_client_that_leaves_ends_its_upload(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(
            b"POST /v1/documents HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b'content-length: 1000\r\n\r\n{"text": "half'
        )
        await writer.drain()
        writer.close()
        assert (await gateway.get("/v1/documents")).body["data"] == []
        assert await reader.read() == b""
        assert list(retrieval.retrieval.originals.list_originals()) == []


async def test_turned_off_it_is_said(tmp_path: Path) -> None:
    async with gateway_harness(retrieval=False) as gateway:
        for method, path in (("GET", "/v1/documents"), ("POST", "/v1/search"), ("GET", "/v1/files")):
            assert (await gateway.request(method, path)).refusal == (403, "retrieval_disabled")
