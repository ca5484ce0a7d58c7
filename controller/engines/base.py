"""What a backend declares about itself. Pure: nothing here starts, reads or asks anything.

A new backend is one file beside this one, a definition class and an `Engine`, listed in `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from controller.artifacts.facts import Artifact
from controller.engines.load_fields import LoadFault, LoadField, LoadValue, find_faults
from controller.engines.memory import Forecast
from controller.schema.admin import Capabilities, PairPresets
from controller.schema.desired import Definition
from controller.schema.routing import MaxTokensField, ThinkingControl

RuntimeKind = Literal["docker", "process"]
SHM_BYTES: Final = 10 * 2**30
"""Shared memory of a container, through which tensor parallel workers pass data; a bound, taken only as it is used."""


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    """One GPU, or one MIG instance, that an engine may use."""

    uuid: str
    claim_mib: int
    """What the replica claims of it."""
    total_mib: int


@dataclass(frozen=True, slots=True)
class RenderContext:
    """Where an engine will run, as it sees the world itself."""

    runtime: RuntimeKind
    served_name: str
    models_root: PurePosixPath
    """The first models folder, as the engine sees it: `/models` in a container."""
    host: str
    port: int
    cache_dir: PurePosixPath
    """Writable folder that outlives the engine: compiled kernels."""
    executables: Mapping[str, str] = field(default_factory=dict)
    """Process runtime: programs found at boot, such as `llama-server` and `python`. Empty in containers."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Docker: default image by image kind (`llama-server`, `worker`)."""
    gpus: tuple[ClaimedGpu, ...] = ()
    """In the order in which the engine sees them, which is that of PCI. Empty also where it is not known yet which
    GPUs the engine will have (a preflight)."""
    model_paths: Mapping[str, str] = field(default_factory=dict)
    """Engine-side path by model path of the definition, as far as they were looked for."""

    def resolve_path(self, model_path: str) -> str:
        """The engine-side path of a model path; of one that was not looked for, below the first models folder."""
        return self.model_paths.get(model_path) or str(self.models_root / model_path)


