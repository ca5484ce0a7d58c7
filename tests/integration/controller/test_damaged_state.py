"""A state folder that is damaged, from which files were deleted, or whose disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from contract.status import ModelState
from controller.state_dir import StateDir
from tests.support.admin import AdminApi
from tests.support.roundhouse_stack import RoundhouseStack, replica_names
from tests.support.runtime_fixtures import ProcessRuntimeFixture
from tests.support.small_disk import SmallDisk, mount_small_disk
from tests.support.wait import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["epoch.json", "memory.json"])
def test_a_damaged_file_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{")
    assert tell_failure(tmp_path).startswith(f"{tmp_path / name}")


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "replicas").touch()
    assert tell_failure(tmp_path).startswith("the folders of engines' processes cannot be made: ")


def tell_failure(state: Path) -> str:
    """What a controller that does not start with this state folder says last, after its name."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ROUNDHOUSE_")}
    settings = {
        "ROUNDHOUSE_STATE": str(state),
        "ROUNDHOUSE_RUNTIME": "process",
        "ROUNDHOUSE_LISTEN": f"unix:{state / 'controller.sock'}",
        "ROUNDHOUSE_DESIRED": str(state),
        "ROUNDHOUSE_MODELS": str(state),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "controller"]
    done = subprocess.run(command, env=clean | settings, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1].removeprefix("roundhouse controller: ")


@pytest.fixture
async def stub(folder: Path) -> AsyncIterator[RoundhouseStack]:
    """A controller and a gateway with a stub engine, loaded."""
    stack = RoundhouseStack(folder, "process")
    stack.declare({"a": {"backend": "stub"}})
    await stack.open()
    try:
        await stack.loaded("a")
        yield stack
    finally:
        await stack.close()
    assert ProcessRuntimeFixture().left(stack) == []


async def chat_code(stack: RoundhouseStack, model: str) -> str:
    """The code that a request to the model is refused with; empty: it is answered."""
    try:
        async with AdminApi(stack.url) as api:
            reply = await api.chat(model)
    except aiohttp.ClientError:
        return "not connected"
    return "" if reply.status == 200 else reply.code


async def is_answered(stack: RoundhouseStack) -> bool:
    return await chat_code(stack, "a") == ""


async def is_unloaded(stack: RoundhouseStack, model: str) -> bool:
    return await chat_code(stack, model) == "model_not_loaded"


async def test_a_deleted_socket_is_made_anew_and_a_gateway_that_starts_then_connects(stub: RoundhouseStack) -> None:
    socket = stub.state / "controller.sock"
    for _ in range(2):
        socket.unlink()
        stub.kill("gateway")
        stub.start("gateway")
        await until("requests are answered", lambda: is_answered(stub))
        assert socket.stat().st_mode & 0o777 == 0o600
    assert (await stub.status()).models[0].state is ModelState.LOADED
    assert stub.log("controller").count("was deleted or replaced; it is made anew") == 2


async def test_a_gateway_believes_a_controller_that_found_no_epoch(stub: RoundhouseStack) -> None:
    for is_deleted in (False, True):
        if is_deleted:
            (stub.state / "epoch.json").unlink()
        stub.kill("controller")
        stub.start("controller")
        await stub.loaded("a")
        await stub.post("/v1/admin/models/a/unload", {})
        await until("the gateway knows", lambda: is_unloaded(stub, "a"))
        await stub.post("/v1/admin/models/a/load", {})
        await until("the gateway knows", lambda: is_answered(stub))


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


async def unsaved(stack: RoundhouseStack) -> list[str]:
    return (await stack.status()).unsaved


async def test_a_controller_on_a_full_disk_names_what_is_unsaved(stubs: RoundhouseStack, disk: SmallDisk) -> None:
    before = {name: replica_names(model) for name, model in (await stubs.loaded("a", "b")).items()}
    assert await unsaved(stubs) == []
    disk.fill()
    stubs.kill("controller")
    stubs.start("controller")
    after = {name: replica_names(model) for name, model in (await stubs.loaded("a", "b")).items()}
    assert after == before
    await until("requests are answered", lambda: is_answered(stubs))

    # The gateway goes by this controller's tables, not by those of the one before it.
    await stubs.post("/v1/admin/models/b/unload", {})
    await until("the gateway knows", lambda: is_unloaded(stubs, "b"))

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
    assert await is_answered(stubs)


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


async def test_each_start_on_a_full_disk_has_a_greater_epoch(stubs: RoundhouseStack, disk: SmallDisk) -> None:
    disk.fill()
    for state in ("unload", "load"):
        stubs.kill("controller")
        stubs.start("controller")
        await until("it answers", lambda: is_answered(stubs))
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
    await until("requests are answered", lambda: is_answered(stubs))
