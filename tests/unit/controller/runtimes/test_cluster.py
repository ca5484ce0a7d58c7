"""Several hosts as one runtime, over hosts in this process whose runtimes are fakes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from contract.downloads import CopyOrder, Download, SharePlace
from contract.errors import RoundhouseError
from contract.hosts import HostReplicaId, HostReply, StartReplicaRequest
from controller.artifacts.model_roots import ModelRoots
from controller.engines import ENGINES
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.hosts import Gpu, GpuDriver, Host, HostState, UnreadGpu
from controller.runtimes import end_replicas
from controller.runtimes.base import RuntimeUnavailableError, SeenReplica, StartError, StartRequest
from controller.runtimes.cluster.carrier import CarriedHost, CarrierDownError, HostRefusedError, HostSilentError
from controller.runtimes.cluster.host_files import FRESH_S, HostFiles
from controller.runtimes.cluster.host_service import HostService, pack_definition, unpack_definition
from controller.runtimes.cluster.local_carrier import GONE, HERE, SILENT, LocalCarrier
from controller.runtimes.cluster.material import HostCredentials
from controller.runtimes.cluster.relay_keeper import RelayKeeper
from controller.runtimes.cluster.runtime import ClusterRuntime
from controller.state import Phase, ReplicaId
from tests.fakes.fake_runtime import FakeRuntime
from tests.support.goldens.definitions import DEFINITIONS
from tests.support.wait import until

BEAT_S = 0.04


class Cluster:
    """Two hosts, `a` and `b`."""

    def __init__(self, models: ModelRoots | None = None) -> None:
        self.fakes = {name: FakeRuntime(time.time) for name in "ab"}
        services = {name: HostService(fake, models=models, memory_mib=1000) for name, fake in self.fakes.items()}
        self.carrier = LocalCarrier(services, heartbeat_s=BEAT_S)
        self.runtime = ClusterRuntime(self.carrier, kind="fake")

    async def host(self, name: str) -> Host:
        await self.runtime.list_replicas()
        return next(each for each in await self.runtime.read_hosts() if each.name == name)

    async def silence(self, name: str, switch: str = SILENT) -> None:
        """Returns when the host counts as silent."""
        self.carrier.set_switch(name, switch)

        async def is_silent() -> bool:
            return (await self.host(name)).state is HostState.SILENT

        await until(f"{name} is silent", is_silent)


@contextlib.asynccontextmanager
async def closing(runtime: ClusterRuntime) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await runtime.close()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runtimes.cluster.runtime.OVERDUE_WAIT_S", 0.03)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    async with closing(made.runtime):
        yield made


def request(host: str, index: int = 0, **claims: int) -> StartRequest:
    replica = ReplicaId("m", index, "0" * 8, 1)
    claimed = {key.replace("_", ":"): mib for key, mib in claims.items()}
    return StartRequest(
        replica, f"rh-i-m-{index}-00000000-1", StubDefinition(backend="stub"), "m", None, "token", claimed, host
    )


async def list_by_name(runtime: ClusterRuntime) -> dict[str, SeenReplica]:
    return {each.name: each for each in await runtime.list_replicas()}


async def test_a_replica_is_started_where_it_was_asked_for_and_ended_there(cluster: Cluster) -> None:
    await cluster.runtime.start_replica(first := request("a", 0, host_a=100))
    await cluster.runtime.start_replica(second := request("b", 1, host_b=200))
    seen = await list_by_name(cluster.runtime)
    assert {name: (each.host, each.claims) for name, each in seen.items()} == {
        first.name: ("a", {"host:a": 100}),
        second.name: ("b", {"host:b": 200}),
    }
    assert cluster.fakes["b"].replicas[second.name].claims == {"host": 200}, "a host does not know its name"
    await cluster.runtime.stop_replica(second.name, 1.0)
    assert cluster.fakes["b"].calls[-1] == f"stop {second.name}"
    assert set(await list_by_name(cluster.runtime)) == {first.name}


async def test_a_host_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "there.gguf").write_bytes(b"x")
    cluster = Cluster(ModelRoots((tmp_path,)))
    gpu, unread = Gpu("GPU-1", 0, "L4", 24_000, is_unified=True), UnreadGpu(1, "it fell off the bus")
    cluster.fakes["b"].found_gpus, cluster.fakes["b"].unread_gpus = (gpu,), (unread,)
    cluster.fakes["b"].gpu_driver = GpuDriver("570", "12.8", ("RTX",))
    cluster.runtime.list_model_paths = lambda: {"m": ("there.gguf",), "n": ("gone.gguf",), "o": ()}
    async with closing(cluster.runtime):
        host = await cluster.host("b")
        assert host.state is HostState.READY
        assert (host.gpus, host.unread_gpus) == ((replace(gpu, host="b"),), (replace(unread, host="b"),))
        assert (host.unified_gpus, host.driver) == (frozenset({"GPU-1"}), GpuDriver("570", "12.8", ("RTX",)))
        assert (host.memory_mib, host.missing_models, host.runtime) == (1000, frozenset({"n"}), "fake")
        assert (host.models_free_mib or 0) > 0
        assert await cluster.runtime.read_gpus() == (replace(gpu, host="b"),)


class FakeTransfers:
    """A `transfers` that copies from the head's folder at once. `error`: how its downloads end."""

    def __init__(self, head: Path, own: Path) -> None:
        self.head, self.own, self.orders, self.error = head, own, list[CopyOrder](), ""
        self.cancelled: list[str] = []

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get_share_place(self) -> SharePlace:
        return SharePlace(url=f"http://{self.own.name}")

    async def order_download(self, order: CopyOrder) -> tuple[Download, bool]:
        self.orders.append(order)
        path = order.reference.removeprefix("head:")
        if not self.error and not (self.own / path).exists():
            shutil.copy(self.head / path, self.own / path)
        error = RoundhouseError("models_disk_full", self.error).build_envelope().error if self.error else None
        state: Any = "failed" if self.error else "finished"
        return Download(id="dl", reference=order.reference, state=state, error=error, created_at=0.0), True

    async def list_downloads(self) -> list[Download]:
        orders = {each.reference: each for each in self.orders}
        return [Download(id=each, reference=each, state="failed", created_at=0.0) for each in orders]

    async def cancel_download(self, download: str) -> None:
        self.cancelled.append(download)


