"""Requests on vector stores that come between two statements of one another, at every place where that is possible."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.support.retrieval_harness import RetrievalHarness
from tests.support.wait import until

DAY_S = 86_400
MOST_WRITES = 6
"""More than any of the requests has."""


def come_before_write(harness: RetrievalHarness, number: int, other: Callable[[], Awaitable[object]]) -> None:
    """Have `other` run as a whole just before that write to the catalog, counted from 0: as another request may."""
    catalog, task, count = harness.retrieval.catalog, asyncio.current_task(), 0
    write = catalog.write

    async def write_after_other(work: Any, **options: Any) -> Any:
        nonlocal count
        count += asyncio.current_task() is task  # and not the pipeline
        if count == number + 1:
            catalog.write = write  # type: ignore[method-assign]
            await other()
        return await write(work, **options)

    catalog.write = write_after_other  # type: ignore[method-assign]


async def upload(harness: RetrievalHarness, text: str) -> str:
    answer = await harness.request(
        "POST", "/v1/files", files={"file": ("a.txt", text.encode())}, data={"purpose": "assistants"}
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def create_store(harness: RetrievalHarness, **fields: Any) -> str:
    answer = await harness.request("POST", "/v1/vector_stores", fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def status_of(harness: RetrievalHarness, store: str, file: str) -> str:
    return str((await harness.request("GET", f"/v1/vector_stores/{store}/files/{file}")).json()["status"])


async def is_completed(harness: RetrievalHarness, store: str, file: str) -> bool:
    return await status_of(harness, store, file) == "completed"


async def count_rows(harness: RetrievalHarness, store: str) -> tuple[int, ...]:
    """Vector stores of that id, their batches, and the documents in them."""
    tables = ("vector_stores WHERE id", "file_batches WHERE vector_store", "documents WHERE space")

    def count(db: sqlite3.Connection) -> tuple[int, ...]:
        return tuple(db.execute(f"SELECT count(*) FROM {each} = ?", (store,)).fetchone()[0] for each in tables)

    return await harness.retrieval.catalog.read(count)


Request = Callable[[RetrievalHarness, str, str], Awaitable[httpx.Response]]
"""Of the vector store and the file with these ids."""


async def rename(harness: RetrievalHarness, store: str, _: str) -> httpx.Response:
    return await harness.request("POST", f"/v1/vector_stores/{store}", {"name": "new"})


async def add(harness: RetrievalHarness, store: str, file: str) -> httpx.Response:
    return await harness.request("POST", f"/v1/vector_stores/{store}/files", {"file_id": file})


async def add_batch(harness: RetrievalHarness, store: str, file: str) -> httpx.Response:
    return await harness.request("POST", f"/v1/vector_stores/{store}/file_batches", {"file_ids": [file]})


async def change_file(harness: RetrievalHarness, store: str, file: str) -> httpx.Response:
    return await harness.request("POST", f"/v1/vector_stores/{store}/files/{file}", {"attributes": {"year": 1}})


async def delete(harness: RetrievalHarness, store: str, _: str) -> httpx.Response:
    return await harness.request("DELETE", f"/v1/vector_stores/{store}")


async def remove_file(harness: RetrievalHarness, store: str, file: str) -> httpx.Response:
    return await harness.request("DELETE", f"/v1/vector_stores/{store}/files/{file}")


@pytest.mark.parametrize("is_deletion_first", [True, False], ids=["deletion-between", "request-between"])
@pytest.mark.parametrize("request_of", [rename, add, add_batch, change_file])
async def test_a_vector_store_that_is_deleted_meanwhile_leaves_nothing(
    harness: RetrievalHarness, request_of: Request, is_deletion_first: bool
) -> None:
    first, second = (request_of, delete) if is_deletion_first else (delete, request_of)
    for number in range(MOST_WRITES):
        file = await upload(harness, f"A fox {number}.")
        store = await create_store(harness, name="yard", file_ids=[file])
        await until("it is indexed", lambda: is_completed(harness, store, file))  # noqa: B023 - awaited here
        other: list[httpx.Response] = []

        async def come_between() -> None:
            other.append(await second(harness, store, file))  # noqa: B023 - awaited here

        come_before_write(harness, number, come_between)
        answer = await first(harness, store, file)
        if not other:  # it has fewer writes
            await come_between()
        for each in (answer, *other):
            assert each.status_code == 200 or each.json()["error"]["code"] == "vector_store_not_found", each.text
        assert await count_rows(harness, store) == (0, 0, 0), number


async def test_a_file_that_is_removed_meanwhile_does_not_come_back(harness: RetrievalHarness) -> None:
    file = await upload(harness, "A fox.")
    store = await create_store(harness, file_ids=[file])
    await until("it is indexed", lambda: is_completed(harness, store, file))
    come_before_write(harness, 0, lambda: remove_file(harness, store, file))
    answer = await change_file(harness, store, file)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")
    assert await count_rows(harness, store) == (1, 0, 0)


async def test_new_attributes_keep_the_sizes_of_chunks_that_came_meanwhile(harness: RetrievalHarness) -> None:
    file = await upload(harness, "A fox.")
    store = await create_store(harness, file_ids=[file])
    await until("it is indexed", lambda: is_completed(harness, store, file))
    static = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 10}
    body = {"file_id": file, "chunking_strategy": {"type": "static", "static": static}}
    come_before_write(harness, 0, lambda: harness.request("POST", f"/v1/vector_stores/{store}/files", body))
    changed = (await change_file(harness, store, file)).json()
    assert (changed["attributes"], changed["chunking_strategy"]["static"]) == ({"year": 1}, static)


async def test_two_changes_of_a_vector_store_are_both_kept(harness: RetrievalHarness) -> None:
    store = await create_store(harness, name="yard")
    come_before_write(
        harness, 0, lambda: harness.request("POST", f"/v1/vector_stores/{store}", {"metadata": {"kind": "test"}})
    )
    changed = (await rename(harness, store, "")).json()
    assert (changed["name"], changed["metadata"]) == ("new", {"kind": "test"})


async def test_an_expired_vector_store_that_is_changed_meanwhile_is_not_emptied(harness: RetrievalHarness) -> None:
    file = await upload(harness, "A fox.")
    expires = {"anchor": "last_active_at", "days": 1}
    store = await create_store(harness, file_ids=[file], expires_after=expires)
    await until("it is indexed", lambda: is_completed(harness, store, file))
    harness.skip_time(DAY_S + 1)
    come_before_write(harness, 0, lambda: rename(harness, store, file))
    assert await harness.retrieval.vector_stores.empty_expired() == 0
    assert await count_rows(harness, store) == (1, 0, 1)
    harness.skip_time(DAY_S + 1)
    assert await harness.retrieval.vector_stores.empty_expired() == 1
    assert await count_rows(harness, store) == (1, 0, 0)


async def test_an_expired_file_that_is_deleted_meanwhile_stops_no_other(harness: RetrievalHarness) -> None:
    for text in ("A fox.", "A dog."):
        answer = await harness.request(
            "POST",
            "/v1/files",
            files={"file": ("a.txt", text.encode())},
            data={"purpose": "assistants", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"},
        )
        assert answer.status_code == 200, answer.text
    listed = (await harness.request("GET", "/v1/files?order=asc")).json()["data"]
    harness.skip_time(3601)
    come_before_write(harness, 0, lambda: harness.request("DELETE", f"/v1/files/{listed[0]['id']}"))
    assert await harness.retrieval.files.delete_expired() == 1
    [count] = await harness.retrieval.catalog.read(lambda db: db.execute("SELECT count(*) FROM files").fetchone())
    assert count == 0
