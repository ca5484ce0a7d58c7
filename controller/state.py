"""Desired and observed state: the two inputs of `plan`, `assess_models` and `placement`. Immutable values only.

Times are Unix seconds. Memory is in MiB. Unknown is None, and never the same as zero or empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import ceil
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from contract.desired import Definition
from contract.hosts import EngineTls
from contract.keys import KeyDefinition
from contract.tools import McpServer, ToolLimits
from controller.hosts import Gpu, Host, UnreadGpu, is_memory_key, memory_key

PREFLIGHT_FRESH_S: Final = 60.0
"""Maximum age in seconds of a successful preflight. An older one is repeated before a start relies on it."""
MOST_ATTEMPT_KEYS: Final = 1000
"""Replica keys whose own numbers are kept. It is bounded because each edit of a model creates new replica keys."""


@dataclass(frozen=True, slots=True)
class AppliedFigures:
    """What a loaded engine reports of its own configuration. None in a field: the engine does not report it."""

    context_length: int | None = None
    """Maximum tokens of one request, prompt and answer together."""
    trained_context_length: int | None = None
    """Context length in tokens that the model was trained with. llama-server gives no request more than that."""
    slots: int | None = None
    """Number of requests that the engine serves at a time."""
    cache_type_k: str | None = None
    """Data type of the K cache, in the engine's own words."""
    cache_type_v: str | None = None
    """Data type of the V cache, in the engine's own words."""
    speculates: bool | None = None
    """Whether the engine uses speculative decoding."""
    prefix_caching: bool | None = None
    """Whether the engine reuses the KV cache of prompts with the same beginning."""
    kv_cache_bytes: int | None = None
    """Size of the KV cache per GPU in bytes, where the engine was given one."""
    gpu_share: float | None = None
    """Share (0 to 1) of each GPU's memory that the engine uses."""

    def merge_figures(self, newer: AppliedFigures) -> AppliedFigures:
        """Return these figures with those of `newer` in their place, where `newer` has a figure."""
        names = (field.name for field in fields(self))
        merged: dict[str, Any] = {
            name: getattr(self, name) if getattr(newer, name) is None else getattr(newer, name) for name in names
        }
        return AppliedFigures(**merged)


class AttemptNumbers(BaseModel):
    """The highest attempt number of each replica key (`ReplicaKey.text`). Immutable; `with_attempt` returns a copy.

    A replica key whose number was dropped goes on from the highest number that was ever dropped.
    """

    model_config = ConfigDict(frozen=True)

    highest: dict[str, int] = {}
    """Replica key to its highest attempt number, in the order of the last starts, oldest first."""
    dropped: int = 0
    """The highest number that was dropped to keep at most `MOST_ATTEMPT_KEYS`; 0: none was."""

    def highest_of(self, key: str) -> int:
        """Return a number that no attempt of the replica key has exceeded, so that the next number is free. It is the
        highest attempt number of a known key, `dropped` for any other. 0 means that it was never started."""
        return self.highest.get(key, self.dropped)

    def with_attempt(self, key: str, attempt: int) -> AttemptNumbers:
        """Return a copy in which `attempt` is recorded for the replica `key`. Returns the object itself if `attempt` is
        not higher than `highest_of(key)`. If more than 1,000 (`MOST_ATTEMPT_KEYS`) keys are recorded, the key whose
        last start is longest ago is dropped."""
        if attempt <= self.highest_of(key):
            return self
        highest = {each: number for each, number in self.highest.items() if each != key} | {key: attempt}
        dropped = self.dropped
        while len(highest) > MOST_ATTEMPT_KEYS:
            dropped = max(dropped, highest.pop(next(iter(highest))))
        return AttemptNumbers(highest=highest, dropped=dropped)