async def test_a_host_that_has_the_same_gets_nothing_and_files_of_another_time_are_compared_once(
    tmp_path: Path,
) -> None:
    folders = {name: tmp_path / name for name in ("head", "a", "b")}
    for each in folders.values():
        each.mkdir()
    (folders["head"] / "m.gguf").write_bytes(b"x")
    shutil.copy2(folders["head"] / "m.gguf", folders["b"] / "m.gguf")
    (folders["b"] / "own.gguf").write_bytes(b"y")
    fakes = {name: cast("Any", FakeTransfers(folders["head"], folder)) for name, folder in folders.items()}
    services = {
        name: HostService(FakeRuntime(time.time), models=ModelRoots((folders[name],)), transfers=fakes[name])
        for name in "ab"
    }
    runtime = ClusterRuntime(LocalCarrier(services, heartbeat_s=BEAT_S), kind="fake")
    runtime.head = HostFiles(ModelRoots((folders["head"],)), fakes["head"], is_client_open=True)
    runtime.list_model_paths = lambda: {"m": ("m.gguf",), "own": ("own.gguf",), "far": ("/far.gguf",)}

    async def lacking() -> dict[str, set[str]]:
        for files in (runtime.head, *(each._files for each in services.values())):
            assert files is not None
            files._looked_at = -FRESH_S
        await runtime.list_replicas()
        return {each.name: set(each.missing_models) for each in await runtime.read_hosts()}

    async with closing(runtime):
        await lacking()
        assert await lacking() == {"a": {"m", "own", "far"}, "b": {"far"}}, "b has the head's file with its time"
        assert [each.files_url for each in await runtime.read_hosts()] == ["http://a", "http://b"]
        assert runtime.list_head_models() == {"m"}
        await runtime.fetch_files("m", "a", ("", "b"))
        assert fakes["a"].orders == [CopyOrder(reference="head:m.gguf", peers=["http://head", "http://b"])]
        assert await lacking() == {"a": {"own", "far"}, "b": {"far"}}, "its time is another, and it was compared"
        os.utime(folders["b"] / "m.gguf", ns=(5, 5))
        assert (await lacking())["b"] == {"m", "far"}
        await runtime.fetch_files("m", "b", ("",))
        assert (await lacking())["b"] == {"far"}
        fakes["a"].error = "the disk is full"
        with pytest.raises(StartError, match="the disk is full"):
            await runtime.fetch_files("own", "a", ("b",))
        with pytest.raises(RuntimeUnavailableError, match="cannot be asked"):
            await runtime.fetch_files("own", "a", ("gone",))
        runtime.list_model_paths = lambda: {"own": ("new.gguf",), "far": ("/far.gguf",)}
        await lacking()
        with pytest.raises(StartError, match="the disk is full"):
            await runtime.fetch_files("own", "a", ("b",))
        await runtime.cancel_fetch("own", "a", is_wanted=True)
        assert fakes["a"].cancelled == ["head:own.gguf"], "failed, of the former definition"
        await runtime.cancel_fetch("own", "a", is_wanted=False)
        assert fakes["a"].cancelled == ["head:own.gguf", "head:new.gguf"]


