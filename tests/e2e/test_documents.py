"""Documents and searches through a whole Roundhouse: a real embedding model, keys, SDK, command line, and deaths."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import campaign_count
from tests.support.roundhouse_stack import REPOSITORY, SENTENCE, RoundhouseStack
from tests.support.wait import until

pytestmark = pytest.mark.engines

MODELS = {
    "chat": {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096, "llama_server_threads": 1},
    "embed": {"model_path": "clockwork.gguf", "llama_server_embedding": True, "llama_server_pooling": "mean"},
}
MAIN = "import sys; from cli.main import main; sys.exit(main())"
NOTES = "# Engines\n\nThe turntable moves the engines.\n\n# Coal\n\nCoal is stored beside the shed.\n"


@pytest.fixture
async def yard(process_stack: RoundhouseStack, clockwork: Path) -> RoundhouseStack:
    """A Roundhouse of processes with retrieval, whose documents are embedded by a real engine."""
    process_stack.settings |= {
        "ROUNDHOUSE_RETRIEVAL_LISTEN": f"unix:{process_stack.state}/retrieval.sock",
        "ROUNDHOUSE_RETRIEVAL_URL": f"unix:{process_stack.state}/retrieval.sock",
        "ROUNDHOUSE_RETRIEVAL_EMBEDDING_MODEL": "embed",
        "ROUNDHOUSE_GATEWAY_URL": process_stack.url,
    }
    shutil.copy(clockwork, process_stack.models / "clockwork.gguf")
    process_stack.declare(MODELS)
    await process_stack.open()
    process_stack.start("retrieval")
    await process_stack.loaded("chat", "embed")
    return process_stack


async def add(stack: RoundhouseStack, document_id: str, text: str, **headers: str) -> None:
    """Add a document, as soon as retrieval answers."""

    async def is_added() -> bool:
        document = {"text": text, "id": document_id}
        reply = await stack.request("POST", "/v1/documents?wait=true", document, headers=headers)
        assert reply.status in (200, 503), reply.body
        return reply.status == 200

    await until("the document is added", is_added)


async def find(stack: RoundhouseStack, query: str, **fields: Any) -> list[str]:
    reply = await stack.request("POST", "/v1/search", {"query": query, **fields})
    return [hit["document_id"] for hit in reply.success["data"]]


async def test_documents_are_embedded_by_an_engine_and_survive_deaths(yard: RoundhouseStack) -> None:
    await add(yard, "yard", NOTES)
    await add(yard, "kitchen", "Tea and bread are in the kitchen.")
    found = (await yard.request("POST", "/v1/search", {"query": "Coal is stored beside the shed."})).success
    assert (found["mode"], found["embedding_model"]) == ("hybrid", "embed")
    best = found["data"][0]
    assert best["document_id"] == "yard"
    assert best["scores"]["dense"] is not None
    assert best["scores"]["sparse_rank"] == 1
    assert NOTES.encode()[best["start"] : best["end"]].decode() == best["text"]

    # It dies alone, and what it had accepted is there again.
    yard.kill("retrieval")
    reply = await yard.request("POST", "/v1/search", {"query": "coal"})
    assert reply.refusal == (503, "retrieval_unavailable")
    async with yard.sdk() as client:
        chat = await client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hello"}])
        assert chat.choices[0].message.content == SENTENCE
    yard.start("retrieval")

    async def is_back() -> bool:
        return (await yard.request("POST", "/v1/search", {"query": "coal"})).status == 200

    await until("retrieval answers again", is_back)
    assert await find(yard, "coal", mode="sparse") == ["yard"]
    # Without the engine, words are searched still.
    assert (await yard.request("POST", "/v1/admin/models/embed/unload")).status == 200
    await until("the engine is gone", lambda: _is_unavailable(yard))
    assert await find(yard, "tea", mode="sparse") == ["kitchen"]


async def test_accents_that_are_too_long_for_the_engine_cost_their_document_nothing(yard: RoundhouseStack) -> None:
    """Its tokens are many more than any estimate says."""
    accents = "e" + "\u0301" * campaign_count(2_000, 500_000)
    await add(yard, "first", "Tea and bread are in the kitchen.")
    text = f"The turntable moves the engines.\n\n{accents}\n\nCoal is stored beside the shed."
    added = await yard.request("POST", "/v1/documents", {"text": text, "id": "odd"})
    assert added.status == 202, added.body

    async def look() -> Any:
        found = (await yard.request("GET", "/v1/documents/odd")).body
        return found if found["status"] in ("ready", "failed") else None

    document = await until("the document is embedded", look, campaign_count(60, 1200))
    assert (document["status"], document["error"], document["notice"]) == ("ready", None, None)
    found = await yard.request("POST", "/v1/search", {"query": accents[:100], "mode": "dense", "top_k": 50})
    texts = [hit["text"] for hit in found.success["data"]]
    assert any(accents[1:100] in text for text in texts), "its vectors are there"
    assert await find(yard, "turntable", mode="sparse") == await find(yard, "coal", mode="sparse") == ["odd"]


async def _is_unavailable(yard: RoundhouseStack) -> bool:
    reply = await yard.request("POST", "/v1/search", {"query": "tea"})
    return reply.status == 503 and reply.code == "embedding_unavailable"


async def test_keys_keep_tenants_apart_and_admins_see_all(yard: RoundhouseStack) -> None:
    await add(yard, "d", "A fox without a key.", **{"X-Client-Id": "alice"})
    keys = {
        name: {"sha256": sha256(f"secret-{name}".encode()).hexdigest(), "scopes": scopes}
        for name, scopes in (("alice", ["inference"]), ("bob", ["inference"]), ("boss", ["inference", "admin"]))
    }
    yard.write("keys.yaml", {"keys": keys})

    async def is_closed() -> bool:
        return (await yard.request("GET", "/v1/documents")).status == 401

    await until("the keys are in force", is_closed)
    await add(yard, "d", "A fox of bob.", Authorization="Bearer secret-bob")
    for name, text in (("alice", "A fox without a key."), ("bob", "A fox of bob.")):
        # A header does not change a key's tenant.
        shown: dict[str, Any] = {
            "key": f"secret-{name}",
            "headers": {"X-Client-Id": "alice", "x-roundhouse-tenant": "alice", "x-roundhouse-admin": "1"},
        }
        found = (await yard.request("POST", "/v1/search", {"query": "fox", "mode": "sparse"}, **shown)).success
        assert [hit["text"] for hit in found["data"]] == [text]
        own = (await yard.request("GET", "/v1/tenants", **shown)).success
        assert [each["id"] for each in own["data"]] == [name]
        assert (await yard.request("GET", "/v1/retrieval", **shown)).refusal == (403, "scope_required")
    reply = await yard.request("DELETE", "/v1/tenants/alice", key="secret-bob")
    assert reply.refusal == (404, "tenant_not_found")
    everybody = (await yard.request("GET", "/v1/tenants", key="secret-boss")).success
    assert [each["id"] for each in everybody["data"]] == ["alice", "bob"]
    status = (await yard.request("GET", "/v1/retrieval", key="secret-boss")).success
    assert (status["index"]["embedding_model"], status["needs_reindex"]) == ("embed", False)
    # The token of retrieval is nobody's to guess, and opens nothing to others.
    reply = await yard.request("GET", "/v1/documents", headers={"x-roundhouse-retrieval-token": "x" * 32})
    assert reply.refusal == (401, "invalid_api_key")


async def test_the_openai_sdk_and_the_command_line(yard: RoundhouseStack, tmp_path: Path) -> None:
    await add(yard, "first", "The first document.")
    async with yard.sdk() as client:
        store = await client.vector_stores.create(name="yard")
        batch = await client.vector_stores.file_batches.upload_and_poll(
            store.id, files=[("notes.md", NOTES.encode()), ("tea.txt", b"Tea is in the kitchen.")], poll_interval_ms=50
        )
        assert (batch.status, batch.file_counts.completed) == ("completed", 2)
        found = [hit async for hit in client.vector_stores.search(store.id, query="Where is the coal stored?")]
        assert found[0].filename == "notes.md"
        assert 0 < found[0].score <= 1

        tool = {"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 1}
        asked: dict[str, Any] = {"input": "Where is the coal stored?", "tools": [tool], "max_output_tokens": 60}
        response = await client.responses.create(model="chat", include=["file_search_call.results"], **asked)
        call, message = [item.to_dict() for item in response.output]
        [result] = call["results"]
        assert (call["type"], message["type"], result["filename"]) == ("file_search_call", "message", "notes.md")
        assert NOTES.encode()[result["start"] : result["end"]].decode() == result["text"]
        # Another client has no such vector store.
        reply = await yard.request("POST", "/v1/responses", {"model": "chat", **asked}, headers={"X-Client-Id": "eve"})
        assert reply.refusal == (404, "vector_store_not_found")
    body = {"model": "chat", "max_tokens": 60, "messages": [{"role": "user", "content": "first document"}], "rag": True}
    answer = (await yard.request("POST", "/v1/messages", body)).success
    assert [each["document_id"] for each in answer["sources"]] == ["first"]

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "notes.md").write_text(NOTES)
    (tmp_path / "docs" / "bad.pdf").write_bytes(b"%PDF-1.7 nothing")
    added = await _rag(yard, tmp_path, "add", "docs", "--set", "kind=notes")
    assert added.returncode == 1, added.stderr
    assert "docs/notes.md: ready as docs:notes.md, 1 chunks" in added.stdout
    assert "docs/bad.pdf: " in added.stderr
    listed = json.loads((await _rag(yard, tmp_path, "ls", "--json")).stdout)
    states = {each["id"]: each["status"] for each in listed}
    assert states == {"first": "ready", "docs:bad.pdf": "failed", "docs:notes.md": "ready"}, "curl's are there, too"
    searched = await _rag(yard, tmp_path, "search", "coal", "--where", "kind=notes")
    assert "of docs:notes.md" in searched.stdout
    assert (await _rag(yard, tmp_path, "search", "coal", "--where", "kind=other")).returncode == 1
    assert "Coal is stored beside the shed." in (await _rag(yard, tmp_path, "show", "docs:notes.md")).stdout
    told = (await _rag(yard, tmp_path, "status")).stdout
    assert "index: embed-128 (embed, words in auto), 0 documents are missing" in told
    assert (await _rag(yard, tmp_path, "rm", "docs:notes.md", "docs:bad.pdf")).returncode == 0
    assert [each["id"] for each in json.loads((await _rag(yard, tmp_path, "ls", "--json")).stdout)] == ["first"]


async def _rag(yard: RoundhouseStack, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "rag", *arguments, "--gateway", yard.url]
    environment = yard.environment() | {"PYTHONPATH": str(REPOSITORY)}
    return await asyncio.to_thread(
        subprocess.run, command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