@dataclass(frozen=True, slots=True, order=True)
class ReplicaId:
    """Identity of one attempt to run one replica. Each new start of the replica is a new attempt with a new name.
    `index` counts the model's replicas from 0, `attempt` the starts of this replica with this spec hash from 1.
    `spec_hash` is a hash of everything in the definition that affects the engine."""

    model: str
    index: int
    spec_hash: str
    attempt: int = 1

    @property
    def key(self) -> ReplicaKey:
        """The same replica without the attempt number. Failures are counted per key."""
        return ReplicaKey(self.model, self.index, self.spec_hash)


@dataclass(frozen=True, slots=True, order=True)
class ReplicaKey:
    """Identity of a replica over all its attempts: model, index, and spec hash of what the replica runs. `host`: where
    failures are counted, because they are counted for each host; attempts are numbered over all hosts."""

    model: str
    index: int
    spec_hash: str
    host: str = ""

    @property
    def text(self) -> str:
        """The key as text, by which `AttemptNumbers` counts attempts: `model/index/spec_hash`."""
        return f"{self.model}/{self.index}/{self.spec_hash}"


@dataclass(frozen=True, slots=True)
class Statement:
    """What currently decides whether a model runs: the files, a request for an autoload model, or an operator's load or
    unload. `since`: Unix time."""

    kind: Literal["file", "autoload", "load", "unload"]
    """`file`: the `enabled` field. `autoload`: demand. `load`, `unload`: an operator's request."""
    since: float
    reason: str
    """The statement in words, such as `enabled in the files` or `unloaded by ...`."""


@dataclass(frozen=True, slots=True)
class DesiredModel:
    """One model as it is wanted now: its declaration in the files, with an operator's load or unload (the override) and
    the demand of requests applied. The plan works towards it."""

    name: str
    definition: Definition
    """The effective definition: the declared one with the override's parameters applied."""
    backend: str
    spec_hash: str
    replicas: int
    """Number of engines that are wanted now; 0 means unloaded."""
    statement: Statement
    first_declared_at: float = 0.0
    """Unix time since which the files declare a model of this name."""
    runs: bool = True
    """False for a remote model: Roundhouse starts no engine for it."""
    image: str | None = None
    """Container image of the engine. None where replicas are processes, and for a remote model."""
    gpu_count: int = 0
    """Number of GPUs of one replica; 0 means that it runs without a GPU."""
    gpu_choice: tuple[str, ...] = ()
    """Uuids, indices or labels of the GPUs that the replica must use; empty means any."""
    hosts: tuple[str, ...] = ()
    """Names or `label=value` of the hosts that may run it; empty means any."""
    vram_mib: int | None = None
    """Declared MiB of each GPU of a replica. None means that nothing is declared: the plan then uses an observed or
    predicted requirement, or claims whole GPUs."""
    start_timeout_s: float = 600.0
    """Seconds from an engine's start until it must be ready."""
    drain_timeout_s: float = 300.0
    """Seconds that running requests have left once a replica drains."""
    autoload: bool = False
    """Whether a request may load the model now. False without `autoload: true` in the definition, and while an
    operator's unload with `hold` is in force."""
    drain_ends: bool = True
    """Whether a drain ends at its deadline. False for an operator's unload and for an eviction: there the deadline is
    only reported."""
    memory_mib: int | None = None
    """Declared main memory of one replica in MiB. None means that nothing is declared."""
    pinned: bool = False
    """Whether the model is exempt from eviction and from `idle_ttl_s`."""
    idle_ttl_s: float | None = None
    """Seconds without use after which an autoload model is unloaded. None means that idleness alone never unloads the
    model."""
    min_residency_s: float | None = None
    """Seconds that the model stays loaded before another model may evict it. None means as long as its load took, up to
    `planning.eviction_candidates.LONGEST_RESIDENCY_S`."""
    demand_replicas: int = 0
    """Number of engines that the next request loads of an `autoload` model that was evicted or unloaded as idle; 0 for
    every other model."""
    in_files: Definition | None = None
    """The definition as the files declare it. None means that it is the same as `definition`."""
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    """Parameters of the operator's load that is in force, by definition field."""
    missing_source: str | None = None
    """Source, in its canonical form, that must be downloaded before a replica can start. None means nothing must."""
    is_runtime_declared: bool = False
    """Whether an operator declared the model at run time, and the files do not."""
    is_discovered: bool = False
    """Whether nobody declared the model: its file lies in a models folder (`discover: true`)."""

    @property
    def declared_definition(self) -> Definition:
        """The definition as the files declare it, without a load's parameters."""
        return self.in_files or self.definition

    @property
    def names_hosts(self) -> bool:
        """Whether `hosts` or `gpus` names hosts, so that one host alone cannot say whether it has room."""
        return bool(self.hosts) or any("/" in name for name in self.gpu_choice)

    def may_use(self, gpu: Gpu) -> bool:
        """Return whether `gpu_choice` allows a GPU."""
        return not self.gpu_choice or not set(gpu.names).isdisjoint(self.gpu_choice)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All declared models, by name, each as it is wanted now (also with 0 replicas), with the settings that the plan
    needs."""

    generation: int
    """Counter of changes to what the files declare."""
    models: Mapping[str, DesiredModel]
    paused: bool = False
    """Whether an operator paused the controller: the plan is made, and nothing of it is done."""
    revision: int = 0
    """Counter of changes to files, overrides and demand; 0 means that nobody counts."""
    keys: Mapping[str, KeyDefinition] = field(default_factory=dict)
    """API keys by name. Gateways check them; no model depends on them."""
    tools: Mapping[str, ToolLimits] = field(default_factory=dict)
    """Enabled built-in tools by name, each of its class in `BUILTIN_TOOLS`. Gateways run them."""
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    """Declared MCP servers by name."""
    swap_wait_s: float = 30.0
    """Seconds that a request waits for the memory of a model in use, before that model gets no new requests."""
    preflight_recheck_s: float = 30.0
    """Seconds after which a failed preflight is repeated."""


class Phase(StrEnum):
    """State of a replica's container or process, as the runtime reports it: made and not started, running, or ended.
    Whether the engine in it serves is its `Health`."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