async def test_files_in_two_folders_have_the_same_stamp_on_every_host(tmp_path: Path) -> None:
    stamps = []
    for host in ("head", "deeper/b"):
        for name in ("q4/a.gguf", "q8/b.gguf"):
            file = tmp_path / host / "m" / name
            file.parent.mkdir(parents=True)
            file.write_bytes(b"x")
            os.utime(file, ns=(5, 5))
        files = HostFiles(ModelRoots((tmp_path / host,)), cast("Any", FakeTransfers(tmp_path, tmp_path)))
        await files.look({"m"})
        await files.close()
        stamps.append(files.stamps["m"])
    assert stamps[0] == stamps[1]


async def test_what_is_behind_a_link_is_there_and_not_compared(tmp_path: Path) -> None:
    (tmp_path / "real" / "m").mkdir(parents=True)
    (tmp_path / "real" / "w.gguf").write_bytes(b"x")
    (tmp_path / "real" / "m" / "w.gguf").symlink_to("../w.gguf")
    (tmp_path / "models").symlink_to("real")
    files = HostFiles(ModelRoots((tmp_path / "models",)), cast("Any", FakeTransfers(tmp_path, tmp_path)))
    await files.look({"m", "w.gguf", "gone"})
    await files.close()
    assert (list(files.stamps), set(files.missing)) == (["w.gguf"], {"gone"}), "the models folder itself may be a link"


async def test_a_round_does_not_wait_for_the_heads_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, go_on = HostFiles(ModelRoots((tmp_path,))), asyncio.Event()

    async def look(_: object) -> None:
        await go_on.wait()
        raise OSError("the disk is gone")

    monkeypatch.setattr(files, "look", look)
    for _ in range(2):
        await asyncio.wait_for(files.look_within({"m"}, 0.01), 5)
    go_on.set()
    await files.look_within({"m"}, 5)
    assert "the disk is gone" in caplog.text
    go_on.clear()
    await files.look_within({"m"}, 0.01)
    await asyncio.wait_for(files.close(), 5)


