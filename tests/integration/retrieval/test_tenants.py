"""Tenants: what one has stored, and that no other sees any of it."""

from __future__ import annotations

from pathlib import Path

from tests.support.retrieval_harness import retrieval_harness


async def test_tenants_are_listed_and_deleted(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path) as here:
        await here.add("A fox.\n\nA dog.", "d")
        await here.add("A cat.", "d", tenant="bob/β")
        own = (await here.request("GET", "/v1/tenants")).json()["data"]
        assert own == [{"id": "alice", "object": "tenant", "documents": 1, "chunks": 2, "bytes": 14}]
        everybody = (await here.request("GET", "/v1/tenants", is_admin=True)).json()["data"]
        assert [each["id"] for each in everybody] == ["alice", "bob/β"]

        refused = await here.request("DELETE", "/v1/tenants/bob%2F%CE%B2")
        assert refused.json()["error"]["code"] == "tenant_not_found"
        assert await here.texts("cat", tenant="bob/β") == ["A cat."]
        deleted = await here.request("DELETE", "/v1/tenants/bob%2F%CE%B2", is_admin=True)
        assert deleted.json() == {"id": "bob/β", "object": "tenant.deleted", "deleted": True, "documents": 1}
        assert await here.texts("cat", tenant="bob/β") == []
        assert (await here.request("DELETE", "/v1/tenants/alice")).status_code == 200
        assert (await here.request("GET", "/v1/tenants", is_admin=True)).json()["data"] == []


async def test_a_foreign_document_is_none(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path) as here:
        await here.add("A fox.", "d")
        for method, path in (
            ("GET", "/v1/documents/d"),
            ("DELETE", "/v1/documents/d"),
            ("GET", "/v1/documents/d/chunks"),
            ("GET", "/v1/documents/d/text"),
            ("GET", "/v1/documents/d/content"),
            ("GET", "/v1/documents/d/events"),
        ):
            foreign = await here.request(method, path, tenant="bob")
            unknown = await here.request(method, path.replace("/d", "/x", 2).replace("/xocuments", "/documents"))
            assert foreign.status_code == unknown.status_code == 404, path
        assert (await here.request("GET", "/v1/documents", tenant="bob")).json()["data"] == []
        assert await here.texts("fox", tenant="bob") == []
        assert await here.texts("fox") == ["A fox."]
