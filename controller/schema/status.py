"""Status of models, replicas, GPUs and the controller, as the admin API and the command line show them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = 1
"""Version of the format of labels, routing tables and state files, written into each. Increase it when an older reader
would misread the new format."""


class ModelState(StrEnum):
    """State of a model as clients see it (DESIGN.md §4)."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


class Wire(BaseModel):
    """Base of messages between programs. Unknown fields are ignored, so that an older reader accepts a newer writer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StatementView(Wire):
    """Who decided whether the model is loaded, and since when: the files, a request (autoload), or an operator."""

    kind: Literal["file", "autoload", "load", "unload"] = Field(
        description="file: `enabled`; autoload: on demand; load, unload: an operator's."
    )
    since: float = Field(description="Unix time in seconds.")
    reason: str = Field(description="The same in words.")


class ReplicaStatus(Wire):
    """One replica of a model, as last observed."""

    name: str = Field(description="Its container's or process's name.")
    index: int = Field(description="Its place among the model's replicas, from 0.")
    attempt: int = Field(description="Which of its starts this is, from 1.")
    phase: str = Field(description="starting, ready, failing, dead, stalled, draining or ended.")
    spec_hash: str = Field(description="Digest of all that affects the engine.")
    outdated: bool = Field(description="True while it runs an older definition than the declared one.")
    endpoint: str | None = Field(default=None, description="Where it listens, once it has an address.")
    inflight: int | None = Field(default=None, description="Requests inside, by the gateways; null is unknown.")
    started_at: float | None = Field(default=None, description="Unix time.")
    claims: dict[str, int] = Field(
        default_factory=dict,
        description="GPU uuid, or `host`, to MiB: as at its start, or what it was seen to hold since, if that is more.",
    )
    start_claims: dict[str, int] = Field(default_factory=dict, description="The same as at its start.")


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
    retry_at: float | None = Field(default=None, description="Unix time of the next attempt; null: not planned.")
    blocked: list[str] = Field(default_factory=list, description="What waits, and for what.")
    progress: float | None = Field(default=None, description="0 to 1 while it loads, where the engine tells.")
    vram_warning: str | None = Field(
        default=None, description="How far `vram_mib` is from what a replica was seen to take; null: within a tenth."
    )


class GpuProcessView(Wire):
    """One process that uses memory of a GPU."""

    pid: int = Field(description="The host's number.")
    name: str | None = Field(description="Name of its program; null: not known.")
    used_mib: int | None = Field(description="What it holds there, in MiB; null: the driver does not say.")
    replica: str | None = Field(description="The engine that it belongs, or belonged to; null: to none, as is known.")


class GpuStatus(Wire):
    """One GPU, or one MIG instance of a GPU. Memory is in MiB."""

    uuid: str
    index: int
    name: str
    total_mib: int
    used_mib: int
    claimed_mib: int = 0
    utilization_percent: int | None = Field(default=None, description="null: the driver does not say.")
    processes: list[GpuProcessView] | None = Field(default=None, description="null: the driver does not say.")
    mig: int | None = Field(default=None, description="Which instance of its GPU it is; null: the whole GPU.")
    is_unified: bool = Field(default=False, description="true: its memory is the host's main memory.")


class UnreadGpuStatus(Wire):
    """A GPU, or one MIG instance of a GPU, whose state cannot be read. Nothing is started on it meanwhile."""

    index: int = Field(description="As in `gpus`: the others keep their own.")
    mig: int | None = Field(default=None, description="Which instance of its GPU it is; null: the whole GPU.")
    uuid: str | None = Field(default=None, description="null: not known, since it was never read.")
    pci_address: str | None = Field(default=None, description="As `lspci` and `dmesg` say it; null: not known.")
    reason: str = Field(description="Why it cannot be read, and what to do.")
    description: str = Field(description="Which one it is, and why it is left out, in a sentence.")
    claimed_mib: int | None = Field(default=None, description="MiB that engines claim there; null: no uuid is known.")


class Problem(Wire):
    """One error in the desired files: where it is, what is wrong, and what to do."""

    file: str = Field(description="The file.")
    line: int | None = Field(default=None, description="From 1; null: not of one line.")
    field: str | None = Field(default=None, description="The field, as models.chat.replicas[0].")
    message: str = Field(description="What is wrong, and what to do.")

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.field}: {self.message}" if self.field else f"{place}: {self.message}"


class ControllerStatus(Wire):
    """What `roundhouse status` shows."""

    schema_version: int = SCHEMA_VERSION
    instance: str
    version: str
    runtime: str
    generation: int
    paused: bool = False
    observed_at: float | None = Field(default=None, description="Unix time of the last complete observation.")
    observation_error: str | None = None
    desired_problems: list[Problem] = Field(
        default_factory=list, description="Not empty: the files are broken and the last good state rules."
    )
    unsaved: list[str] = Field(
        default_factory=list,
        description="What could not be written into the state folder, so that a restart would not know it.",
    )
    models: list[ModelStatus] = Field(default_factory=list)
    gpus: list[GpuStatus] | None = Field(default=None, description="null: unknown.")
    unread_gpus: list[UnreadGpuStatus] = Field(
        default_factory=list, description="GPUs that are left out of `gpus`, since nothing can be read of them."
    )
    gateways: list[str] = Field(default_factory=list)
    gateway_addresses: list[str] = Field(
        default_factory=list, description="URLs that the connected gateways listen on, as these say."
    )
    keys: list[str] = Field(default_factory=list, description="Names of the keys in force, without expired ones.")
    expired_keys: list[str] = Field(default_factory=list, description="Names of declared keys that have expired.")


class ActionView(Wire):
    """One planned action."""

    kind: str = Field(description="preflight, pull, start, drain, undrain, stop or remove.")
    model: str | None = Field(description="The model; null: none.")
    replica: str | None = Field(description="The replica: by name, or, where it has none yet, as model/index.")
    reason: str = Field(description="Why.")


class BlockedView(Wire):
    """A wanted change that the plan cannot make yet."""

    model: str = Field(description="The model.")
    index: int | None = Field(description="Which of its replicas; null: all.")
    reason: str = Field(description="What stands in the way.")


class PlanView(Wire):
    """What `roundhouse plan` shows: the next actions, and what cannot be done yet."""

    schema_version: int = Field(default=SCHEMA_VERSION, description="Version of this shape.")
    generation: int = Field(description="Counts edits of the files.")
    paused: bool = Field(default=False, description="true: nothing of it is done.")
    actions: list[ActionView] = Field(default_factory=list, description="In order.")
    blocked: list[BlockedView] = Field(default_factory=list, description="What is wanted and cannot be done now.")
    wake_at: float | None = Field(
        default=None, description="Unix time at which it may change by itself; null: it does not."
    )
