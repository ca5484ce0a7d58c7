"""The carrier over Ray beside a bridge that is a fake, and the actor of a host without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.runtimes.cluster import bridge, ray_carrier
from controller.runtimes.cluster.carrier import CarrierDownError, HostRefusedError, HostSilentError
from controller.runtimes.cluster.host_actor import KEPT_BYTES, LOCK_NAME, HostActor
from controller.runtimes.cluster.host_service import HostService
from controller.runtimes.cluster.ray_carrier import RayCarrier
from tests.fakes import fake_ray_bridge
from tests.support.wait import until


@contextlib.asynccontextmanager
async def carrying(folder: Path, mode: str) -> AsyncIterator[RayCarrier]:
    command = (sys.executable, "-I", fake_ray_bridge.__file__, mode, str(folder))
    carrier = RayCarrier("127.0.0.1:1", "i", {}, file=folder / "joined.json", command=command)
    await carrier.start()
    try:
        yield carrier
    finally:
        await carrier.close()


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines()) if (folder / "starts").exists() else 0


async def test_a_request_outlives_the_bridge_and_is_asked_with_the_same_key(tmp_path: Path) -> None:
    async with carrying(tmp_path, "hosts") as carrier:
        first = await carrier.call("a", "look", b"{}", 5)
        second = await carrier.call("a", "die", b"{}", 20)
        assert starts(tmp_path) == 2
        assert second != first
        assert second.rpartition(b"-")[0] == first.rpartition(b"-")[0]
        with pytest.raises(HostSilentError, match=r"host a does not answer within 0\.05 s"):
            await carrier.call("a", "wait", b"{}", 0.05)


async def test_a_request_that_is_given_up_is_withdrawn(tmp_path: Path) -> None:
    async with carrying(tmp_path, "hosts") as carrier:
        asking = asyncio.create_task(carrier.call("a", "wait", b"{}", 60))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        await carrier.call("a", "look", b"{}", 5)
        assert (tmp_path / "withdrawn").read_text() == "1"


class FakeRay:
    """The module, with no node; `kill` fails."""

    exceptions = SimpleNamespace(RayError=OSError, ActorDiedError=ConnectionError)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "n")

    def nodes(self) -> list[Any]:
        return []

    def kill(self, actor: Any) -> None:
        raise OSError("")


async def test_the_bridge_no_longer_delivers_what_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    async def answer_request(_: object, request: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request["id"])

    monkeypatch.setattr(bridge.Bridge, "answer_request", answer_request)
    connecting: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(0, FakeRay()))
    reader = asyncio.StreamReader()
    for frame in ({"id": 1}, {"id": 2}, {"withdraw": 2}, {"withdraw": 3}):
        reader.feed_data(bridge.pack_frame(frame))
    sent: list[Any] = []
    serving = asyncio.create_task(bridge._serve(connecting, {"instance": "i", "heartbeat_s": 1}, reader, sent.append))
    await until("it is withdrawn", lambda: bool(ended))
    reader.feed_eof()
    await serving
    assert ended == [2]


async def test_a_host_is_followed_whatever_ray_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[Exception] = [TimeoutError(), OSError("")]
    again = asyncio.Event()

    async def open_host(_: object, host: Any) -> None:
        host.is_open = True
        if problems:
            raise problems.pop(0)
        again.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(bridge.Bridge, "_open_host", open_host)
    monkeypatch.setattr(bridge, "AGAIN_S", 0.0)
    made = bridge.Bridge(FakeRay(), "i", 1.0, lambda _: None)
    following = asyncio.create_task(made._follow_host(bridge._Host("n")))
    waiting = asyncio.create_task(again.wait())
    await asyncio.wait({following, waiting}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert again.is_set()
    following.cancel()
    await asyncio.wait({following})


async def test_hosts_are_not_silent_for_a_bridge_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with carrying(tmp_path, "hosts") as carrier:
        [heard, refused] = carrier.list_hosts()
        assert not heard.is_excused, "this bridge has heard it"
        assert (heard.name, heard.labels, refused.refusal) == ("a", {"disk": "fast"}, "its state folder is another's")
        with pytest.raises(HostRefusedError, match="host r: its state folder is another's"):
            await carrier.call("r", "look", b"{}", 1)
        monkeypatch.setattr(ray_carrier, "AGAIN_S", 60.0)
        with pytest.raises(CarrierDownError, match="the bridge to Ray has ended"):
            await carrier.call("a", "die", b"{}", 1)
        assert carrier.list_hosts()[0].is_excused
        monkeypatch.setattr(ray_carrier, "BLIND_S", 0.0)
        [last, _] = carrier.list_hosts()
        assert last.last_heard is not None
        assert heard.last_heard is not None
        assert (last.is_excused, last.last_heard <= heard.last_heard) == (False, True)
        with pytest.raises(HostSilentError):
            await carrier.call("a", "look", b"{}", 0.05)


@pytest.mark.parametrize(
    ("mode", "problem"), [("mute", "was mute for"), ("fails", "Ray cannot be used: its version is another one")]
)
async def test_a_bridge_that_is_mute_or_fails_is_started_again_and_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str, problem: str
) -> None:
    async with carrying(tmp_path, "hosts"):
        pass
    monkeypatch.setattr(ray_carrier, "MUTE_S", 0.3 if mode == "mute" else 30.0)
    monkeypatch.setattr(ray_carrier, "OPENING_S", 0.0)
    async with carrying(tmp_path, mode) as carrier:
        await until("it is started again", lambda: caplog.text.count(problem) >= 2)
        with pytest.raises(CarrierDownError):
            await carrier.call("a", "look", b"{}", 0.05)
        assert [(each.name, each.last_heard) for each in carrier.list_hosts()] == [("a", None), ("r", None)]


async def test_an_expelled_host_stays_so_for_the_next_controller(tmp_path: Path) -> None:
    async with carrying(tmp_path, "hosts") as carrier:
        await carrier.expel("a")
        await carrier.expel("nobody")
    async with carrying(tmp_path, "hosts") as carrier:
        assert [each.name for each in carrier.list_hosts()] == ["r"]
        with pytest.raises(HostRefusedError, match="host a is not admitted"):
            await carrier.call("a", "look", b"{}", 1)
        await carrier.admit("a")
        assert [each.name for each in carrier.list_hosts()] == ["a", "r"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a host."""
    for name, value in {
        "STATE": tmp_path / "state",
        "MODELS": tmp_path,
        "RUNTIME": "process",
        "HOST_NAME": "b",
    }.items():
        monkeypatch.setenv(f"ROUNDHOUSE_{name}", str(value))
    monkeypatch.setenv("ROUNDHOUSE_HOST_LABELS", "disk=fast, room=2")
    monkeypatch.setattr("controller.runtimes.cluster.host_actor.LOCK_WAIT_S", 0.1)
    return tmp_path / "state"


