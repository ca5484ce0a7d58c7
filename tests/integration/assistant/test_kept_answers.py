"""What a client asked to store is stored before its answer's end is sent, or that end says that it is not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from assistant.hooks import response_hooks
from assistant.streams.stream import FILE_LOST
from gateway.exchange import stored_end
from tests.fakes.mock_engine import WORDS
from tests.support import response_state
from tests.support.gateway_rest import nothing_left
from tests.support.response_state import Site, refusal, socket
from tests.support.responses import events_in
from tests.support.small_disk import SmallDisk, mount_small_disk
from tests.support.wait import until

TEXT = " ".join(WORDS)
LARGE = "x" * 200_000
"""More than the write-ahead log has room for on a full disk."""
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PATHS = pytest.mark.parametrize("path", [CHAT, RESPONSES])
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
ONE_SLOT = {"target_inflight": 1}


@contextlib.asynccontextmanager
async def full_site(folder: Path) -> AsyncIterator[tuple[Site, SmallDisk]]:
    """A gateway that has stored something, and whose disk takes nothing more."""
    with mount_small_disk(folder / "state") as disk:
        async with response_state.site(state=disk.folder) as site:
            await site.make()
            disk.fill()
            yield site, disk
            await nothing_left(site.gateway)


def body_of(path: str, said: str = LARGE, **fields: Any) -> dict[str, Any]:
    said_fields = {"messages": [{"role": "user", "content": said}], "store": True} if path == CHAT else {"input": said}
    return {"model": "m", **said_fields, **fields}


async def post(site: Site, path: str, said: str = LARGE, **fields: Any) -> tuple[int, bytes]:
    reply = await site.gateway.post(path, body_of(path, said, **fields))
    return reply.status, reply.content


def find_object(path: str, body: bytes) -> dict[str, Any]:
    """The object that the client was told of at last: the completion, the response, or the last chunk."""
    found: dict[str, Any]
    if not body.startswith((b"data:", b"event:")):
        found = json.loads(body)
        return found
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    [*_, last] = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    found = last if path == CHAT else last["response"]
    return found


def events_told(body: bytes) -> list[Any]:
    """The events of a stream whose file did not fit on the disk either, which it says."""
    return list(events_in(body.removesuffix(FILE_LOST)))


async def is_found(site: Site, path: str, object_id: str) -> bool:
    reply = await site.gateway.get(f"{path}/{object_id}")
    assert reply.status in (200, 404)
    return reply.status == 200


# On a full disk


@PATHS
@STREAMS
async def test_on_a_full_disk_the_end_says_that_nothing_is_stored(path: str, *, stream: bool, tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, disk):
        status, body = await post(site, path, stream=stream)
        told = find_object(path, body)
        assert (status, told["store"]) == (200, False)
        assert not await is_found(site, path, told["id"])
        if path == RESPONSES:
            continuing = site.make("on", previous_response_id=told["id"])
            assert (await refusal(continuing))[1] == "previous_response_not_found"
        disk.free()
        _, body = await post(site, path, stream=stream)
        told = find_object(path, body)
        assert told.get("store", True) is True
        assert await is_found(site, path, told["id"])


async def test_the_official_client_reads_a_stream_that_is_not_stored(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, _):
        stream = await site.client.chat.completions.create(**body_of(CHAT, stream=True))
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices).strip() == TEXT
        assert (chunks[-1].choices, chunks[-1].model_extra) == ([], {"store": False})
        assert len({chunk.id for chunk in chunks}) == 1
        async with site.client.responses.stream(model="m", input=LARGE) as responses:
            final = await responses.get_final_response()
        assert (final.output_text.strip(), final.to_dict()["store"]) == (TEXT, False)


@STREAMS
@pytest.mark.parametrize("store", [True, False])
async def test_on_a_full_disk_a_conversation_has_both_halves_or_its_request_fails(
    *, stream: bool, store: bool, tmp_path: Path
) -> None:
    async with full_site(tmp_path) as (site, disk):
        disk.free()
        conversation = await site.client.conversations.create()
        in_it: dict[str, Any] = {"conversation": conversation.id, "stream": stream, "store": store}
        pending = asyncio.create_task(post(site, RESPONSES, **in_it, fault="hold"))
        await until("it runs", lambda: site.engine.running == 1)
        disk.fill()
        site.engine.release.set()
        status, body = await pending
        if stream:
            events = events_in(body)
            assert [each["type"] for each in events[-2:]] == ["error", "response.failed"]
            assert [each["sequence_number"] for each in events] == list(range(len(events)))
            failed = events[-1]["response"]
            assert (status, failed["status"], failed["error"]["reason"]) == (200, "failed", "response_store_failed")
            assert failed["store"] is False
            assert not await is_found(site, RESPONSES, failed["id"])
        else:
            assert (status, json.loads(body)["error"]["code"]) == (500, "response_store_failed")
        assert [each async for each in site.client.conversations.items.list(conversation.id)] == []
        disk.free()
        await site.make("again", conversation=conversation.id)
        assert len([each async for each in site.client.conversations.items.list(conversation.id)]) == 2
        assert site.messages() == [("user", "again")]


@STREAMS
async def test_on_a_full_disk_a_response_in_the_background_fails_and_stays_so(
    *, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_hooks, "RETRY_S", 0.02)
    async with full_site(tmp_path) as (site, disk):
        disk.free()
        site.engine.words = [LARGE]
        begun = asyncio.create_task(post(site, RESPONSES, "x", stream=stream, background=True, fault="hold"))
        await until("it runs", lambda: site.engine.running == 1)
        [response_id] = site.running
        disk.fill()
        site.engine.release.set()
        over = await site.over(response_id)
        assert over.status == "failed"
        assert over.to_dict()["error"]["reason"] == "response_store_failed"  # type: ignore[index]
        _, body = await begun
        if stream:
            assert [each["type"] for each in events_told(body)[-2:]] == ["error", "response.failed"]
            reply = await site.gateway.get(f"{RESPONSES}/{response_id}?stream=true")
            assert events_told(reply.content) == events_told(body)
        assert list(site.running) == [response_id], "it is known here alone"
        disk.free()
        await until("its failure is stored", lambda: not site.running)
        assert (await site.client.responses.retrieve(response_id)).to_dict() == over.to_dict()


async def test_a_failure_that_is_known_here_alone_can_be_deleted(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, disk):
        disk.free()
        site.engine.words = [LARGE]
        made = await site.make("x", background=True, fault="hold")
        await until("it runs", lambda: site.engine.running == 1)
        disk.fill()
        site.engine.release.set()
        assert (await site.over(made.id)).status == "failed"
        disk.free()
        await site.client.responses.delete(made.id)
        assert not await is_found(site, RESPONSES, made.id)
        assert not site.running


async def test_over_websocket_what_is_not_stored_is_said_and_goes_on_from_memory(tmp_path: Path) -> None:
    async with full_site(tmp_path) as (site, disk), socket(site.gateway) as client:
        first = await client.create(LARGE)
        assert (first["status"], first["store"]) == ("completed", False)
        assert not await is_found(site, RESPONSES, first["id"])
        unanswered = await client.create(LARGE, generate=False)
        assert unanswered["store"] is False
        disk.free()
        second = await client.create("on", previous_response_id=unanswered["id"])
        assert (second["status"], second["store"]) == ("completed", True)
        assert site.messages() == [("user", LARGE), ("user", "on")]
        items = [each async for each in site.client.responses.input_items.list(second["id"])]
        assert len(items) == 2, "stored with what it continues"


# With a store that takes its time


def held_ends(site: Site) -> int:
    """Answers whose end waits for the store."""
    exchanges = site.gateway.services.exchanges
    return sum(each.stored_end is not None and each.stored_end.is_holding for each in exchanges)


@PATHS
@pytest.mark.parametrize("headers", [{}, {"X-Conversation-Id": "talk"}], ids=["plain", "resumable"])
async def test_a_stream_ends_when_it_is_stored_and_holds_no_slot_until_then(path: str, headers: dict[str, str]) -> None:
    async with response_state.site(m=ONE_SLOT) as site:
        url, body = site.gateway.url + path, body_of(path, "x", stream=True)
        async with site.held_store(), site.gateway.client.post(url, json=body, headers=headers) as answer:
            await until("its end is held", lambda: held_ends(site) == 1)
            other = await site.gateway.chat()
            assert other.status == 200
            assert "store" not in other.body
            assert held_ends(site) == 1
            site.let_go()
            told = find_object(path, await answer.read())
        assert await is_found(site, path, told["id"])
        await nothing_left(site.gateway)


@PATHS
async def test_a_blocking_answer_is_sent_when_it_is_stored(path: str) -> None:
    async with response_state.site(m=ONE_SLOT) as site, site.held_store():
        pending = asyncio.create_task(post(site, path, "x"))
        await until("its end is held", lambda: held_ends(site) == 1)
        assert not pending.done()
        site.let_go()
        status, body = await pending
        assert status == 200
        assert await is_found(site, path, json.loads(body)["id"])


@PATHS
@STREAMS
async def test_a_store_that_hangs_holds_no_answer_and_stores_nothing_later(
    path: str, *, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_end, "HOLD_S", 0.02)
    async with response_state.site() as site:
        async with site.held_store():
            status, body = await post(site, path, "x", stream=stream)
            told = find_object(path, body)
            assert (status, told["store"]) == (200, False)
        assert not await is_found(site, path, told["id"])
        assert "roundhouse_gateway_store_failures_total 1.0" in await site.gateway.metrics()


async def test_a_write_that_hangs_and_lands_later_is_taken_out_again(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    conversation = await site.client.conversations.create()
    kept = await site.make("one", conversation=conversation.id)
    database: Any = site.store._file._database
    save = database.save_objects
    async with site.held_store():
        # The thread is held within the write, so that it is under way when it is given up.
        monkeypatch.setattr(stored_end, "HOLD_S", 0.05)
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()

        def save_late(*objects: Any) -> None:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
            save(*objects)

        monkeypatch.setattr(database, "save_objects", save_late)
        site.let_go()
        pending = site.make("two", conversation=conversation.id)
        assert (await refusal(pending))[:2] == (500, "response_store_failed")
        gate.set()
    items = site.client.conversations.items.list(conversation.id, order="asc")
    assert [each.to_dict()["content"][0]["text"] async for each in items] == ["one", TEXT]  # type: ignore[index]
    assert await is_found(site, RESPONSES, kept.id)


@pytest.mark.parametrize("fault", [None, "late_end"])
async def test_a_client_that_leaves_before_the_end_has_what_it_asked_for_stored(fault: str | None, site: Site) -> None:
    async with site.held_store():
        more = {"fault": fault}
        stream = await site.client.responses.create(model="m", input="x", stream=True, extra_body=more)
        async for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
                break
        await until("its end is held", lambda: held_ends(site) == 1)
        await stream.close()
    assert (await site.over(response_id)).status == "completed"
    await nothing_left(site.gateway)


@STREAMS
async def test_a_stop_that_waits_no_longer_ends_what_waits_for_the_store(*, stream: bool, site: Site) -> None:
    async with site.held_store():
        pending = asyncio.create_task(post(site, RESPONSES, "x", stream=stream))
        await until("its end is held", lambda: held_ends(site) == 1)
        site.gateway.app.inference.end_all()
        status, body = await pending
        assert (status, find_object(RESPONSES, body)["store"]) == (200, False)


async def test_a_response_that_is_cancelled_is_stored_before_its_client_is_told(site: Site) -> None:
    stream = await site.client.responses.create(
        model="m", input="one", stream=True, extra_body={"fault": "pause_until_release"}
    )
    async for event in stream:
        if event.type == "response.created":
            async with site.held_store():
                cancelling = asyncio.create_task(site.client.responses.cancel(event.response.id))
                await until("its end is held", lambda: held_ends(site) == 1)
                site.let_go()
                assert (await cancelling).status == "cancelled"
    assert event.type == "response.incomplete"


async def test_the_refusal_of_a_client_that_stores_nothing_is_not_held(site: Site) -> None:
    async with site.held_store():
        for path in (CHAT, RESPONSES):
            status, _ = await post(site, path, "x", store=False)
            assert status == 200
            with contextlib.suppress(openai.APIError):
                assert (await post(site, path, "x", fault="error_json"))[0] >= 400