@dataclass(frozen=True, slots=True)
class Launch:
    """One engine's start, rendered. `env` never holds a secret: the runtime sets `token_env` itself."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    token_env: str | None = None
    """Environment variable in which the engine expects the replica's own token, where it can check one."""
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file that must be there before an engine is started (or an old one drained)."""

    field: str
    path: str
    """As the definition has it: relative to a models folder, or absolute."""
    kind: Literal["gguf", "file", "folder", "any"] = "any"
    inside: str = ""
    """The file in the folder `path` that is meant; empty: `path` itself."""
    beside: tuple[str, ...] = ()
    """Names, with `*`, of which one at least must be in the file's folder."""

    @property
    def full_path(self) -> str:
        """The path of the file that is meant."""
        return f"{self.path}/{self.inside}" if self.inside else self.path


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """A folder that may bring no code along: the engine might run it, and the definition does not allow that."""

    field: str
    path: str
    """As the definition has it: relative to a models folder, or absolute."""
    switch: str
    """The field that would allow it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How readiness is seen: a health path, then one token (or one embedding)."""

    health_path: str
    ready_path: str
    ready_body: Mapping[str, Any]
    metrics_path: str | None = None
    """Prometheus text with `busy_metric` and `progress_metrics`, for the engine's own idle figure and its progress."""
    busy_metrics: tuple[str, ...] = ()
    progress_metrics: tuple[str, ...] = ()
    cache_metric: str | None = None
    """There: whose labels say how many tokens the KV cache holds."""
    preemption_metric: str | None = None
    """There: how often a request that was begun had to give its cache back."""
    template_path: str | None = None
    """Where the engine renders a conversation by the model's chat template without answering it; None: nowhere."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an ended engine's exit code and last log lines mean."""

    message: str
    permanent: bool = False
    """True: starting it again with the same definition cannot help."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a model is served by somebody else: nothing to start."""

    base_url: str
    model: str
    health_path: str
    api_key_env: str | None = None
    api_key_file: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What a running engine tells of itself. None: it has not, or does not."""

    context_length: int | None = None
    """Tokens of one request."""
    kv_cache_tokens: int | None = None
    """Tokens that its KV cache holds, where its metrics say so."""
    is_preempting: bool = False
    """Its metrics say that it takes the cache from requests that it has begun."""


class Engine:
    """One backend's declaration. Subclasses override what differs; instances hold no state."""

    name: ClassVar[str]
    definition: ClassVar[type[Definition]]
    runs: ClassVar[bool] = True
    """False: nothing to start (a remote)."""
    start_timeout_s: ClassVar[float] = 600.0
    default_target_inflight: ClassVar[int] = 1
    render_version: ClassVar[int] = 1
    """Raised on purpose when the same definition must give a different engine."""
    hashed_fields: ClassVar[tuple[str, ...]] = ()
    """The backend's fields that affect the engine, beside `model_path`, `env`, `extra_args`, `gpus` count and image."""
    hashed_when_set: ClassVar[tuple[str, ...]] = ()
    """The same, of fields that came with a later version: one that is None does not count, so that an upgrade restarts
    nothing."""
    image_kind: ClassVar[str | None] = None
    gpu_capabilities: ClassVar[tuple[str, ...]] = ("compute", "utility")
    """Parts of NVIDIA's driver that its container gets with a GPU, in the words of `NVIDIA_DRIVER_CAPABILITIES`."""
    renders_inflight: ClassVar[bool] = False
    """True: `target_inflight` is part of the command line, and so of the spec hash."""
    most_inflight: ClassVar[int | None] = None
    """Requests that one engine can work on at a time, whatever is configured; None: no limit of its own."""
    computes: ClassVar[bool] = True
    """False: a stand-in for a model, which holds nothing of the GPUs that it claims."""
    notices_leaving: ClassVar[bool] = True
    """False: work on a blocking request goes on for a while after its client left."""
    choices_take_slots: ClassVar[bool] = True
    """Each of several answers to one request (`n`) is worked on as a request of its own would be."""
    preempts_when_full: ClassVar[bool] = False
    """It makes room in its KV cache by computing requests again; false: all requests inside fail."""
    takes_dimensions: ClassVar[bool] = False
    """It shortens embeddings itself to the `dimensions` of a request, or refuses; else it may overlook them."""
    takes_mig_instances: ClassVar[bool] = True
    """False: as a process it takes GPUs by number alone, and a MIG instance has none."""
    thinking_switch: ClassVar[ThinkingControl] = "chat_template_kwargs"
    """How it is told to think or not, where it can be told."""
    load_fields: ClassVar[tuple[LoadField, ...]] = ()
    """What a live load may set."""
    load_recommendations: ClassVar[Mapping[str, PairPresets]] = MappingProxyType({})

    def configured_inflight(self, definition: Definition) -> int:
        """Requests that one replica is meant to serve at a time."""
        return definition.target_inflight or self.default_target_inflight

    def target_inflight(self, definition: Definition) -> int:
        """Requests that one replica serves at a time: as configured, as far as the engine can."""
        configured_count = self.configured_inflight(definition)
        return configured_count if self.most_inflight is None else min(configured_count, self.most_inflight)

    def max_choices(self, definition: Definition) -> int | None:
        """Most answers to one request (`n`); None: it has no such limit. A worker makes one."""
        return 1

    def load_faults(self, params: Mapping[str, Any]) -> list[LoadFault]:
        """What is wrong with a load's values, all of which are this backend's. Backends add rules about pairs."""
        return find_faults(self.load_fields, params)

    def load_override(self, params: Mapping[str, LoadValue]) -> dict[str, LoadValue]:
        """A load's values as definition fields: what is kept, reported and applied."""
        return dict(params)

    def rendered_vram_mib(self, definition: Definition) -> int | None:
        """The `vram_mib` that its command line depends on, and so its spec hash; None: it depends on none."""
        return None

    def derive_capabilities(self, definition: Definition) -> Capabilities:
        """What requests it takes."""
        return Capabilities()

    def max_tokens_field(self, definition: Definition) -> MaxTokensField:
        """What the engine calls the most tokens of a chat completion."""
        return "max_tokens"

    def thinking_control(self, definition: Definition) -> ThinkingControl | None:
        """How it is told to think or not; None: it takes `default` alone."""
        return self.thinking_switch if len(self.derive_capabilities(definition).thinking_modes) > 1 else None

    def context_length(self, definition: Definition) -> int | None:
        """Tokens of one request, prompt and answer, as declared; None: nothing is said. What the engine tells rules."""
        return None

    def kv_cache_tokens(self, definition: Definition, told: EngineFigures) -> int | None:
        """Tokens that the KV cache of one replica holds, of all requests inside together, where more than it holds harm
        each other; None: not known, or they do not. `told` is what the replica says of itself."""
        return None

    def list_artifacts(self, definition: Definition) -> tuple[str, ...]:
        """Model paths whose sizes estimate the memory that a replica takes."""
        return ()

    def longest_token(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Bytes that a token of its vocabulary stands for at most, by what is read of `artifacts`, by path; None: that
        is not known, or the engine cuts off what is too long of a prompt."""
        return None

    def predict_memory(self, definition: Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """What a replica takes of memory, by what is read of `artifacts`, by path; None: nothing is here to say it."""
        return None

    def is_held_to_claim(self, definition: Definition) -> bool:
        """Whether the engine is told how much of each GPU it may take, and does not load where that is too little.

        Then a replica that took little shows how little it was given, not how little it needs.
        """
        return False

    def parse_progress(self, log_tail: str) -> float | None:
        """How far a load is, 0 to 1, by the engine's log; None: it does not tell."""
        return None

    def resolve_image(self, definition: Definition, images: Mapping[str, str]) -> str | None:
        """The image reference in force, or None where the backend has no image."""
        return definition.image or (images.get(self.image_kind) if self.image_kind else None)

    def render_command(self, definition: Definition, ctx: RenderContext) -> Launch:
        """The command line and environment of one replica."""
        raise TypeError(f"backend {self.name} starts nothing")

    def list_files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The files that must be there."""
        return ()

    def list_code_checks(self, definition: Definition) -> tuple[CodeCheck, ...]:
        """Return the model folders that must not contain custom code (`auto_map`)."""
        return ()

    def describe_probe(self, definition: Definition) -> Probe:
        """How readiness is seen."""
        raise TypeError(f"backend {self.name} is probed as a remote")

    def describe_remote(self, definition: Definition) -> Remote | None:
        """Where the model is served, for a backend that starts nothing."""
        return None

    def list_apis(self, definition: Definition) -> tuple[str, ...]:
        """The gateway paths that the engine answers itself."""
        return ()

    def list_extra_fields(self, definition: Definition) -> tuple[str, ...] | None:
        """Fields of requests that it gets beside those that the API family knows; None: all, as an engine of ours."""
        return None

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """The engine's end in plain words; None when nothing better than its last log line is known."""
        return None