class Health(StrEnum):
    """State of a running replica, as its probes report it. `STARTING` until it is first ready, `READY` while it serves,
    `FAILING` after a failed probe, `DEAD` if it reports that it is, `STALLED` without progress for 120 s, `SLEEPING`
    while it sleeps."""

    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"
    """Was ready, and the last probe failed. The replica gets no new requests and is not restarted."""
    DEAD = "dead"
    STALLED = "stalled"
    SLEEPING = "sleeping"
    """The engine keeps its process and lets go of most GPU memory, until it is woken."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a replica ended: its exit code (None: unknown, because the process was not a child of this controller),
    whether it was killed for lack of memory (`oom`), and its last log lines."""

    code: int | None
    oom: bool = False
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Draining:
    """A drain in progress: the replica gets no new requests, and is stopped when its running ones have ended, or at the
    drain's deadline where one applies. `since` is Unix time, `idle` whether the replica holds no requests (None: not
    known). The deadline is not stored: it follows from the reason why the replica must leave, which may change."""

    since: float
    idle: bool | None
    """True once every gateway reports zero requests under a routing table without the replica. False means that some
    report requests, None that it is unknown."""


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """Consecutive probes in which an engine reported no requests and made no progress. `since` and `until`: Unix times
    at which the first and the last of them began."""

    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """How a replica sleeps, or would: what it then claims, and what it claims awake, MiB by GPU uuid or `HOST`."""

    asleep_claims: Mapping[str, int]
    awake_claims: Mapping[str, int]
    since: float | None = None
    """Unix time since which the replica sleeps. None means that it is awake."""
    rest_claims: Mapping[str, int] | None = None
    """What it claims once the driver counts as free what it let go a moment ago. None means the same as
    `asleep_claims`."""
    woken_at: float | None = None
    """Unix time at which it last answered as before after a sleep. None means never."""
    wake_s: float | None = None
    """Seconds that its last wake took. None means that none was seen."""

    @property
    def changing_claims(self) -> Mapping[str, int]:
        """Claims while the replica falls asleep, MiB by GPU uuid or `HOST`: for each key the larger one of
        `awake_claims` and `asleep_claims`, because both may be in use for a moment."""
        keys = self.asleep_claims.keys() | self.awake_claims.keys()
        return {key: max(self.asleep_claims.get(key, 0), self.awake_claims.get(key, 0)) for key in sorted(keys)}


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """One engine of this installation, running or ended, as the last observation saw it. Times are Unix seconds; `exit`
    is None until the engine has ended, `draining` None while it is not drained."""

    id: ReplicaId
    name: str
    phase: Phase
    created_at: float
    started_at: float | None = None
    health: Health = Health.STARTING
    ready_since: float | None = None
    """Unix time at which the replica was first ready. None means never, as far as is known."""
    base_url: str | None = None
    """URL of the engine's HTTP server. None while it has no address."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """MiB by GPU uuid or `HOST`: the claim at the start, or the use observed since, whichever is larger."""
    tls: EngineTls | None = None
    """How to open connections to the relay of its host, whose address is in `base_url`. None: none is between."""
    start_claims: Mapping[str, int] | None = None
    """MiB by GPU uuid or `HOST` at the start, from which the command line was rendered. None means the same as
    `claims`."""
    exit: Exit | None = None
    draining: Draining | None = None
    image_id: str | None = None
    argv: tuple[str, ...] = ()
    figures: AppliedFigures = field(default_factory=AppliedFigures)
    """What the ready engine reports of its own configuration."""
    system_first: bool = False
    """Whether the model's chat template accepts system messages only at the beginning, as the ready engine reports."""
    kv_cache_tokens: int | None = None
    """Capacity of the KV cache in tokens, from the engine's metrics. None means that the metrics do not have it."""
    is_preempting: bool = False
    """Whether the engine's metrics recently showed repeated preemption: it took KV cache away from running requests."""
    idle_span: IdleSpan | None = None
    """For how long the engine has reported that it is idle. None means busy at the last probe, or that the engine does
    not report it."""
    sleep: Sleep | None = None
    """None means that the replica is awake and cannot be put to sleep."""
    fault: str | None = None
    """Why the replica must be stopped although its probes find nothing: its sleep failed, or after its wake it did not
    answer as before. None means that nothing is wrong."""
    host: str = ""
    """Name of the host that it runs on, as in `Host.name`."""
    silent: Literal["silent", "lost"] | None = None
    """Set while its host does not answer: what is said of it here was seen before that. `lost`: others take over."""
    returned_at: float = 0.0
    """Unix time since which its host has answered without a break; 0: ever since the controller runs."""

    @property
    def is_asleep(self) -> bool:
        """Whether the replica sleeps, so that it must be woken before it serves."""
        return self.sleep is not None and self.sleep.since is not None

    @property
    def failure_key(self) -> ReplicaKey:
        """The key by which its failures are counted: those on its host."""
        return ReplicaKey(self.id.model, self.id.index, self.id.spec_hash, self.host)


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """Requests for one model, over all gateways: how many wait, since when, and when the model was last used. Times are
    Unix seconds. `waiting` None: not known; `waits_since` None: none waits; `last_used` None: never."""

    waiting: int | None = 0
    """Number of requests that wait for a load or a slot. None means unknown: a gateway that may hold some is lost."""
    waits_since: float | None = None
    last_used: float | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """Memory that one replica needs, in MiB, as observed or predicted. None in a field means unknown, unless the field
    says otherwise."""

    per_gpu_mib: int | None = None
    """MiB of each of the replica's GPUs; None also for a replica without GPUs."""
    host_mib: int | None = None
    """Main memory in MiB. For an engine with GPUs, the main memory that it needs besides theirs."""
    gpu_share: float | None = None
    """Share (0 to 1) of each GPU's total memory that the engine reserves, and at least `per_gpu_mib`. None means that
    the engine reserves no share."""
    host_grows: bool = False
    """Whether part of `host_mib` is filled only while the replica serves, so that a replica just loaded holds less."""
    asleep_host_mib: int | None = None
    """Main memory in MiB that a replica holds while it sleeps, where its engine can. None means as much as awake."""
    observed_per_gpu_mib: int | None = None
    """Largest observed use of one GPU by one replica, in MiB, without any margin. None means never observed."""

    def mib_on_gpu(self, gpu: Gpu) -> int | None:
        """Return the MiB that a replica needs on this GPU: its share, rounded up, where the engine reserves one, and at
        least `per_gpu_mib`. None means unknown, never with a share."""
        if self.gpu_share is None:
            return self.per_gpu_mib
        return max(self.per_gpu_mib or 0, ceil(self.gpu_share * gpu.total_mib))


