"""What a backend declares about itself, and gaps between that and the figures that its engine reports. Pure: nothing
here starts, reads or asks anything.

A new backend is one file beside this one, with a definition class and an `Engine`, and a line in `__init__.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar, get_args

from pydantic import JsonValue

from contract.admin import Capabilities, Modality, PairPresets, ThinkingMode
from contract.desired import Definition
from contract.routing import MaxTokensField, SessionBinding, ThinkingControl
from controller.artifacts.heads import Artifact
from controller.engines.memory import Forecast
from controller.engines.options import (
    FileKind,
    LoadFault,
    LoadField,
    LoadValue,
    find_faults,
    list_load_fields,
    list_options,
    list_paths,
    split_paths,
)
from controller.state import AppliedFigures

CONTEXT_MULTIPLE: Final = 256
"""llama.cpp rounds a context length up to a multiple of this number of tokens (`llama_context`)."""


@dataclass(frozen=True, slots=True)
class FigureGap:
    """One option that a loaded engine applied otherwise than declared."""

    field: str
    """Name of the definition's field."""
    declared: JsonValue
    applied: JsonValue


def compare_figure(
    definition: Definition, field: str, declared: JsonValue, applied: JsonValue, *flags: str
) -> tuple[FigureGap, ...]:
    """Return the gap of one figure, or nothing: where either value is None (not declared, not reported), where both are
    equal, and where `extra_args` have the flag of `field` or one of `flags`."""
    if declared is None or applied is None or declared == applied or has_argument(definition, field, *flags):
        return ()
    return (FigureGap(field, declared, applied),)


def compare_slots(definition: Definition, declared: int, applied: int | None) -> tuple[FigureGap, ...]:
    """Return the gap of an engine that serves fewer requests at a time than `declared`; empty: it serves as many or
    more, or does not report it. More of them harm nobody: the gateway sends no more than declared."""
    too_few = applied if applied is not None and applied < declared else None
    return compare_figure(definition, "target_inflight", declared, too_few)


def compare_padded_context(
    definition: Definition, field: str, declared: int | None, applied: int | None, *flags: str
) -> tuple[FigureGap, ...]:
    """Return the gap of a context length, in tokens, as `compare_figure` does. There is none where `applied` is the
    declared length rounded up to a multiple of 256, as llama.cpp rounds it (`pad_context`)."""
    if declared is not None and applied == pad_context(declared):
        return ()
    return compare_figure(definition, field, declared, applied, *flags)


