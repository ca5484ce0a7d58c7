"""Status of models, replicas, GPUs and the controller, as the admin API and the command line show them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = 1
"""Version of the format of labels, routing tables and state files, written into each. Increase it when an older reader
would misread the new format."""


class ModelState(StrEnum):
    """State of a model as clients see it."""

    UNLOADED = "unloaded"
    SLEEPING = "sleeping"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"

    @property
    def is_at_rest(self) -> bool:
        """Whether no engine serves and none is coming or leaving: unloaded, or its engine sleeps."""
        return self in (ModelState.UNLOADED, ModelState.SLEEPING)


class Wire(BaseModel):
    """Base of messages between programs. Immutable. Unknown fields are ignored, so that an older reader accepts a newer
    writer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StatementView(Wire):
    """Who decided whether the model is loaded, and since when: the files, a request (autoload), or an operator."""

    kind: Literal["file", "autoload", "load", "unload"] = Field(
        description="Source of the decision. `file`: the field `enabled`; `autoload`: a request for the model; `load` "
        "and `unload`: an operator."
    )
    since: float = Field(description="Unix time in seconds since which the decision applies.")
    reason: str = Field(description="The decision in words.")


class ReplicaStatus(Wire):
    """One replica of a model, as last observed."""

    name: str = Field(description="Name of the replica's container or process.")
    index: int = Field(description="Number of the replica within the model, from 0.")
    attempt: int = Field(description="Number of this start of the replica, from 1.")
    phase: str = Field(
        description="State of the replica: starting, ready, failing, dead, stalled, sleeping, draining or ended; "
        "silent or lost: its host does not answer."
    )
    spec_hash: str = Field(description="Digest of everything in the definition that affects the engine.")
    outdated: bool = Field(description="Whether the replica runs an older definition than the one in force.")
    endpoint: str | None = Field(default=None, description="URL of the engine; null: it has no address yet.")
    inflight: int | None = Field(
        default=None, description="Requests that the replica serves now, as the gateways report; null: not known."
    )
    started_at: float | None = Field(
        default=None, description="Unix time in seconds at which the engine was started; null: not known."
    )
    claims: dict[str, int] = Field(
        default_factory=dict,
        description="Memory that the replica claims: GPU UUID, or `host` for main memory, to MiB. The claim at the "
        "start, or the measured use if that is larger.",
    )
    start_claims: dict[str, int] = Field(
        default_factory=dict,
        description="Memory that the replica claimed at its start, by the same keys and in the same unit as `claims`.",
    )
    host: str = Field(
        default_factory=str,  # no `default` in the schema: the field may be absent
        description="Name of the host that the replica runs on, whose main memory is `host:NAME` in `claims`; absent: "
        "the installation has one host.",
        exclude_if=lambda host: not host,
    )


class ModelStatus(Wire):
    """One model: its wanted and its actual state, and why they differ."""

    name: str
    backend: str
    state: ModelState
    aliases: list[str] = Field(default_factory=list)
    wanted_replicas: int
    loaded_replicas: int
    statement: StatementView
    replicas: list[ReplicaStatus] = Field(default_factory=list)
    last_error: str | None = None
    plain_error: str | None = Field(
        default=None,
        description="`last_error` in plain words alone, without those of the engine or the runtime: what clients are "
        "told who may not administer. null: there is no error.",
    )
    retry_at: float | None = Field(
        default=None, description="Unix time in seconds of the next attempt after a failure; null: none is planned."
    )
    exit_code: int | None = Field(
        default=None,
        description="Exit code of the engine whose failure `last_error` describes, negative for a signal; null: no "
        "engine ended, or its code is not known.",
    )
    blocked: list[str] = Field(
        default_factory=list,
        description="Sentences that say why the model cannot reach its wanted state now.",
    )
    progress: float | None = Field(
        default=None,
        description="Progress of loading, from 0 to 1; null: not loading, or the engine does not report it.",
    )
    drift: list[str] = Field(
        default_factory=list,
        description="Sentences, one for each option that a loaded engine applied otherwise than declared.",
    )
    wake_s: float | None = Field(
        default=None,
        description="Seconds that the model's last wake took, until it answered as before; null: none was seen.",
        exclude_if=lambda seconds: seconds is None,
    )
    vram_warning: str | None = Field(
        default=None,
        description="A sentence, if a replica took at least a tenth more or less of a GPU than `vram_mib` "
        "declares; else null.",
    )


class GpuProcessView(Wire):
    """One process that uses memory of a GPU."""

    pid: int = Field(description="Process id on the host.")
    name: str | None = Field(description="Name of the process's program; null: not known.")
    used_mib: int | None = Field(
        description="Memory of the GPU that the process uses, in MiB; null: not reported by the driver."
    )
    replica: str | None = Field(
        description="Name of the replica that the process belongs or belonged to; null: no replica of this "
        "installation, as far as is known."
    )


