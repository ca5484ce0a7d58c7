"""The fields that every model definition may have, whatever its backend.

Field names are those of the settings files that operators already write (seed 001). A backend adds its own fields in
`controller/engines/<backend>.py`; unknown fields are rejected. The descriptions appear in the JSON Schema that editors
use, and in docs/models.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from controller.schema.admin import Modality, ThinkingMode

ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
"""The name that a client sends in `"model"`. It may contain `/` and `:`."""


def _index_as_name(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


GpuName = Annotated[str, BeforeValidator(_index_as_name, json_schema_input_type=str | int)]
"""A GPU's uuid, or its index in PCI order. The file may have the index as a number."""

Gpus = Annotated[int, Field(ge=0, le=64)] | Annotated[list[GpuName], Field(min_length=1)]


class Definition(BaseModel):
    """One model as the files declare it. Immutable. Validation is strict: `"4"` is not accepted as a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    backend: str | None = Field(
        default=None, description="Which engine serves the model. Left out, it is resolved from the artifact."
    )
    model_path: str | None = Field(
        default=None,
        description="The model's file or folder, in a models folder: relative to it, absolute, or with `~`.",
    )
    enabled: bool = Field(default=True, description="false: known, not loaded, loadable.")
    autoload: bool = Field(default=False, description="Load on the first request for it, even if not enabled.")
    idle_ttl_s: float | None = Field(
        default=None,
        gt=0,
        le=31_536_000,
        description="Seconds without a request after which an `autoload` model is unloaded; default: never for that.",
    )
    min_residency_s: float | None = Field(
        default=None,
        ge=0,
        le=86400,
        description="Seconds that an `autoload` model stays loaded at least, whoever wants its room; default: as long "
        "as its load took, 60 at most.",
    )
    pinned: bool = Field(
        default=False, description="Once loaded, an `autoload` model is not unloaded to make room, nor for want of use."
    )
    replicas: int = Field(default=1, ge=1, le=256, description="How many engines serve it.")
    replica_max: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Upper bound of `replicas`; default: `replicas`. Nothing scales by itself.",
    )
    target_inflight: int | None = Field(
        default=None, ge=1, le=4096, description="Requests that one replica serves at a time; default: by backend."
    )
    queue_limit: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Requests that may wait in the gateway for each replica; default: ROUNDHOUSE_QUEUE_LIMIT, else "
        "8 for each slot (`target_inflight`).",
    )
    session_cache: int | None = Field(
        default=None,
        ge=0,
        le=4096,
        description="Sessions of which each replica keeps what it has computed, at most what the engine can hold; "
        "default: 4, or `target_inflight` where that is more (`llama_cpp`: 0). 0: requests belong to no sessions.",
    )
    aliases: list[ModelName] = Field(default_factory=list, description="Other names that clients may use.")
    gpus: Gpus | None = Field(
        default=None, description="GPUs of one replica: how many, or a list of their uuids or indices. 0: none."
    )
    device: Literal["auto", "cuda", "cpu"] | None = Field(
        default=None,
        description="`cuda`: one GPU where `gpus` does not say how many. `cpu`: none. `auto` or left out: as `gpus` "
        "says.",
    )
    vram_mib: int | None = Field(
        default=None,
        ge=1,
        description="GPU memory of one replica on each of its GPUs, in MiB; default: as observed or "
        "predicted, and whole GPUs where neither is known.",
    )
    memory_mib: int | None = Field(
        default=None,
        ge=16,
        description="Main memory of one replica, in MiB: its limit (docker), and what it claims of "
        "ROUNDHOUSE_ENGINES_MEMORY_MIB; default: as observed or predicted, without a limit.",
    )
    start_timeout_s: float | None = Field(
        default=None, gt=0, le=86400, description="Deadline from start to ready, in seconds; default: by backend."
    )
    drain_timeout_s: float | None = Field(
        default=None, ge=0, le=86400, description="How long running requests may finish when the model is edited."
    )
    image: str | None = Field(default=None, description="Container image of the engine (docker); default: by backend.")
    env: dict[str, str] = Field(default_factory=dict, description="Extra environment variables of the engine.")
    extra_args: list[str] = Field(default_factory=list, description="Extra command line arguments of the engine.")
    modalities: list[Modality] | None = Field(
        default=None, min_length=1, description="Kinds of input that it takes; default: by backend."
    )
    multi_turn: bool | None = Field(
        default=None, description="Whether it takes a conversation of several turns; default: by backend."
    )
    thinking_modes: list[ThinkingMode] | None = Field(
        default=None, description="Values of a request's `thinking` that it takes; default: by backend."
    )
    tools: bool | None = Field(default=None, description="Whether it calls tools; default: by backend.")
    structured_output: bool | None = Field(
        default=None, description="Whether answers can be held to JSON or a JSON Schema; default: by backend."
    )
    matryoshka: bool = Field(
        default=False,
        description="Its embeddings mean something also when cut short: the gateway serves a request's `dimensions`.",
    )

    @model_validator(mode="after")
    def _replicas_within_bounds(self) -> Self:
        if self.replica_max is not None and self.replicas > self.replica_max:
            raise ValueError(f"replicas is {self.replicas}, above replica_max {self.replica_max}")
        return self

    @model_validator(mode="after")
    def _device_as_gpus(self) -> Self:
        if (self.device == "cpu" and self.gpus) or (self.device == "cuda" and self.gpus == 0):
            raise ValueError(f"device is {self.device}, and gpus says otherwise")
        return self

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs of one replica; None: neither `gpus` nor `device` is declared, so the replica gets none."""
        if isinstance(self.gpus, list):
            return len(self.gpus)
        if self.gpus is None and self.device in ("cuda", "cpu"):
            return int(self.device == "cuda")
        return self.gpus
