"""Documents: accepted durably, replaced whole, listed, read, and deleted. Store, parser and models are fakes."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.retrieval import TENANT_HEADER
from retrieval import assembly
from retrieval.catalog.files import StoredFile
from retrieval.catalog.versions import count_states
from retrieval.ingestion.collection_writer import MOST_HALVINGS
from retrieval.parsing.base import ChunkingOptions, ParsedDocument
from tests.fakes.fake_retrieval_parts import FakeModels, FakeParser, MemoryVectorStore
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.small_disk import mount_small_disk
from tests.support.wait import until

OVERLAPPING = {"max_tokens": 64, "overlap_tokens": 33}


async def test_a_document_is_accepted_and_then_found(harness: RetrievalHarness) -> None:
    answer = await harness.request("POST", "/v1/documents", {"text": "A fox.\n\nA dog.", "metadata": {"lang": "en"}})
    assert answer.status_code == 202
    document = answer.json()
    assert document["status"] in ("queued", "parsing")
    assert not document["searchable"]
    assert answer.headers["location"] == f"/v1/documents/{document['id']}"
    assert answer.headers["x-tenant-id"] == "alice"

    events = await harness.request("GET", f"/v1/documents/{document['id']}/events")
    last = json.loads(events.text.strip().rpartition("data: ")[2])
    assert (last["status"], last["chunks"]) == ("ready", 2)

    [hit] = await harness.search("fox")
    assert (hit["document_id"], hit["text"], hit["start"], hit["end"]) == (document["id"], "A fox.", 0, 6)
    assert hit["metadata"] == {"lang": "en"}
    text = (await harness.request("GET", f"/v1/documents/{document['id']}/text")).content
    assert text[hit["start"] : hit["end"]].decode() == hit["text"]


async def test_the_same_content_is_accepted_once(harness: RetrievalHarness) -> None:
    first = await harness.request("POST", "/v1/documents", {"text": "A fox."})
    again = await harness.request("POST", "/v1/documents", {"text": "A fox."})
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]
    await harness.add("A fox.")
    assert len(harness.parser.parsed) == 1


async def test_a_new_version_replaces_the_old_one_at_once(tmp_path: Path) -> None:
    models = FakeModels()
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="minilm") as harness:
        await harness.add("The old fox.", "d")
        models.gate = asyncio.Event()
        await harness.request("POST", "/v1/documents", {"text": "The new fox.\n\nAnother fox.", "id": "d"})
        await until_document(harness, "d", lambda document: document["status"] == "embedding")
        assert await harness.texts("fox", mode="sparse") == ["The old fox."]
        state = (await harness.request("GET", "/v1/documents/d")).json()
        assert state["searchable"]
        assert state["progress"] == {"chunks": 0, "chunks_total": 2}
        models.gate.set()
        await harness.request("GET", "/v1/documents/d/events")
        assert sorted(await harness.texts("fox", mode="sparse")) == ["Another fox.", "The new fox."]


async def test_a_deleted_document_is_gone_with_its_points_and_its_original(harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "d")
    await harness.add("A fox too.", "e")
    answer = await harness.request("DELETE", "/v1/documents/d")
    assert answer.json() == {"id": "d", "object": "document.deleted", "deleted": True}
    assert await harness.texts("fox") == ["A fox too."]
    assert (await harness.request("GET", "/v1/documents/d")).status_code == 404
    await until("one original is left", lambda: count_originals(harness) == 1)
    assert await harness.store.count_points("bm25") == 1
    assert (await harness.request("DELETE", "/v1/documents/d")).json()["error"]["code"] == "document_not_found"


async def test_a_bad_document_is_parked_with_its_reason(harness: RetrievalHarness) -> None:
    answer = await harness.request("POST", "/v1/documents", {"text": "bad", "id": "d"})
    assert answer.status_code == 202
    await harness.request("GET", "/v1/documents/d/events")
    document = (await harness.request("GET", "/v1/documents/d")).json()
    assert document["status"] == "failed"
    expected = {"code": "document_malformed", "message": "The document begins with bad.", "retry_at": None}
    assert document["error"] == expected
    # Sent again, it is tried again.
    assert (await harness.request("POST", "/v1/documents", {"text": "bad", "id": "d"})).status_code == 202


async def test_a_client_that_waits_gets_the_error_and_nothing_is_stored(harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "d")
    for document_id in ("d", "e"):
        answer = await harness.request("POST", "/v1/documents?wait=true", {"text": "bad", "id": document_id})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "document_malformed")
    assert (await harness.request("GET", "/v1/documents/d")).json()["status"] == "ready"
    assert await harness.texts("fox") == ["A fox."]
    assert (await harness.request("GET", "/v1/documents/e")).status_code == 404
    await until("one original is left", lambda: count_originals(harness) == 1)


async def test_documents_are_listed_page_by_page(harness: RetrievalHarness) -> None:
    for number in range(5):
        await harness.add(f"Number {number}.", f"d{number}", metadata={"even": number % 2 == 0})
    pages, after = [], ""
    while True:
        page = (await harness.request("GET", f"/v1/documents?limit=2{after}")).json()
        pages.append([document["id"] for document in page["data"]])
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert pages == [["d4", "d3"], ["d2", "d1"], ["d0"]]
    even = await harness.request("GET", "/v1/documents?order=asc", params={"filter": '{"even": true}', "order": "asc"})
    assert [document["id"] for document in even.json()["data"]] == ["d0", "d2", "d4"]
    chunks = (await harness.request("GET", "/v1/documents/d1/chunks")).json()
    assert [chunk["text"] for chunk in chunks["data"]] == ["Number 1."]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_filtered_list_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr("retrieval.documents.SCANNED_AT_ONCE", 4)
    async with retrieval_harness(tmp_path) as harness:
        for number in range(23):
            metadata = {
                "year": 2000 + number,
                "tags": ["x", f"t{number % 5}"],
                "date": f"2024-03-{number + 1:02}T23:00-02:00",
            }
            await harness.request(
                "POST", "/v1/documents", {"text": f"N {number}.", "id": f"d{number:02}", "metadata": metadata}
            )
        wanted = {
            '{"tags": "t1"}': [1, 6, 11, 16, 21],
            '{"type": "gte", "key": "year", "value": 2019}': [19, 20, 21, 22],
            '{"type": "gte", "key": "date", "value": "2024-03-21"}': [19, 20, 21, 22],
            '{"type": "lt", "key": "date", "value": "2024-03-02T02:00:00+01:00"}': [],
            '{"type": "lte", "key": "date", "value": "2024-03-02T02:00:00+01:00"}': [0],
            '{"type": "and", "filters": [{"type": "lt", "key": "year", "value": 2010.5}, '
            '{"type": "nin", "key": "tags", "value": ["t0", "t1", "t2"]}]}': [3, 4, 8, 9],
            '{"tags": "none"}': [],
        }
        for where, numbers in wanted.items():
            found, params = [], {"filter": where, "order": order, "limit": "3"}
            while True:
                page = (await harness.request("GET", "/v1/documents", params=params)).json()
                found += [document["id"] for document in page["data"]]
                if not page["has_more"]:
                    break
                params["after"] = page["last_id"]
            expected = [f"d{number:02}" for number in numbers]
            assert found == (expected if order == "asc" else expected[::-1])


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/v1/documents", b"{", "invalid_json", None),
        ("/v1/documents", b"[" * 100_000, "invalid_json", None),
        ("/v1/documents", {"text": ""}, "document_empty", None),
        ("/v1/documents", {"text": "x", "id": "a/b"}, "invalid_request", "id"),
        ("/v1/documents", {"text": "x", "colour": 1}, "invalid_request", "colour"),
        ("/v1/documents", {"text": "x", "metadata": {"a": {}}}, "invalid_request", "metadata.a"),
        ("/v1/documents", {"text": "x", "metadata": {"a": ["x", 1]}}, "invalid_request", "metadata.a"),
        ("/v1/documents", {"text": "x", "metadata": {'"': 1}}, "invalid_request", 'metadata."'),
        ("/v1/documents", {"text": "x", "chunking": {"max_tokens": 1}}, "invalid_request", "chunking.max_tokens"),
        ("/v1/documents", {"text": "x", "chunking": OVERLAPPING}, "invalid_request", "chunking.overlap_tokens"),
        ("/v1/documents?wait=perhaps", {"text": "x"}, "invalid_request", "wait"),
        ("/v1/search", {"query": ""}, "invalid_request", "query"),
        ("/v1/search", {"query": "x", "top_k": 0}, "invalid_request", "top_k"),
        ("/v1/search", {"query": "x", "filter": {"type": "eq", "key": '"', "value": 1}}, "invalid_request", "filter"),
        ("/v1/search", {"query": "x", "rerank": True}, "invalid_request", "rerank"),
    ],
)
async def test_bad_input_is_named_and_stores_nothing(
    harness: RetrievalHarness, path: str, body: Any, code: str, param: str | None
) -> None:
    answer = await harness.request("POST", path, body)
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["request_id"]) == (code, param, "req-1")
    assert (await harness.request("GET", "/v1/documents")).json()["data"] == []
    assert list(harness.retrieval.originals.list_originals()) == []


async def test_a_file_is_sent_as_a_form(tmp_path: Path) -> None:
    async with retrieval_harness(tmp_path, retrieval_max_file_mib=1) as harness:
        files = {"file": ("notes.md", b"# A fox\n\nA dog.", "text/markdown")}
        answer = await harness.request(
            "POST", "/v1/documents?wait=true", files=files, data={"id": "n", "metadata": '{"lang": "en"}'}
        )
        document = answer.json()
        assert (document["id"], document["filename"], document["media_type"]) == ("n", "notes.md", "text/markdown")
        original = await harness.request("GET", "/v1/documents/n/content")
        assert original.content == b"# A fox\n\nA dog."
        assert original.headers["content-disposition"] == 'attachment; filename="notes.md"'
        large = await harness.request("POST", "/v1/documents", files={"file": ("x.txt", b"x" * (1024 * 1024 + 1))})
        assert large.json()["error"]["code"] == "document_too_large"
        other = await harness.request("POST", "/v1/documents", files={"other": ("x.txt", b"x")})
        assert other.json()["error"]["param"] == "other"
        nothing = await harness.request("POST", "/v1/documents", files={"id": (None, b"x")})
        assert nothing.json()["error"]["param"] == "file"


@pytest.mark.parametrize("sent", [{"body": {"text": "A fox."}}, {"files": {"file": ("b.md", b"A fox.")}}])
async def test_a_name_is_cleaned_wherever_it_stands(harness: RetrievalHarness, sent: dict[str, Any]) -> None:
    field = {"filename": "../txt\u202e.md"}
    sent = {"body": sent["body"] | field} if "body" in sent else {**sent, "data": field}
    assert (await harness.request("POST", "/v1/documents", **sent)).json()["filename"] == "txt.md"


async def run_after_read(
    harness: RetrievalHarness, path: str, other: Callable[[], Awaitable[object]]
) -> httpx.Response:
    """Get the path, and have `other` run as a whole just after the first look at the catalog."""
    catalog, read, task = harness.retrieval.catalog, harness.retrieval.catalog.read, asyncio.current_task()

    async def read_before_other(work: Any) -> Any:
        found = await read(work)
        if asyncio.current_task() is task:
            catalog.read = read  # type: ignore[method-assign]
            await other()
        return found

    catalog.read = read_before_other  # type: ignore[method-assign]
    return await harness.request("GET", path)


@pytest.mark.parametrize("part", ["text", "chunks"])
async def test_a_document_that_is_replaced_meanwhile_is_read_as_it_was(harness: RetrievalHarness, part: str) -> None:
    await harness.add("A fox.", "d")

    async def replace() -> None:
        await harness.add("A dog.", "d")
        await until("the old version is removed", lambda: count_originals(harness) == 1)

    assert "A fox." in (await run_after_read(harness, f"/v1/documents/d/{part}", replace)).text


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "document"])
async def test_content_that_is_deleted_meanwhile_is_not_found(harness: RetrievalHarness, is_file: bool) -> None:
    if is_file:
        form: dict[str, Any] = {"files": {"file": ("a.txt", b"A fox.")}, "data": {"purpose": "assistants"}}
        path = f"/v1/files/{(await harness.request('POST', '/v1/files', **form)).json()['id']}"
    else:
        path = f"/v1/documents/{(await harness.add('A fox.'))['id']}"

    async def delete() -> None:
        await harness.request("DELETE", path)
        await until("the original is removed", lambda: count_originals(harness) == 0)

    answer = await run_after_read(harness, f"{path}/content", delete)
    code = "file_not_found" if is_file else "document_not_found"
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)


async def test_an_upload_arrives_beside_the_originals_and_leaves_nothing_behind(tmp_path: Path) -> None:
    incoming = tmp_path / "retrieval" / "originals" / "incoming"
    async with retrieval_harness(tmp_path, retrieval_max_file_mib=1) as harness:
        boundary = "b0undary"
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'.encode()
        seen: list[int] = []

        async def body(*parts: bytes) -> AsyncIterator[bytes]:
            for part in parts:
                yield part
            seen.extend(path.stat().st_size for path in incoming.iterdir())

        async def send(*parts: bytes) -> httpx.Response:
            headers = {TENANT_HEADER: "alice", "content-type": f"multipart/form-data; boundary={boundary}"}
            return await harness.client.post("/v1/documents", content=body(head, *parts), headers=headers)

        end = f"\r\n--{boundary}--\r\n".encode()
        assert (await send(b"A fox. " * 1000, end)).status_code == 202
        assert seen == [7000]
        for parts in ((b"cut off",), (b"x" * (1024 * 1024 + 1), end), (b"a", b"\r\n--b0undaryjunk")):
            assert (await send(*parts)).status_code in (400, 413)
        assert list(incoming.iterdir()) == []
        assert count_originals(harness) == 1
    (incoming / "leftover").write_bytes(b"of a killed program")
    async with retrieval_harness(tmp_path):
        assert list(incoming.iterdir()) == []


async def test_too_many_waiting_documents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    models = FakeModels(gate=gate)
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        file, store = await add_file_and_store(harness)
        await harness.request("POST", "/v1/documents", {"text": "A fox.", "id": "d"})
        await until("it is in work", lambda: len(models.requests) == 1)
        monkeypatch.setattr("retrieval.documents.MOST_WAITING", 0)
        originals = count_originals(harness)
        files = f"/v1/vector_stores/{store['id']}/files"
        for path, options in (
            ("/v1/documents", {"body": {"text": "A dog."}}),
            ("/v1/documents?wait=true", {"files": {"file": ("b.txt", b"A hen.")}}),
            (files, {"body": {"file_id": file["id"]}}),
            ("/v1/vector_stores", {"body": {"file_ids": [file["id"]]}}),
            (f"/v1/vector_stores/{store['id']}/file_batches", {"body": {"file_ids": [file["id"]]}}),
        ):
            answer = await harness.request("POST", path, **options)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "retrieval_busy"), path
            assert answer.headers["retry-after"] == "30"
            assert "0 documents wait to be indexed, and 0 may" in answer.json()["error"]["message"]
        assert count_originals(harness) == originals
        assert [each["id"] for each in (await harness.request("GET", "/v1/documents")).json()["data"]] == ["d"]
        assert (await harness.request("GET", files)).json()["data"] == []
        assert len((await harness.request("GET", "/v1/vector_stores")).json()["data"]) == 1
        monkeypatch.undo()
        gate.set()
        assert (await harness.request("POST", files, {"file_id": file["id"]})).status_code == 200
        await harness.add("A dog.")


async def test_a_late_refusal_leaves_no_original(harness: RetrievalHarness, monkeypatch: pytest.MonkeyPatch) -> None:

    async def have_room(count: int = 1) -> None:
        """Find room that others take before the document is queued."""

    monkeypatch.setattr(harness.retrieval.documents, "check_room", have_room)
    monkeypatch.setattr("retrieval.documents.MOST_WAITING", 0)
    answer = await harness.request("POST", "/v1/documents", {"text": "A fox."})
    assert answer.json()["error"]["code"] == "retrieval_busy"
    assert count_originals(harness) == 0


async def test_a_file_deleted_meanwhile_is_not_queued(
    harness: RetrievalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, store = await add_file_and_store(harness)
    files = harness.retrieval.files
    real_find = files.find_file

    async def find_and_delete(tenant: str, file_id: str) -> StoredFile:
        found = await real_find(tenant, file_id)
        await files.delete_file(tenant, file_id)
        return found

    monkeypatch.setattr(files, "find_file", find_and_delete)
    path = f"/v1/vector_stores/{store['id']}"
    answer = await harness.request("POST", f"{path}/file_batches", {"file_ids": [file["id"]]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")
    assert (await harness.request("GET", f"{path}/files")).json()["data"] == []


async def test_whoever_follows_a_document_is_told_when_all_of_the_tenant_are_deleted(tmp_path: Path) -> None:
    models = FakeModels(gate=asyncio.Event())
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        await harness.request("POST", "/v1/documents", {"text": "A fox.", "id": "d"})
        waiting = asyncio.create_task(harness.request("POST", "/v1/documents?wait=true", {"text": "A fox.", "id": "d"}))
        await until("it waits", lambda: harness.retrieval.changes._followers)
        assert (await harness.request("DELETE", "/v1/tenants/alice")).status_code == 200
        assert (await waiting).json()["error"]["code"] == "document_not_found"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 507, "storage_full"),
        (sqlite3.OperationalError("disk I/O error"), 500, "storage_failed"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/documents", "/v1/vector_stores", "/v1/files"])
async def test_a_disk_that_fails_is_said_on_every_route(
    harness: RetrievalHarness, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str, path: str
) -> None:

    async def fail(work: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(harness.retrieval.catalog, "read", fail)
        answer = await harness.request("GET", path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_garbage_that_a_full_disk_keeps_is_told_in_one_line_and_goes_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "RETRY_S", 0.02)
    with mount_small_disk(tmp_path / "state") as disk:
        async with retrieval_harness(disk.folder) as harness:
            collector = harness.retrieval.collector
            collect, tries = collector.collect, []
            is_full = asyncio.Event()

            async def collect_on_a_full_disk() -> int:
                await is_full.wait()
                tries.append(1)
                return await collect()

            monkeypatch.setattr(collector, "collect", collect_on_a_full_disk)
            await harness.add("A fox. " * 40_000, "d")
            await harness.request("DELETE", "/v1/documents/d")
            disk.fill()
            is_full.set()
            await until("it was tried often", lambda: len(tries) >= 5)
            disk.free()

            async def is_gone() -> bool:
                return not await harness.retrieval.catalog.read(count_states)

            await until("the garbage is gone", is_gone)
        [line] = [each for each in caplog.records if "garbage was left" in each.message]
        assert line.message.endswith("database or disk is full")
        assert "Traceback" not in caplog.text


@dataclass
class GatedParser(FakeParser):
    """Waits for a gate, if the text begins with `slow` or `bad`."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def parse_file(
        self, path: Path, *, filename: str | None, media_type: str | None, chunking: ChunkingOptions
    ) -> ParsedDocument:
        if path.read_bytes().startswith((b"slow", b"bad")):
            self.waiting += 1
            await self.gate.wait()
            self.waiting -= 1
        return await super().parse_file(path, filename=filename, media_type=media_type, chunking=chunking)