class GpuStatus(Wire):
    """One GPU, or one MIG instance of a GPU. Memory is in MiB."""

    uuid: str = Field(description="UUID of the GPU.")
    index: int = Field(description="Number of the GPU in PCI order. A MIG instance has the number of its GPU.")
    name: str = Field(description="Product name, as the driver reports it.")
    total_mib: int = Field(description="Total memory.")
    used_mib: int = Field(description="Memory in use by all programs.")
    claimed_mib: int = Field(default=0, description="Memory reserved for replicas.")
    utilization_percent: int | None = Field(
        default=None,
        description="Percentage of the driver's last sample period in which the GPU was busy; null: not reported.",
    )
    processes: list[GpuProcessView] | None = Field(
        default=None, description="Processes that use memory of the GPU; null: not reported by the driver."
    )
    mig: int | None = Field(default=None, description="Number of the MIG instance within its GPU; null: a whole GPU.")
    is_unified: bool = Field(
        default=False, description="Whether the GPU shares the host's main memory instead of having its own."
    )
    host: str = Field(
        default_factory=str,  # no `default` in the schema: the field may be absent
        description="Name of the host that has the GPU; absent: the installation has one host.",
        exclude_if=lambda host: not host,
    )


class UnreadGpuStatus(Wire):
    """A GPU, or one MIG instance of a GPU, whose state cannot be read. Nothing is started on it meanwhile."""

    index: int = Field(
        description="Number of the GPU in PCI order, as in `gpus`. GPUs that can be read keep their numbers."
    )
    mig: int | None = Field(default=None, description="Number of the MIG instance within its GPU; null: a whole GPU.")
    uuid: str | None = Field(
        default=None, description="UUID of the GPU; null: not known, because the GPU was never read."
    )
    pci_address: str | None = Field(
        default=None, description="PCI address, as `lspci` and `dmesg` show it; null: not known."
    )
    reason: str = Field(description="Why the GPU cannot be read, and what to do about it.")
    description: str = Field(description="A sentence that names the GPU and says why it is left out.")
    claimed_mib: int | None = Field(
        default=None,
        description="Memory in MiB that engines claim on the GPU; null: not known, because `uuid` is null.",
    )
    host: str = Field(
        default_factory=str,  # no `default` in the schema: the field may be absent
        description="Name of the host that has the GPU; absent: the installation has one host.",
        exclude_if=lambda host: not host,
    )


class HostStatus(Wire):
    """One host that runs engines, as last seen. Memory is in MiB, times are Unix seconds."""

    name: str = Field(description="Name of the host; empty: the only host of the installation.")
    state: str = Field(
        description="State of the host: ready; draining (nothing is started there, and what runs there moves); silent "
        "(it does not answer, so that what runs there is unknown); lost (silent for so long that other hosts take "
        "over); or refused (it answers, and may not be used)."
    )
    since: float | None = Field(
        default=None, description="Time since which it is in that state; null: ever since the controller runs."
    )
    last_heard: float | None = Field(
        default=None, description="Time of its last word; null: it is the controller's own, and is not asked."
    )
    reason: str | None = Field(default=None, description="Why it is in that state; null: nothing is to be said.")
    address: str | None = Field(default=None, description="Address of the host; null: not known, or not needed.")
    runtime: str = Field(default="", description="`docker` or `process`; empty: not known.")
    versions: dict[str, str] = Field(
        default_factory=dict, description="Versions of programs there, such as `roundhouse`, by program."
    )
    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels, which `hosts` of a definition may name as `label=value`."
    )
    gpu_count: int | None = Field(
        default=None, description="Number of GPUs that can be read; null: not known, as `gpu_error` says."
    )
    gpu_error: str | None = Field(default=None, description="Why no GPUs can be read; null: they can, or nobody said.")
    driver_version: str | None = Field(default=None, description="Version of its NVIDIA driver; null: not known.")
    cuda_version: str | None = Field(
        default=None, description="Latest CUDA version that the driver supports; null: not known."
    )
    memory_mib: int | None = Field(
        default=None, description="Main memory that all engines there may take together; null: not bounded."
    )
    claimed_mib: int = Field(default=0, description="Main memory that engines there claim.")
    models_free_mib: int | None = Field(default=None, description="Free space of its models folder; null: not known.")
    relay: str | None = Field(
        default=None,
        description="Address and port of its relay, through which its engines are reached; absent: they are reached "
        "where they listen.",
        exclude_if=lambda relay: relay is None,
    )
    is_insecure: bool = Field(
        default_factory=bool,
        description="Whether nothing between this head and the host is encrypted, as `--insecure-private-network` "
        "wants it. Absent: false.",
        exclude_if=lambda is_insecure: not is_insecure,
    )
    engines: list[str] = Field(
        default_factory=list,
        description="Names of the replicas there that have not ended. Of a host that does not answer: as last seen.",
    )


