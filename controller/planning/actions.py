"""What a plan is made of. Every action is idempotent, carries its reason, and is started, never awaited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from controller.engines.base import Verdict
from controller.state import DesiredState, ReplicaId


@dataclass(frozen=True, slots=True)
class Preflight:
    """Look whether a replica of this definition could be started."""

    kind: ClassVar[str] = "preflight"
    model: str
    spec_hash: str
    reason: str


@dataclass(frozen=True, slots=True)
class PullImage:
    """Fetch an image, outside every start deadline."""

    kind: ClassVar[str] = "pull"
    model: str
    image: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaAction:
    """An action on one replica."""

    id: ReplicaId

    @property
    def model(self) -> str:
        """The replica's model."""
        return self.id.model


@dataclass(frozen=True, slots=True)
class Start(ReplicaAction):
    """Start one replica on these GPUs."""

    kind: ClassVar[str] = "start"
    reason: str
    claims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drain(ReplicaAction):
    """Route nothing new to a replica and let its requests finish. `deadline` None only reports."""

    kind: ClassVar[str] = "drain"
    name: str
    reason: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Undrain(ReplicaAction):
    """Route to a replica again: it is wanted after all, and was not stopped yet."""

    kind: ClassVar[str] = "undrain"
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop(ReplicaAction):
    """End a running replica. `failure`: it is ended because it failed, which counts towards its backoff."""

    kind: ClassVar[str] = "stop"
    name: str
    reason: str
    failure: Verdict | None = None
    served: bool = True
    """False: what it was ready for is not what was declared, so its backoff grows as if it never had been ready."""


@dataclass(frozen=True, slots=True)
class Remove(ReplicaAction):
    """Clear away what an ended or half-created replica left."""

    kind: ClassVar[str] = "remove"
    name: str
    reason: str
    failure: Verdict | None = None


Action: TypeAlias = Preflight | PullImage | Start | Drain | Undrain | Stop | Remove


@dataclass(frozen=True, slots=True)
class Blocked:
    """What is wanted and cannot be done now. `failed`: nothing is under way that would change it."""

    model: str
    index: int | None
    reason: str
    failed: bool = False
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Ordered actions, what is blocked and why, and when to look again at the latest."""

    generation: int
    actions: tuple[Action, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    wake_at: float | None = None
    desired: DesiredState | None = None
    """What is wanted once it was decided which models are evicted; None: as it was given."""
    evicted: Mapping[str, str] = field(default_factory=dict)
    """Those of these models that now lose an engine, or have none, each with the reason: no way back but demand."""
    reload_requested: tuple[str, ...] = ()
    """Evicted models that requests wait for."""

    def apply_evictions(self, desired: DesiredState) -> DesiredState:
        """What is wanted, with those decisions: nothing is evicted while the controller is paused."""
        return desired if desired.paused or self.desired is None else self.desired