async def set_writable(harness: RetrievalHarness, is_writable: bool) -> None:
    """Let the catalog's file refuse what is written to it, as one on a full disk does, or take it again."""
    await harness.retrieval.catalog.read(lambda db: db.execute(f"PRAGMA query_only = {int(not is_writable)}").close())


async def test_a_try_whose_end_could_not_be_noted_is_ended_with_the_next_write(tmp_path: Path) -> None:
    parser = GatedParser()
    async with retrieval_harness(tmp_path, parser=parser) as harness:
        for document_id in ("slow", "bad"):
            body = {"text": f"{document_id} fox.", "id": document_id}
            assert (await harness.request("POST", "/v1/documents", body)).status_code == 202
        await until("both are parsed", lambda: parser.waiting == 2)
        following = asyncio.create_task(harness.request("GET", "/v1/documents/bad/events"))
        await until("it is followed", lambda: harness.retrieval.changes._followers)
        await set_writable(harness, False)
        parser.gate.set()
        pipeline = harness.retrieval.pipeline
        await until("both have ended", lambda: (pipeline.failed, pipeline.retried) == (1, 1) and not pipeline._tasks)
        await set_writable(harness, True)
        await harness.add("A dog.", "d")
        await until("the follower is told", following.done)
        assert b'"status":"failed"' in following.result().content
        document = (await harness.request("GET", "/v1/documents/slow")).json()
        assert (document["status"], document["error"]["code"]) == ("queued", "storage_failed")
        harness.skip_time(1)
        await harness.request("GET", "/v1/documents/slow/events")
        assert await harness.texts("fox") == ["slow fox."]
        assert (pipeline.failed, pipeline.retried) == (1, 1)


