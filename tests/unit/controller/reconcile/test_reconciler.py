"""The loop's rules, round by round, over a fake host and a clock of the test's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest

from contract.keys import KeyDefinition
from contract.routing import GatewayReport, RoutingTable
from contract.status import ModelState
from controller.engines.stub import StubDefinition
from controller.executor import Executor, ExecutorOptions, OperationState
from controller.hosts import HOST, Gpu, GpuProcess
from controller.model_status import Round
from controller.observe.gateway_hub import GatewayHub, RemoteHealth
from controller.observe.health import UNHEALTHY_AFTER_S, ProbedHealth
from controller.observe.prober import Prober
from controller.planning.draining import ARRIVAL_S, IDLE_PROOF_S, DrainState
from controller.reconciler import RETRY_S, Reconciler, RoundSources
from controller.runtimes.base import StartError, StartRequest
from controller.state import (
    AttemptNumbers,
    DesiredModel,
    DesiredState,
    Health,
    HeldMemory,
    IdleSpan,
    ObservedReplica,
    Statement,
)
from controller.state_dir import SleepRecord
from tests.fakes.fake_runtime import FakeDownloader, FakeProber, FakeRuntime, FakeSleeper
from tests.support.definitions import define

MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"))


@dataclass
class Wanted:
    """A desired state that the test sets."""

    value: DesiredState | None = field(default_factory=lambda: DesiredState(1, {"m": MODEL}))
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    drained: dict[str, float] = field(default_factory=dict)

    async def refresh_files(self, now: float) -> None: ...

    def desired_state(self) -> DesiredState | None:
        return self.value

    def wake_at(self) -> float | None:
        return None

    def evict_models(self, models: Mapping[str, str]) -> None:
        assert not models, "nothing is loaded on demand"

    def request_reload(self, models: Sequence[str]) -> None:
        assert not models

    def drained_hosts(self) -> Mapping[str, float]:
        return self.drained

    def remember_attempts(self, attempts: AttemptNumbers) -> None:
        self.attempts = attempts

    def remember_loaded(self, *_: object) -> None: ...


@dataclass
class Bench:
    """A reconciler whose rounds the test runs."""

    runtime: FakeRuntime
    desired: Wanted
    hub: GatewayHub
    operations: Executor
    reconciler: Reconciler
    time: list[float]
    held: dict[str, HeldMemory]
    """What replicas were seen to hold, by name."""

    async def round(self) -> Round:
        """One complete round, and the operations that it began. Time goes on by 0.1 s."""
        done = await self.reconciler.run_round()
        assert done is not None, self.reconciler.error
        await self.operations.wait_until_idle()
        self.time[0] += 0.1
        return done

    async def rounds(self, count: int) -> Round:
        for _ in range(count - 1):
            await self.round()
        return await self.round()

    def want(self, revision: int = 2, **fields: Any) -> None:
        self.desired.value = DesiredState(revision, {"m": replace(MODEL, **fields)})

    def set_paused(self, paused: bool = True) -> None:
        assert self.desired.value is not None
        self.desired.value = replace(self.desired.value, paused=paused)

    @property
    def table(self) -> RoutingTable:
        assert self.hub.table is not None
        return self.hub.table

    @property
    def starts(self) -> list[str]:
        return [call for call in self.runtime.calls if call.startswith("start ")]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    time = [1_000.0]
    clock = lambda: time[0]  # noqa: E731 - as short as it reads
    runtime, desired, memory, wake = FakeRuntime(clock), Wanted(), OperationState(), asyncio.Event()
    held: dict[str, HeldMemory] = {}
    async with aiohttp.ClientSession() as session:
        hub = GatewayHub("i", 1, wake=wake.set, clock=clock)
        operations = Executor(
            runtime,
            memory,
            FakeDownloader(),
            FakeSleeper(),
            options=ExecutorOptions("i", b"s", 1.0),
            wake=wake.set,
            clock=clock,
        )
        prober = Prober(session, interval_s=1.0, timeout_s=1.0, wake=wake.set, clock=clock)
        remotes = RemoteHealth(hub, interval_s=1.0, timeout_s=1.0, wake=wake.set, clock=clock)
        sources = RoundSources(
            desired=desired, runtime=runtime, memory=memory, prober=prober, remotes=remotes, clock=clock,
            get_held_memory=held.get,
        )  # fmt: skip
        reconciler = Reconciler(sources, operations, hub, wake=wake, resync_s=10.0)
        yield Bench(runtime, desired, hub, operations, reconciler, time, held)
        await prober.close()


async def test_an_observation_that_failed_yields_no_plan_and_no_table(bench: Bench) -> None:
    bench.runtime.unavailable = "the daemon is down"
    assert await bench.reconciler.run_round() is None
    assert (bench.reconciler.error, bench.hub.table, bench.runtime.calls) == ("the daemon is down", None, [])
    bench.runtime.unavailable = None
    await bench.round()
    assert (bench.reconciler.error, bench.hub.table is None) == (None, False)


async def test_a_clock_that_is_set_makes_no_silence_of_the_runtime_longer(bench: Bench) -> None:
    bench.runtime.unavailable = "the daemon is down"
    for jump in (10_000.0, -20_000.0):
        bench.time[0] += jump
        await bench.reconciler.run_round()
    assert bench.reconciler.silence is not None
    assert 0 <= time.monotonic() - bench.reconciler.silence.since < UNHEALTHY_AFTER_S


async def test_unknown_is_not_empty_what_ran_is_not_started_twice(bench: Bench) -> None:
    await bench.rounds(3)
    [name], table = bench.runtime.replicas, bench.table
    bench.runtime.unavailable = "the daemon is down"
    assert await bench.reconciler.run_round() is None
    bench.runtime.unavailable = None
    await bench.rounds(5)
    assert list(bench.runtime.replicas) == [name]
    assert bench.hub.table is table, "tables change only when routes do"


async def test_what_a_replica_holds_counts_where_it_is_more_than_what_it_claimed(bench: Bench) -> None:
    bench.runtime.found_gpus = (Gpu("GPU-a", 0, "fake", 10_000),)
    first = replace(MODEL, gpu_count=1, vram_mib=4_000)
    bench.desired.value = DesiredState(1, {"m": first})
    await bench.rounds(3)
    [name] = bench.runtime.replicas
    bench.held[name] = HeldMemory(7_000, 300)
    bench.desired.value = DesiredState(2, {"m": first, "n": replace(first, name="n")})
    done = await bench.rounds(3)
    [replica] = done.observed.replicas
    assert replica.claims == {"GPU-a": 7_000, HOST: 300}
    assert replica.start_claims == bench.runtime.replicas[name].claims == {"GPU-a": 4_000}
    [blocked] = done.plan.blocked
    assert "GPU 0 has 3000 of 10000 MiB" in blocked.reason


async def test_files_that_were_never_valid_start_and_stop_nothing(bench: Bench) -> None:
    bench.desired.value = None
    assert await bench.reconciler.run_round() is None
    assert bench.hub.table is None
    assert "never valid" in (bench.reconciler.error or "")


async def test_a_start_under_way_is_not_issued_again_and_does_not_hold_up_the_loop(bench: Bench) -> None:
    bench.runtime.hold.clear()
    await bench.round()
    for _ in range(5):
        assert await bench.reconciler.run_round() is not None
    await asyncio.sleep(0)
    assert len(bench.starts) == 1
    bench.runtime.hold.set()
    await bench.operations.wait_until_idle()


async def test_paused_it_plans_and_does_nothing(bench: Bench) -> None:
    bench.set_paused()
    done = await bench.rounds(3)
    assert [action.kind for action in done.plan.actions] == ["preflight"]
    assert bench.runtime.calls == []


async def test_a_model_that_is_unloaded_and_loaded_again_gets_names_that_never_were(bench: Bench) -> None:
    for revision, replicas in enumerate((1, 0, 1, 0, 1)):
        bench.want(revision, replicas=replicas)
        await bench.rounds(5)
    assert bench.starts == [f"start rh-i-m-0-hash-{attempt}" for attempt in (1, 2, 3)]


async def test_a_name_is_remembered_before_its_engine_starts_and_only_if_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_at_start: list[Mapping[str, int]] = []
    start_replica = bench.runtime.start_replica

    async def start_noted(request: StartRequest) -> None:
        known_at_start.append(bench.desired.attempts.highest)
        await start_replica(request)

    monkeypatch.setattr(bench.runtime, "start_replica", start_noted)
    bench.set_paused()
    await bench.rounds(3)
    assert bench.desired.attempts == AttemptNumbers()
    bench.set_paused(False)
    await bench.rounds(3)
    assert known_at_start == [{"m/0/hash": 1}]


async def test_a_replica_that_was_found_keeps_its_name_for_itself(bench: Bench) -> None:
    await bench.rounds(3)
    [found] = bench.runtime.replicas.values()
    bench.want(replicas=0)
    found = replace(found, id=replace(found.id, attempt=7), name="rh-i-m-0-hash-7")
    bench.runtime.replicas = {found.name: found}
    await bench.rounds(5)
    assert not bench.runtime.replicas
    bench.want(3)
    await bench.rounds(3)
    assert list(bench.runtime.replicas) == ["rh-i-m-0-hash-8"]


async def test_an_image_is_pulled_before_the_start_and_a_failed_pull_backs_off(bench: Bench) -> None:
    bench.want(image="some/image")
    bench.runtime.missing_image = "some/image"
    bench.runtime.pull_error = "no such host"
    done = await bench.rounds(3)
    assert bench.runtime.calls.count("pull some/image") == 1
    assert done.statuses[0].state is ModelState.FAILED
    assert done.statuses[0].last_error == "image some/image is missing and cannot be pulled: no such host"
    bench.runtime.pull_error = None
    bench.time[0] += 1.0
    await bench.rounds(4)
    assert [call.split()[0] for call in bench.runtime.calls[-2:]] == ["preflight", "start"]


async def test_an_engine_that_ends_backs_off_and_its_failures_count_once_each(bench: Bench) -> None:
    await bench.rounds(2)
    [name] = bench.runtime.replicas
    bench.runtime.end(name, 1, "segmentation trouble")
    failed = await bench.round()
    assert [action.kind for action in failed.plan.actions] == ["remove"]
    waiting = await bench.reconciler.run_round()
    assert waiting is not None
    [status] = waiting.statuses
    assert status.last_error == "the engine ended with exit code 1. Last log lines:\nsegmentation trouble"
    assert bench.runtime.replicas == {}
    bench.time[0] += 1.0
    await bench.rounds(2)
    [second] = bench.runtime.replicas
    assert second != name
    assert second.endswith("-2")


async def test_a_permanent_start_error_parks_until_the_definition_changes(bench: Bench) -> None:
    bench.runtime.start_error = StartError("no such program", permanent=True)
    await bench.rounds(3)
    bench.time[0] += 1e6
    done = await bench.rounds(3)
    assert [call.split()[0] for call in bench.runtime.calls] == ["preflight", "start"]
    assert (done.statuses[0].last_error, done.statuses[0].retry_at) == ("no such program", None)
    bench.runtime.start_error = None
    bench.want(spec_hash="edited")
    await bench.rounds(3)
    assert len(bench.runtime.replicas) == 1


async def test_an_end_that_is_refused_is_tried_again_and_its_failure_counts_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.executor.REFUSED_PAUSE_S", 0.0)
    await bench.rounds(2)
    [name] = bench.runtime.replicas
    bench.runtime.end(name, 1, "boom")
    bench.runtime.refuses_ends = True
    done = await bench.rounds(5)
    assert bench.runtime.calls.count(f"remove {name}") > 1
    [status] = done.statuses
    assert status.retry_at is not None
    assert status.retry_at <= 1_001.5, "one failure, one second"


async def test_a_bug_in_one_start_backs_off_and_is_said(bench: Bench) -> None:
    bench.runtime.start_bug = ZeroDivisionError("a bug")
    done = await bench.rounds(6)
    assert len(bench.starts) == 1
    assert "ZeroDivisionError" in (done.statuses[0].last_error or "")


async def test_a_round_that_saw_nothing_is_not_repeated_at_once(bench: Bench) -> None:
    await bench.rounds(2)
    [name] = bench.runtime.replicas
    bench.runtime.end(name, 1, "boom")
    await bench.round()
    waiting = await bench.reconciler.run_round()
    assert waiting is not None
    assert waiting.plan.wake_at is not None
    bench.time[0] = waiting.plan.wake_at + 1.0
    bench.runtime.unavailable = "the daemon is down"
    assert await bench.reconciler.run_round() is None
    # The last plan's own wakeup has passed: it must not make the loop spin while nothing can be seen.
    assert bench.reconciler._pause_s() == RETRY_S


async def test_an_engine_serves_on_when_its_model_is_edited_to_one_that_cannot_start(bench: Bench) -> None:
    await bench.rounds(3)
    [name] = bench.runtime.replicas
    bench.runtime.replicas[name] = replace(bench.runtime.replicas[name], base_url="http://127.0.0.1:1")
    bench.runtime.preflight_error = "the file is missing"
    bench.want(spec_hash="other")
    await bench.rounds(3)
    assert (list(bench.runtime.replicas), bench.reconciler.error) == ([name], None)


async def test_keys_are_published_also_while_the_runtime_does_not_answer(bench: Bench) -> None:
    await bench.rounds(3)
    models, calls = bench.table.models, list(bench.runtime.calls)
    assert bench.desired.value is not None
    bench.desired.value = replace(bench.desired.value, keys={"ci": KeyDefinition(sha256="0" * 64)})
    bench.runtime.unavailable = "the daemon is down"
    assert await bench.reconciler.run_round() is None
    assert ([key.name for key in bench.table.keys], bench.table.models) == (["ci"], models)
    bench.runtime.unavailable = None
    stamp = bench.table.stamp
    await bench.rounds(2)
    assert (bench.table.stamp, bench.runtime.calls) == (stamp, calls)


async def test_what_was_found_is_in_use_for_all_that_is_known_until_its_gateways_are_back(bench: Bench) -> None:
    await bench.rounds(2)
    [name] = bench.runtime.replicas
    bench.hub.open_link("first")
    bench.hub.take_report(GatewayReport(gateway_id="first", stamp=None, last_used={"m": 990.0}))
    seen = (await bench.round()).observed
    assert (seen.inflight, seen.traffic["m"].waiting, seen.traffic["m"].last_used) == ({name: 0}, 0, 990.0)
    bench.runtime.replicas[name] = replace(bench.runtime.replicas[name], created_at=900.0)
    seen = (await bench.round()).observed
    assert (seen.inflight, seen.traffic["m"].waiting) == ({name: None}, None)
    assert bench.reconciler._pause_s() == pytest.approx(1_000.0 + ARRIVAL_S - bench.time[0])
    bench.time[0] = 1_000.0 + ARRIVAL_S
    seen = (await bench.round()).observed
    assert (seen.inflight, seen.traffic["m"].waiting) == ({name: 0}, 0)


async def test_what_nobody_told_of_counts_as_used_when_the_controller_came(bench: Bench) -> None:
    await bench.round()
    assert (await bench.round()).observed.traffic["m"].last_used == 1_000.0


async def test_paused_in_the_middle_of_an_eviction_what_was_to_go_serves_on(bench: Bench) -> None:
    await bench.rounds(3)
    [name] = bench.runtime.replicas
    bench.set_paused()
    bench.reconciler._memory.drains[name] = DrainState(1_000.0, bench.table.stamp)
    done = await bench.round()
    assert [each.phase for each in done.statuses[0].replicas] == ["starting"]


async def test_what_was_found_is_not_stopped_before_all_its_gateways_can_be_back(bench: Bench) -> None:
    await bench.rounds(3)
    [name] = bench.runtime.replicas
    bench.runtime.replicas[name] = replace(bench.runtime.replicas[name], created_at=900.0)
    bench.reconciler._ready_since[name] = 990.0
    bench.want(replicas=0)
    await bench.round()
    bench.hub.open_link("first")
    bench.hub.take_report(GatewayReport(gateway_id="first", stamp=bench.table.stamp))
    await bench.rounds(3)
    assert name in bench.runtime.replicas, "the second gateway may have a request inside"
    bench.time[0] = 1_000.0 + ARRIVAL_S
    await bench.round()
    assert f"stop {name}" in bench.runtime.calls


async def _ready_replica(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[str, FakeProber]:
    """Name of a replica that is ready, and the prober that says so."""
    prober = FakeProber()
    monkeypatch.setattr(bench.reconciler, "_prober", prober)
    await bench.rounds(2)
    [name] = bench.runtime.replicas
    bench.runtime.replicas[name] = replace(bench.runtime.replicas[name], base_url="http://engine")
    prober.ready[name] = bench.time[0]
    await bench.round()
    return name, prober


async def test_what_a_lost_gateway_holds_is_known_once_the_engine_was_asked_for_long_enough(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, prober = await _ready_replica(bench, monkeypatch)
    bench.hub.open_link("first")
    bench.hub.take_report(GatewayReport(gateway_id="first", stamp=None, inflight={name: 1}))
    bench.time[0] = lost_at = 1_100.0
    bench.hub.close_link("first")
    prober.idle_spans[name] = IdleSpan(1_050.0, 1_099.0)
    seen = (await bench.round()).observed
    assert (seen.inflight, seen.traffic["m"].waiting, prober.requested_probes) == ({name: None}, None, [])
    assert bench.reconciler._pause_s() == pytest.approx(lost_at + IDLE_PROOF_S - bench.time[0])
    bench.time[0] = lost_at + IDLE_PROOF_S
    seen = (await bench.round()).observed
    assert (seen.inflight, prober.requested_probes) == ({name: None}, [name]), "the last probe is too old to prove it"
    prober.idle_spans[name] = IdleSpan(1_050.0, lost_at + IDLE_PROOF_S)
    seen = (await bench.round()).observed
    assert (seen.inflight, seen.traffic["m"].waiting, prober.requested_probes) == ({name: 0}, 0, [name])
    assert bench.reconciler._idle_proof_due_at is None


async def test_an_engine_is_asked_at_once_when_no_table_routes_to_it_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, prober = await _ready_replica(bench, monkeypatch)
    bench.want(replicas=0)
    await bench.round()
    assert prober.requested_probes == [name]


# Sleep

SLEEPS = replace(
    MODEL,
    definition=define("vllm_serve", gpus=1, vllm_sleep="level1"),
    backend="vllm_serve",
    gpu_count=1,
    vram_mib=4_000,
    memory_mib=50,
    autoload=True,
    demand_replicas=1,
    idle_ttl_s=None,
)
ASLEEP = {"GPU-a": 800, HOST: 4_050}
AWAKE = {"GPU-a": 4_000, HOST: 4_050}


class SleepProber(FakeProber):
    """Tells of all replicas the same."""

    told = ProbedHealth()

    def get_health(self, name: str) -> ProbedHealth:
        return self.told


@dataclass
class Sleeping:
    """One replica of `SLEEPS`, whose model is `replicas` times wanted, and what its probes tell."""

    bench: Bench
    name: str
    prober: SleepProber

    async def look(self, told: ProbedHealth | None = None, held_mib: int = 4_000, replicas: int = 1) -> ObservedReplica:
        """The replica, as a round sees it that acts on nothing."""
        self.prober.told = told or self.prober.told
        gpu = Gpu("GPU-a", 0, "fake", 10_000, held_mib, processes=(GpuProcess(1, held_mib, "vllm", self.name),))
        self.bench.runtime.found_gpus = (gpu,)
        model = replace(SLEEPS, replicas=replicas)
        self.bench.desired.value = DesiredState(1, {"m": model}, paused=True)
        [seen] = (await self.bench.round()).observed.replicas
        return seen

    @property
    def records(self) -> dict[str, SleepRecord]:
        return self.bench.reconciler._memory.sleepers


@pytest.fixture
async def sleeping(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Sleeping:
    prober = SleepProber()
    monkeypatch.setattr(bench.reconciler, "_prober", prober)
    bench.runtime.found_gpus = (Gpu("GPU-a", 0, "fake", 10_000),)
    bench.desired.value = DesiredState(1, {"m": SLEEPS})
    await bench.rounds(2)
    [name] = bench.runtime.replicas
    bench.runtime.replicas[name] = replace(bench.runtime.replicas[name], base_url="http://engine")
    return Sleeping(bench, name, prober)


def _found(health: Health, probed_at: float, canary: str | None = None) -> ProbedHealth:
    return ProbedHealth(health=health, ready_since=1_000.0, probed_at=probed_at, canary=canary)


async def test_what_a_replica_answered_when_it_was_ready_is_kept_and_it_may_sleep_from_then_on(
    sleeping: Sleeping,
) -> None:
    assert (await sleeping.look()).sleep is None, "nobody knows how it answers"
    seen = await sleeping.look(_found(Health.READY, 1_001.0, "2, 3"))
    assert sleeping.records == {sleeping.name: SleepRecord(canary="2, 3")}
    assert seen.sleep is not None
    assert (seen.claims, seen.is_asleep) == ({"GPU-a": 4_000, HOST: 50}, False)
    assert seen.sleep.asleep_claims == {"GPU-a": 1_024, HOST: 4_050}
    await sleeping.look(_found(Health.READY, 1_002.0, "other"))
    assert sleeping.records == {sleeping.name: SleepRecord(canary="2, 3")}, "the first answer counts"


async def test_one_whose_definition_failed_to_wake_twice_is_put_to_sleep_no_more(sleeping: Sleeping) -> None:
    memory = sleeping.bench.reconciler._memory
    replica = await sleeping.look(_found(Health.READY, 1_001.0, "2, 3"))
    for count, may_sleep in ((1, True), (2, False)):
        memory.failed_sleeps[replica.id.model, replica.id.spec_hash] = count
        assert ((await sleeping.look()).sleep is not None) is may_sleep
    memory.note_asleep(sleeping.name, (), 905.0)
    assert (await sleeping.look(_found(Health.READY, 904.0), 4_000)).is_asleep, "one that sleeps is woken all the same"


async def test_one_that_sleeps_claims_what_it_holds_and_its_next_sleep_is_expected_to(sleeping: Sleeping) -> None:
    await sleeping.look(_found(Health.READY, 1_001.0, "2, 3"))
    sleeping.bench.reconciler._memory.note_asleep(sleeping.name, (), 905.0)
    seen = await sleeping.look(_found(Health.READY, 904.0), 4_000)  # as no probe has seen it yet
    assert seen.sleep is not None
    assert (seen.health, seen.sleep.asleep_claims["GPU-a"]) == (Health.SLEEPING, 4_000)
    assert not sleeping.bench.reconciler._memory.asleep_mib, "perhaps it is awake"
    seen = await sleeping.look(_found(Health.SLEEPING, 1_004.0), 800)
    assert (seen.health, seen.claims, seen.fault) == (Health.SLEEPING, ASLEEP, None)
    assert seen.sleep is not None
    assert (seen.sleep.since, seen.sleep.awake_claims) == (905.0, AWAKE)
    sleeping.bench.reconciler._memory.note_awake(sleeping.name, 1_010.0, 1_011.0)
    seen = await sleeping.look(_found(Health.SLEEPING, 1_010.5))  # a probe of before its wake
    assert (seen.health, seen.is_asleep) == (Health.READY, False)
    assert seen.claims == AWAKE, "the main memory in which its weights lay stays its own"
    assert seen.sleep is not None
    assert (seen.sleep.asleep_claims, seen.sleep.wake_s) == (ASLEEP, 1.0)
    seen = await sleeping.look(_found(Health.SLEEPING, 1_011.5), 800)
    assert seen.sleep is not None
    assert (seen.health, seen.sleep.since) == (Health.SLEEPING, 1_011.5), "somebody else put it to sleep since"
    seen = await sleeping.look(_found(Health.SLEEPING, 1_090.0), 800)
    assert seen.sleep is not None
    assert seen.sleep.since == sleeping.records[sleeping.name].since == 1_011.5


async def test_a_new_controller_finds_a_sleeper_by_its_record_and_without_one_it_is_of_no_use(
    sleeping: Sleeping,
) -> None:
    asleep = ProbedHealth(health=Health.SLEEPING, probed_at=1_020.0)
    sleeping.records[sleeping.name] = SleepRecord(canary="2, 3", since=1_005.0, woken_at=900.0, wake_s=0.5)
    seen = await sleeping.look(asleep, 800, replicas=0)
    assert seen.sleep is not None
    assert (seen.sleep.since, seen.sleep.wake_s, seen.claims, seen.fault) == (1_005.0, 0.5, ASLEEP, None)
    sleeping.records.clear()
    seen = await sleeping.look(asleep, 800, replicas=0)
    assert seen.is_asleep
    assert seen.fault == "it sleeps, and what it answered before is not known"


async def test_a_fault_of_its_sleep_is_seen_until_the_replica_is_gone(sleeping: Sleeping) -> None:
    sleeping.bench.reconciler._memory.faults[sleeping.name] = "it could not be woken: no"
    assert (await sleeping.look(_found(Health.READY, 1_001.0, "2, 3"))).fault == "it could not be woken: no"
