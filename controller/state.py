"""What is wanted and what there is: the two inputs of `plan`, `assess_models` and `placement`. Values only.

Times are Unix seconds. GPU memory is in MiB. "Unknown" is None and never the same as zero or empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Final, Literal

from pydantic import JsonValue

from controller.schema.attempts import AttemptNumbers
from controller.schema.desired import Definition
from controller.schema.keys import KeyDefinition

PREFLIGHT_FRESH_S: Final = 60.0
"""A preflight older than this is repeated before it is relied on."""
HOST: Final = "host"
"""Stands for main memory among the uuids of a claim."""


@dataclass(frozen=True, slots=True, order=True)
class ReplicaId:
    """One attempt at one replica. A replica that is started again is a new attempt with a new name."""

    model: str
    index: int
    spec_hash: str
    attempt: int = 1

    @property
    def key(self) -> ReplicaKey:
        """What failures are counted by."""
        return ReplicaKey(self.model, self.index, self.spec_hash)


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """A replica's place and what it runs, over all attempts."""

    model: str
    index: int
    spec_hash: str

    @property
    def text(self) -> str:
        """What `AttemptNumbers` knows it by."""
        return f"{self.model}/{self.index}/{self.spec_hash}"


@dataclass(frozen=True, slots=True)
class Statement:
    """Which statement rules a model (DESIGN.md §3, "What is wanted")."""

    kind: Literal["file", "autoload", "load", "unload"]
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """One model after merge, overrides and demand: what the plan works towards."""

    name: str
    definition: Definition
    """The effective definition: the declared one with the override's parameters."""
    backend: str
    spec_hash: str
    replicas: int
    """How many engines are wanted now; 0: unloaded."""
    statement: Statement
    first_declared_at: float = 0.0
    """Unix time since when the files have a model of this name."""
    runs: bool = True
    """False: a remote, nothing to start."""
    image: str | None = None
    gpu_count: int = 0
    gpu_choice: tuple[str, ...] = ()
    """Uuids or indices that the replica must use; empty: any."""
    vram_mib: int | None = None
    """Per GPU; None claims whole GPUs."""
    start_timeout_s: float = 600.0
    drain_timeout_s: float = 300.0
    autoload: bool = False
    """Whether a request for it may load it now: an operator's unload holds against that."""
    drain_ends: bool = True
    """False: an operator's unload, or an eviction, whose deadline only reports."""
    memory_mib: int | None = None
    """Main memory of one replica, as declared; None: nothing is said."""
    pinned: bool = False
    """It is never unloaded for want of use, or to make room."""
    idle_ttl_s: float | None = None
    """Unused for so long, it is unloaded, if a request would load it again; None: never for that."""
    min_residency_s: float | None = None
    """It stays loaded for so long at least, whoever wants its room; None: as long as its load took."""
    demand_replicas: int = 0
    """How many engines a request would load, of an `autoload` model that was unloaded for others' sake or for want of
    use."""
    in_files: Definition | None = None
    """The definition as the files declare it, where a load's parameters change it."""
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    """The load's parameters in force."""

    @property
    def declared_definition(self) -> Definition:
        """The definition as the files declare it."""
        return self.in_files or self.definition


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All models, by name."""

    generation: int
    models: Mapping[str, DesiredModel]
    paused: bool = False
    revision: int = 0
    """Counts changes of files, overrides and demand; 0: not counted."""
    keys: Mapping[str, KeyDefinition] = field(default_factory=dict)
    """By name. Gateways check them; no model depends on them."""
    swap_wait_s: float = 30.0
    """How long a request waits for the room of a model that is in use, before that one gets no new requests."""
    preflight_recheck_s: float = 30.0
    """A failed preflight is looked at again this often."""


class Phase(StrEnum):
    """What the runtime says of a replica."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class Health(StrEnum):
    """What the probes say of a running replica."""

    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"
    """Was ready; the last probe failed. Unrouted, not restarted."""
    DEAD = "dead"
    """The engine says of itself that it is dead."""
    STALLED = "stalled"
    """Busy, and no progress for 120 s."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a replica ended. `code` None: not known (it was not our child)."""

    code: int | None
    oom: bool = False
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Draining:
    """A drain that is under way. Its deadline follows from why the replica is to leave, which may change meanwhile."""

    since: float
    idle: bool | None
    """True: every gateway reports zero under a table that no longer routes to it. None: not known."""


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """Probes in a row: to each of them the engine said that nothing was inside, and it did no work between them."""

    since: float
    """When the first of them began."""
    until: float
    """When the last of them began."""


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """One engine that carries our labels."""

    id: ReplicaId
    name: str
    phase: Phase
    created_at: float
    started_at: float | None = None
    health: Health = Health.STARTING
    ready_since: float | None = None
    """When it first was ready; None: never was, as far as is known."""
    base_url: str | None = None
    claims: Mapping[str, int] = field(default_factory=dict)
    """What it was started with, or what it was seen to hold since, whichever is more."""
    start_claims: Mapping[str, int] | None = None
    """What it was started with, which its command line follows; None: the same."""
    exit: Exit | None = None
    draining: Draining | None = None
    image_id: str | None = None
    argv: tuple[str, ...] = ()
    context_length: int | None = None
    """Tokens of one request, as the ready engine tells; None: it has not told."""
    system_first: bool = False
    """The model's chat template takes system messages at the beginning alone, as the ready engine tells."""
    kv_cache_tokens: int | None = None
    """Tokens that its KV cache holds, as its metrics tell; None: they do not."""
    is_preempting: bool = False
    """Its metrics told lately that it takes its cache from requests that it has begun."""
    idle_span: IdleSpan | None = None
    """How long the engine has said that it is idle; None: at the last probe it was not, or it does not tell."""


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """The requests for one model, by all gateways."""

    waiting: int | None = 0
    """Those that wait for a load or a slot; None: a gateway that may hold some is lost."""
    waits_since: float | None = None
    """Since when the one that came first waits."""
    last_used: float | None = None
    """When a request last came or ended."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one replica takes, in MiB, as observed or predicted. None: not known."""

    per_gpu_mib: int | None = None
    host_mib: int | None = None
    """Main memory, of an engine with GPUs what it takes beside theirs."""
    gpu_share: float | None = None
    """Set: it takes this share of each of its GPUs, and `per_gpu_mib` at least."""
    host_grows: bool = False
    """A part of `host_mib` is filled only while it serves, so that a replica that was just loaded holds less."""
    observed_per_gpu_mib: int | None = None
    """The most that one was seen to take of one of its GPUs, whatever is set aside; None: that was never seen."""

    def mib_on_gpu(self, gpu: Gpu) -> int | None:
        """MiB of this GPU."""
        if self.gpu_share is None:
            return self.per_gpu_mib
        return max(self.per_gpu_mib or 0, ceil(self.gpu_share * gpu.total_mib))


