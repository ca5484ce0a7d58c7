"""Finds what loaded engines applied otherwise than declared. Pure."""

from __future__ import annotations

from controller.engines import REPLICA_ENGINES
from controller.engines.figure_gaps import FigureGap
from controller.state import DesiredModel, ObservedReplica, Phase


def list_gaps(model: DesiredModel | None, replica: ObservedReplica) -> tuple[FigureGap, ...]:
    """Return what the replica's engine applied otherwise than the model's definition declares, in a fixed order.

    Empty: nothing, as far as the engine reports. Empty also for a model that is no longer declared (None), for an
    engine that has ended, and for one of an older definition, which differs as a whole.
    """
    if model is None or replica.phase is Phase.EXITED or replica.id.spec_hash != model.spec_hash:
        return ()
    return REPLICA_ENGINES[model.backend].compare_figures(model.definition, replica.figures)


def describe_gap(replica: str, gap: FigureGap) -> str:
    """Return a gap in one sentence. `replica` is the replica's name."""
    return f"{gap.field} is declared as {gap.declared}, and {replica} reports {gap.applied}"