@pytest.mark.parametrize("switch", [SILENT, GONE])
async def test_what_runs_on_a_silent_host_is_unknown_and_not_gone(cluster: Cluster, switch: str) -> None:
    await cluster.runtime.start_replica(request("a", 0))
    await cluster.runtime.start_replica(away := request("b", 1))
    await cluster.runtime.list_replicas()
    cluster.carrier.set_switch("b", switch)
    if switch == GONE:  # the other lets the first question hang
        assert (await cluster.host("b")).state is HostState.READY, "heartbeats are not missing yet"
    assert away.name in await list_by_name(cluster.runtime)
    await cluster.silence("b", switch)
    assert [each.host for each in (await list_by_name(cluster.runtime)).values()] == ["a", "b"]
    with pytest.raises(HostSilentError, match="host b"):
        await cluster.runtime.stop_replica(away.name, 1.0)
    with pytest.raises(HostSilentError, match="host b"):
        await cluster.runtime.start_replica(request("b", 2))
    assert await cluster.runtime.list_ended_logs("m") == []
    del cluster.fakes["b"].replicas[away.name]
    changes = cluster.runtime.watch_events()
    cluster.carrier.set_switch("b", HERE)
    await asyncio.wait_for(anext(changes), 1)
    assert (await cluster.host("b")).state is HostState.READY
    assert [each.host for each in await cluster.runtime.list_replicas()] == ["a"]


async def test_a_carrier_that_is_down_says_nothing_of_its_hosts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.runtime.start_replica(request("a"))
    await cluster.runtime.list_replicas()
    hosts = cluster.carrier.list_hosts()

    def excuse() -> tuple[CarriedHost, ...]:
        return tuple(replace(each, last_heard=time.time(), is_excused=True) for each in hosts)

    async def fail(*_: object) -> bytes:
        raise CarrierDownError("the bridge has ended")

    for switched in "ab":
        cluster.carrier.set_switch(switched, GONE)
    await cluster.runtime.list_replicas()  # fails once as if it were the host
    monkeypatch.setattr(cluster.carrier, "list_hosts", excuse)
    monkeypatch.setattr(cluster.carrier, "call", fail)
    await asyncio.sleep(4 * BEAT_S)
    assert (await cluster.host("a")).state is HostState.READY
    assert [each.host for each in await cluster.runtime.list_replicas()] == ["a"]


async def test_missing_heartbeats_wake_the_rounds_although_nobody_tells(cluster: Cluster) -> None:
    await cluster.runtime.list_replicas()
    changes = cluster.runtime.watch_events()
    woken = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(BEAT_S)
    cluster.carrier.set_switch("b", SILENT)
    await asyncio.wait_for(woken, 1)
    began_at = time.monotonic()
    await asyncio.wait_for(anext(changes), 1)
    assert time.monotonic() - began_at > BEAT_S / 2, "while it is silent, from time to time"


async def test_a_slow_host_holds_a_round_for_a_second_and_its_word_counts_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.runtimes.cluster.runtime.ROUND_WAIT_S", 0.1)
    await cluster.runtime.list_replicas()
    cluster.carrier.set_switch("b", "slow 0.3")
    await cluster.runtime.start_replica(started := request("b"))
    changes = cluster.runtime.watch_events()
    began_at = time.monotonic()
    seen = await list_by_name(cluster.runtime)
    assert time.monotonic() - began_at < 0.25
    assert seen[started.name].started_at is None, "it was started, and the host has not shown it yet"
    assert (await cluster.runtime.read_hosts())[1].state is HostState.READY, "its heartbeats arrive"
    await asyncio.wait_for(anext(changes), 1)
    cluster.carrier.set_switch("b", HERE)
    assert (await list_by_name(cluster.runtime))[started.name].started_at is not None


async def test_a_word_that_was_asked_for_before_a_start_does_not_undo_it(cluster: Cluster) -> None:
    await cluster.runtime.list_replicas()
    cluster.carrier.set_switch("b", "slow 0.2")
    looking = asyncio.ensure_future(cluster.runtime.list_replicas())
    await asyncio.sleep(0.12)  # it has looked, and its answer is on the way
    cluster.carrier.set_switch("b", HERE)
    await cluster.runtime.start_replica(started := request("b"))
    assert [each.name for each in await looking] == [started.name]