class OpKind(StrEnum):
    """What can be under way for a replica."""

    START = "start"
    STOP = "stop"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class PendingOp:
    """A side effect that was issued. A finished one stays until an observation that began after its end."""

    kind: OpKind
    id: ReplicaId
    claims: Mapping[str, int] = field(default_factory=dict)
    began_at: float = 0.0
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """Whether a replica of this definition could be started: files, image, arguments."""

    ok: bool
    at: float
    error: str | None = None
    missing_image: str | None = None
    """Set when all that is missing is this image, which can be pulled."""

    def is_fresh(self, now: float, recheck_s: float) -> bool:
        """Whether it need not be looked at again: a file that was missing may have arrived, one that was there gone.
        One that failed is fresh for `recheck_s` seconds."""
        # An age below zero: the clock was set back.
        return 0 <= now - self.at < (PREFLIGHT_FRESH_S if self.ok else recheck_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """Consecutive failures of one replica key, or of one image's pull."""

    count: int
    at: float
    error: str
    retry_at: float | None
    """None parks it: the same definition cannot succeed, so only an edit helps."""
    attempt: int = 0
    """The highest attempt that failed."""

    def must_wait(self, now: float) -> bool:
        """Whether another attempt must not begin yet."""
        # Before `at`: the clock was set back, and what it said of the future means nothing any more.
        return self.retry_at is None or self.at <= now < self.retry_at


@dataclass(frozen=True, slots=True)
class GpuDriver:
    """The host's NVIDIA driver. None: the driver does not say."""

    version: str | None = None
    """As in `570.195.03`."""
    cuda_version: str | None = None
    """The latest CUDA that it runs, as in `12.8`."""
    brands: tuple[str, ...] = ()
    """Of its GPUs, each once, as NVIDIA's container toolkit names them; empty: not known of all of them."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has memory of a GPU."""

    pid: int
    """The host's number."""
    mib: int | None
    """None: the driver does not say."""
    name: str | None = None
    replica: str | None = None
    """Name of the replica that it belongs to, or belonged to; None: it is none of ours, as far as is known."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance of a GPU. `used_mib` counts everybody's use."""

    uuid: str
    """`MIG-...` of an instance."""
    index: int
    """Of an instance: its GPU's, which others then have too."""
    name: str
    total_mib: int
    used_mib: int = 0
    utilization_percent: int | None = None
    """Share of the last moments in which anything ran there; None: the driver does not say, as of MIG instances."""
    processes: tuple[GpuProcess, ...] | None = None
    """Those with memory there, the largest first. None: not known, as in a container with its own process numbers."""
    mig: int | None = None
    """Which of its GPU's instances it is, as `nvidia-smi -L` counts them; None: it is a whole GPU."""
    is_unified: bool = False
    """It has no memory of its own: `total_mib` and `used_mib` are those of main memory (GB10, as in DGX Spark)."""

    @property
    def label(self) -> str:
        """How people name it: `0`, and an instance of it `0:1`."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"


@dataclass(frozen=True, slots=True)
class UnreadGpu:
    """A GPU, or one MIG instance, that a reading left out: the driver knows of it and cannot say how it is."""

    index: int
    """As of a `Gpu`: the others keep their own."""
    reason: str
    """Why, as a sentence without its subject."""
    uuid: str | None = None
    """None: not known, since it was never read."""
    pci_address: str | None = None
    """As `lspci` and the kernel's log write it: `0000:0a:00.0`. None: not known."""
    mig: int | None = None

    @property
    def label(self) -> str:
        """How people name it, as of a `Gpu`."""
        return str(self.index) if self.mig is None else f"{self.index}:{self.mig}"

    @property
    def description(self) -> str:
        """Which one it is, and why it is left out, as a sentence."""
        names = [self.uuid, f"PCI {self.pci_address}" if self.pci_address is not None else None]
        known_names = ", ".join(name for name in names if name is not None)
        return f"GPU {self.label}{f' ({known_names})' if known_names else ''} is left out: {self.reason}"


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that was seen in one complete observation."""

    at: float
    replicas: tuple[ObservedReplica, ...] = ()
    pending: Mapping[str, PendingOp] = field(default_factory=dict)
    """By replica name."""
    preflights: Mapping[tuple[str, str], PreflightResult] = field(default_factory=dict)
    """The last result by (model, spec hash)."""
    preflighting: frozenset[tuple[str, str]] = frozenset()
    """Those under way."""
    pulls: Mapping[str, Failure | None] = field(default_factory=dict)
    """Images being pulled (None) or whose pull failed."""
    failures: Mapping[ReplicaKey, Failure] = field(default_factory=dict)
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    """Of every replica that was ever started, those that are there among them."""
    loaded_once: frozenset[str] = frozenset()
    """Models that were `loaded` since they were last wanted: for them one ready replica is enough."""
    gpus: tuple[Gpu, ...] | None = ()
    """None: unknown (NVML failed after it had worked)."""
    unread_gpus: tuple[UnreadGpu, ...] = ()
    """GPUs that are not among `gpus`, since nothing can be read of them. Engines on them keep their claims."""
    unified_gpus: frozenset[str] = frozenset()
    """Uuids of GPUs without memory of their own, whether or not they can be read now: claims on them are claims of main
    memory."""
    remotes: Mapping[str, str | None] = field(default_factory=dict)
    """Remote model to its last health error, None when it is well; absent: not asked yet."""
    remote_retry_at: Mapping[str, float] = field(default_factory=dict)
    """Remote model that has failed to Unix time when it is asked again; absent: it is well, or wants another key."""
    draining_remotes: frozenset[str] = frozenset()
    """Remotes that are routed to no longer and may still hold requests."""
    progress: Mapping[str, float] = field(default_factory=dict)
    """Replica that is starting to how far it says it is, 0 to 1."""
    traffic: Mapping[str, ModelTraffic] = field(default_factory=dict)
    """What the gateways say of each model's requests; absent: nobody asked for it yet."""
    requirements: Mapping[str, Requirement] = field(default_factory=dict)
    """Model to what a replica of it takes, where that is known though it is not declared."""
    host_mib: int | None = None
    """Main memory that all engines may take together; None: not bounded."""
    left_at: Mapping[str, float] = field(default_factory=dict)
    """GPU uuid to when one of our engines was last seen to be gone from it."""
    inflight: Mapping[str, int | None] = field(default_factory=dict)
    """Replica name to requests inside by all gateways; None: a gateway that may hold some is lost."""
    gpu_use: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Replica name to MiB that it holds of its GPUs, by uuid, read since it was ready; absent: not known."""