async def test_a_claimed_version_that_cannot_be_read_is_tried_again(
    harness: RetrievalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("retrieval.ingestion.pipeline.find_key", fail)
    assert (await harness.request("POST", "/v1/documents", {"text": "A fox.", "id": "d"})).status_code == 202
    await until("it is to be tried again", lambda: harness.retrieval.pipeline.retried)
    harness.skip_time(1)
    await harness.request("GET", "/v1/documents/d/events")
    assert await harness.texts("fox") == ["A fox."]


async def test_what_was_accepted_is_made_by_the_next_process(tmp_path: Path) -> None:
    models, store = FakeModels(gate=asyncio.Event()), MemoryVectorStore()
    settings: dict[str, Any] = {"retrieval_embedding_model": "minilm"}
    async with retrieval_harness(tmp_path, store=store, models=models, **settings) as harness:
        for number in range(5):
            await harness.request("POST", "/v1/documents", {"text": f"Fox {number}.", "id": f"d{number}"})
    async with retrieval_harness(tmp_path, store=store, **settings) as harness:
        for number in range(5):
            await harness.request("GET", f"/v1/documents/d{number}/events")
        assert sorted(await harness.texts("fox")) == [f"Fox {number}." for number in range(5)]


async def test_a_model_that_is_away_is_asked_again(tmp_path: Path) -> None:
    models = FakeModels(away=True)
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="minilm") as harness:
        await harness.request("POST", "/v1/documents", {"text": "A fox.", "id": "d"})
        await until_document(harness, "d", lambda document: document["error"] is not None)
        document = (await harness.request("GET", "/v1/documents/d")).json()
        assert (document["status"], document["error"]["code"]) == ("queued", "embedding_unavailable")
        assert document["error"]["retry_at"] is not None
        models.away = False
        harness.skip_time(1)
        await harness.request("GET", "/v1/documents/d/events")
        assert await harness.texts("fox") == ["A fox."]


