"""Which bucket a replica falls into."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.engines.stub import StubDefinition
from controller.planning.classify import Buckets, classify_replicas
from controller.state import DesiredModel, Health, ObservedReplica, Phase, ReplicaId, Statement

NOW = 10_000.0
WANT = DesiredModel("m", StubDefinition(backend="stub"), "stub", "new", 1, Statement("file", 0.0, "enabled"))


@pytest.mark.parametrize("spec", ["new", "old"])
def test_of_two_replicas_at_one_index_the_one_that_serves_is_kept(spec: str) -> None:
    starting = ObservedReplica(ReplicaId("m", 0, spec, 1), "first", Phase.RUNNING, NOW - 20, NOW - 20)
    ready = replace(starting, id=ReplicaId("m", 0, spec, 2), name="second", health=Health.READY, ready_since=NOW - 10)
    buckets = classify_replicas(WANT, [starting, ready], [], NOW)
    kept = Buckets(current={0: ready}) if spec == "new" else Buckets(outdated={0: ready})
    assert buckets == replace(kept, surplus=[starting])
