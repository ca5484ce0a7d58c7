"""OpenAI's unmodified SDK on files and vector stores. Qdrant Edge and the parsers are real; the gateway is left out."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import FilePurpose

from cli.rag.command import status_lines
from contract.files import OWN_DOCUMENTS
from contract.retrieval import TENANT_HEADER
from retrieval.assembly import Retrieval
from retrieval.parsing.pool import ParserPool
from retrieval.vector_store.edge.store import EdgeStore
from tests.support.retrieval_harness import ManualClock, RetrievalHarness, retrieval_harness

NOTES = b"# Engines\n\nThe turntable moves the engines.\n\n# Coal\n\nCoal is stored beside the shed.\n"


def chunking(overlap: int) -> Any:
    return {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": overlap}}


@asynccontextmanager
async def sdk(
    folder: Path, clock: ManualClock | None = None
) -> AsyncIterator[tuple[openai.AsyncOpenAI, openai.AsyncOpenAI, RetrievalHarness]]:
    """The SDK of two tenants."""
    store = await EdgeStore.open(folder / "edge")
    async with retrieval_harness(folder, store=store, parser=ParserPool(), clock=clock) as harness:
        transport = httpx2.ASGITransport(harness.retrieval.build_app(), raise_app_exceptions=False)

        def client_of(tenant: str) -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(
                api_key="none",
                base_url="http://retrieval/v1",
                max_retries=0,
                default_headers={TENANT_HEADER: tenant},
                http_client=httpx2.AsyncClient(transport=transport),
            )

        yield client_of("alice"), client_of("bob"), harness


async def test_a_file_is_uploaded_added_searched_and_removed(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, bob, _):
        file = await alice.files.create(file=("notes.md", NOTES), purpose="assistants")
        expected = ("notes.md", len(NOTES), "assistants", "processed")
        assert (file.filename, file.bytes, file.purpose, file.status) == expected
        assert (await alice.files.content(file.id)).content == NOTES
        assert [each.id async for each in alice.files.list()] == [file.id]

        store = await alice.vector_stores.create(name="yard", metadata={"kind": "test"})
        added = await alice.vector_stores.files.create_and_poll(
            file.id,
            vector_store_id=store.id,
            attributes={"year": 1900},
            poll_interval_ms=20,
            chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}},
        )
        assert (added.status, added.attributes, added.last_error) == ("completed", {"year": 1900}, None)
        found = [hit async for hit in alice.vector_stores.search(store.id, query="Where is the coal?")]
        assert [hit.file_id for hit in found] == [file.id]
        assert "Coal is stored beside the shed." in found[0].content[0].text
        assert 0 < found[0].score <= 1
        none = alice.vector_stores.search(store.id, query="coal", filters={"type": "gt", "key": "year", "value": 1950})
        assert [hit async for hit in none] == []

        store = await alice.vector_stores.retrieve(store.id)
        assert (store.status, store.file_counts.completed, store.usage_bytes) == ("completed", 1, len(NOTES))
        text = [part async for part in alice.vector_stores.files.content(file.id, vector_store_id=store.id)]
        assert text[0].text == NOTES.decode()

        for call in (
            bob.files.retrieve(file.id),
            bob.vector_stores.retrieve(store.id),
            bob.vector_stores.files.create(file_id=file.id, vector_store_id=store.id),
            bob.files.delete(file.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call

        await alice.vector_stores.files.delete(file.id, vector_store_id=store.id)
        assert [hit async for hit in alice.vector_stores.search(store.id, query="coal")] == []
        assert (await alice.files.retrieve(file.id)).id == file.id


async def test_new_attributes_leave_a_searchable_file_completed(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, __):
        file = await alice.files.create(file=("notes.md", NOTES), purpose="assistants")
        bad = await alice.files.create(file=("c.txt", b"\x00\x01\x02binary" * 100), purpose="assistants")
        store = await alice.vector_stores.create()
        files = alice.vector_stores.files
        await files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
        # Also while the former ones are being written.
        for year in (1900, 1950, 1950, 2000):
            changed = await files.update(file.id, vector_store_id=store.id, attributes={"year": year})
            assert (changed.status, changed.attributes, changed.last_error) == ("completed", {"year": year}, None)
        assert (await files.poll(file.id, vector_store_id=store.id, poll_interval_ms=20)).status == "completed"
        late = alice.vector_stores.search(store.id, query="coal", filters={"type": "gt", "key": "year", "value": 1990})
        assert [hit.file_id async for hit in late] == [file.id]
        await files.create_and_poll(bad.id, vector_store_id=store.id, poll_interval_ms=20)
        tried = await files.update(bad.id, vector_store_id=store.id, attributes={"year": 1})
        assert tried.status == "in_progress", "nothing of it can be found"


async def test_batches_are_polled_and_a_bad_file_is_told(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, __):
        store = await alice.vector_stores.create()
        batch = await alice.vector_stores.file_batches.upload_and_poll(
            store.id,
            files=[("a.txt", b"A fox."), ("b.txt", b"A dog."), ("c.txt", b"\x00\x01\x02binary" * 100)],
            poll_interval_ms=20,
        )
        assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 2, 1)
        files = [each async for each in alice.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id)]
        [failed] = [each for each in files if each.status == "failed"]
        assert failed.last_error is not None
        assert failed.last_error.code == "unsupported_file"
        only = alice.vector_stores.files.list(store.id, filter="failed")
        assert [each.id async for each in only] == [failed.id]
        cancelled = await alice.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
        assert cancelled.file_counts.completed == 2, "what is searchable stays"


async def test_pages_of_stores_files_and_batches_go_forwards_and_backwards(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, harness):
        stores = [(await alice.vector_stores.create(name=str(number))).id for number in range(4)]
        assert [each.id async for each in alice.vector_stores.list(limit=3, order="asc")] == stores
        page = await alice.vector_stores.list(before=stores[3], limit=2, order="asc")
        assert ([each.id for each in page.data], page.has_more) == (stores[1:3], True)
        page = await alice.vector_stores.list(before=stores[1])
        assert ([each.id for each in page.data], page.has_more) == (stores[:1:-1], False)

        batches = alice.vector_stores.file_batches
        texts = [(f"{number}.txt", f"The file {number}.".encode()) for number in range(4)]
        files = [(await alice.files.create(file=each, purpose="assistants")).id for each in texts]
        batch = await batches.create_and_poll(stores[0], file_ids=files, poll_interval_ms=20)
        assert batch.file_counts.completed == 4
        for lister in (
            functools.partial(alice.vector_stores.files.list, stores[0]),
            functools.partial(batches.list_files, batch.id, vector_store_id=stores[0]),
        ):
            assert [each.id async for each in lister(limit=3)] == files[::-1]
            first = await lister(limit=3, order="asc")
            assert ([each.id for each in first.data], first.has_more) == (files[:3], True)
            within = await lister(before=files[3], limit=2, order="asc", filter="completed")
            assert ([each.id for each in within.data], within.has_more) == (files[1:3], True)
            with pytest.raises(openai.BadRequestError, match="`before` must be the id of"):
                await lister(before="file-none")
            with pytest.raises(openai.BadRequestError, match="either `after` or `before`"):
                await lister(after=files[0], before=files[1])
        await alice.vector_stores.files.delete(files[1], vector_store_id=stores[0])
        behind = await batches.list_files(batch.id, vector_store_id=stores[0], after=files[1], order="asc")
        assert [each.id for each in behind.data] == files[2:]
        twice = await batches.create(stores[1], file_ids=[files[0], files[1], files[0]])
        assert twice.file_counts.total == 2
        earlier = json.dumps([files[0], files[1], files[0]])  # as earlier versions stored it
        await harness.retrieval.catalog.write(
            lambda db: db.execute("UPDATE file_batches SET files = ? WHERE id = ?", (earlier, twice.id))
        )
        behind = await batches.list_files(twice.id, vector_store_id=stores[1], after=files[1], order="asc")
        assert behind.data == []


async def test_deleting_a_file_takes_it_out_of_all_vector_stores(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, harness):
        file = await alice.files.create(file=("notes.md", NOTES), purpose="assistants")
        stores = [await alice.vector_stores.create(file_ids=[file.id]) for _ in range(2)]
        for store in stores:
            await alice.vector_stores.files.poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
        await alice.files.delete(file.id)
        for store in stores:
            assert [hit async for hit in alice.vector_stores.search(store.id, query="coal")] == []
        deleted = await alice.vector_stores.delete(stores[0].id)
        assert deleted.deleted
        assert [each.id async for each in alice.vector_stores.list()] == [stores[1].id]
        await harness.retrieval.collector.collect()
        assert list(harness.retrieval.originals.list_originals()) == []


async def test_the_documents_of_no_vector_store_are_searched_in_the_same_form(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, bob, harness):
        document = await harness.add(NOTES.decode(), tenant="alice")
        file = await alice.files.create(file=("coal.md", b"Coal of a vector store."), purpose="assistants")
        store = await alice.vector_stores.create(file_ids=[file.id])
        await alice.vector_stores.files.poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
        found = [hit async for hit in alice.vector_stores.search(OWN_DOCUMENTS, query="Where is the coal?")]
        assert {hit.file_id for hit in found} == {document["id"]}
        assert "Coal is stored beside the shed." in found[0].content[0].text
        assert [hit async for hit in bob.vector_stores.search(OWN_DOCUMENTS, query="coal")] == []
        # It is no vector store otherwise.
        with pytest.raises(openai.NotFoundError):
            await alice.vector_stores.retrieve(OWN_DOCUMENTS)
        with pytest.raises(openai.NotFoundError):
            await alice.vector_stores.files.create(file_id=file.id, vector_store_id=OWN_DOCUMENTS)


async def add_expiring(client: openai.AsyncOpenAI, seconds: int) -> tuple[str, str]:
    """A file that expires, and a vector store with it that expires when it is not used for a day."""
    expires: Any = {"anchor": "created_at", "seconds": seconds}
    file = await client.files.create(file=("notes.md", NOTES), purpose="assistants", expires_after=expires)
    unused: Any = {"anchor": "last_active_at", "days": 1}
    store = await client.vector_stores.create(file_ids=[file.id], expires_after=unused)
    await client.vector_stores.files.poll(file.id, vector_store_id=store.id, poll_interval_ms=20)
    return file.id, store.id


async def test_what_expires_is_gone(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, harness):
        file_id, store_id = await add_expiring(alice, 3600)
        harness.clock.now += 3601
        with pytest.raises(openai.NotFoundError):
            await alice.files.retrieve(file_id)
        harness.clock.now += 86_400
        assert (await alice.vector_stores.retrieve(store_id)).status == "expired"
        with pytest.raises(openai.BadRequestError, match="has expired"):
            await alice.vector_stores.search(store_id, query="coal")
        assert await harness.retrieval.files.delete_expired() == 1


async def test_a_clock_that_jumps_deletes_no_file_until_it_is_confirmed(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, harness):
        file_id, store_id = await add_expiring(alice, 7200)
        clock = harness.clock

    async def expired(retrieval: Retrieval) -> tuple[int, int]:
        return await retrieval.files.delete_expired(), await retrieval.vector_stores.empty_expired()

    clock.ahead_s = 40 * 86_400
    async with sdk(tmp_path, clock=clock) as (alice, _, harness):  # which deletes at the start what has expired
        for ahead_s in (40 * 86_400, -3600, 0, 40 * 86_400):
            clock.ahead_s = ahead_s
            assert await expired(harness.retrieval) == (0, 0)
            assert (await alice.files.retrieve(file_id)).id == file_id
            assert [each.id for each in (await alice.files.list()).data] == [file_id]
            assert (await alice.vector_stores.retrieve(store_id)).status == "completed"
            assert (await alice.vector_stores.search(store_id, query="coal")).data
            health = (await harness.request("GET", "/health")).text
            status = (await harness.request("GET", "/v1/retrieval")).json()
            assert health == (status["clock_hold"] or "ok")
            assert (f"clock: {health}" in status_lines(status)) == (ahead_s != 0)
            assert health.startswith({0: "ok", -3600: "The wall clock is 1 h 0 min behind"}.get(ahead_s, "The wall"))
        # A file of a wrong clock lives as long as it was promised.
        late = await alice.files.create(
            file=("late.md", NOTES), purpose="assistants", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        answer = await harness.request("POST", "/v1/retrieval/clock/confirm", is_admin=True)
        assert answer.json()["clock_hold"] is None
        # The vector store was used under the wrong clock.
        assert await expired(harness.retrieval) == (1, 0)
        with pytest.raises(openai.NotFoundError):
            await alice.files.retrieve(file_id)
        assert (await alice.files.retrieve(late.id)).id == late.id


async def test_bad_input_is_named(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (alice, _, harness):
        form = {"purpose": "assistants", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 5000}
        refused = await harness.request("POST", "/v1/files", files={"file": ("a.txt", b"x")}, data=form)
        assert refused.json()["error"]["param"] == "expires_after[seconds]"
        store = await alice.vector_stores.create()
        with pytest.raises(openai.BadRequestError, match="`purpose` must be one of"):
            await alice.files.create(file=("a.txt", b"x"), purpose="other")  # type: ignore[arg-type]
        unserved: tuple[FilePurpose, ...] = ("batch", "fine-tune", "evals")
        for purpose in unserved:
            with pytest.raises(openai.BadRequestError, match=f"assistants, user_data, vision.*for {purpose}") as caught:
                await alice.files.create(file=("a.jsonl", b"{}"), purpose=purpose)
            assert (caught.value.code, caught.value.param) == ("invalid_request", "purpose")
        assert [each.id async for each in alice.files.list(purpose="batch")] == []
        served: tuple[FilePurpose, ...] = ("assistants", "user_data", "vision")
        for purpose in served:
            assert (await alice.files.create(file=("a.txt", b"x"), purpose=purpose)).purpose == purpose
        with pytest.raises(openai.BadRequestError, match="The document is empty"):
            await alice.files.create(file=("a.txt", b""), purpose="assistants")
        with pytest.raises(openai.NotFoundError, match="There is no file 'file-x'"):
            await alice.vector_stores.files.create(file_id="file-x", vector_store_id=store.id)
        with pytest.raises(openai.BadRequestError, match="at most half"):
            await alice.vector_stores.create(chunking_strategy=chunking(51))
        unknown: Any = {"type": "like", "key": "a", "value": 1}
        with pytest.raises(openai.BadRequestError, match=r"filter\.type: must be"):
            await alice.vector_stores.search(store.id, query="x", filters=unknown)
