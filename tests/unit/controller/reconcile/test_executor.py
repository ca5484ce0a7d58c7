"""What operations remember of failures."""

from __future__ import annotations

import pytest

from controller.engines.base import Verdict
from controller.engines.stub import StubDefinition
from controller.planning.actions import Preflight, PullImage, Stop
from controller.reconcile.executor import Executor
from controller.reconcile.operation_state import OperationState
from controller.redaction.redactor import Redactor
from controller.state import DesiredModel, DesiredState, Health, ObservedReplica, Phase, ReplicaId, Statement
from tests.fakes.fake_downloader import FakeDownloader
from tests.fakes.fake_runtime import FakeRuntime

SECRET = "s3cret-s3cret"
DESIRED = DesiredState(
    1, {"m": DesiredModel("m", StubDefinition(backend="stub"), "stub", "hash", 1, Statement("file", 0.0, "enabled"))}
)


async def test_what_a_refused_pull_or_preflight_says_is_kept_without_secrets() -> None:
    known = Redactor(str)
    known.learn_secrets({"m": {"env": {"REGISTRY_TOKEN": SECRET}}})
    runtime, memory = FakeRuntime(lambda: 1_000.0), OperationState()
    runtime.pull_error = runtime.preflight_error = f"denied: {SECRET}"
    operations = Executor(
        runtime, memory, FakeDownloader(), instance="i", secret=b"s", stop_timeout_s=1.0, wake=lambda: None,
        clock=lambda: 1_000.0, redact=known.redact_text,
    )  # fmt: skip
    operations.issue_action(PullImage("m", "some/image", reason="missing"), DESIRED, {})
    operations.issue_action(Preflight("m", "hash", reason="new"), DESIRED, {})
    await operations.wait_until_idle()
    failure = memory.pulls["some/image"]
    assert failure is not None
    assert failure.error == "image some/image is missing and cannot be pulled: denied: ***"
    assert memory.preflights["m", "hash"].error == "denied: ***"


@pytest.mark.parametrize(("served", "waits_s", "count"), [(True, 0.0, 1), (False, 2.0, 2)])
async def test_what_was_ready_without_serving_as_declared_waits_longer_each_time(
    served: bool, waits_s: float, count: int
) -> None:
    runtime, memory = FakeRuntime(lambda: 1_000.0), OperationState()
    operations = Executor(
        runtime,
        memory,
        FakeDownloader(),
        instance="i",
        secret=b"s",
        stop_timeout_s=1.0,
        wake=lambda: None,
        clock=lambda: 1_000.0,
    )
    first = ReplicaId("m", 0, "hash", 1)
    memory.record_failure(first, Verdict("before"), 800.0)
    replica = ObservedReplica(ReplicaId("m", 0, "hash", 2), "m-0", Phase.RUNNING, 900.0, 900.0, Health.READY, 910.0)
    stop = Stop(replica.id, "m-0", "it is of no use", Verdict("it is of no use"), served=served)
    operations.issue_action(stop, DESIRED, {"m-0": replica})
    await operations.wait_until_idle()
    failure = memory.failures[first.key]
    assert (failure.retry_at, failure.count) == (1_000.0 + waits_s, count)
    assert failure.error == "it is of no use. Last log lines:\nlast words"
    assert failure.plain == "it is of no use"
