"""Tenants: what one has stored, and that no other sees any of it."""

from __future__ import annotations

from tests.support.retrieval_harness import RetrievalHarness


async def test_tenants_are_listed_and_deleted(harness: RetrievalHarness) -> None:
    await harness.add("A fox.\n\nA dog.", "d")
    await harness.add("A cat.", "d", tenant="bob/β")
    own = (await harness.request("GET", "/v1/tenants")).json()["data"]
    assert own == [{"id": "alice", "object": "tenant", "documents": 1, "chunks": 2, "bytes": 14}]
    everybody = (await harness.request("GET", "/v1/tenants", is_admin=True)).json()["data"]
    assert [each["id"] for each in everybody] == ["alice", "bob/β"]

    refused = await harness.request("DELETE", "/v1/tenants/bob%2F%CE%B2")
    assert refused.json()["error"]["code"] == "tenant_not_found"
    assert await harness.texts("cat", tenant="bob/β") == ["A cat."]
    deleted = await harness.request("DELETE", "/v1/tenants/bob%2F%CE%B2", is_admin=True)
    assert deleted.json() == {"id": "bob/β", "object": "tenant.deleted", "deleted": True, "documents": 1}
    assert await harness.texts("cat", tenant="bob/β") == []
    assert (await harness.request("DELETE", "/v1/tenants/alice")).status_code == 200
    assert (await harness.request("GET", "/v1/tenants", is_admin=True)).json()["data"] == []


async def test_a_foreign_document_is_none(harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "d")
    for method, path in (
        ("GET", "/v1/documents/d"),
        ("DELETE", "/v1/documents/d"),
        ("GET", "/v1/documents/d/chunks"),
        ("GET", "/v1/documents/d/text"),
        ("GET", "/v1/documents/d/content"),
        ("GET", "/v1/documents/d/events"),
    ):
        foreign = await harness.request(method, path, tenant="bob")
        unknown = await harness.request(method, path.replace("/d", "/x", 2).replace("/xocuments", "/documents"))
        assert foreign.status_code == unknown.status_code == 404, path
    assert (await harness.request("GET", "/v1/documents", tenant="bob")).json()["data"] == []
    assert await harness.texts("fox", tenant="bob") == []
    assert await harness.texts("fox") == ["A fox."]