class OpKind(StrEnum):
    """Kind of an operation that the executor runs on a replica. `STOP` ends a running replica and removes it; `REMOVE`
    removes one that does not run. `SLEEP` puts a running one to sleep, and `WAKE` ends that."""

    START = "start"
    STOP = "stop"
    REMOVE = "remove"
    SLEEP = "sleep"
    WAKE = "wake"

    @property
    def is_coming(self) -> bool:
        """Whether the replica will serve afterwards. False: it leaves."""
        return self in (OpKind.START, OpKind.WAKE)


@dataclass(frozen=True, slots=True)
class PendingOp:
    """A start, stop, removal, sleep or wake of a replica that the executor began: under way while `finished_at` is
    None, else finished. A finished one stays in `ObservedState.pending` until an observation that began after its end.
    Times are Unix seconds."""

    kind: OpKind
    id: ReplicaId
    claims: Mapping[str, int] = field(default_factory=dict)
    """MiB by GPU uuid or `HOST` that the operation reserves."""
    began_at: float = 0.0
    finished_at: float | None = None
    host: str = ""
    """Name of the host on which it runs, as in `Host.name`."""


class PreflightKey(NamedTuple):
    """What a preflight checks: a model's definition on one host, by its name."""

    model: str
    spec_hash: str
    host: str = ""


