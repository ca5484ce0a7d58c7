"""What operations remember of failures."""

from __future__ import annotations

from controller.engines.stub import StubDefinition
from controller.planning.actions import Preflight, PullImage
from controller.reconcile.executor import Executor
from controller.reconcile.operation_state import OperationState
from controller.redaction.redactor import Redactor
from controller.state import DesiredModel, DesiredState, Statement
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
        runtime, memory, instance="i", secret=b"s", stop_timeout_s=1.0, wake=lambda: None, clock=lambda: 1_000.0,
        redact=known.redact_text,
    )  # fmt: skip
    operations.issue_action(PullImage("m", "some/image", reason="missing"), DESIRED, {})
    operations.issue_action(Preflight("m", "hash", reason="new"), DESIRED, {})
    await operations.wait_until_idle()
    failure = memory.pulls["some/image"]
    assert failure is not None
    assert failure.error == "image some/image is missing and cannot be pulled: denied: ***"
    assert memory.preflights["m", "hash"].error == "denied: ***"
