"""Requests and answers of the admin API (seed 001, "suggested response shapes"), except the parameters of a load.

Some fields are additions to seed 001. They are not marked; a client that was written for the seed ignores them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic_core import CoreSchema

from controller.schema.status import (
    GpuProcessView,
    ModelState,
    PlanView,
    Problem,
    ReplicaStatus,
    StatementView,
    UnreadGpuStatus,
    Wire,
)

MASKED = "***"
"""The text that replaces secrets."""

ConstraintKind = Literal["integer", "float", "enum", "integer_or_null", "string_or_null"]
# `declared` and `predicted` are ours: seed 001 knows no `vram_mib`, and estimates by the files' size alone.
EstimateSource = Literal["observed_load_delta", "predicted", "model_artifact_size", "unavailable", "declared"]
ThinkingMode = Literal["default", "enabled", "disabled"]
Modality = Literal["text", "image", "audio"]


class Sparse(BaseModel):
    """Base of models that are serialized without fields that were not set. So a client can tell a value of null from
    no value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _only_what_is_set(self, handler: SerializerFunctionWrapHandler) -> Any:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # Describe the fields, not the return value of the serializer, which may be anything.
        fields: Any = {key: value for key, value in core_schema.items() if key != "serialization"}
        return handler(fields)


class LoadConstraint(Sparse):
    """The values that one field of a load accepts, for a control in a UI. Only attributes that apply are present."""

    kind: ConstraintKind = Field(description="Which control: a number, a choice, a text, perhaps with null.")
    minimum: int | float | None = Field(default=None, description="Least value, inclusive.")
    maximum: int | float | None = Field(default=None, description="Greatest value, inclusive.")
    step: int | None = Field(default=None, description="Step of a slider.")
    default: int | float | str | None = Field(
        default=None, description="What is in force where definition and override both say null or nothing."
    )
    null_means: str | None = Field(default=None, description="What null stands for.")
    format: str | None = Field(default=None, description="Form of a text.")
    unit: str | None = Field(default=None, description="Unit of the value.")
    display_unit: str | None = Field(default=None, description="Unit to show it in.")
    allowed_values: list[int | str] | None = Field(default=None, description="Values to choose from.")
    examples: list[int | str] | None = Field(default=None, description="Some values.")


class PairPresets(Sparse):
    """Recommended values of fields that belong together. Other allowed values may be used too."""

    kind: Literal["pair_presets"] = Field(description="What sort of presets.")
    fields: list[str] = Field(description="The fields of each pair.")
    recommended_pairs: list[dict[str, int | str | None]] = Field(description="A label, and a value for each field.")
    notes: list[str] | None = Field(default=None, description="What to know about them.")


class Capabilities(Wire):
    """The kinds of requests that a model accepts. The gateway refuses others."""

    modalities: tuple[Modality, ...] = Field(default=("text",), description="Kinds of input.")
    multi_turn: bool = Field(default=True, description="Whether it takes a conversation of several turns.")
    thinking_modes: tuple[ThinkingMode, ...] = Field(
        default=("default",), description="Accepted values of a request's `thinking`."
    )
    tools: bool = Field(default=True, description="Whether it calls tools.")
    structured_output: bool = Field(
        default=True, description="Whether answers can be held to JSON, or to a JSON Schema."
    )
    logprobs: bool = Field(default=True, description="Whether it tells the probabilities of tokens.")


class HeldBy(Wire):
    """One running request that an unload waits for."""

    request_id: str = Field(description="As in the header x-request-id of its answer.")
    replica: str = Field(description="The engine that it is inside.")
    gateway: str = Field(description="The gateway that holds it.")
    since: float = Field(description="Unix time at which it was given to the engine.")


class ModelConfigured(BaseModel):
    """The part of a model's row that only an edit of the files or a load changes."""

    name: str = Field(description="Public model name.")
    resolved_backend: str = Field(description="The backend that serves it, declared or resolved from its artifact.")
    configured_enabled: bool = Field(description="`enabled` as the files say.")
    replica_max: int = Field(description="Most replicas that a load may ask for.")
    configured_target_inflight: int = Field(description="Requests per replica at a time, as configured.")
    effective_target_inflight: int = Field(description="The same as the engine can honestly take.")
    load_constraints: dict[str, LoadConstraint] = Field(description="The fields that a load may set, for UI controls.")
    load_recommendations: dict[str, PairPresets] = Field(description="Presets to offer first.")
    capabilities: Capabilities = Field(description="What requests it takes; the gateway refuses the others.")
    definition: dict[str, JsonValue] = Field(
        description="The declared fields, common and of its backend. Secrets are masked."
    )
    aliases: list[str] = Field(description="Other names that clients may use.")


