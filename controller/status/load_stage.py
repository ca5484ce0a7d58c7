"""How far a model's load is, by its replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.state import DesiredModel, Health, ObservedReplica, Phase


def is_starting(model: DesiredModel, replica: ObservedReplica) -> bool:
    """Whether it is an engine of what is wanted, and was never ready."""
    return (
        model.runs
        and replica.id.index < model.replicas
        and replica.phase is Phase.RUNNING
        and replica.id.spec_hash == model.spec_hash
        and replica.ready_since is None
    )


def model_progress(
    model: DesiredModel, replicas: Iterable[ObservedReplica], fractions: Mapping[str, float]
) -> float | None:
    """Mean over the wanted replicas, 0 to 1: ready ones count 1, those that did not tell yet 0.

    `fractions`: replica name to how far it says it is. None: nothing is wanted, or nothing is known of any.
    """
    by_index: dict[int, float] = {}
    for replica in replicas:
        if replica.phase is not Phase.RUNNING or replica.id.spec_hash != model.spec_hash:
            continue
        fraction = 1.0 if replica.health is Health.READY else fractions.get(replica.name)
        if fraction is not None and replica.id.index < model.replicas:
            by_index[replica.id.index] = max(fraction, by_index.get(replica.id.index, 0.0))
    return sum(by_index.values()) / model.replicas if by_index else None