class PullKey(NamedTuple):
    """An image on one host, by its name."""

    image: str
    host: str = ""


class FetchKey(NamedTuple):
    """The files of a model's definition on one host, by its name."""

    model: str
    spec_hash: str
    host: str


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """Result of the check whether a replica of a definition can be started: files, image, arguments. Made at Unix time
    `at`; `error` says what stands in the way, and is None where `ok` is true. `missing_image`: the image, where only
    its absence stands in the way."""

    ok: bool
    at: float
    error: str | None = None
    missing_image: str | None = None
    plain: str | None = None
    """`error` for clients: as `Verdict.plain`."""

    def is_fresh(self, now: float, recheck_s: float) -> bool:
        """Return whether the result may still be relied on at Unix time `now`. False for a result from the future. A
        success is fresh for 60 s (`PREFLIGHT_FRESH_S`), a failure for `recheck_s` seconds: a missing file may have
        arrived, and a present one may be gone."""
        # A negative age means that the clock was set back.
        return 0 <= now - self.at < (PREFLIGHT_FRESH_S if self.ok else recheck_s)


@dataclass(frozen=True, slots=True)
class Failure:
    """Consecutive failures of a replica key, an image's pull or a download: `count` of them, the last at Unix time
    `at`, with `error`. `retry_at`: Unix time of the next attempt; None: only an edit of the definition helps."""

    count: int
    at: float
    error: str
    retry_at: float | None
    attempt: int = 0
    """Highest attempt number that failed."""
    exit_code: int | None = None  # of the engine that failed last; None: no engine ended, or its code is not known
    plain: str | None = None  # `error` for clients: as `Verdict.plain`

    def must_wait(self, now: float) -> bool:
        """Whether the next attempt must not begin yet at Unix time `now`: always where `retry_at` is None, never where
        the clock was set back before the failure."""
        return self.retry_at is None or self.at <= now < self.retry_at


