"""What the runtime is asked of replicas that run."""

from __future__ import annotations

from typing import Any, cast

from controller.engines.stub import StubDefinition
from controller.redaction.redactor import redact_nothing
from controller.reports.drift_detector import DriftDetector
from controller.runtimes.base import Rendered, SeenReplica
from controller.schema.desired import Definition
from controller.state import (
    DesiredModel,
    DesiredState,
    Health,
    ObservedReplica,
    ObservedState,
    Phase,
    ReplicaId,
    Statement,
)
from controller.status.reconcile_round import Round
from tests.fakes.fake_runtime import FakeRuntime


class ClaimsRuntime(FakeRuntime):
    """Remembers the claims that it is to render by."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.asked: list[dict[str, int]] = []

    async def render_replica(self, replica: SeenReplica, definition: Definition, image: str | None) -> Rendered | None:
        """As the fake."""
        self.asked.append(dict(replica.claims))
        return await super().render_replica(replica, definition, image)


async def test_a_command_line_follows_the_claims_of_its_start_whatever_was_raised_since() -> None:
    runtime = ClaimsRuntime()
    detector = DriftDetector(runtime, file_since=dict, clock=lambda: 0.0, redact=redact_nothing)
    model = DesiredModel("m", StubDefinition(backend="stub"), "stub", "h", 1, Statement("file", 0.0, ""), gpu_count=1)
    replica = ObservedReplica(
        ReplicaId("m", 0, "h"),
        "rh-i-m-0-h-1",
        Phase.RUNNING,
        0.0,
        health=Health.READY,
        claims={"GPU-a": 7_000},
        start_claims={"GPU-a": 4_000},
    )
    observed = ObservedState(0.0, (replica,))
    await detector.check_drift(Round(DesiredState(1, {"m": model}), observed, cast("Any", _NoPlan), ()))
    assert runtime.asked == [{"GPU-a": 4_000}]


class _NoPlan:
    blocked = ()
