"""The door of a head: who may join, and what both sides say to whoever may not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from contract.hosts import HOSTS_VERSION
from controller.runtimes.cluster import door
from controller.runtimes.cluster.door import (
    Door,
    DoorError,
    HeadFacts,
    HostRegister,
    JoinReply,
    JoinRequest,
    KnownHost,
    ask_door,
    check_request,
)

NOW = 1_800_000_000.0
TOKEN = "a" * 64
HEAD = HeadFacts("abc", "10.0.0.1", 8093, "process", "2.60.0", "3.11.7", is_insecure=False)
HOST = JoinRequest(
    name="b",
    address="10.0.0.2",
    runtime=None,
    ray="2.60.0",
    python="3.11.9",
    roundhouse="0.1.0",
    instance=None,
    now=NOW + 59,
)
B = KnownHost("b", "10.0.0.2", "ready")


def test_a_host_that_fits_may_join_and_join_again() -> None:
    assert check_request(HOST, HEAD, [], NOW) is None
    again = HOST.model_copy(update={"instance": "abc", "runtime": "process"})
    assert check_request(again, HEAD, [B, KnownHost("c", "10.0.0.3", "ready")], NOW) is None
    behind = again.model_copy(update={"schema_version": HOSTS_VERSION - 1})
    assert check_request(behind, HEAD, [B], NOW) is None, "the head was upgraded first"
    moved = HOST.model_copy(update={"address": "10.0.0.9"})
    assert check_request(moved, HEAD, [KnownHost("b", "10.0.0.2", "lost")], NOW) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ray": "2.59.0"}, "Ray is 2.59.0 on host b and 2.60.0 on the head: `pip install ray==2.60.0` there"),
        ({"python": "3.12.1"}, "Python is 3.12.1 on host b and 3.11.7 on the head"),
        ({"schema_version": HOSTS_VERSION + 2}, f"host b speaks version {HOSTS_VERSION + 2} of the hosts' messages"),
        ({"runtime": "docker"}, "the runtime is docker on host b and process on the head"),
        ({"instance": "other"}, "the state folder of host b is of installation other, and the head's is abc"),
        ({"now": NOW + 61}, "the clock of host b is 61 s ahead of the head's"),
        ({"now": NOW - 90}, "the clock of host b is 90 s behind the head's"),
        ({"address": "10.0.0.1"}, "10.0.0.1 is the head's own address"),
        ({"address": "10.0.0.9"}, "there is a host b at 10.0.0.2 already, and it is ready: choose another --name"),
        ({"name": "c"}, "10.0.0.2 is host b already, which is ready: `roundhouse leave` there first"),
        ({"name": "B b"}, "'B b' is no name of a host"),
    ],
)
def test_a_host_that_does_not_fit_is_told_why(changes: dict[str, object], words: str) -> None:
    refusal = check_request(HOST.model_copy(update=changes), HEAD, [B], NOW)
    assert refusal is not None
    assert refusal.startswith(words)
    assert "\n" not in refusal


class FakeRegister:
    """A controller that lists these hosts, and of which `b` has two engines left."""

    def __init__(self, hosts: list[KnownHost]) -> None:
        self.hosts = hosts

    async def list_hosts(self) -> list[KnownHost]:
        return self.hosts

    async def drain_host(self, name: str) -> int:
        if not self.hosts:
            raise DoorError(f"host {name} is the last one", is_passing=False)
        return 2

    async def remove_host(self, name: str) -> None:
        self.hosts.remove(next(each for each in self.hosts if each.name == name))


def _free_ports() -> int:
    """Return a port that is free, and the next one, too."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return int(port)


@asynccontextmanager
async def _open_door(hosts: list[KnownHost] | None = None) -> AsyncIterator[tuple[int, list[str]]]:
    """Yield the port of a head's Ray, and what its operator is told."""
    said: list[str] = []
    port = _free_ports()

    facts = HeadFacts("abc", "127.0.0.1", port, "process", "2.60.0", "3.11.7", is_insecure=True)
    asked = FakeRegister([] if hosts is None else hosts)
    register = HostRegister(asked.list_hosts, asked.drain_host, asked.remove_host)
    made = Door(facts, TOKEN, register=register, clock=lambda: NOW, say=said.append)
    server = await made.serve()
    async with server:
        yield port, said


async def test_the_answer_says_where_and_how_to_join() -> None:
    async with _open_door() as (port, said):
        reply = await ask_door("127.0.0.1", port, TOKEN, HOST)
    assert reply == JoinReply(instance="abc", address=f"127.0.0.1:{port}", runtime="process", is_insecure=True)
    assert said == ["host b (10.0.0.2) joins"]