async def test_no_host_was_ever_heard() -> None:
    cluster = Cluster()
    for name in "ab":
        cluster.carrier.set_switch(name, GONE)
    async with closing(cluster.runtime):
        with pytest.raises(RuntimeUnavailableError, match="no host answers: host a: cannot be reached; host b"):
            await cluster.runtime.list_replicas()
        cluster.carrier.set_switch("a", HERE)

        async def is_heard() -> bool:
            with contextlib.suppress(RuntimeUnavailableError):
                return await cluster.runtime.list_replicas() == []
            return False

        await until("a is heard", is_heard)
        assert [each.state for each in await cluster.runtime.read_hosts()] == [HostState.READY, HostState.SILENT]


async def test_the_next_controller_knows_what_ran_on_a_host_that_is_silent_then(tmp_path: Path) -> None:
    first, file = Cluster(), tmp_path / "replicas.json"
    runtime = ClusterRuntime(first.carrier, kind="fake", file=file)
    async with closing(runtime):
        await runtime.start_replica(started := request("b", host_b=100))
        await runtime.list_replicas()
    later = LocalCarrier({name: HostService(fake) for name, fake in first.fakes.items()}, heartbeat_s=BEAT_S)
    later.set_switch("b", SILENT)
    began_at = time.time()
    runtime = ClusterRuntime(later, kind="fake", file=file)
    async with closing(runtime):
        [seen] = await runtime.list_replicas()
        assert (seen.name, seen.host, seen.claims) == (started.name, "b", {"host:b": 100})
        host = (await runtime.read_hosts())[1]
        assert host.state is HostState.SILENT
        assert host.last_heard is not None
        assert host.last_heard >= began_at, "it has the whole time to be heard"
    file.write_text("{")
    runtime = ClusterRuntime(later, kind="fake", file=file)
    async with closing(runtime):
        assert await runtime.list_replicas() == []


async def test_a_host_of_another_kind_is_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.fakes["b"].kind = "docker"
    host = await cluster.host("b")
    assert (host.state, host.reason) == (
        HostState.REFUSED,
        "its runtime is docker, and that of this installation is fake",
    )


@pytest.mark.parametrize("has_tls", [False, True])
async def test_a_host_whose_relay_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, has_tls: bool) -> None:
    """`has_tls`: the head has. The relay has none; and what answers in its place is none."""
    answering = await asyncio.start_server(lambda _, writer: writer.write(b"x" * 100), "127.0.0.1", 0)
    port = answering.sockets[0].getsockname()[1]
    relay = RelayKeeper(tmp_path, "a", "127.0.0.1", port, None)
    service = HostService(FakeRuntime(time.time), relay=relay)
    files = HostCredentials.in_state(tmp_path) if has_tls else None
    runtime = ClusterRuntime(LocalCarrier({"a": service}, heartbeat_s=BEAT_S), kind="fake", relay_files=files)
    async with answering, closing(runtime):
        await runtime.list_replicas()
        (host,) = await runtime.read_hosts()
    assert host.state is HostState.REFUSED
    reasons = [
        f"what answers at 127.0.0.1:{port} is not the host's relay: free that port there",
        "its relay is without TLS, and this head with: join it anew with the head's join file of today",
    ]
    assert host.reason == reasons[has_tls]
    assert (host.relay, host.is_insecure) == (f"127.0.0.1:{port}", True)


async def test_a_host_is_never_ready_while_its_relay_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runtimes.cluster.runtime.ROUND_WAIT_S", 0.02)
    monkeypatch.setattr("controller.runtimes.cluster.relay_keeper.CHECK_S", 0.1)
    mute = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    relay = RelayKeeper(tmp_path, "a", "127.0.0.1", mute.sockets[0].getsockname()[1], None)
    service = HostService(FakeRuntime(time.time), relay=relay)
    runtime = ClusterRuntime(LocalCarrier({"a": service}, heartbeat_s=BEAT_S), kind="fake")
    states: list[HostState] = []
    async with mute, closing(runtime):
        while len(states) < 20:
            with contextlib.suppress(RuntimeUnavailableError):  # before its first word
                await runtime.list_replicas()
                states.append((await runtime.read_hosts())[0].state)
    assert HostState.READY not in states
    assert states[-1] is HostState.REFUSED