class Problem(Wire):
    """One error in what files or runtime declarations say: where it is, what is wrong, and what to do."""

    file: str = Field(description="Path of the file or folder; `runtime declarations` for what no file declares.")
    line: int | None = Field(default=None, description="Line number, from 1; null: the problem has no single line.")
    field: str | None = Field(
        default=None,
        description="Path of the field, such as `models.chat.replicas[0]`; null: the problem concerns no single field.",
    )
    message: str = Field(description="What is wrong, and what to do about it.")

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.field}: {self.message}" if self.field else f"{place}: {self.message}"


class ControllerStatus(Wire):
    """State of the controller with its models, GPUs, gateways and keys, as `roundhouse status` shows it."""

    schema_version: int = SCHEMA_VERSION
    instance: str
    version: str
    runtime: str
    generation: int
    paused: bool = False
    observed_at: float | None = Field(
        default=None,
        description="Unix time in seconds of the last complete observation of the engines; null: there was none yet.",
    )
    observation_error: str | None = None
    desired_problems: list[Problem] = Field(
        default_factory=list,
        description="Errors in the desired-state files. If there are any, the last valid state stays in force.",
    )
    unsaved: list[str] = Field(
        default_factory=list,
        description="What could not be written to the state folder and would be lost by a restart.",
    )
    models: list[ModelStatus] = Field(default_factory=list)
    gpus: list[GpuStatus] | None = Field(default=None, description="The host's GPUs; null: not known.")
    unread_gpus: list[UnreadGpuStatus] = Field(
        default_factory=list, description="GPUs that are missing from `gpus` because the driver cannot read them."
    )
    hosts: list[HostStatus] = Field(
        default_factory=list,
        description="The hosts; absent: the installation has one.",
        exclude_if=lambda hosts: not hosts,
    )
    is_cut_off: bool = Field(
        default_factory=bool,
        description="Whether so many hosts are silent at once that the controller is rather the one that is cut off: "
        "nothing is moved. Absent: false.",
        exclude_if=lambda is_cut_off: not is_cut_off,
    )
    gateways: list[str] = Field(default_factory=list)
    gateway_addresses: list[str] = Field(
        default_factory=list, description="URLs that the connected gateways listen on, as they report them."
    )
    refused_gateways: list[str] = Field(
        default_factory=list,
        description="A sentence for each other gateway that asks to be taken: that it is refused, why, and what to do.",
    )
    keys: list[str] = Field(default_factory=list, description="Names of the declared API keys that have not expired.")
    expired_keys: list[str] = Field(
        default_factory=list, description="Names of the declared API keys that have expired."
    )
    keys_used: dict[str, float] | None = Field(
        default=None,
        description="Maps an API key's name to the Unix time, cut to the minute, of the last request with it. A key "
        "without an entry was never seen; null: not known, because no gateway has reported it.",
    )


class ActionView(Wire):
    """One planned action."""

    kind: str = Field(description="Kind of action: preflight, pull, start, drain, undrain, stop or remove.")
    model: str | None = Field(description="Public model name; null: the action concerns no model.")
    replica: str | None = Field(
        description="Name of the replica, or model/index if it has no name yet; null: the action concerns no replica."
    )
    reason: str = Field(description="Why the action is planned.")
    host: str = Field(
        default_factory=str,  # no `default` in the schema: the field may be absent
        description="Name of the host where it is done; absent: the installation has one host.",
        exclude_if=lambda host: not host,
    )


class BlockedView(Wire):
    """A wanted change that the plan cannot make yet."""

    model: str = Field(description="Public model name.")
    index: int | None = Field(description="Number of the replica within the model; null: all replicas.")
    reason: str = Field(description="Why the change cannot be made now.")


class PlanView(Wire):
    """The controller's plan, as `roundhouse plan` shows it: the next actions, and changes that cannot be made yet."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="Version of the format of this object.")
    generation: int = Field(description="Number of edits of the desired-state files that the controller has applied.")
    paused: bool = Field(
        default=False, description="Whether the controller is paused: it plans actions, and carries none out."
    )
    actions: list[ActionView] = Field(default_factory=list, description="Planned actions, in order.")
    blocked: list[BlockedView] = Field(default_factory=list, description="Wanted changes that cannot be made now.")
    wake_at: float | None = Field(
        default=None,
        description="Unix time in seconds at which the plan may change without an event; null: it does not.",
    )
