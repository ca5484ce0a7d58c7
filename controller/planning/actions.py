"""The parts of a plan. Every action is idempotent, has a reason in words, and is started and never awaited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from controller.engines.base import Verdict
from controller.state import DesiredState, ReplicaId

WAITING_FOR_ROOM: Final = "waiting for room"
"""Beginning of every reason of a model that waits for memory which others leave. Gateways pass such a reason on."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """Plan action: check whether a replica of this definition could be started: its files, image and arguments. The
    result appears in `ObservedState.preflights`. `reason` says in words why the plan has the action."""

    kind: ClassVar[str] = "preflight"
    model: str
    spec_hash: str
    reason: str
    host: str = ""
    """Name of the host, as in `Host.name`; so in the other actions."""


@dataclass(frozen=True, slots=True)
class PullImage:
    """Plan action: pull the container image that `model` needs. The time that the pull takes does not count towards a
    start deadline, and a failed pull is retried with a backoff of its own."""

    kind: ClassVar[str] = "pull"
    model: str
    image: str
    reason: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class DownloadSource:
    """Plan action: download the files of `source`, in its canonical form, that `model` needs. The time that it takes
    does not count towards a start deadline, and a failed download is retried with a backoff of its own."""

    kind: ClassVar[str] = "download"
    model: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class FetchFiles:
    """Plan action: copy the files of a model to a host that lacks them, from `sources`, names of hosts as
    `planning.hosts.find_file_sources` returns them. The time that it takes does not count towards a start deadline, and
    a failed copy is retried with a backoff of its own."""

    kind: ClassVar[str] = "fetch"
    model: str
    spec_hash: str
    host: str
    sources: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaAction:
    """Base of the actions on one replica. `id`: the replica and the attempt. In the actions, `name` is the name of the
    replica's container or process, and `reason` says in words why the plan has the action."""

    id: ReplicaId

    @property
    def model(self) -> str:
        """Name of the replica's model."""
        return self.id.model


@dataclass(frozen=True, slots=True)
class Start(ReplicaAction):
    """Plan action: start one replica, as the attempt in `id`. `claims`: MiB that it reserves, by GPU uuid or the host's
    `memory_key`."""

    kind: ClassVar[str] = "start"
    reason: str
    claims: Mapping[str, int] = field(default_factory=dict)
    host: str = ""


@dataclass(frozen=True, slots=True)
class Drain(ReplicaAction):
    """Plan action: route no new requests to a replica and let its requests finish. A later plan stops the replica, once
    it is empty or at `deadline`, a Unix time; None: however long its requests take."""

    kind: ClassVar[str] = "drain"
    name: str
    reason: str
    deadline: float | None


@dataclass(frozen=True, slots=True)
class Undrain(ReplicaAction):
    """Plan action: route requests to a draining replica again, because the replica is wanted after all, or because what
    was to replace it cannot start."""

    kind: ClassVar[str] = "undrain"
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop(ReplicaAction):
    """Plan action: stop a running replica, without waiting for its requests. `failure`: why the replica failed, which
    counts towards its backoff; None: it did not fail. `served` False: the time that it was ready does not count for the
    backoff."""

    kind: ClassVar[str] = "stop"
    name: str
    reason: str
    failure: Verdict | None = None
    served: bool = True
    """False: the replica never served as declared, so its backoff grows as if it had never been ready."""


@dataclass(frozen=True, slots=True)
class Remove(ReplicaAction):
    """Plan action: remove the container or process record `name` of a replica that has ended or was only half created.
    `failure`: why the replica failed, which counts towards the replica's backoff; None: it did not fail."""

    kind: ClassVar[str] = "remove"
    name: str
    reason: str
    failure: Verdict | None = None


@dataclass(frozen=True, slots=True)
class PutToSleep(ReplicaAction):
    """Plan action: let an empty replica let go of most GPU memory, in place of a stop. `claims`: MiB that it reserves
    meanwhile, by GPU uuid or `memory_key`."""

    kind: ClassVar[str] = "sleep"
    name: str
    reason: str
    claims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Wake(ReplicaAction):
    """Plan action: end a replica's sleep. `claims`: MiB that it reserves awake, by GPU uuid or `memory_key`. Until it
    has answered its canary as when it was loaded, it gets no request."""

    kind: ClassVar[str] = "wake"
    name: str
    reason: str
    claims: Mapping[str, int]


Action: TypeAlias = (
    Preflight | PullImage | DownloadSource | FetchFiles | Start | Drain | Undrain | Stop | Remove | PutToSleep | Wake
)


@dataclass(frozen=True, slots=True)
class Blocked:
    """A wanted replica that cannot be started now, or an unwanted one that cannot be stopped now, and why. `index`
    None: the whole model.

    `failed`: nothing that is under way now will change it, though a retry may be due at `retry_at`; the model's state
    is `failed` then. `retry_at`: Unix time of the next attempt; None: not known. `plain`: the reason for clients who
    may not administer, as `Verdict.plain`.
    """

    model: str
    index: int | None
    reason: str
    failed: bool = False
    retry_at: float | None = None
    plain: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of `plan`: what to do now, what is blocked, and when to plan again.

    `actions`: to be started in this order. `wake_at`: Unix time at which to plan again at the latest, always after the
    plan's `now`; None: only a change of the desired or observed state needs another plan. `generation`: that of the
    desired state.
    """

    generation: int
    actions: tuple[Action, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    wake_at: float | None = None
    desired: DesiredState | None = None
    """The desired state with the evictions of this plan; None: the state that the plan was made for."""
    evicted: Mapping[str, str] = field(default_factory=dict)
    """Evicted models that lose an engine by this plan or have none, to the reason. A request loads them again."""
    reload_requested: tuple[str, ...] = ()
    """Evicted models that are wanted again, because requests wait for them."""

    def apply_evictions(self, desired: DesiredState) -> DesiredState:
        """Return the plan's own desired state, in which its evictions are applied. `desired` must be the state that the
        plan was made for: nothing of it but `paused` is looked at.

        Return `desired` unchanged while `desired.paused`, since then nothing is evicted, or if the plan has no state of
        its own.
        """
        return desired if desired.paused or self.desired is None else self.desired
