"""The fields that every model definition may have, whatever its backend.

Field names are those of the settings files that operators already write (seed 001). A backend adds its own fields in
`controller/engines/<backend>.py`; unknown fields are rejected. The descriptions appear in the JSON Schema that editors
use, and in docs/models.md.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from contract.admin import Modality, ThinkingMode
from contract.model_reference import parse_reference

ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]
"""The name that a client sends in `"model"`. It may contain `/` and `:`."""


def _index_as_name(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


GpuName = Annotated[str, BeforeValidator(_index_as_name, json_schema_input_type=str | int)]
"""A GPU's uuid, or its index in PCI order, on one of several hosts with the host's name: `b/0`. The file may have the
index as a number."""

HostChoice = Annotated[str, Field(min_length=1, max_length=130, pattern=r"^[a-z0-9][a-z0-9._=-]*$")]
"""The name of a host, or a label of hosts and its value: `gpu=h200`."""

Gpus = Annotated[int, Field(ge=0, le=64)] | Annotated[list[GpuName], Field(min_length=1)]


class Settable(Enum):
    """Marker of a definition's field: which values a request may give it. A file may give it any valid value.

    Requests are runtime declarations, their dry runs, and loads. Every field of every definition class has the marker:
    there is no default. ROUNDHOUSE_TRUSTED_DECLARATIONS lifts the limit of the fields that it names.
    `controller.config.runtime_declarations` has the rules.
    """

    ALWAYS = "yes"
    """Any valid value: it names nothing outside the engine's own work."""
    IN_MODELS_FOLDER = "in a models folder"
    """Paths that lead into a models folder once symbolic links are resolved."""
    IN_MODELS_FOLDER_OR_DECLARED = "in a models folder, or declared"
    """An absolute path that leads into a models folder, or the `USER/REPO` of a declared model's `source`, or what
    another model declares here."""
    HUB_REFERENCE = "`hf:` and `ollama:`"
    """A reference to the hub or the registry that `transfers` is configured with; none that names a host or a file."""
    HOST_GPUS = "by number, index or UUID"
    """A number of GPUs, or GPUs by index or UUID: placement matches both with the GPUs of this host."""
    FROM_FILES = "no"
    """None. The field names a file outside the models folders, a program, an argument, a variable, an image, an address
    or a mount, or it lets the engine run code or fetch what it likes."""