@dataclass(frozen=True, slots=True)
class StartFailure:
    """One start of a replica whose engine was never ready: the error in plain words, and the seconds from the start to
    the failure."""

    error: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that one complete observation saw: what the runtime, probes, GPUs and gateways report, and what the
    controller itself has under way or remembers. Times are Unix seconds, memory is in MiB, None means unknown."""

    at: float
    """Unix time at which the observation was complete. The plan takes it as its `now`."""
    replicas: tuple[ObservedReplica, ...] = ()
    pending: Mapping[str, PendingOp] = field(default_factory=dict)
    """Operations in progress or just finished, by replica name."""
    preflights: Mapping[PreflightKey, PreflightResult] = field(default_factory=dict)
    """Last preflight results."""
    preflighting: frozenset[PreflightKey] = frozenset()
    """Preflights in progress."""
    pulls: Mapping[PullKey, Failure | None] = field(default_factory=dict)
    """Image and host to its pull: None while the image is being pulled, else how the pull failed."""
    downloads: Mapping[str, Failure | None] = field(default_factory=dict)
    """Source to its download: None while it is under way, else how it failed."""
    download_fractions: Mapping[str, float] = field(default_factory=dict)
    """Source to the part of its bytes, 0 to 1, that is here. Absent means unknown."""
    fetches: Mapping[FetchKey, Failure | None] = field(default_factory=dict)
    """Model and host to the fetch of its files from other hosts: None while it is under way, else how it failed."""
    head_models: frozenset[str] = frozenset()
    """Models whose files the controller's own machine has, and gives to hosts. Empty with one host."""
    failures: Mapping[ReplicaKey, Failure] = field(default_factory=dict)
    """Failing loads by replica key."""
    start_failures: Mapping[ReplicaKey, tuple[StartFailure, ...]] = field(default_factory=dict)
    """The last failed starts by replica key, oldest first, also those from before the replica's last success."""
    attempts: AttemptNumbers = field(default_factory=AttemptNumbers)
    """Highest attempt number of every replica that was ever started, running ones included."""
    loaded_once: frozenset[str] = frozenset()
    """Models that have been `loaded` since they were last wanted. For these, one ready replica is enough to stay
    `loaded`."""
    hosts: tuple[Host, ...] = (Host(),)
    """All hosts, by name, in its order; at least one. An installation with one host has the one without a name."""
    is_cut_off: bool = False
    """Whether so many hosts are silent at once that the controller is rather the one that is cut off. None is declared
    lost then."""
    remotes: Mapping[str, str | None] = field(default_factory=dict)
    """Remote model to its last health error, or to None while it is healthy. Absent means not asked yet."""
    remote_retry_at: Mapping[str, float] = field(default_factory=dict)
    """Failing remote model to the Unix time of the next health check. Absent means healthy, or that only another API
    key would help."""
    draining_remotes: frozenset[str] = frozenset()
    """Remote models that get no new requests and may still hold running ones."""
    progress: Mapping[str, float] = field(default_factory=dict)
    """Name of a starting replica to the progress of its load, 0 to 1, as the engine reports it."""
    traffic: Mapping[str, ModelTraffic] = field(default_factory=dict)
    """Model to its requests, as the gateways report them. Absent means that nobody has asked for the model yet."""
    requirements: Mapping[str, Requirement] = field(default_factory=dict)
    """Model to the observed or predicted memory of one replica. Absent means unknown."""
    left_at: Mapping[str, float] = field(default_factory=dict)
    """GPU uuid to the Unix time at which an engine of this installation was last seen to have left the GPU."""
    inflight: Mapping[str, int | None] = field(default_factory=dict)
    """Replica name to its running requests, over all gateways. None means unknown: a gateway that may hold some is
    lost."""
    gpu_use: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Replica name to MiB in use by GPU uuid, read since the replica was ready. Absent means unknown."""

    @property
    def gpus(self) -> tuple[Gpu, ...] | None:
        """GPUs of all hosts that can be read; empty means that there are none. None means that those of no host are
        known."""
        known = [host.gpus for host in self.hosts if host.gpus is not None]
        return tuple(gpu for gpus in known for gpu in gpus) if known else None

    @property
    def unread_gpus(self) -> tuple[UnreadGpu, ...]:
        """GPUs of all hosts that cannot be read."""
        return tuple(gpu for host in self.hosts for gpu in host.unread_gpus)

    def find_host(self, name: str) -> Host | None:
        """Return the host of this name; None: there is none."""
        return next((host for host in self.hosts if host.name == name), None)


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The most memory, in MiB, that one replica was ever observed to hold. None: it could not be measured, or the
    replica has no GPU."""

    per_gpu_mib: int | None = None
    """Memory of one GPU, the one of which the replica holds the most."""
    host_mib: int | None = None
    """Main memory, including mapped model files."""

    def largest_of(self, other: HeldMemory) -> HeldMemory:
        """Return a HeldMemory with the larger value of each field; a known value counts as larger than None."""
        return HeldMemory(_larger(self.per_gpu_mib, other.per_gpu_mib), _larger(self.host_mib, other.host_mib))


