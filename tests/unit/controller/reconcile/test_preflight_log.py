"""What the log says of looks that fail, again and again: their outcome, once and then ever more rarely."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.engines.stub import StubDefinition
from controller.planning.actions import Preflight, PullImage
from controller.reconcile.executor import Executor
from controller.reconcile.operation_state import OperationState
from controller.reconcile.preflight import FIRST_REMINDER_S, LONGEST_REMINDER_S, Refusal, decide_mention
from controller.state import DesiredModel, DesiredState, Statement
from tests.fakes.fake_downloader import FakeDownloader
from tests.fakes.fake_runtime import FakeRuntime

MODEL = DesiredModel("m", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"))
DESIRED = DesiredState(1, {"m": MODEL})
RECHECK_S = 30.0
NOW = 1_000.0


class Looks:
    """An executor that looks at one model every 30 seconds of a clock of its own."""

    def __init__(self) -> None:
        self.now = NOW
        self.runtime, self.memory = FakeRuntime(lambda: self.now), OperationState()
        self.executor = Executor(
            self.runtime, self.memory, FakeDownloader(), instance="i", secret=b"s", stop_timeout_s=1.0,
            wake=lambda: None, clock=lambda: self.now,
        )  # fmt: skip

    async def look(self, count: int = 1) -> None:
        """As the plan asks for it."""
        for _ in range(count):
            self.executor.issue_action(Preflight("m", "hash", "before a start"), DESIRED, {})
            await self.executor.wait_until_idle()
            self.now += RECHECK_S


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "controller")
    return caplog


async def test_looks_that_fail_log_their_outcome_once_and_then_at_growing_intervals(
    log: pytest.LogCaptureFixture,
) -> None:
    looks = Looks()
    looks.runtime.preflight_error = "a.gguf is missing"
    await looks.look(16)
    assert log.messages == [
        "m cannot be started: a.gguf is missing",
        "m still cannot be started, for 1 min by now: a.gguf is missing",
        "m still cannot be started, for 3 min by now: a.gguf is missing",
        "m still cannot be started, for 7 min by now: a.gguf is missing",
    ]


async def test_another_outcome_is_logged_at_once(log: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    looks.runtime.preflight_error = "a.gguf is missing"
    await looks.look(2)
    looks.runtime.preflight_error = "a.gguf is empty"
    await looks.look(2)
    looks.runtime.preflight_error = None
    await looks.look(2)
    looks.runtime.preflight_error = "a.gguf is empty"
    await looks.look(1)
    assert log.messages == [
        "m cannot be started: a.gguf is missing",
        "m cannot be started: a.gguf is empty",
        "m can be started by now",
        "m cannot be started: a.gguf is empty",
    ]


async def test_a_pull_that_fails_logs_its_outcome(log: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    looks.runtime.pull_error = "no such manifest"
    looks.executor.issue_action(PullImage("m", "some/image", "the image is not on this host"), DESIRED, {})
    await looks.executor.wait_until_idle()
    assert log.messages == [
        "pull m: the image is not on this host",
        "image some/image is missing and cannot be pulled: no such manifest",
    ]


def test_what_was_said_of_a_definition_is_forgotten_with_it() -> None:
    memory = OperationState()
    memory.refusals["m", "hash"] = Refusal("a.gguf is missing", NOW, NOW)
    memory.prune_state(DESIRED, [], NOW)
    assert memory.refusals
    memory.prune_state(DesiredState(2, {"m": replace(MODEL, spec_hash="edited")}), [], NOW)
    assert not memory.refusals
    memory.refusals["m", "hash"] = Refusal("a.gguf is missing", NOW, NOW)
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