def pad_context(tokens: int) -> int:
    """Return a context length, in tokens, rounded up to a multiple of 256 (CONTEXT_MULTIPLE), as llama.cpp does."""
    return -(-tokens // CONTEXT_MULTIPLE) * CONTEXT_MULTIPLE


def has_argument(definition: Definition, field: str, *flags: str) -> bool:
    """Return whether `extra_args` have the flag of `field` or one of `flags`, also as `--flag=value` and with
    underscores. They come last in a command line, so that they win over the field."""
    own = (option.flag.name for option in list_options(type(definition)) if option.name == field and option.flag)
    names = {arg.partition("=")[0].replace("_", "-") for arg in definition.extra_args}
    return not names.isdisjoint((*own, *flags))


ChatFormat = Literal["generic", "mistral_template", "qwen3_template", "gemma4_template"]
"""Prompt formats of conversations."""
PromptFormat = Literal["generic", "mistral_template", "qwen3_template", "gemma4_template", "translategemma_template"]
Family = Literal["gemma4", "qwen3"]

DEFAULT_ONLY: Final[tuple[ThinkingMode, ...]] = ("default",)
ALL_MODES: Final[tuple[ThinkingMode, ...]] = ("default", "enabled", "disabled")

_OF_FORMAT: Final[dict[str, Family]] = {"gemma4_template": "gemma4", "qwen3_template": "qwen3"}
# The number must not be part of another number (gemma-40) or of a size (gemma-4b, qwen-32b).
_OF_NAME: Final[tuple[tuple[re.Pattern[str], Family], ...]] = (
    (re.compile(r"gemma[-_ ]?4(?![0-9b])", re.IGNORECASE), "gemma4"),
    (re.compile(r"qwen[-_ ]?3(?![0-9b])", re.IGNORECASE), "qwen3"),
)
# Models of Qwen3 that always think or never do: their templates have no switch.
_WITHOUT_SWITCH: Final = re.compile(r"coder|2507|embed|rerank|guard", re.IGNORECASE)


def family_of(prompt_format: str | None, *names: str | None) -> Family | None:
    """Return the family by the prompt format, where one is declared, else by the first name that matches a family.
    Names are of files, folders or models of the hub; None among them is skipped. None: the declared format or the names
    belong to no known family, or the name is of a Qwen3 model whose template has no switch for thinking (Qwen3-Coder is
    one)."""
    if prompt_format is not None:
        return _OF_FORMAT.get(prompt_format)
    for name in names:
        for pattern, family in _OF_NAME:
            if name is not None and pattern.search(name):
                return None if family == "qwen3" and _WITHOUT_SWITCH.search(name) else family
    return None


def thinking_modes(family: Family | None, *switchable: Family) -> tuple[ThinkingMode, ...]:
    """Return all thinking modes where `family` is among `switchable`, the families that the backend can switch; else
    `default` alone."""
    return ALL_MODES if family in switchable else DEFAULT_ONLY


DefinitionT = TypeVar("DefinitionT", bound=Definition)
RuntimeKind = Literal["docker", "process"]
LEAST_SESSIONS: Final = 4
"""Sessions of a replica whose definition does not say how many."""
SHM_BYTES: Final = 10 * 2**30
"""Size of a container's shared memory, through which tensor parallel workers pass data. An upper bound: memory is taken
only as it is used."""


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    """A GPU, or a MIG instance, that one replica claims, with sizes in MiB."""

    uuid: str
    claim_mib: int
    """MiB of the GPU's memory that the replica claims."""
    total_mib: int


@dataclass(frozen=True, slots=True)
class RenderContext:
    """Where an engine will run: what `Engine.render_command` needs beside the definition. The runtime builds it. Paths
    and addresses are as the engine sees them."""

    runtime: RuntimeKind
    served_name: str
    models_root: PurePosixPath
    """The first models folder: `/models` in a container."""
    host: str
    port: int
    cache_dir: PurePosixPath
    """Writable folder that outlives the engine, for compiled kernels and downloads."""
    executables: Mapping[str, str] = field(default_factory=dict)
    """Process runtime: paths of the programs found at boot, by name (`llama-server`, `python`). Empty in containers."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Docker runtime: default image by image kind (`llama-server`, `worker`)."""
    gpus: tuple[ClaimedGpu, ...] = ()
    """GPUs of the replica in PCI order, which is the engine's order. Empty in a preflight, which runs before GPUs are
    chosen."""
    model_paths: Mapping[str, str] = field(default_factory=dict)
    """Engine-side path by model path, for the model paths that the runtime looked up."""
    index: int = 0
    """Number of the replica among those of its model, from 0."""
    python_path: str = ""
    """`PYTHONPATH` that the engine inherits where nothing else is set."""

    def resolve_path(self, model_path: str) -> str:
        """Return the path at which the engine sees a model path. A relative path that the runtime did not look up is
        taken to lie below the first models folder, an absolute one stays as it is; whether it exists is not checked."""
        return self.model_paths.get(model_path) or str(self.models_root / model_path)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one engine: what `Engine.render_command` returns and a runtime carries out. `env` holds no token:
    the runtime sets the variable `token_env` itself. `image` None: no container image, or none is known."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    token_env: str | None = None
    """Environment variable from which the engine reads the replica's token; None: the engine checks no token."""
    shm_bytes: int | None = None
    """Size of the container's shared memory; None: Docker's default."""
    mounts: tuple[str, ...] | None = None
    """Folders of the host that a container gets, as `HOST:CONTAINER`, read-only, or `HOST:CONTAINER:rw`, in place of
    the models folders and the cache volume. None: it gets models and cache."""
    has_egress: bool = False
    """Whether a container may reach what lies beyond the network of engines."""
    folders: tuple[PurePosixPath, ...] = ()
    """Folders below `RenderContext.cache_dir` that the runtime creates before the start. They outlive the engine."""
    files: Mapping[PurePosixPath, str] = field(default_factory=dict)
    """Text files below `RenderContext.cache_dir` that the runtime writes before each start, in `folders`."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file or folder that must exist before an engine starts, and before an old engine is drained for it, with what
    must lie in it (`inside`) or next to it (`beside`). The preflight checks it. `field`: the definition field that
    names it, for the error message."""

    field: str
    path: str
    """Model path as the definition has it: relative to a models folder, or absolute."""
    kind: FileKind = "any"
    inside: str = ""
    """Name of the file to check inside the folder `path`; empty: check `path` itself."""
    beside: tuple[str, ...] = ()
    """File name patterns with `*`. At least one must match in the folder of the file. Empty: nothing is looked for."""

    @property
    def full_path(self) -> str:
        """The model path to check: `path`, with `/` and `inside` appended where `inside` is set."""
        return f"{self.path}/{self.inside}" if self.inside else self.path


@dataclass(frozen=True, slots=True)
class CodeCheck:
    """A model folder that must not contain custom code, because the definition does not allow the engine to run it. The
    preflight checks it. `field`: the definition field that names the folder, for the error message."""

    field: str
    path: str
    """Model path as the definition has it: relative to a models folder, or absolute."""
    switch: str
    """The field that would allow it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How to see that an engine is ready: a GET of `health_path`, then a POST of `ready_body` (JSON) to `ready_path`.
    An empty `ready_path`: the GET is enough. Paths are relative to the engine's base URL."""

    health_path: str
    ready_path: str
    ready_body: Mapping[str, Any]
    metrics_path: str | None = None
    """Path of the engine's metrics in Prometheus' text format, which hold the metrics named below; None: no metrics."""
    busy_metrics: tuple[str, ...] = ()
    """Metrics whose sum is the number of requests inside the engine. Zero: the engine is idle."""
    progress_metrics: tuple[str, ...] = ()
    """Metrics that grow while the engine works."""
    cache_metric: str | None = None
    """Metric whose labels state the size of the KV cache in tokens; None: there is none."""
    preemption_metric: str | None = None
    """Metric that counts how often a running request lost its part of the KV cache; None: there is none."""
    figure_paths: tuple[str, ...] = ("/v1/models",)
    """Paths at which a loaded engine reports its own configuration: see `controller.observe.health`."""
    template_path: str | None = None
    """Path that renders a conversation with the model's chat template, without an answer; None: there is none."""


@dataclass(frozen=True, slots=True)
class SleepCalls:
    """How an engine is put to sleep and woken: POSTs in their order, each a path relative to the engine's base URL and
    a JSON body (None: without one). The canary is asked after each wake."""

    sleep: tuple[tuple[str, Mapping[str, Any] | None], ...]
    wake: tuple[tuple[str, Mapping[str, Any] | None], ...]
    state_path: str
    """GET of it answers `{"is_sleeping": true or false}`."""
    canary_path: str
    canary_body: Mapping[str, Any]
    keeps_weights: bool
    """Whether the weights lie in main memory meanwhile. False: they are read from their files again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an engine ended or failed, in plain words for the operator. `permanent`: another start with the same
    definition cannot help."""

    message: str
    """All that is known, for the operator: plain words, and what the engine or the runtime itself said."""
    permanent: bool = False
    exit_code: int | None = None
    """Exit code of the engine's process, negative for a signal; None: no process ended, or its code is not known."""
    plain: str | None = None
    """The message without words of the engine or the runtime, for clients who may not administer; empty: nothing else
    is in `message`. None: `message` has no such words, and may be shown as it is."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where another server serves a model: what `Engine.describe_remote` returns. Roundhouse starts nothing for it;
    gateways probe `base_url` + `health_path`. The key itself is not here: `api_key_env` or `api_key_file` says where
    the controller finds it; both None: there is none."""

    base_url: str
    model: str
    """Name of the model there; empty: the public name."""
    health_path: str
    api_key_env: str | None = None
    """Environment variable of the controller that holds the key; None: see `api_key_file`."""
    api_key_file: str | None = None
    """File that holds the key, as the controller sees it; None as well: the server gets no key."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What a running engine reports about itself, as its last probes read it. None: not reported."""

    context_length: int | None = None
    """Context length of one request, in tokens."""
    kv_cache_tokens: int | None = None
    """Size of the KV cache, in tokens, by the engine's metrics."""
    is_preempting: bool = False
    """Whether the metrics show that running requests lose their part of the KV cache."""


class Engine(Generic[DefinitionT]):
    """A backend: its definition class, its command line, its memory, and what it can do.

    Subclasses override what differs. `ENGINES` holds one instance of each for the life of the process; instances have
    no state, read no files and start nothing. Every method takes a validated definition of the backend's own class.
    """

    name: ClassVar[str]
    definition: type[DefinitionT]
    runs: ClassVar[bool] = True
    """False: Roundhouse starts nothing (a remote)."""
    program_noun: ClassVar[str] = "engine"
    """What the program that is started is called where its end is explained."""
    start_timeout_s: ClassVar[float] = 600.0
    """Seconds from start to ready, where neither definition nor settings say otherwise."""
    default_target_inflight: ClassVar[int] = 1
    """Requests that one replica serves in parallel, where the definition says nothing."""
    render_version: ClassVar[int] = 1
    """Part of the spec hash. Raise it to replace every running engine of this backend at an upgrade."""
    image_kind: ClassVar[str | None] = None
    """Key of the default image in `RenderContext.images`; None: the backend has no image."""
    gpu_capabilities: ClassVar[tuple[str, ...]] = ("compute", "utility")
    """Driver capabilities of a container with a GPU, in the words of `NVIDIA_DRIVER_CAPABILITIES`."""
    renders_inflight: ClassVar[bool] = False
    """Whether the command line contains `target_inflight`, which makes it part of the spec hash."""
    renders_sessions: ClassVar[bool] = False
    """Whether the command line contains a declared `session_cache`, which makes it part of the spec hash."""
    most_inflight: ClassVar[int | None] = None
    """Requests that one engine can serve in parallel, whatever is configured; None: no limit."""
    computes: ClassVar[bool] = True
    """False: a stand-in for a model, which uses no memory of the GPUs that it claims."""
    notices_leaving: ClassVar[bool] = True
    """False: the engine goes on with a blocking request for a while after the client disconnected."""
    choices_take_slots: ClassVar[bool] = True
    """Whether each of the `n` answers to one request takes a slot, as a request does."""
    preempts_when_full: ClassVar[bool] = False
    """When the KV cache is full: true: the engine computes some requests again; false: all requests inside fail."""
    takes_dimensions: ClassVar[bool] = False
    """Whether the engine cuts embeddings to a request's `dimensions`, or refuses. False: it may ignore the field."""
    takes_mig_instances: ClassVar[bool] = True
    """False: as a process the engine selects GPUs by number, and a MIG instance has no number."""
    thinking_switch: ClassVar[ThinkingControl] = "chat_template_kwargs"
    """Request field that turns thinking on and off, for models that can do both."""
    context_field: ClassVar[str] = ""
    """Field that declares the context length of one request; empty: no single field does."""
    load_recommendations: ClassVar[Mapping[str, PairPresets]] = MappingProxyType({})
    """Values that a UI offers first, by a name of the group."""
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = ()
    """Patterns of log lines (regular expressions, case ignored) and what they mean. The first match counts."""

    @property
    def load_fields(self) -> tuple[LoadField, ...]:
        """The fields of this backend that an operator's load may set, in the order in which a UI shows them."""
        return list_load_fields(self.definition)

    def configured_inflight(self, definition: DefinitionT) -> int:
        """Return how many requests one replica is meant to serve in parallel: the declared `target_inflight`, else the
        backend's default. The engine may be able to do fewer: see `target_inflight`."""
        return definition.target_inflight or self.default_target_inflight

    def target_inflight(self, definition: DefinitionT) -> int:
        """Return how many requests one replica serves in parallel: the configured number (`configured_inflight`), but
        no more than `most_inflight`."""
        configured_count = self.configured_inflight(definition)
        return configured_count if self.most_inflight is None else min(configured_count, self.most_inflight)

    def configured_sessions(self, definition: DefinitionT) -> int:
        """Return how many sessions (conversations whose computed prompts stay in memory) one replica is meant to keep:
        the declared `session_cache`, else 4 (`LEAST_SESSIONS`) or, if that is more, the requests that it serves in
        parallel. `session_cache` says whether the engine keeps any."""
        if definition.session_cache is not None:
            return definition.session_cache
        return max(LEAST_SESSIONS, self.target_inflight(definition))

    def session_cache(self, definition: DefinitionT) -> int:
        """Return the number of sessions for which one replica keeps what it has computed, by the definition; 0: the
        gateway names no sessions to the engine. Here always 0."""
        return 0

    def session_binding(self, definition: DefinitionT) -> SessionBinding | None:
        """Return how requests name their session to the engine (see `SessionBinding`); None: they do not, since the
        engine keeps no sessions or finds by itself what it has computed. Here always None."""
        return None

    def lora_modules(self, definition: DefinitionT) -> tuple[str, ...] | None:
        """Return the names of LoRA modules that the engine serves as models of their own. None: the engine reads a
        request's field `lora` itself, if at all. Here None."""
        return None

    def max_choices(self, definition: DefinitionT) -> int | None:
        """Return the highest `n` (answers to one request) that the engine takes; None: no limit of its own. Here 1,
        which is what a worker takes."""
        return 1

    def load_faults(self, params: Mapping[str, Any]) -> list[LoadFault]:
        """Return what is wrong with a load's values; empty: nothing. Nothing is raised. `params`: value by name of a
        load field. All must be fields of this backend (see `find_wrong_backend`): other names are ignored. Backends
        override it to add rules about several fields."""
        return find_faults(self.load_fields, params)

    def load_override(self, params: Mapping[str, LoadValue]) -> dict[str, LoadValue]:
        """Return a load's values as fields of the definition: what is stored, reported and applied. Call it only for
        values in which `load_faults` found nothing."""
        return dict(params)

    def rendered_vram_mib(self, definition: DefinitionT) -> int | None:
        """Return the declared `vram_mib` (MiB on each GPU) where the command line depends on it, which makes it part of
        the spec hash; else None. Here always None."""
        return None

    def compared_arguments(self, definition: DefinitionT, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the words of a command line of this engine, program first, that count as drift where they differ
        between a running replica and what it would be started with now. Here all of them."""
        return tuple(argv)

    def derive_capabilities(self, definition: DefinitionT) -> Capabilities:
        """Return which requests the model takes: what the definition declares, and for the rest what its options imply.
        Nothing is read of the model's files. Here the defaults: backends override it."""
        return Capabilities()

    def max_tokens_field(self, definition: DefinitionT) -> MaxTokensField:
        """Return the name of the field by which a chat completion sent to the engine limits its output tokens. Here
        `max_tokens`."""
        return "max_tokens"

    def thinking_control(self, definition: DefinitionT) -> ThinkingControl | None:
        """Return the request field that turns thinking on and off; None: the only thinking mode is `default`."""
        return self.thinking_switch if len(self.derive_capabilities(definition).thinking_modes) > 1 else None

    def context_length(self, definition: DefinitionT) -> int | None:
        """Return the declared context length of one request, prompt and answer, in tokens; None: not declared. Here
        None. What a running engine reports takes precedence."""
        return None

    def compare_figures(self, definition: DefinitionT, applied: AppliedFigures) -> tuple[FigureGap, ...]:
        """Return what a loaded engine applied otherwise than declared; empty: nothing, as far as it reports. Here the
        context length, and slots that are fewer than `target_inflight`. Backends override it."""
        declared = self.context_length(definition) if self.context_field else None
        return (
            *compare_figure(definition, self.context_field, declared, applied.context_length),
            *compare_slots(definition, self.target_inflight(definition), applied.slots),
        )

    def kv_cache_tokens(self, definition: DefinitionT, told: EngineFigures) -> int | None:
        """Return how many tokens all requests inside one replica may hold together; None: unknown, or no limit. Here
        None. The gateway keeps further requests waiting. The limit is for engines whose requests harm each other once
        the KV cache is full. `told` is what the replica reports."""
        return None

    def list_artifacts(self, definition: DefinitionT) -> tuple[str, ...]:
        """Return the model paths whose contents `predict_memory` and `longest_token` need, as the definition has them.
        The caller reads them and passes what it found as `artifacts`. Here none."""
        return ()

    def longest_token(self, definition: DefinitionT, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token in the vocabulary, by which the gateway sees that a prompt is
        too long without counting its tokens. Here None. `artifacts` holds what was read of the model files, by model
        path. None: unknown, not read yet, or the engine truncates prompts that are too long."""
        return None

    def predict_memory(self, definition: DefinitionT, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes. `artifacts` holds what was read of the model files, by model
        path. `Unpredicted`: a file was not read, or the formula does not cover the model or an option. None: the
        backend has no formula. Numbers of the files are not checked: absurd ones may raise any exception. Here always
        None."""
        return None

    def is_held_to_claim(self, definition: DefinitionT) -> bool:
        """Return whether the engine gets its claim on each GPU as a limit, and fails to load if the limit is too low.
        The memory that its replicas are seen to hold shows what they were given, not what they need. Here False."""
        return False

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of a load, from 0 to 1, by the last lines of the engine's log; None: they do not say.
        Here always None."""
        return None

    def resolve_image(self, definition: DefinitionT, images: Mapping[str, str]) -> str | None:
        """Return the container image to run: the definition's, else the default in `images` (image kind to image).
        None: the backend uses no image, or `images` has no default for it."""
        return definition.image or (images.get(self.image_kind) if self.image_kind else None)

    def render_command(self, definition: DefinitionT, ctx: RenderContext) -> Launch:
        """Return the command line and environment of one replica. Nothing is started and no file is looked at. Raises
        TypeError if the backend starts nothing (a remote); backends raise ValueError or KeyError for a definition that
        yields no command line here."""
        raise TypeError(f"backend {self.name} starts nothing")

    def list_files(self, definition: DefinitionT) -> tuple[FileCheck, ...]:
        """Return the files and folders that must exist before a start, unchecked. Here those that options name;
        backends add the model."""
        checks: list[FileCheck] = []
        for name, flag, value in list_paths(definition):
            for path in split_paths(value):
                checks.append(FileCheck(name, path, flag.kind))
                if flag.inside:
                    checks.append(FileCheck(name, path, "file", flag.inside))
        return tuple(checks)

    def list_paths(self, definition: DefinitionT) -> tuple[str, ...]:
        """Return the model paths that `render_command` turns into engine-side paths. Here those of `list_files`."""
        return tuple(check.path for check in self.list_files(definition))

    def list_code_checks(self, definition: DefinitionT) -> tuple[CodeCheck, ...]:
        """Return the model folders that must not contain custom code (`auto_map` in config.json), unchecked. Here
        none."""
        return ()

    def describe_probe(self, definition: DefinitionT) -> Probe:
        """Return how to see that a replica is ready. Raises TypeError for a remote, which has no replica: see
        `describe_remote`."""
        raise TypeError(f"backend {self.name} is probed as a remote")

    def describe_sleep(self, definition: DefinitionT) -> SleepCalls | None:
        """Return how a replica is put to sleep and woken; None: it is not. Here always None."""
        return None

    def describe_remote(self, definition: DefinitionT) -> Remote | None:
        """Return where another server serves the model; None: Roundhouse starts an engine for it. Here always None."""
        return None

    def list_apis(self, definition: DefinitionT) -> tuple[str, ...]:
        """Return the request paths that the engine answers itself (`/v1/completions` is one). For others the gateway
        translates the request, or refuses it. Here none."""
        return ()

    def list_extra_fields(self, definition: DefinitionT) -> tuple[str, ...] | None:
        """Return the names of the request fields that the gateway passes on beside those that the API family knows;
        None: all fields. Here always None."""
        return None

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """Return why an engine ended, by the first of `verdicts` whose pattern occurs in the end of its log; None: none
        does. `exit_code` is not looked at here."""
        matches = (verdict for pattern, verdict in self.verdicts if re.search(pattern, log_tail, re.IGNORECASE))
        return next(matches, None)


EMBEDDINGS = Capabilities(multi_turn=False, tools=False, forced_tools=False, structured_output=False, logprobs=False)
"""Capabilities of a model that serves embeddings or rankings and nothing else."""


def apply_declared(definition: Definition, derived: Capabilities) -> Capabilities:
    """Return `derived` with the fields that the definition declares in their place; None in the definition means not
    declared. Declared thinking modes always get `default` as well. `forced_tools` and `logprobs` cannot be declared;
    `forced_tools` becomes False where `tools` is declared false."""
    modalities, multi_turn, thinking_modes = derived.modalities, derived.multi_turn, derived.thinking_modes
    if definition.modalities is not None:
        modalities = tuple(each for each in get_args(Modality) if each in definition.modalities)
    if definition.multi_turn is not None:
        multi_turn = definition.multi_turn
    if definition.thinking_modes is not None:
        declared_modes = {"default", *definition.thinking_modes}
        thinking_modes = tuple(each for each in get_args(ThinkingMode) if each in declared_modes)
    tools, structured_output = definition.tools, definition.structured_output
    takes_tools = derived.tools if tools is None else tools
    # Every field is set: answers leave out fields that are not.
    return Capabilities(
        modalities=modalities,
        media_urls=derived.media_urls if definition.media_urls is None else definition.media_urls,
        multi_turn=multi_turn,
        thinking_modes=thinking_modes,
        tools=takes_tools,
        structured_output=derived.structured_output if structured_output is None else structured_output,
        forced_tools=derived.forced_tools and takes_tools,
        logprobs=derived.logprobs,
    )