def raise_claims(claims: Mapping[str, int], held: HeldMemory | None, host: str = "") -> Mapping[str, int]:
    """Return a replica's claims, raised to the memory that it was observed to hold (None: it was not observed).

    So the plan places nothing else into that memory. `claims` and the result map GPU uuids, and the key of the main
    memory of `host`, to MiB. No claim is lowered, and `claims` is not changed. The claim of every GPU of the replica is
    raised to the memory held on its fullest one, as in the claim of the next load. Main memory is claimed even if the
    replica started without a claim of it.
    """
    if held is None:
        return claims
    raised_claims = {key: mib if is_memory_key(key) else max(mib, held.per_gpu_mib or 0) for key, mib in claims.items()}
    if held.host_mib is not None:
        raised_claims[memory_key(host)] = max(claims.get(memory_key(host), 0), held.host_mib)
    return raised_claims


ASLEEP_MIB: Final = 1024
"""MiB of each GPU that a sleeping engine is expected to hold until one was measured: its CUDA context, graphs and
libraries. vLLM 0.25 held 846 on an H200."""


def read_held_mib(name: str, gpus: Iterable[Gpu]) -> dict[str, int]:
    """Return the MiB that the replica of this name holds, by GPU uuid. GPUs of which that is not known are left out
    (`Gpu.sum_held_mib`), and so are MIG instances, because drivers differ about their processes."""
    held_mib = {gpu.uuid: gpu.sum_held_mib(name) for gpu in gpus if gpu.mig is None}
    return {uuid: mib for uuid, mib in held_mib.items() if mib is not None}


SLEEP_SETTLED_S: Final = 15.0
"""Seconds after which the driver counts as free what an engine let go when it fell asleep, and the reading is of then.
The memory of an H200 was free within 0.3 s; of containers it is read every 2 s, and a reading may be 15 s old."""


def decide_asleep_claims(
    claims: Mapping[str, int],
    *,
    expected_mib: int | None,
    held_mib: Mapping[str, int],
    host_mib: int | None,
    keeps_weights: bool,
    host: str = "",
) -> dict[str, int]:
    """Return what a replica on `host` claims while it sleeps, MiB by GPU uuid or key of main memory. `claims`: awake.

    On each GPU that is what it is measured to hold (`held_mib`), but no more than `expected_mib`; None: it sleeps, and
    the measurement counts. Where nothing is measured it is all of the claim, before a sleep too: nobody would know that
    the memory is free. In main memory it is `host_mib`. None: not known; then it is as much as awake and, if the engine
    `keeps_weights` there, all that it claims of its GPUs besides.
    """
    asleep, main_memory = {}, memory_key(host)
    for key, mib in claims.items():
        if key != main_memory and key not in held_mib:
            asleep[key] = mib
        elif key != main_memory:
            asleep[key] = held_mib[key] if expected_mib is None else min(mib, expected_mib)
    if host_mib is None and keeps_weights:
        host_mib = sum(claims.values())
    if main_memory in claims or host_mib is not None:
        asleep[main_memory] = max(claims.get(main_memory, 0), host_mib or 0)
    return asleep


def _larger(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