class Definition(BaseModel):
    """One model as the files declare it. Immutable. Validation is strict: `"4"` is not accepted as a number. A wrong
    value, an unknown field and fields that contradict each other raise pydantic.ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    backend: Annotated[str | None, Settable.ALWAYS] = Field(
        default=None, description="Backend that serves the model; default: derived from the model's files."
    )
    model_path: Annotated[str | None, Settable.IN_MODELS_FOLDER] = Field(
        default=None,
        description="Path of the model's file or folder: relative to a models folder, absolute, or with `~`.",
    )
    source: Annotated[str | None, Settable.HUB_REFERENCE] = Field(
        default=None,
        description="Where the model is downloaded from if its files are missing, such as `hf:USER/REPO:Q4_K_M`. "
        "The download sets `model_path`; a model that declares `model_path` itself is not downloaded.",
    )
    enabled: Annotated[bool, Settable.ALWAYS] = Field(
        default=True,
        description="Load the model without waiting for a request; false: only an operator, or with `autoload` a "
        "request, loads it.",
    )
    autoload: Annotated[bool, Settable.ALWAYS] = Field(
        default=False, description="Load the model when the first request for it arrives, even if `enabled` is false."
    )
    idle_ttl_s: Annotated[float | None, Settable.ALWAYS] = Field(
        default=None,
        gt=0,
        le=31_536_000,
        description="Seconds without a request after which an `autoload` model is unloaded; default: never.",
    )
    min_residency_s: Annotated[float | None, Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        le=86400,
        description="Minimum seconds until another model may evict a loaded `autoload` model; default: as long as its"
        " load took, at most 60.",
    )
    pinned: Annotated[bool, Settable.ALWAYS] = Field(
        default=False,
        description="Never evict a loaded `autoload` model, neither to make room nor for being idle.",
    )
    replicas: Annotated[int, Settable.ALWAYS] = Field(
        default=1, ge=1, le=256, description="Engines that serve the model."
    )
    replica_max: Annotated[int | None, Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        le=256,
        description="Maximum replicas that a load may ask for; default: `replicas`. There is no automatic scaling.",
    )
    target_inflight: Annotated[int | None, Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        le=4096,
        description="Requests that one replica serves at a time; default: set by the backend.",
    )
    queue_limit: Annotated[int | None, Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Maximum requests that wait in the gateway, per replica; default: ROUNDHOUSE_QUEUE_LIMIT, else 8 "
        "times `target_inflight`.",
    )
    session_cache: Annotated[int | None, Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        le=4096,
        description="Sessions whose computed state each replica keeps, at most what its engine can hold; 0: no "
        "sessions; default: 4 or `target_inflight`, whichever is more (`llama_cpp`: 0).",
    )
    aliases: Annotated[list[ModelName], Settable.ALWAYS] = Field(
        default_factory=list, description="Other names that clients may use for the model."
    )
    gpus: Annotated[Gpus | None, Settable.HOST_GPUS] = Field(
        default=None,
        description="GPUs of one replica: their number (0: no GPU), or a list of their UUIDs or indices.",
    )
    hosts: Annotated[list[HostChoice], Settable.ALWAYS] = Field(
        default_factory=list,
        description="Hosts that may run the model, in an installation with several: names, or labels as `label=value`; "
        "default: any.",
    )
    device: Annotated[Literal["auto", "cuda", "cpu"] | None, Settable.ALWAYS] = Field(
        default=None,
        description="`cuda`: one GPU if `gpus` is not set. `cpu`: no GPU. `auto`: as `gpus` says; default: `auto`.",
    )
    vram_mib: Annotated[int | None, Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        description="MiB that one replica uses on each of its GPUs; default: as observed or predicted, else whole "
        "GPUs.",
    )
    memory_mib: Annotated[int | None, Settable.ALWAYS] = Field(
        default=None,
        ge=16,
        description="Main memory of one replica in MiB: a hard limit for containers, and what counts against "
        "ROUNDHOUSE_ENGINES_MEMORY_MIB; default: as observed or predicted, without a limit.",
    )
    start_timeout_s: Annotated[float | None, Settable.ALWAYS] = Field(
        default=None,
        gt=0,
        le=86400,
        description="Maximum seconds until a started engine is ready; default: set by the backend.",
    )
    drain_timeout_s: Annotated[float | None, Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        le=86400,
        description="Seconds for running requests to finish when an edit replaces a replica; default: "
        "ROUNDHOUSE_DRAIN_TIMEOUT_S.",
    )
    image: Annotated[str | None, Settable.FROM_FILES] = Field(
        default=None, description="Container image of the engine (docker runtime only); default: set by the backend."
    )
    env: Annotated[dict[str, str], Settable.FROM_FILES] = Field(
        default_factory=dict, description="Additional environment variables of the engine."
    )
    extra_args: Annotated[list[str], Settable.FROM_FILES] = Field(
        default_factory=list, description="Additional command-line arguments of the engine."
    )
    modalities: Annotated[list[Modality] | None, Settable.ALWAYS] = Field(
        default=None, min_length=1, description="Kinds of input that the model accepts; default: set by the backend."
    )
    media_urls: Annotated[bool | None, Settable.FROM_FILES] = Field(
        default=None,
        description="Whether requests may name images and sounds by `http` addresses, which the engine fetches from "
        "any host that it reaches; default: true for remote models only.",
    )
    multi_turn: Annotated[bool | None, Settable.ALWAYS] = Field(
        default=None,
        description="Whether the model accepts conversations of several turns; default: set by the backend.",
    )
    thinking_modes: Annotated[list[ThinkingMode] | None, Settable.ALWAYS] = Field(
        default=None, description="Accepted values of the request field `thinking`; default: set by the backend."
    )
    tools: Annotated[bool | None, Settable.ALWAYS] = Field(
        default=None, description="Whether the model supports tool calls; default: set by the backend."
    )
    structured_output: Annotated[bool | None, Settable.ALWAYS] = Field(
        default=None,
        description="Whether answers can be constrained to JSON or a JSON Schema; default: set by the backend.",
    )
    matryoshka: Annotated[bool, Settable.ALWAYS] = Field(
        default=False,
        description="Whether embeddings stay meaningful when truncated (Matryoshka training). true: the gateway "
        "truncates them to a request's `dimensions`.",
    )

    role: Annotated[Literal["aicore"] | None, Settable.ALWAYS] = Field(
        default=None,
        description="`aicore`: the routes `/v1/aicore/...` and the block `aicore` of `/health` are about this model, "
        "typically an `openai_remote` at a phone that serves Android's AICore. One model alone may have the role.",
    )

    @field_validator("source")
    @classmethod
    def _source_can_be_read(cls, text: str | None) -> str | None:
        if text is not None:
            parse_reference(text)
        return text

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
        """Number of GPUs of one replica, from `gpus` or else from `device`; 0: none.

        None: `gpus` is not set, and `device` is neither `cuda` nor `cpu`, so that the replica gets no GPU either.
        """
        if isinstance(self.gpus, list):
            return len(self.gpus)
        if self.gpus is None and self.device in ("cuda", "cpu"):
            return int(self.device == "cuda")
        return self.gpus
