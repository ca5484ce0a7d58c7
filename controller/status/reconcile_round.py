"""The result of one round of the controller's loop. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from controller.planning.actions import Plan
from controller.schema.status import ModelStatus
from controller.state import DesiredState, ObservedState


@dataclass(slots=True)
class Round:
    """What one complete round saw and decided: the desired and the observed state, the plan, and the models' statuses.

    The reconciler makes one per complete round and keeps the last, which must not be changed. Previews and dry runs
    make further ones, of which nothing is carried out.
    """

    desired: DesiredState
    """What was wanted, with the plan's evictions applied."""
    observed: ObservedState
    """What was observed, with the operations and drains that the round issued."""
    plan: Plan
    """The plan of the round. Its actions were started, unless the controller is paused."""
    statuses: tuple[ModelStatus, ...]
    """Status of each model, in name order, with the state that may be published (`publishable_statuses`)."""