async def test_a_host_that_says_what_this_version_does_not_know_is_refused(cluster: Cluster) -> None:
    await cluster.runtime.start_replica(request("b"))
    seen = cluster.fakes["b"].replicas[request("b").name]
    cluster.fakes["b"].replicas[seen.name] = replace(seen, phase=cast("Phase", "frozen"))
    host = await cluster.host("b")
    assert host.state is HostState.REFUSED
    assert "what it says cannot be read: 1 validation error for SeenReplica phase" in (host.reason or "")
    assert seen.name in await list_by_name(cluster.runtime), "what was seen last"


async def test_a_host_whose_runtime_does_not_answer_is_silent_and_heartbeats_do_not_hide_it(cluster: Cluster) -> None:
    await cluster.runtime.start_replica(started := request("b"))
    await cluster.runtime.list_replicas()
    cluster.fakes["b"].unavailable = "the daemon is down"
    await cluster.silence("b", HERE)
    host = await cluster.host("b")
    assert host.reason == "its runtime does not answer: the daemon is down"
    assert host.last_heard is not None
    assert host.last_heard < time.time() - 2 * BEAT_S
    assert started.name in await list_by_name(cluster.runtime)
    cluster.fakes["a"].unavailable = "it has just stopped answering"
    with pytest.raises(HostRefusedError, match="host a is slow"):
        await cluster.runtime.expel_host("a")
    await cluster.runtime.expel_host("b")
    assert [each.name for each in await cluster.runtime.read_hosts()] == ["a"]


