"""What operations do and remember: downloads, failures, and what the log says of looks that fail again and again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controller.engines.base import Verdict
from controller.engines.stub import StubDefinition
from controller.executor import (
    FIRST_REMINDER_S,
    LONGEST_REMINDER_S,
    Executor,
    ExecutorOptions,
    OperationState,
    Refusal,
    decide_mention,
)
from controller.hosts import HOST
from controller.planning.actions import Action, DownloadSource, FetchFiles, Preflight, PullImage, PutToSleep, Stop, Wake
from controller.planning.draining import DrainState
from controller.redaction import Redactor
from controller.runtimes.base import StartError
from controller.state import (
    DesiredModel,
    DesiredState,
    FetchKey,
    Health,
    ObservedReplica,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    PullKey,
    ReplicaId,
    Statement,
)
from controller.state_dir import SleepRecord
from tests.fakes.fake_runtime import FakeDownloader, FakeRuntime, FakeSleeper
from tests.support.definitions import define
from tests.support.wait import until

SOURCE = "hf:a/b:Q4"
SECRET = "s3cret-s3cret"
NOW = 1_000.0
MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"))
WAITING = replace(MODEL, missing_source=SOURCE)
DESIRED = DesiredState(1, {"m": WAITING, "other": replace(WAITING, name="other")})
NOTHING = DesiredState(1, {})
SLEEPS = replace(MODEL, backend="vllm_serve", definition=define("vllm_serve", gpus=1, vllm_sleep="level1"))
SLEEPER = ObservedReplica(
    ReplicaId("m", 0, "hash", 1), "m-0", Phase.RUNNING, 900.0, claims={"A": 500, HOST: 5}, base_url="http://m"
)
ASLEEP = PutToSleep(SLEEPER.id, "m-0", "makes room", {"A": 500, HOST: 300})
AWAKE = Wake(SLEEPER.id, "m-0", "it sleeps at this index", {"A": 500, HOST: 300})


class Bench:
    """An executor over a fake host, by a clock of the test's own, which knows a secret of the model's."""

    def __init__(self) -> None:
        self.woken = 0
        self.now = NOW
        self.sleeper = FakeSleeper()
        redactor = Redactor(str)
        redactor.learn_secrets({"m": {"env": {"HUB_TOKEN": SECRET}}})
        self.runtime, self.memory, self.downloader = FakeRuntime(lambda: self.now), OperationState(), FakeDownloader()
        self.executor = Executor(
            self.runtime, self.memory, self.downloader, self.sleeper,
            options=ExecutorOptions("i", b"s", 1.0, redactor.redact_text), wake=self.wake, clock=lambda: self.now,
        )  # fmt: skip

    def wake(self) -> None:
        self.woken += 1

    async def order(self, model: str = "m") -> None:
        """Begin a download, as the plan requests it."""
        self.executor.issue_action(DownloadSource(model, SOURCE, "it is missing"), DESIRED, {})
        await asyncio.sleep(0)

    async def carry_out(self, action: Action, replica: ObservedReplica | None = None) -> None:
        self.executor.issue_action(action, DESIRED, {} if replica is None else {replica.name: replica})
        await self.executor.wait_until_idle()

    def change_sleep(self, action: PutToSleep | Wake) -> None:
        """Begin a sleep or a wake of a replica that answered `2, 3, 5` when it was loaded, and drains."""
        self.memory.sleepers.setdefault("m-0", SleepRecord(canary="2, 3, 5"))
        self.memory.drains["m-0"] = DrainState(NOW)
        self.executor.issue_action(action, DesiredState(1, {"m": SLEEPS}), {"m-0": SLEEPER})

    async def look(self, count: int = 1, error: str | None = None) -> None:
        """Preflights, every 30 seconds, with this outcome."""
        self.runtime.preflight_error = error
        for _ in range(count):
            await self.carry_out(Preflight("m", "hash", "before a start"))
            self.now += 30.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_two_models_of_one_source_download_it_once(bench: Bench) -> None:
    await bench.order()
    await bench.order("other")
    assert (bench.downloader.ordered, bench.memory.downloads) == ([SOURCE], {SOURCE: None})
    bench.downloader.finish(SOURCE)
    await bench.executor.wait_until_idle()
    assert (bench.memory.downloads, bench.woken) == ({}, 1)


async def test_a_failed_download_is_kept_without_secrets_and_backs_off(bench: Bench) -> None:
    for count, wait_s in ((1, 1.0), (2, 2.0)):
        await bench.order()
        bench.downloader.fail(SOURCE, f"the hub refuses {SECRET}")
        await bench.executor.wait_until_idle()
        failure = bench.memory.downloads[SOURCE]
        assert failure is not None
        assert (failure.count, failure.retry_at) == (count, NOW + wait_s)
        assert failure.error == f"{SOURCE} cannot be downloaded: the hub refuses ***"


async def test_a_copy_to_a_host_backs_off_and_ends_with_its_model(bench: Bench) -> None:
    asked: list[tuple[object, ...]] = []
    outcome: list[BaseException | None] = [StartError("no room"), StartError("no room"), None]

    async def fetch(*args: object) -> None:
        asked.append(args)
        if not outcome:
            await asyncio.Event().wait()
        if (error := outcome.pop(0)) is not None:
            raise error

    async def cancel(*args: object) -> None:
        asked.append(("cancel", *args))

    options = ExecutorOptions("i", b"s", 1.0, fetch_files=fetch, cancel_fetch=cancel)
    bench.executor = Executor(
        bench.runtime, bench.memory, bench.downloader, bench.sleeper,
        options=options, wake=bench.wake, clock=lambda: bench.now,
    )  # fmt: skip
    action, key = FetchFiles("m", "hash", "b", ("", "c"), "it lacks them"), FetchKey("m", "hash", "b")
    checks = {PreflightKey("m", "hash", host): PreflightResult(False, NOW, "missing") for host in "ab"}
    bench.memory.preflights = dict(checks)
    for count in (1, 2):
        await bench.carry_out(action)
        failure = bench.memory.fetches[key]
        assert failure is not None
        assert (failure.count, failure.error) == (count, "the files of m cannot be copied to host b: no room")
    assert bench.memory.preflights == checks
    await bench.carry_out(action)
    assert (bench.memory.fetches, list(bench.memory.preflights)) == ({}, [PreflightKey("m", "hash", "a")])
    assert asked == [("m", "b", ("", "c"))] * 3

    bench.executor.issue_action(action, DESIRED, {})
    await asyncio.sleep(0)
    bench.executor.cancel_unused_downloads(DesiredState(1, {"m": MODEL}))
    assert bench.memory.fetches == {key: None}
    bench.executor.cancel_unused_downloads(DesiredState(1, {}))
    await bench.executor.wait_until_idle()
    assert (bench.memory.fetches, asked[-1]) == ({}, ("cancel", "m", "b", False))
    bench.executor.issue_action(action, DESIRED, {})
    await asyncio.sleep(0)
    bench.executor.cancel_unused_downloads(DesiredState(1, {"m": replace(MODEL, spec_hash="new")}))
    await bench.executor.wait_until_idle()
    assert (bench.memory.fetches, asked[-1]) == ({}, ("cancel", "m", "b", True))
    outcome.append(StartError("no room"))
    await bench.carry_out(action)
    bench.executor.cancel_unused_downloads(DesiredState(1, {}))
    await bench.executor.wait_until_idle()
    assert (bench.memory.fetches, asked[-1]) == ({}, ("cancel", "m", "b", False)), "what a failed one left is removed"


async def test_a_download_that_no_model_waits_for_is_cancelled(bench: Bench) -> None:
    await bench.order()
    bench.executor.cancel_unused_downloads(DESIRED)
    assert bench.downloader.cancelled == []
    bench.executor.cancel_unused_downloads(DesiredState(1, {"m": MODEL}))
    await bench.executor.wait_until_idle()
    assert (bench.downloader.cancelled, bench.memory.downloads) == ([SOURCE], {})
    await bench.order()
    assert bench.downloader.ordered == [SOURCE, SOURCE], "the same may be ordered again"
    bench.downloader.finish(SOURCE)
    await bench.executor.wait_until_idle()


async def test_the_end_of_the_controller_waits_for_no_download(bench: Bench) -> None:
    await bench.order()
    bench.executor.cancel_pulls()
    await asyncio.wait_for(bench.executor.wait_until_idle(), 10)
    assert bench.downloader.cancelled == [], "it goes on in `transfers`, and the next controller waits for it"


async def test_a_failed_download_is_forgotten_with_its_last_model(bench: Bench) -> None:
    await bench.order()
    bench.downloader.fail(SOURCE, "no")
    await until("it has failed", lambda: bench.memory.downloads[SOURCE] is not None)
    bench.memory.prune_state(DESIRED, (), NOW)
    assert SOURCE in bench.memory.downloads
    bench.memory.forget_failures(WAITING)
    assert bench.memory.downloads == {}
    await bench.order()
    bench.memory.prune_state(NOTHING, (), NOW)
    assert bench.memory.downloads == {SOURCE: None}, "one that is under way stays known"
    bench.downloader.fail(SOURCE, "no")
    await bench.executor.wait_until_idle()
    bench.memory.prune_state(NOTHING, (), NOW)
    assert bench.memory.downloads == {}


async def test_what_a_refused_pull_or_preflight_says_is_logged_and_kept_without_secrets(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "controller")
    bench.runtime.pull_error = f"denied: {SECRET}"
    await bench.carry_out(PullImage("m", "some/image", "the image is not on this host"))
    refused = "image some/image is missing and cannot be pulled: denied: ***"
    assert caplog.messages == ["pull m: the image is not on this host", refused]
    failure = bench.memory.pulls[PullKey("some/image")]
    assert failure is not None
    assert failure.error == refused
    await bench.look(error=f"denied: {SECRET}")
    assert bench.memory.preflights[PreflightKey("m", "hash")].error == "denied: ***"


@pytest.mark.parametrize(("served", "waits_s", "count"), [(True, 0.0, 1), (False, 2.0, 2)])
async def test_what_was_ready_without_serving_as_declared_waits_longer_each_time(
    bench: Bench, served: bool, waits_s: float, count: int
) -> None:
    first = ReplicaId("m", 0, "hash", 1)
    bench.memory.record_failure(first, Verdict("before"), 800.0)
    replica = ObservedReplica(replace(first, attempt=2), "m-0", Phase.RUNNING, 900.0, 900.0, Health.READY, 910.0)
    reason = "it is of no use"
    await bench.carry_out(Stop(replica.id, "m-0", reason, Verdict(reason), served=served), replica)
    failure = bench.memory.failures[first.key]
    assert (failure.retry_at, failure.count) == (NOW + waits_s, count)
    assert (failure.error, failure.plain) == (f"{reason}. Last log lines:\nlast words", reason)


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_failure_that_was_forgotten_while_its_log_was_read_does_not_come_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    async def read_while_loaded(name: str, lines: int = 50) -> str:
        bench.memory.reset_failures(MODEL)
        if is_loaded:
            bench.memory.record_failure(replica.id, Verdict("later"), NOW)
        return "last words"

    monkeypatch.setattr(bench.runtime, "read_log_tail", read_while_loaded)
    replica = ObservedReplica(ReplicaId("m", 0, "hash", 1), "m-0", Phase.RUNNING, 900.0, 900.0, Health.STALLED, None)
    await bench.carry_out(Stop(replica.id, "m-0", "it hangs", Verdict("it hangs")), replica)
    assert [each.error for each in bench.memory.failures.values()] == (["later"] if is_loaded else [])


# Sleep and wake


async def test_a_sleep_is_recorded_with_the_gpus_that_it_left(bench: Bench) -> None:
    bench.change_sleep(ASLEEP)
    begun = PendingOp(OpKind.SLEEP, SLEEPER.id, ASLEEP.claims, NOW)
    assert (bench.memory.pending, bench.woken) == ({"m-0": begun}, 0)
    bench.now = NOW + 3
    await bench.executor.wait_until_idle()
    assert bench.sleeper.calls == [("sleep", "http://m")]
    assert bench.memory.sleepers == {"m-0": SleepRecord(canary="2, 3, 5", since=NOW + 3)}
    assert bench.memory.left_at == {"A": NOW + 3}, "main memory is not left"
    assert bench.memory.pending == {"m-0": replace(begun, finished_at=NOW + 3)}
    assert (bench.memory.drains, bench.memory.faults, bench.woken) == ({}, {}, 1)


async def test_a_wake_is_recorded_with_the_time_that_it_took(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "controller")
    bench.memory.sleepers["m-0"] = SleepRecord(canary="2, 3, 5", since=NOW - 60, woken_at=NOW - 90, wake_s=7.0)
    bench.change_sleep(AWAKE)
    begun = PendingOp(OpKind.WAKE, SLEEPER.id, AWAKE.claims, NOW)
    assert bench.memory.pending == {"m-0": begun}
    bench.now = NOW + 1.5
    await bench.executor.wait_until_idle()
    assert bench.sleeper.calls == [("wake", "http://m")]
    assert bench.memory.sleepers == {"m-0": SleepRecord(canary="2, 3, 5", woken_at=NOW + 1.5, wake_s=1.5)}
    assert bench.memory.pending == {"m-0": replace(begun, finished_at=NOW + 1.5)}
    assert (bench.memory.drains, bench.memory.faults, bench.memory.left_at, bench.woken) == ({}, {}, {}, 1)
    assert caplog.messages == ["wake m-0: it sleeps at this index", "m-0 is awake after 1.50 s"]


async def test_a_wake_with_another_canary_is_a_fault_and_not_recorded(bench: Bench) -> None:
    bench.memory.sleepers["m-0"] = asleep = SleepRecord(canary="2, 3, 5", since=NOW - 60)
    bench.sleeper.canary = "2, 3, 6"
    bench.change_sleep(AWAKE)
    await bench.executor.wait_until_idle()
    assert bench.memory.faults == {
        "m-0": "it could not be woken: it answers the canary otherwise than when it was loaded"
    }
    assert bench.memory.sleepers == {"m-0": asleep}
    assert bench.memory.drains.keys() == {"m-0"}, "nothing is routed to it"
    assert (bench.memory.pending["m-0"].finished_at, bench.woken) == (NOW, 1)


@pytest.mark.parametrize(
    ("action", "failure"), [(ASLEEP, "it could not be put to sleep"), (AWAKE, "it could not be woken")]
)
async def test_a_sleep_or_wake_that_fails_is_a_fault_without_secrets(
    bench: Bench, caplog: pytest.LogCaptureFixture, action: PutToSleep | Wake, failure: str
) -> None:
    bench.sleeper.error = f"/sleep: HTTP 500: {SECRET}"
    bench.change_sleep(action)
    await bench.executor.wait_until_idle()
    assert bench.memory.faults == {"m-0": f"{failure}: /sleep: HTTP 500: ***"}
    assert (bench.memory.pending["m-0"].finished_at, bench.woken) == (NOW, 1)
    bench.sleeper.bug = ZeroDivisionError(f"a bug with {SECRET}")
    bench.change_sleep(action)
    await bench.executor.wait_until_idle()
    assert bench.memory.faults == {"m-0": f"{failure}: internal error: ZeroDivisionError('a bug with ***')"}
    assert f"{action.kind} of m-0 failed" in caplog.messages
    assert (bench.memory.sleepers, bench.woken) == ({"m-0": SleepRecord(canary="2, 3, 5")}, 2)


async def test_sleeps_and_wakes_that_fail_are_counted_until_a_wake_goes_well(bench: Bench) -> None:
    bench.memory.sleepers["m-0"] = SleepRecord(canary="2, 3, 5", since=NOW - 60)
    key = (SLEEPER.id.model, SLEEPER.id.spec_hash)
    for action, canary, failed in (
        (AWAKE, "2, 3, 6", {key: 1}),
        (ASLEEP, "", {key: 1}),  # it goes well, which tells nothing of its wake
        (AWAKE, "2, 3, 6", {key: 2}),
        (AWAKE, "2, 3, 5", {}),
    ):
        bench.sleeper.canary = canary
        bench.change_sleep(action)
        await bench.executor.wait_until_idle()
        assert bench.memory.failed_sleeps == failed


# What the log says of looks that fail


async def test_looks_that_fail_log_their_outcome_once_and_then_at_growing_intervals(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "controller")
    await bench.look(16, "a.gguf is missing")
    assert caplog.messages == [
        "m cannot be started: a.gguf is missing",
        *(f"m still cannot be started, for {minutes} min by now: a.gguf is missing" for minutes in (1, 3, 7)),
    ]
    caplog.clear()
    for error in ("a.gguf is empty", None, "a.gguf is empty"):
        await bench.look(2, error)
    assert caplog.messages == [
        "m cannot be started: a.gguf is empty",
        "m can be started by now",
        "m cannot be started: a.gguf is empty",
    ]


def test_what_was_said_of_a_definition_is_forgotten_with_it() -> None:
    memory = OperationState()
    memory.refusals[PreflightKey("m", "hash")] = refusal = Refusal("a.gguf is missing", NOW, NOW)
    memory.prune_state(DESIRED, [], NOW)
    assert memory.refusals
    memory.prune_state(DesiredState(2, {"m": replace(MODEL, spec_hash="edited")}), [], NOW)
    assert not memory.refusals
    memory.refusals[PreflightKey("m", "hash")] = refusal
    memory.reset_failures(MODEL)
    assert not memory.refusals


@pytest.mark.parametrize(
    ("mentions", "age_s", "is_due"),
    [
        (1, FIRST_REMINDER_S - 1, False),
        (1, FIRST_REMINDER_S, True),
        (2, 2 * FIRST_REMINDER_S - 1, False),
        (2, 2 * FIRST_REMINDER_S, True),
        (1_000_000, LONGEST_REMINDER_S - 1, False),
        (1_000_000, LONGEST_REMINDER_S, True),
        (1, -1, True),  # the clock was set back
    ],
)
def test_each_mention_of_the_same_refusal_waits_longer(mentions: int, age_s: float, is_due: bool) -> None:
    known = Refusal("gone", since=NOW - 5, mentioned_at=NOW, mentions=mentions)
    now = NOW + age_s
    expected = Refusal("gone", NOW - 5, now, mentions + 1) if is_due else None
    assert decide_mention(known, "gone", now) == expected
    assert decide_mention(known, "another", now) == Refusal("another", now, now)
    assert decide_mention(None, "gone", now) == Refusal("gone", now, now)
