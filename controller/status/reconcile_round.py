"""What one round of the controller's loop comes to. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from controller.planning.actions import Plan
from controller.schema.status import ModelStatus
from controller.state import DesiredState, ObservedState


@dataclass(slots=True)
class Round:
    """What one complete round saw and decided."""

    desired: DesiredState
    observed: ObservedState
    plan: Plan
    statuses: tuple[ModelStatus, ...]