async def test_what_follows_the_hosts_goes_on_after_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of a carrier or a runtime may not leave rounds without events for ever."""
    broken = [(cluster.carrier, "watch"), (cluster.fakes["b"], "watch_events"), (cluster.runtime, "_is_overdue")]
    works = [getattr(*each) for each in broken]

    def fail_once(number: int) -> Any:
        def fail(*arguments: Any) -> Any:
            monkeypatch.setattr(*broken[number], works[number])
            raise KeyError(broken[number][1])

        return fail

    for number, each in enumerate(broken):
        monkeypatch.setattr(*each, fail_once(number))
    await cluster.runtime.list_replicas()
    await until("all have failed", lambda: caplog.text.count("is begun anew") == 3)
    await asyncio.sleep(3 * BEAT_S)
    changes = cluster.runtime.watch_events()
    woken = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    cluster.carrier._note_change("b")
    await asyncio.wait_for(woken, 1)
    assert not any(task.done() for task in (*cluster.runtime._tasks, *cluster.carrier._tasks))


async def test_a_look_at_a_host_that_fails_is_a_reason_and_no_silence_of_ours(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.runtime.list_replicas()

    async def fail(*_: object) -> bytes:
        raise KeyError("a defect")

    monkeypatch.setattr(cluster.carrier, "call", fail)
    await cluster.silence("b", HERE)
    assert (await cluster.host("b")).reason == "asking it failed: KeyError('a defect')"


async def test_what_a_runtime_raises_there_is_raised_here(cluster: Cluster) -> None:
    cluster.fakes["b"].start_error = StartError("no such file", permanent=True, plain="plain words")
    with pytest.raises(StartError, match="no such file") as raised:
        await cluster.runtime.start_replica(request("b"))
    assert (raised.value.permanent, raised.value.plain) == (True, "plain words")
    cluster.fakes["b"].start_error, cluster.fakes["b"].start_bug = None, KeyError("bug")
    with pytest.raises(RuntimeUnavailableError, match=r"host b: start_replica failed: KeyError\('bug'\)"):
        await cluster.runtime.start_replica(request("b"))
    assert await cluster.runtime.list_replicas() == [], "a start that failed has left nothing"
    cluster.fakes["b"].preflight_error = "missing"
    result = await cluster.runtime.check_preflight("m", StubDefinition(backend="stub"), None, "b")
    assert (result.ok, result.error) == (False, "missing")
    with pytest.raises(HostRefusedError, match="there is no host c; the hosts are a, b"):
        await cluster.runtime.check_preflight("m", StubDefinition(backend="stub"), None, "c")


async def test_a_log_is_found_on_its_host_and_its_cursor_names_it(cluster: Cluster) -> None:
    name = request("b").name
    cluster.fakes["a"].logs["rh-i-m-0-00000000-7"] = ["a"]
    cluster.fakes["b"].logs[name] = ["one", "two"]
    assert await cluster.runtime.list_ended_logs("m") == ["rh-i-m-0-00000000-7", name], "highest attempts first"
    part = await cluster.runtime.read_log_after(name, None, 1)
    assert part is not None
    assert (part.lines, part.cursor) == (("two",), "b|2")
    cluster.fakes["b"].logs[name].append("three")
    part = await cluster.runtime.read_log_after(name, "b|2")
    assert part is not None
    assert part.lines == ("three",)
    part = await cluster.runtime.read_log_after(name, "no cursor of ours")
    assert part is not None
    assert part.lines == ("one", "two", "three")
    assert await cluster.runtime.read_log_after("rh-i-x-0-00000000-1", None) is None


async def test_only_a_silent_host_is_forgotten(cluster: Cluster) -> None:
    await cluster.runtime.start_replica(request("b"))
    with pytest.raises(HostRefusedError, match="host b answers: drain it"):
        await cluster.runtime.expel_host("b")
    with pytest.raises(HostRefusedError, match="there is no host c"):
        await cluster.runtime.expel_host("c")
    await cluster.silence("b")
    await cluster.runtime.expel_host("b")
    assert [each.name for each in await cluster.runtime.read_hosts()] == ["a"]
    assert await cluster.runtime.list_replicas() == []
    cluster.carrier.set_switch("b", HERE)
    await cluster.carrier.admit("b")
    assert (await cluster.host("b")).state is HostState.READY


@pytest.mark.parametrize("by_carrier", [False, True])
async def test_a_refused_host_that_dies_is_silent_and_can_be_forgotten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, by_carrier: bool
) -> None:
    reason = "its runtime is docker, and that of this installation is fake"
    if by_carrier:
        listed, reason = cluster.carrier.list_hosts, "it has the state folder of another"
        monkeypatch.setattr(
            cluster.carrier,
            "list_hosts",
            lambda: tuple(replace(each, refusal=reason if each.name == "b" else None) for each in listed()),
        )

        asked = cluster.carrier.call

        async def call(host: str, method: str, payload: bytes, deadline_s: float) -> bytes:
            if host == "b":
                raise HostRefusedError(f"host {host}: {reason}")
            return await asked(host, method, payload, deadline_s)

        monkeypatch.setattr(cluster.carrier, "call", call)
    else:
        cluster.fakes["b"].kind = "docker"
    assert (await cluster.host("b")).state is HostState.REFUSED
    with pytest.raises(HostRefusedError, match=r"host b (answers|is refused, and its heartbeats arrive)"):
        await cluster.runtime.expel_host("b")
    await cluster.silence("b")
    assert (await cluster.host("b")).reason == f"it does not answer; before, it was refused: {reason}"
    await cluster.runtime.expel_host("b")
    assert [each.name for each in await cluster.runtime.read_hosts()] == ["a"]


async def test_the_end_leaves_what_cannot_be_reached_and_names_the_host(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.runtimes.UNREACHED_S", 0.1)
    await cluster.runtime.start_replica(here := request("a", 0))
    await cluster.runtime.start_replica(request("b", 1))
    await cluster.silence("b")
    with caplog.at_level(logging.WARNING):
        assert await end_replicas(cluster.runtime, 1.0) == [here.name]
    assert "engines go on running on hosts that cannot be reached: b" in caplog.text
    assert len(cluster.fakes["b"].replicas) == 1


async def test_the_end_names_a_host_that_was_never_heard(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.carrier.set_switch("b", GONE)
    async with closing(cluster.runtime):
        assert await end_replicas(cluster.runtime, 1.0) == []
    assert "that cannot be reached: b" in caplog.text


async def test_the_end_of_engines_waits_for_a_slow_host(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.runtimes.cluster.runtime.ROUND_WAIT_S", 0.01)
    monkeypatch.setattr("controller.runtimes.UNREACHED_S", 0.0)
    await cluster.runtime.start_replica(late := request("b"))
    cluster.carrier.set_switch("b", "slow 0.1")
    assert await end_replicas(cluster.runtime, 1.0) == [late.name]
    assert cluster.fakes["b"].replicas == {}


async def test_a_clock_that_is_set_back_hides_no_silence() -> None:
    offset_s = [0.0]
    fake = FakeRuntime(time.time)
    carrier = LocalCarrier({"a": HostService(fake)}, heartbeat_s=BEAT_S, clock=lambda: time.time() + offset_s[0])
    runtime = ClusterRuntime(carrier, kind="fake", clock=lambda: time.time() + offset_s[0])
    async with closing(runtime):
        assert (await runtime.read_hosts())[0].state is HostState.READY
        offset_s[0] = -3600.0
        await asyncio.sleep(2 * BEAT_S)
        carrier.set_switch("a", SILENT)

        async def is_silent() -> bool:
            await runtime.list_replicas()
            return (await runtime.read_hosts())[0].state is HostState.SILENT

        await until("it is silent", is_silent, deadline_s=2)


async def test_of_two_stops_the_shorter_one_counts() -> None:
    graces: list[float] = []
    begun = asyncio.Event()

    class SlowEnds(FakeRuntime):
        async def stop_replica(self, name: str, grace_s: float) -> None:
            graces.append(grace_s)
            begun.set()
            await asyncio.sleep(grace_s)

    service = HostService(SlowEnds(time.time))
    long_stop = asyncio.ensure_future(service.answer_request("stop_replica", b'{"name":"n","grace_s":600}'))
    await begun.wait()
    answers = [await service.answer_request("stop_replica", b'{"name":"n","grace_s":0}'), await long_stop]
    errors = [HostReply.model_validate_json(each).error for each in answers]
    assert graces == [600, 0]
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].kind == "unavailable"


async def test_a_host_does_only_what_its_table_names() -> None:
    service = HostService(FakeRuntime(time.time))
    for method, payload in (("close", b"{}"), ("__init__", b"{}"), ("start_replica", b"[]"), ("observe", b"\xff")):
        reply = HostReply.model_validate_json(await service.answer_request(method, payload))
        assert reply.error is not None
        assert reply.error.kind == "refused", method


async def test_a_host_that_is_behind_reads_what_it_knows_and_refuses_the_rest() -> None:
    fake = FakeRuntime(time.time)
    service = HostService(fake)
    start: dict[str, Any] = StartReplicaRequest(
        id=HostReplicaId(model="m", index=0, spec_hash="0", attempt=1),
        name="n",
        definition=pack_definition(StubDefinition(backend="stub")),
        served_name="m",
        token="t",
    ).model_dump()
    newer = StartReplicaRequest.model_validate(start).model_dump_json()[:-1] + ',"later":1}'
    reply = HostReply.model_validate_json(await service.answer_request("start_replica", newer.encode()))
    assert reply.error is None
    assert list(fake.replicas) == ["n"]
    start["definition"]["fields"]["later"] = 1
    unread = StartReplicaRequest.model_validate(start).model_dump_json().encode()
    reply = HostReply.model_validate_json(await service.answer_request("start_replica", unread))
    assert reply.error is not None
    assert reply.error.kind == "start"
    assert "later" in reply.error.message


@pytest.mark.parametrize("backend", sorted(ENGINES))
def test_a_definition_arrives_as_it_was_sent(backend: str) -> None:
    for fields in DEFINITIONS[backend].values():
        definition = ENGINES[backend].definition.model_validate({"backend": backend, **fields})
        assert unpack_definition(pack_definition(definition)) == definition
    sent = LlamaServerDefinition(model_path="m.gguf")
    assert pack_definition(sent).model_dump() == {"backend": "llama_server", "fields": {"model_path": "m.gguf"}}