async def test_a_clock_that_is_put_back_delays_no_retry(tmp_path: Path) -> None:
    models = FakeModels(away=True)
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        await harness.request("POST", "/v1/documents", {"text": "A fox.", "id": "d"})
        await until("it was tried", lambda: harness.retrieval.pipeline.retried)
        await until_document(harness, "d", lambda document: document["status"] == "queued")
        models.away = False
        harness.clock.ahead_s = -3600
        harness.skip_time(0)
        await until_document(harness, "d", lambda document: document["status"] == "ready")


async def test_a_chunk_that_the_model_refuses_is_named(tmp_path: Path) -> None:
    models = FakeModels(refuses="dog")
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="minilm") as harness:
        answer = await harness.request("POST", "/v1/documents?wait=true", {"text": "A fox.\n\nA dog."})
        assert answer.json()["error"]["code"] == "embedding_refused"
        assert "chunk 1: the input is too long" in answer.json()["error"]["message"]


async def test_a_chunk_that_is_too_long_for_the_model_is_embedded_in_parts(tmp_path: Path) -> None:
    models = FakeModels(longest=40)
    odd = "e" + "\u0301" * 200
    words = "The fox and the dog and the cat are all in the one large garden of the house."
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        document = await harness.add(f"A fox.\n\n{words}\n\n{odd}\n\nA dog.", "d")
        assert (document["chunks"], document["notice"], document["error"]) == (4, None, None)
        texts = [text for _, texts, _ in models.requests for text in texts if len(text) <= models.longest]
        assert "The fox and the dog and the cat are " in texts, "cut between words"
        assert sum(text.count("\u0301") for text in texts) == 200
        hits = await harness.search("fox and dog and cat in the garden", mode="dense", top_k=9)
        assert {hit["text"] for hit in hits} == {"A fox.", words, odd, "A dog."}
        assert hits[0]["text"] == words
        text = (await harness.request("GET", "/v1/documents/d/text")).content
        assert all(text[hit["start"] : hit["end"]].decode() == hit["text"] for hit in hits)