async def test_of_two_of_one_name_the_second_is_refused_before_the_controller_knows_the_first() -> None:
    async with _open_door() as (port, _):
        await ask_door("127.0.0.1", port, TOKEN, HOST)
        again = await ask_door("127.0.0.1", port, TOKEN, HOST)
        other = await ask_door("127.0.0.1", port, TOKEN, HOST.model_copy(update={"address": "10.0.0.9"}))
    assert (again.refusal, other.refusal) == (
        None,
        "there is a host b at 10.0.0.2 already, and it is joining: choose another --name",
    )


async def test_a_name_is_held_until_the_controller_knows_it_or_a_minute_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = HOST.model_copy(update={"address": "10.0.0.9"})
    hosts: list[KnownHost] = []
    async with _open_door(hosts) as (port, _):
        await ask_door("127.0.0.1", port, TOKEN, HOST)
        hosts.append(B)
        await ask_door("127.0.0.1", port, TOKEN, HOST.model_copy(update={"name": "c"}))
        hosts.clear()  # it is forgotten
        assert (await ask_door("127.0.0.1", port, TOKEN, moved)).refusal is None
        monkeypatch.setattr(door, "JOINING_S", 0.0)
        await ask_door("127.0.0.1", port, TOKEN, moved)
        assert (await ask_door("127.0.0.1", port, TOKEN, HOST)).refusal is None


async def test_a_question_that_is_given_up_holds_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def find_unreached(*_: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    register = FakeRegister([])
    own = Door(
        HEAD,
        TOKEN,
        register=HostRegister(register.list_hosts, register.drain_host, register.remove_host),
        clock=lambda: NOW,
        say=lambda _: None,
    )
    monkeypatch.setattr(Door, "_find_unreached", find_unreached)
    asking = asyncio.create_task(own._decide(HOST))
    await asked.wait()
    asking.cancel()
    await asyncio.wait({asking})
    monkeypatch.undo()
    assert (await own._decide(HOST.model_copy(update={"address": "10.0.0.9"}))).refusal is None


async def test_a_port_that_the_head_cannot_reach_is_named_on_both_sides() -> None:
    closed = _free_ports()
    request = HOST.model_copy(update={"address": "127.0.0.2", "ports": (closed,)})
    async with _open_door() as (port, said):
        reply = await ask_door("127.0.0.1", port, TOKEN, request)
        assert reply.refusal is not None
        assert reply.refusal.startswith(f"the head cannot reach 127.0.0.2 at port {closed} (")
        assert said == [f"host b (127.0.0.2) may not join: {reply.refusal}"]
        assert (await ask_door("127.0.0.1", port, TOKEN, HOST)).refusal is None, "it holds no name"


async def test_a_host_that_leaves_is_drained_and_forgotten() -> None:
    hosts = [B]
    async with _open_door(hosts) as (port, said):
        drain, left = (HOST.model_copy(update={"intent": each}) for each in ("drain", "left"))
        assert (await ask_door("127.0.0.1", port, TOKEN, drain)).engines_left == 2
        assert (await ask_door("127.0.0.1", port, TOKEN, left)).refusal is None
    assert said == ["host b (10.0.0.2) has left"]
    async with _open_door() as (port, _):
        assert (await ask_door("127.0.0.1", port, TOKEN, drain)).refusal == "host b is the last one"


async def test_another_token_is_refused_on_both_sides_and_never_sent() -> None:
    async with _open_door() as (port, said):
        with pytest.raises(DoorError, match="has another token") as refused:
            await ask_door("127.0.0.1", port, "b" * 64, HOST)
    assert not refused.value.is_passing
    assert said == ["a host at 127.0.0.1 may not join: it has another token (--token-file)"]


async def test_what_is_no_head_is_no_head() -> None:
    heard = bytearray()

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"roundhouse": "head", "number": "1"}).encode() + b"\n")
        line = await reader.readline()
        heard.extend(line)
        writer.write(line)  # what the host has said, as if the head had
        writer.close()

    port = _free_ports()
    server = await asyncio.start_server(mirror, "127.0.0.1", port + 1)
    async with server:
        with pytest.raises(DoorError, match="has another token"):
            await ask_door("127.0.0.1", port, TOKEN, HOST)
        assert TOKEN.encode() not in heard
    with pytest.raises(DoorError, match="no head answers at") as absent:
        await ask_door("127.0.0.1", port, TOKEN, HOST)
    assert absent.value.is_passing
    server = await asyncio.start_server(lambda _, writer: writer.write(b"220 mail\n"), "127.0.0.1", port + 1)
    async with server:
        with pytest.raises(DoorError, match="is no head of Roundhouse") as stranger:
            await ask_door("127.0.0.1", port, TOKEN, HOST)
    assert not stranger.value.is_passing