class ModelEstimate(BaseModel):
    """A model's state and the estimate of its GPU memory."""

    runtime_state: ModelState = Field(description="unloaded, loading, loaded, unloading or failed.")
    is_loaded: bool = Field(description="Whether runtime_state is loaded.")
    vram_estimate_mib: int | None = Field(
        description="Approximate GPU memory of all replicas, in MiB; main memory where they have no GPU."
    )
    vram_estimate_replica_count: int = Field(description="How many replicas the estimate is for.")
    vram_estimate_source: EstimateSource = Field(description="Where the estimate comes from.")
    vram_observed_mib: int | None = Field(
        default=None,
        description="What so many replicas were seen to take, also where something else is declared; null: never seen.",
    )
    vram_warning: str | None = Field(
        default=None, description="How far `vram_mib` is from what a replica was seen to take; null: within a tenth."
    )


class ModelLive(ModelEstimate):
    """The part of a model's row that changes while the model runs."""

    replicas: int = Field(description="Replicas in force: of this load, or what a load would take.")
    loaded_replicas: int = Field(description="Replicas that serve now.")
    inflight_requests: int | None = Field(
        description="Requests inside its engines, leaving replicas included; null: not known, a gateway is lost."
    )
    queue_depth: int | None = Field(description="Requests that wait in the gateways; null: not known.")
    runtime_inflight: int | None = Field(description="Requests inside its loaded replicas; null: not known.")
    last_error: str | None = Field(description="Why it failed; the engine's last log lines follow the plain words.")
    load_override: dict[str, JsonValue] = Field(
        description="Parameters of the load in force. A present key rules over the definition, also when it is null."
    )
    statement: StatementView = Field(description="Which statement rules, and since when.")
    retry_at: float | None = Field(
        description="Unix time of the next attempt of a failed model; null: none is planned."
    )
    load_progress: float | None = Field(description="0 to 1 while it loads, where the engine tells.")
    blocked: list[str] = Field(description="What waits, and for what.")
    held_by: list[HeldBy] = Field(description="Running requests that an unload waits for.")
    replica_details: list[ReplicaStatus] = Field(description="Its engines.")


class AdminModel(ModelLive, ModelConfigured):
    """One model's row: its configuration, its wanted state and its running state."""


class ListContext(BaseModel):
    """How current a list of models is, and from which event on a client can follow changes to it."""

    last_event_id: int = Field(description="The newest event when this was made: follow `events` from here.")
    observed_at: float = Field(description="Unix time of the last complete look at the engines.")
    observation_error: str | None = Field(
        description="Why looking fails since then, so that what is shown is old; null: it does not."
    )
    desired_problems: list[Problem] = Field(
        description="Not empty: the files are broken, and what was last good rules."
    )
    paused: bool = Field(description="true: the controller observes and does not act.")


class AdminModels(ListContext):
    """All declared models in name order."""

    models: list[AdminModel] = Field(description="One row per model.")


class UnloadRequest(BaseModel):
    """Body of a request to unload a model. It may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hold: bool = Field(
        default=True,
        description="Of `autoload` models. true: it stays unloaded until the next load or edit. false: this only frees "
        "the memory, and the next request loads it again.",
    )


class GpuMemory(BaseModel):
    """One GPU, or one MIG instance of a GPU."""

    index: int = Field(description="In PCI order. Instances have their GPU's.")
    name: str = Field(description="As the driver says it.")
    used_mib: int = Field(description="In use by anybody, in MiB.")
    total_mib: int = Field(description="In MiB.")
    used_over_total: str = Field(description="`75603MiB / 97887MiB`, as nvidia-smi shows it.")
    uuid: str = Field(description="As `gpus` of a definition may name it.")
    claimed_mib: int = Field(description="Set aside for replicas by the plan, in MiB.")
    utilization_percent: int | None = Field(
        default=None, description="Share of the last moments in which it worked; null: the driver does not say."
    )
    processes: list[GpuProcessView] | None = Field(
        default=None, description="Who has memory there, the largest first; null: the driver does not say."
    )
    mig: int | None = Field(default=None, description="Which MIG instance of its GPU it is; null: the whole GPU.")
    is_unified: bool = Field(default=False, description="true: its memory is the host's main memory.")


class GpuModel(ModelEstimate):
    """One model's estimated GPU memory."""

    name: str = Field(description="Public model name.")
    configured_target_inflight: int = Field(description="Requests per replica at a time, as configured.")
    effective_target_inflight: int = Field(description="The same as the engine can honestly take.")


