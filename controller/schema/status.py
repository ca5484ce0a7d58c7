"""What is running, as operators and clients are told."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = 1
"""Stamped on labels, tables and state files. Raised when an older reader would misread what is written."""


class ModelState(StrEnum):
    """A model's life as clients see it (DESIGN.md §4)."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


class Wire(BaseModel):
    """Base of what crosses the link. Unknown fields are ignored, so that an older reader survives a newer writer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StatementView(Wire):
    """Which statement rules a model, and since when."""

    kind: Literal["file", "autoload", "load", "unload"]
    since: float = Field(description="Unix time in seconds.")
    reason: str


class ReplicaStatus(Wire):
    """One engine, as it was last seen."""

    name: str
    index: int
    attempt: int
    phase: str = Field(description="starting, ready, failing, dead, stalled, draining or ended.")
    spec_hash: str
    outdated: bool = Field(description="True while it runs an older definition than the declared one.")
    endpoint: str | None = None
    inflight: int | None = Field(default=None, description="Requests inside, by the gateways; null is unknown.")
    started_at: float | None = None
    claims: dict[str, int] = Field(default_factory=dict, description="GPU uuid to MiB.")


class ModelStatus(Wire):
    """One model: what is wanted, what there is, and why they differ."""

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


class GpuStatus(Wire):
    """One GPU, memory in MiB."""

    uuid: str
    index: int
    name: str
    total_mib: int
    used_mib: int
    claimed_mib: int = 0


class Problem(Wire):
    """One fault in the desired state: where it is, what is wrong, what to do."""

    file: str
    line: int | None = None
    field: str | None = None
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.field}: {self.message}" if self.field else f"{place}: {self.message}"


class ControllerStatus(Wire):
    """The whole answer of `roundhouse status`."""

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
    models: list[ModelStatus] = Field(default_factory=list)
    gpus: list[GpuStatus] | None = Field(default=None, description="null: unknown.")
    gateways: list[str] = Field(default_factory=list)


class ActionView(Wire):
    """One planned action."""

    kind: str
    model: str | None
    replica: str | None
    reason: str


class BlockedView(Wire):
    """What is wanted and cannot be done yet."""

    model: str
    index: int | None
    reason: str


class PlanView(Wire):
    """The answer of `roundhouse plan`."""

    schema_version: int = SCHEMA_VERSION
    generation: int
    paused: bool = False
    actions: list[ActionView] = Field(default_factory=list)
    blocked: list[BlockedView] = Field(default_factory=list)
    wake_at: float | None = None
