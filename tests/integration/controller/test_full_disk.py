"""A controller and a gateway whose state folder is on a disk that is full, for real: they start, serve, and say so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from controller.schema.status import ModelState
from controller.storage.state_dir import StateDir
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.small_disk import SmallDisk, mount_small_disk
from tests.support.wait import until

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(folder: Path) -> Iterator[SmallDisk]:
    """Where the state folder is."""
    with mount_small_disk(folder / "state") as mounted:
        yield mounted


@pytest.fixture
async def stubs(disk: SmallDisk, folder: Path) -> AsyncIterator[RoundhouseStack]:
    """A controller and a gateway with two stub engines, both loaded."""
    stack = RoundhouseStack(folder, "process")
    assert stack.state == disk.folder
    stack.declare({"a": {"backend": "stub"}, "b": {"backend": "stub"}})
    await stack.open()
    try:
        await stack.loaded("a", "b")
        yield stack
    finally:
        disk.free()
        for program in ("gateway", "controller"):
            with suppress(KeyError):
                stack.kill(program)
        stack.start("controller")
        await stack.close()
    assert ProcessRuntimeFixture().left(stack) == []


async def chats(stack: RoundhouseStack, model: str) -> bool:
    """Whether a request gets its answer through the gateway."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    async with aiohttp.ClientSession() as client:
        try:
            async with client.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
                return answer.status == 200 and bool((await answer.json())["choices"])
        except aiohttp.ClientError:
            return False


async def unsaved(stack: RoundhouseStack) -> list[str]:
    return (await stack.status()).unsaved


async def test_a_controller_starts_and_serves_on_a_full_disk_and_names_what_it_cannot_remember(
    stubs: RoundhouseStack, disk: SmallDisk
) -> None:
    before = {name: replica_names(model) for name, model in (await stubs.loaded("a", "b")).items()}
    assert await unsaved(stubs) == []
    disk.fill()
    stubs.kill("controller")
    stubs.start("controller")
    after = {name: replica_names(model) for name, model in (await stubs.loaded("a", "b")).items()}
    assert after == before
    await until("requests are answered", lambda: chats(stubs, "a"))

    # The gateway goes by this controller's tables, not by those of the one before it.
    await stubs.post("/v1/admin/models/b/unload", {})
    await until("the gateway knows", lambda: refused(stubs, "b"))

    disk.fill()  # what the journal's index and b's files took was free again
    await stubs.post("/internal/pause", {"paused": True})
    named = await until("both are named", lambda: names(stubs, "whether it is paused", "the newest events"))
    message = await until("it is an event", lambda: message_of_unsaved(stubs))
    assert message.startswith("the state folder cannot be written; a restart would not know: ")
    assert any(each in message for each in named)
    assert "whether it is paused" in await unsaved_header(stubs)
    assert "Traceback" not in stubs.log("controller")

    disk.free()
    await until("all is stored", lambda: all_saved(stubs))
    assert await unsaved_header(stubs) == ""
    stubs.kill("controller")
    stubs.start("controller")
    await stubs.model_where("b", lambda model: model.state is ModelState.UNLOADED, "unloaded still")
    status = await stubs.status()
    assert (status.paused, status.unsaved) == (True, [])
    assert await chats(stubs, "a")


async def unsaved_header(stack: RoundhouseStack) -> str:
    """What the answer of a request that changes something says, through the gateway; empty: nothing."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{stack.url}/v1/admin/models/b/unload", json={}) as answer,
    ):
        assert answer.status in (200, 202)
        return answer.headers.get("x-unsaved", "")


async def names(stack: RoundhouseStack, *words: str) -> list[str]:
    """What is not stored, once that is all of these."""
    named = await unsaved(stack)
    return named if set(words) <= set(named) else []


async def message_of_unsaved(stack: RoundhouseStack) -> str:
    """Of the newest event that names something; empty while there is none."""
    entries = (await stack.get("/v1/admin/history"))["entries"]
    return next((each["message"] for each in entries if each["details"].get("unsaved")), "")


async def all_saved(stack: RoundhouseStack) -> bool:
    return not await unsaved(stack)


async def refused(stack: RoundhouseStack, model: str) -> bool:
    return not await chats(stack, model)


async def test_each_start_on_a_full_disk_has_a_greater_epoch(stubs: RoundhouseStack, disk: SmallDisk) -> None:
    disk.fill()
    for state in ("unload", "load"):
        stubs.kill("controller")
        stubs.start("controller")
        await until("it answers", lambda: chats(stubs, "a"))
        await stubs.loaded("a")
        await stubs.post(f"/v1/admin/models/b/{state}", {})
    stubs.kill("controller")
    store = StateDir.open_folder(stubs.state)
    assert store.next_epoch(1.0) == 4
    store.close()


async def test_a_gateway_starts_and_serves_on_a_full_disk(stubs: RoundhouseStack, disk: SmallDisk) -> None:
    disk.fill()
    stubs.kill("gateway")
    stubs.start("gateway")
    await until("requests are answered", lambda: chats(stubs, "a"))
