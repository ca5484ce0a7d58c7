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
    model_validator,
)
from pydantic_core import CoreSchema

from contract.status import (
    GpuProcessView,
    GpuStatus,
    HostStatus,
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
    """Base of models that are serialized without fields that were not set. So a client can tell a value of null from no
    value. Immutable; a field that the class does not have raises pydantic.ValidationError."""

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

    kind: ConstraintKind = Field(
        description="Type of the value, for choosing a control. `integer_or_null` and `string_or_null` also accept "
        "null."
    )
    minimum: int | float | None = Field(default=None, description="Smallest accepted value, inclusive.")
    maximum: int | float | None = Field(default=None, description="Largest accepted value, inclusive.")
    step: int | None = Field(default=None, description="Distance between two adjacent values of a slider.")
    default: int | float | str | None = Field(
        default=None, description="Value in force if neither the load nor the definition sets the field."
    )
    null_means: str | None = Field(default=None, description="Meaning of a null value, in words.")
    format: str | None = Field(default=None, description="Format of a string value, such as `hf_id_or_local_path`.")
    unit: str | None = Field(default=None, description="Unit of the value, such as `tokens`.")
    display_unit: str | None = Field(default=None, description="Unit in which a UI should show the value.")
    allowed_values: list[int | str] | None = Field(default=None, description="All accepted values, if there are few.")
    examples: list[int | str] | None = Field(default=None, description="Examples of accepted values.")


class PairPresets(Sparse):
    """Recommended values of fields that belong together. Other allowed values may be used too."""

    kind: Literal["pair_presets"] = Field(description="Type of the presets: each preset sets several fields at once.")
    fields: list[str] = Field(description="Names of the fields that each preset sets.")
    recommended_pairs: list[dict[str, int | str | None]] = Field(
        description="The presets: each has a `label` and a value for every name in `fields`."
    )
    notes: list[str] | None = Field(default=None, description="Remarks about the presets, for people.")


class Capabilities(Wire):
    """The kinds of requests that a model accepts. The gateway refuses others."""

    modalities: tuple[Modality, ...] = Field(default=("text",), description="Kinds of input that requests may contain.")
    media_urls: bool = Field(
        default=False,
        description="Whether requests may give images and sounds by `http` addresses, which the engine fetches.",
    )
    multi_turn: bool = Field(default=True, description="Whether requests may contain a conversation of several turns.")
    thinking_modes: tuple[ThinkingMode, ...] = Field(
        default=("default",), description="Accepted values of the request field `thinking`."
    )
    tools: bool = Field(default=True, description="Whether the model supports tool calls.")
    forced_tools: bool = Field(
        default=True,
        description="Whether a request can force a tool call: `tool_choice` that is `required`, or names a tool. "
        "false also without `tools`.",
    )
    structured_output: bool = Field(
        default=True, description="Whether answers can be constrained to JSON or to a JSON Schema."
    )
    logprobs: bool = Field(default=True, description="Whether the model can return log probabilities of tokens.")


class HeldBy(Wire):
    """One running request that an unload waits for."""

    request_id: str = Field(description="The request's id, as in the `x-request-id` header of its answer.")
    replica: str = Field(description="Name of the replica that serves the request.")
    gateway: str = Field(description="Id of the gateway that forwards the request.")
    since: float = Field(description="Unix time in seconds at which the gateway sent the request to the engine.")


class ModelConfigured(BaseModel):
    """The part of a model's row that only an edit of the files or a load changes."""

    name: str = Field(description="Public model name.")
    resolved_backend: str = Field(
        description="Backend that serves the model, either declared or derived from the model's files."
    )
    configured_enabled: bool = Field(description="Value of `enabled` in the desired-state files.")
    replica_max: int = Field(description="Maximum number of replicas that a load may ask for.")
    configured_target_inflight: int = Field(description="Requests that one replica serves at a time, as configured.")
    effective_target_inflight: int = Field(
        description="Requests that one replica serves at a time, limited to what its engine supports."
    )
    load_constraints: dict[str, LoadConstraint] = Field(
        description="Fields that a load may set, with the values that each accepts."
    )
    load_recommendations: dict[str, PairPresets] = Field(
        description="Presets that a UI should offer first. A load accepts other values too."
    )
    capabilities: Capabilities = Field(
        description="Kinds of requests that the model accepts. The gateway refuses all others."
    )
    definition: dict[str, JsonValue] = Field(
        description="All fields of the definition as the files declare them; null: not declared. Secrets are masked."
    )
    aliases: list[str] = Field(description="Other names that clients may use for the model.")
    declared_by: Literal["files", "runtime", "discovery"] = Field(
        default="files",
        description="Who declares the model: the desired-state files, an operator at run time "
        "(`/v1/admin/declarations`), or nobody: its file lies in a models folder (`discover: true`).",
    )


class ModelEstimate(BaseModel):
    """A model's state and the estimate of its GPU memory."""

    runtime_state: ModelState = Field(
        description="State of the model: unloaded, sleeping, loading, loaded, unloading or failed."
    )
    is_loaded: bool = Field(description="Whether `runtime_state` is `loaded`.")
    vram_estimate_mib: int | None = Field(
        description="Estimated GPU memory in MiB of `vram_estimate_replica_count` replicas, or main memory if they "
        "use no GPU; null: not known."
    )
    vram_estimate_replica_count: int = Field(description="Number of replicas that the estimate is for.")
    vram_estimate_source: EstimateSource = Field(
        description="Source of the estimate. `declared` is `vram_mib` in the definition, or `memory_mib` without a GPU."
    )
    vram_observed_mib: int | None = Field(
        default=None,
        description="Measured memory in MiB of `vram_estimate_replica_count` replicas, also if `vram_mib` is "
        "declared; null: never measured.",
    )
    vram_warning: str | None = Field(
        default=None,
        description="A sentence, if a replica took at least a tenth more or less of a GPU than `vram_mib` "
        "declares; else null.",
    )


class ModelLive(ModelEstimate):
    """The part of a model's row that changes while the model runs."""

    replicas: int = Field(
        description="Number of wanted replicas. For a model that is not wanted: the number that a load without values "
        "would start."
    )
    loaded_replicas: int = Field(description="Number of replicas that serve now.")
    inflight_requests: int | None = Field(
        description="Requests in the model's engines, including engines that drain; null: not known, because a "
        "gateway is lost."
    )
    queue_depth: int | None = Field(
        description="Requests that wait in the gateways for the model; null: not known, because a gateway is lost."
    )
    runtime_inflight: int | None = Field(
        description="Requests in replicas that take new requests; null: not known, because a gateway is lost."
    )
    last_error: str | None = Field(
        description="Why the last attempt failed, followed by the engine's last log lines; null: no failure."
    )
    exit_code: int | None = Field(
        description="Exit code of the engine that `last_error` is about, negative for a signal; null: not known, or "
        "none ended."
    )
    load_override: dict[str, JsonValue] = Field(
        description="Fields that the load in force sets. A key that is present overrides the definition, also with a "
        "null value."
    )
    statement: StatementView = Field(
        description="The statement that decides whether the model is loaded, and since when it applies."
    )
    retry_at: float | None = Field(
        description="Unix time in seconds of the next attempt after a failure; null: none is planned."
    )
    wake_s: float | None = Field(
        default=None,
        description="Seconds that the model's last wake from its sleep took; null: none was seen.",
        exclude_if=lambda seconds: seconds is None,
    )
    load_progress: float | None = Field(
        description="Progress of loading, from 0 to 1; null: not loading, or the engine does not report it."
    )
    prefill_requests: int = Field(
        default=0, description="Requests of streams with `X-Progress` whose prompts the model's engines read now."
    )
    prefill_progress: float | None = Field(
        default=None, description="Progress of reading these prompts, from 0 to 1; null: there are none."
    )
    blocked: list[str] = Field(description="Sentences that say why the model cannot reach its wanted state now.")
    drift: list[str] = Field(
        default_factory=list,
        description="Sentences, one for each option that a loaded engine applied otherwise than declared.",
    )
    held_by: list[HeldBy] = Field(
        description="While `runtime_state` is `unloading`: the requests that the unload waits for, oldest first."
    )
    replica_details: list[ReplicaStatus] = Field(
        description="The model's engines, including those that drain or have ended."
    )


class AdminModel(ModelLive, ModelConfigured):
    """One model's row: its configuration, its wanted state and its running state."""


class ListContext(BaseModel):
    """How current a list of models is, and from which event on a client can follow changes to it."""

    last_event_id: int = Field(
        description="Id of the newest event when the answer was made. Follow `events` from this id to miss no change."
    )
    observed_at: float = Field(description="Unix time in seconds of the last complete observation of the engines.")
    observation_error: str | None = Field(
        description="Why observation has failed since `observed_at`, so that the answer is outdated; null: it works."
    )
    desired_problems: list[Problem] = Field(
        description="Errors in the desired-state files. If there are any, the last valid state stays in force."
    )
    paused: bool = Field(description="Whether the controller is paused: it observes, and changes nothing.")


class AdminModels(ListContext):
    """All declared models in name order."""

    models: list[AdminModel] = Field(description="The declared models.")


class UnloadRequest(BaseModel):
    """Body of a request to unload a model. It may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hold: bool = Field(
        default=True,
        description="Applies to `autoload` models. true: the model stays unloaded until the next load or edit. false: "
        "only frees the memory; the next request loads the model again.",
    )


class GpuMemory(BaseModel):
    """One GPU, or one MIG instance of a GPU."""

    index: int = Field(description="Number of the GPU in PCI order. A MIG instance has the number of its GPU.")
    name: str = Field(description="Product name, as the driver reports it.")
    used_mib: int = Field(description="Memory in use by all programs, in MiB.")
    total_mib: int = Field(description="Total memory, in MiB.")
    used_over_total: str = Field(
        description="Used and total memory as text, such as `75603MiB / 97887MiB`, as nvidia-smi shows it."
    )
    uuid: str = Field(description="UUID of the GPU, as `gpus` of a definition accepts it.")
    claimed_mib: int = Field(description="Memory reserved for replicas, in MiB.")
    utilization_percent: int | None = Field(
        default=None,
        description="Percentage of the driver's last sample period in which the GPU was busy; null: not reported.",
    )
    processes: list[GpuProcessView] | None = Field(
        default=None,
        description="Processes that use memory of the GPU, largest first; null: not reported by the driver.",
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


class GpuModel(ModelEstimate):
    """One model's estimated GPU memory."""

    name: str = Field(description="Public model name.")
    configured_target_inflight: int = Field(description="Requests that one replica serves at a time, as configured.")
    effective_target_inflight: int = Field(
        description="Requests that one replica serves at a time, limited to what its engine supports."
    )


class GpuMemoryAnswer(BaseModel):
    """Current GPU memory, and the estimates for all models."""

    gpus: list[GpuMemory] = Field(description="The host's GPUs that can be read.")
    unread_gpus: list[UnreadGpuStatus] = Field(
        default_factory=list, description="GPUs that are missing from `gpus` because the driver cannot read them."
    )
    host_mib: int | None = Field(
        default=None,
        description="Main memory that all engines may take together, in MiB: the host's, or `ROUNDHOUSE_ENGINES_MEMORY_"
        "MIB`; null: not bounded.",
    )
    models: list[GpuModel] = Field(description="Memory estimates of all declared models.")
    error: str | None = Field(description="Why no figures of GPUs are available; null: they are.")
    driver_version: str | None = Field(
        default=None, description="Version of the host's NVIDIA driver; null: not known."
    )
    cuda_version: str | None = Field(
        default=None, description="Latest CUDA version that the driver supports, such as `12.8`; null: not known."
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


# Hosts.


class HostDetails(HostStatus):
    """One host: its state, its main memory, its engines, and each of its GPUs."""

    gpus: list[GpuStatus] | None = Field(description="Its GPUs that can be read; null: not known.")
    unread_gpus: list[UnreadGpuStatus] = Field(description="Its GPUs that cannot be read.")


class HostList(BaseModel):
    """Every host of the installation, in the order of their names."""

    hosts: list[HostDetails] = Field(description="The hosts. The only host of an installation has no name.")
    is_cut_off: bool = Field(
        description="Whether so many hosts are silent at once that the controller is rather the one that is cut off: "
        "none is declared lost then, and nothing is moved."
    )


class ForgetRequest(BaseModel):
    """Body of a request to forget a host: its name once more, so that no slip forgets one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    confirm: str = Field(description="The host's name, as in the path.")


# Plans.


class ProposedLoad(BaseModel):
    """A load in the body of a dry run: what `POST /v1/admin/models/{name}/load` would get for the model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    values: dict[str, JsonValue] = Field(
        default_factory=dict, description="Body of the load: `replicas`, and fields of the model's backend."
    )
    restart: bool = Field(default=False, description="The query parameter `restart` of the load.")


class ProposedFiles(BaseModel):
    """Body of a dry run: files to add, replace or remove, models to declare at run time, and loads. At least one of
    them is given. All else counts as unchanged."""

    model_config = ConfigDict(extra="forbid", strict=True)

    models: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict,
        description="Models to declare at run time, in place of earlier such declarations: fields by the model's name.",
    )
    loads: dict[str, ProposedLoad] = Field(
        default_factory=dict, description="Loads by the name or an alias of a model that is declared now."
    )
    files: dict[str, str | None] = Field(
        default_factory=dict,
        description="Maps a file name, such as `models.yaml`, to the file's complete new content; null removes the "
        "file.",
        examples=[{"models.yaml": "models:\n  chat:\n    model_path: clockwork.gguf\n"}],
    )

    @model_validator(mode="after")
    def _require_something(self) -> ProposedFiles:
        if not (self.files or self.models or self.loads):
            raise ValueError("must have `files`, `models` or `loads`")
        return self


class FieldChange(BaseModel):
    """The change of one field of a definition. Secrets are masked; null means not declared."""

    field: str = Field(description="Name of the field. A key of a mapping follows a dot: `env.HF_TOKEN`.")
    before: JsonValue = Field(description="Value in the files now; null: not declared.")
    after: JsonValue = Field(description="Value in the proposed files; null: not declared.")


class ModelChange(BaseModel):
    """What the proposed files would change of one model."""

    model: str = Field(description="Public model name.")
    change: Literal["added", "removed", "edited"] = Field(description="What the proposed files do to the declaration.")
    fields: list[FieldChange] = Field(description="Fields whose values differ.")
    effect: Literal["none", "start", "stop", "restart", "scale"] = Field(
        description="What happens to engines. `start` and `stop`: all engines of the model; `restart`: the replicas "
        "in `restarts`, one at a time; `scale`: engines are added or removed; `none`: running engines stay as they "
        "are. A remote model counts as one engine."
    )
    restarts: list[str] = Field(description="Names of the replicas that would be replaced.")
    ends: list[str] = Field(
        description="What the edit ends of a load or unload in force: `load` or `unload` for all of it, else the "
        "fields of a load that end."
    )


class KeyChange(BaseModel):
    """What the proposed files would change of one API key. It affects only gateways; no engine is restarted."""

    key: str = Field(description="Name of the key.")
    change: Literal["added", "removed", "edited"] = Field(description="What the proposed files do to the declaration.")
    fields: list[str] = Field(description="Names of the fields that differ. A change of `sha256` means a new secret.")


class ToolChange(BaseModel):
    """What the proposed files would change of one built-in tool or MCP server."""

    kind: Literal["tool", "mcp_server"] = Field(description="Whether it is a built-in tool or an MCP server.")
    name: str = Field(description="Name of the tool or server.")
    change: Literal["added", "removed", "edited"] = Field(description="What the proposed files do to the declaration.")
    fields: list[str] = Field(description="Names of the fields that differ. Values are never given.")


class DryRun(BaseModel):
    """What the proposed files would do. A dry run changes nothing."""

    ok: bool = Field(description="Whether the proposed files are valid. If not, the state in force would stay.")
    problems: list[Problem] = Field(description="Errors in the proposed files.")
    changes: list[ModelChange] = Field(description="Models whose declaration changes, in name order.")
    keys: list[KeyChange] = Field(
        default_factory=list, description="API keys whose declaration changes, in name order."
    )
    tools: list[ToolChange] = Field(
        default_factory=list,
        description="Built-in tools, then MCP servers, whose declaration changes, each in name order.",
    )
    plan: PlanView | None = Field(
        description="First steps of the controller after the edit; null: the files have problems."
    )
    superseded: list[str] = Field(
        default_factory=list,
        description="Models, and keys as `key NAME`, whose runtime declaration would end: the files declare them.",
    )


class DriftItem(BaseModel):
    """One difference between what runs and what the files declare."""

    model: str = Field(description="Public model name.")
    replica: str | None = Field(description="Name of the replica; null: the difference concerns the whole model.")
    kind: Literal[
        "declaration", "definition", "override", "statement", "missing", "undeclared", "image", "arguments", "applied"
    ] = Field(description="Kind of difference.")
    field: str | None = Field(
        default=None,
        description="Name of the field: for kind `override` the one that a load sets, for kind `applied` the one that "
        "the engine applied otherwise; else null.",
    )
    declared: JsonValue = Field(description="Value that follows from the files. Secrets are masked.")
    running: JsonValue = Field(description="Value that is in force in the running system. Secrets are masked.")
    since: float = Field(
        description="Unix time in seconds of the edit or statement that caused the difference, or of when it was "
        "first seen."
    )
    message: str = Field(description="The difference in one sentence.")


class Drift(BaseModel):
    """All differences between what runs and what the files declare. Empty if there are none."""

    items: list[DriftItem] = Field(description="The differences, in no particular order.")
    checked_at: float = Field(description="Unix time in seconds of the check.")


class ReloadResult(BaseModel):
    """What reading the desired-state files again has changed."""

    is_changed: bool = Field(description="Whether the desired state changed.")
    problems: list[Problem] = Field(
        description="Errors in the files. If there are any, the last valid state stays in force."
    )


class CommandLines(BaseModel):
    """The command lines of the engines that run."""

    models: dict[str, list[str]] = Field(
        description="Words of the command line of the model's newest engine, secrets masked, by public model name. A "
        "model without an engine that runs is absent."
    )