async def test_a_chunk_that_no_cut_makes_short_enough_is_left_out_with_a_notice(tmp_path: Path) -> None:
    models = FakeModels(takes_no="\u0301")
    odd = "garden" + "\u0301" * 200
    text = f"A fox.\n\n{odd}\n\nA dog."
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        document = await harness.add(text, "d")
        assert (document["status"], document["searchable"], document["error"]) == ("ready", True, None)
        assert document["notice"].startswith("1 of 3 chunks are found by their words alone: ")
        assert sorted(await harness.texts("garden", mode="dense")) == ["A dog.", "A fox."]
        assert await harness.texts("garden", mode="sparse") == [odd]
        assert len(models.requests) < MOST_HALVINGS + 10

        asked = len(models.requests)
        document = await harness.add(text, "d", metadata={"lang": "en"})
        assert document["notice"].startswith("1 of 3 chunks"), "of what is taken from the version before"
        assert not any("fox" in text for _, texts, _ in models.requests[asked:] for text in texts)
        models.takes_no = None
        await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)
        await until_document(harness, "d", lambda document: document["notice"] is None)
        await until("the new index serves", lambda: harness.retrieval.index.building is None)
        assert len(await harness.texts("garden", mode="dense")) == 3


async def test_a_model_gets_as_many_texts_as_it_takes_and_as_are_set(tmp_path: Path) -> None:
    models = FakeModels(most=3)
    async with retrieval_harness(tmp_path, models=models, retrieval_embedding_model="m") as harness:
        await harness.add("\n\n".join(f"Fox {number}." for number in range(40)), "d")
        sizes = [len(texts) for _, texts, is_background in models.requests if is_background]
        assert (sizes[1], sizes[2:]) == (4, [2] * 20)
        assert len(await harness.search("fox", mode="dense", top_k=100)) == 40
    async with retrieval_harness(tmp_path / "other", retrieval_embedding_model="m", retrieval_embed_batch=8) as harness:
        await harness.add("\n\n".join(f"Fox {number}." for number in range(60)), "d")
        sizes = [len(texts) for _, texts, is_background in harness.models.requests if is_background]
        assert (max(sizes), sum(sizes)) == (8, 61), "and the question after the dimension"


async def test_work_that_fails_for_no_known_reason_ends_the_program(tmp_path: Path) -> None:
    async def fail() -> None:
        raise RuntimeError("nobody expected it")

    async with retrieval_harness(tmp_path, fails=True) as harness:
        harness.retrieval.index.reindex = fail  # type: ignore[method-assign]
        await harness.request("POST", "/v1/retrieval/reindex", is_admin=True)
        await until("it is noted", harness.retrieval.has_failed.is_set)


async def until_document(harness: RetrievalHarness, document_id: str, condition: Callable[[Any], bool]) -> None:
    async def holds() -> bool:
        return condition((await harness.request("GET", f"/v1/documents/{document_id}")).json())

    await until("the document is so", holds)


def count_originals(harness: RetrievalHarness) -> int:
    return len(list(harness.retrieval.originals.list_originals()))


async def add_file_and_store(harness: RetrievalHarness) -> tuple[Any, Any]:
    """A file of no vector store, and a vector store without files."""
    form = {"file": ("a.txt", b"A cat.")}
    file = await harness.request("POST", "/v1/files", files=form, data={"purpose": "assistants"})
    return file.json(), (await harness.request("POST", "/v1/vector_stores", {})).json()