class GpuMemoryAnswer(BaseModel):
    """Current GPU memory, and the estimates for all models."""

    gpus: list[GpuMemory] = Field(description="The host's GPUs.")
    unread_gpus: list[UnreadGpuStatus] = Field(
        default_factory=list, description="GPUs that are left out of `gpus`, since nothing can be read of them."
    )
    models: list[GpuModel] = Field(description="Every declared model.")
    error: str | None = Field(description="Why there are no figures of GPUs; null where there are.")
    driver_version: str | None = Field(default=None, description="Of the host's NVIDIA driver; null: not known.")
    cuda_version: str | None = Field(
        default=None, description="The latest CUDA that the driver runs, as `12.8`; null: not known."
    )


# Plans.


class ProposedFiles(BaseModel):
    """Body of a dry run: the desired files to add, replace or remove. All other files count as unchanged."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: dict[str, str | None] = Field(
        min_length=1,
        description="File name (`models.yaml`) to its whole content; null: the file is removed.",
        examples=[{"models.yaml": "models:\n  chat:\n    model_path: clockwork.gguf\n"}],
    )


class FieldChange(BaseModel):
    """The change of one field of a definition. Secrets are masked; null means not declared."""

    field: str = Field(description="The field; a key of a mapping as env.HF_TOKEN.")
    before: JsonValue = Field(description="As the files say now.")
    after: JsonValue = Field(description="As proposed.")


class ModelChange(BaseModel):
    """What the proposed files would change of one model."""

    model: str = Field(description="The model.")
    change: Literal["added", "removed", "edited"] = Field(description="What happens to its declaration.")
    fields: list[FieldChange] = Field(description="What differs.")
    effect: Literal["none", "start", "stop", "restart", "scale"] = Field(
        description="start and stop: of all its engines; restart: of those named, one at a time; scale: more or fewer "
        "engines; none: nothing that runs is touched. A remote counts as one engine."
    )
    restarts: list[str] = Field(description="Replicas that would be replaced.")
    ends: list[str] = Field(description="What the edit ends of a runtime statement: fields of a load, or all of it.")


class KeyChange(BaseModel):
    """What the proposed files would change of one API key. It affects only gateways; no engine is restarted."""

    key: str = Field(description="The key's name.")
    change: Literal["added", "removed", "edited"] = Field(description="What happens to its declaration.")
    fields: list[str] = Field(description="Names of the fields that differ; a new `sha256` is a new secret.")


class DryRun(BaseModel):
    """What the proposed files would do. A dry run changes nothing."""

    ok: bool = Field(description="false: the files have problems, so what is in force would stay.")
    problems: list[Problem] = Field(description="What is wrong with the files.")
    changes: list[ModelChange] = Field(description="In name order; models that stay as they are, are left out.")
    keys: list[KeyChange] = Field(
        default_factory=list, description="In name order; keys that stay as they are, are left out."
    )
    plan: PlanView | None = Field(description="The first steps; null with problems.")


class DriftItem(BaseModel):
    """One difference between what runs and what the files declare."""

    model: str = Field(description="The model.")
    replica: str | None = Field(description="The replica, where it is about one.")
    kind: Literal["definition", "override", "statement", "missing", "undeclared", "image", "arguments"] = Field(
        description="What sort of difference."
    )
    field: str | None = Field(default=None, description="override: the field that a load sets.")
    declared: JsonValue = Field(description="What the files come to. Secrets are masked.")
    running: JsonValue = Field(description="What there is.")
    since: float = Field(description="Unix time since when, as far as this controller knows.")
    message: str = Field(description="The same in words.")


class Drift(BaseModel):
    """All differences between what runs and what the files declare. Empty if there are none."""

    items: list[DriftItem] = Field(description="In no particular order.")
    checked_at: float = Field(description="Unix time.")


# Journal.

EventKind = Literal["state", "action", "failure", "statement", "file", "problem", "overdue", "controller", "gateway"]
HISTORY_KINDS: tuple[EventKind, ...] = ("failure", "statement", "file", "problem", "overdue", "controller")
"""Kinds of journal entries that say who or what changed something. The other kinds are more frequent, and are kept for
a shorter time."""


class JournalEntry(Wire):
    """One event of the journal."""

    id: int = Field(description="Grows, also over restarts of the controller.")
    at: float = Field(description="Unix time in seconds.")
    kind: EventKind = Field(description="What sort of thing happened.")
    model: str | None = Field(default=None, description="The model, where it is about one.")
    actor: str = Field(description="Who or what: `files`, `controller`, `engine`, or who asked for it.")
    message: str = Field(description="What happened, in words.")
    details: dict[str, JsonValue] = Field(default_factory=dict, description="The same for programs; by kind.")


class History(BaseModel):
    """One page of the journal's entries, newest first."""

    entries: list[JournalEntry] = Field(description="The newest first.")
    next_before: int | None = Field(description="`before` of the next page; null: there is none.")