async def _open(actor: HostActor, instance: str = "i") -> Any:
    return json.loads(await actor.open_host(instance))


async def test_an_actor_opens_its_host_once_for_one_installation(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Ray does, after the process was started
    actor = HostActor()
    hello = await _open(actor)
    assert (hello["name"], hello["labels"], hello["refusal"]) == ("b", {"disk": "fast", "room": "2"}, None)
    assert "OMP_NUM_THREADS" not in os.environ
    assert await _open(actor) == hello
    other = HostActor()
    refusal = (await _open(other))["refusal"]
    assert refusal == f"another host has the same state folder, {host}: give each its own"
    monkeypatch.setattr("controller.runtimes.cluster.host_actor.LOCK_WAIT_S", 60.0)
    async with asyncio.timeout(2):  # it waits no longer, so that its heartbeats arrive
        assert (await _open(other))["refusal"] == refusal
    assert (host / LOCK_NAME).stat().st_mode & 0o777 == 0o600


async def test_an_actor_refuses_the_state_folder_of_another_installation(host: Path) -> None:
    host.mkdir()
    (host / LOCK_NAME).write_text("other\n")
    actor = HostActor()
    refusal = (await _open(actor))["refusal"]
    assert refusal == f"its state folder {host} is of installation other, not of i: give it another one"
    (host / LOCK_NAME).write_text("")
    assert (await _open(actor))["refusal"] is None, "it asks again, until it may be used"


async def test_an_actor_does_a_request_once_and_says_what_changes(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = HostActor()
    await _open(actor)
    asked: list[str] = []

    async def answer(_: HostService, method: str, payload: bytes) -> bytes:
        asked.append(method)
        await asyncio.sleep(0.01)
        return payload

    monkeypatch.setattr(HostService, "answer_request", answer)
    request = asyncio.create_task(actor.answer_request("k1", "look", b"1"))
    await asyncio.sleep(0)
    assert await actor.answer_request("k1", "look", b"1") == await request == b"1"
    assert await actor.answer_request("k1", "look", b"1") == b"1"
    assert await actor.answer_request("k2", "look", b"2") == b"2"
    assert asked == ["look", "look"]
    large = b"1" * (KEPT_BYTES + 1)
    for _ in range(2):
        assert await actor.answer_request("k3", "list", large) == large
        await asyncio.sleep(0.05)
    assert asked.count("list") == 2, "large answers fill no memory"
    began_at = time.monotonic()
    seen = await actor.wait_change(-1, 60)
    assert await actor.wait_change(seen, 0.01) == seen
    assert time.monotonic() - began_at < 30
