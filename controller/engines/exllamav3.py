"""ExLlamaV3 in a worker process: EXL3 folders on GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from contract.admin import Capabilities, LoadConstraint, PairPresets
from contract.desired import Definition, Settable
from contract.routing import ThinkingControl
from controller.artifacts.heads import Artifact, longest_token_at
from controller.engines.base import (
    SHM_BYTES,
    ChatFormat,
    ClaimedGpu,
    Engine,
    FigureGap,
    FileCheck,
    Launch,
    Probe,
    RenderContext,
    Verdict,
    apply_declared,
    compare_figure,
    compare_slots,
    family_of,
    thinking_modes,
)
from controller.engines.memory import CUDA_OVERHEAD, MIB, ExLlamaLoad, Forecast, predict_exllama
from controller.engines.options import Flag, Hashed, Loadable, LoadFault, LoadField, LoadValue, Switch, render_options
from controller.engines.worker import (
    HF_VERDICTS,
    OLD_DRIVER,
    WORKER_CHAT_APIS,
    WORKER_TOKEN_ENV,
    gpu_verdict,
    memory_verdicts,
    percent_progress,
    worker_probe,
    worker_program,
)
from controller.state import AppliedFigures

QUANT: Final = r"^[2-8](,[2-8])?$"
"""`<bits>` for K and V alike, or `<k_bits>,<v_bits>`."""
_BITS: Final = ("exllama_cache_k_bits", "exllama_cache_v_bits")
_QUANT: Final = "exllama_cache_quant"


class ExLlamaV3Definition(Definition):
    """An EXL3 folder served by ExLlamaV3."""

    backend: Annotated[Literal["exllamav3"], Settable.ALWAYS]
    model_path: Annotated[str, Settable.IN_MODELS_FOLDER] = Field(
        description="Path of the model's folder (EXL3), in a models folder."
    )
    exllama_cache_size: Annotated[int | None, Flag("--cache-size"), Loadable(), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None,
        ge=256,
        multiple_of=256,
        description="KV cache in tokens, shared by all running requests; default: the model's context length.",
    )
    exllama_cache_quant: Annotated[
        str | None,
        Flag("--cache-quant"),
        Loadable({"format": "<bits>|<k_bits>,<v_bits>"}, null="fp16. Not together with the bits by themselves"),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None,
        pattern=QUANT,
        description="Bits (2 to 8) per value of the KV cache: one number for K and V, such as `8`, or one for "
        "each, such as `8,4`; default: fp16.",
    )
    exllama_max_rq_tokens: Annotated[
        int | None, Flag("--max-rq-tokens"), Loadable(), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(
        default=None,
        ge=1,
        description="Maximum tokens of prompt and answer together; default: the model's context length.",
    )
    exllama_tensor_parallel: Annotated[bool, Switch("--tensor-parallel"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=False, description="Split each layer over all GPUs of the replica."
    )
    prompt_format: Annotated[ChatFormat | None, Flag("--prompt-format"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Prompt format; default: the chat template in the model's folder."
    )


_BIT_CONSTRAINT = LoadConstraint(
    kind="integer_or_null",
    minimum=2,
    maximum=8,
    default=None,
    null_means="fp16",
    allowed_values=[2, 3, 4, 5, 6, 7, 8],
)
_BIT_FIELDS = (
    LoadField(_BITS[0], "Bits of the K cache, together with those of V; null: fp16.", _BIT_CONSTRAINT),
    LoadField(_BITS[1], "Bits of the V cache, together with those of K; null: fp16.", _BIT_CONSTRAINT),
)
"""Fields of a load that no definition has: `load_override` turns them into `exllama_cache_quant`."""
_PAIRS = PairPresets(
    kind="pair_presets",
    fields=[*_BITS],
    recommended_pairs=[
        {"label": "fp16", _BITS[0]: None, _BITS[1]: None},
        {"label": "8/8", _BITS[0]: 8, _BITS[1]: 8},
        {"label": "8/4", _BITS[0]: 8, _BITS[1]: 4},
    ],
)

_VERDICTS: tuple[tuple[str, Verdict], ...] = (
    OLD_DRIVER,
    (r"ExLlamaV3 needs a GPU", Verdict("ExLlamaV3 needs a GPU: declare `gpus`", True)),
    (r"ExLlamaV3 sees none of the GPUs", Verdict("ExLlamaV3 sees none of its GPUs: look after the driver")),
    (r"ExLlamaV3 sees \d+ of the", Verdict("ExLlamaV3 does not see all of its GPUs: look after the driver")),
    (
        r"ExLlamaV3 cannot be used: No module named",
        Verdict("ExLlamaV3 is not installed (extra `exllamav3`)", True),
    ),
    (r"cannot open .*/config\.json|there are no weights", Verdict("not an EXL3 folder", True)),
    (r"Tensor-parallel is not currently implemented", Verdict("this model has no tensor parallelism", True)),
    (r"POSIX shared memory", Verdict("too little shared memory (/dev/shm)")),
    (
        r"Insufficient VRAM in split",
        Verdict(
            "the model and its cache do not fit into what it may take of its GPUs: raise `vram_mib`, make "
            "`exllama_cache_size` smaller, or give it more GPUs"
        ),
    ),
    *memory_verdicts("ExLlamaV3", "exllama_cache_size or exllama_cache_quant, or give it more GPUs"),
    gpu_verdict("ExLlamaV3"),
    (r"ExLlamaV3 failed: ", Verdict("the engine failed while it answered")),
    *HF_VERDICTS,
    (r"ExLlamaV3 cannot be used", Verdict("ExLlamaV3 cannot be used here: it cannot be compiled, or lacks a library")),
    (r"ExLlamaV3 cannot load", Verdict("not a model that ExLlamaV3 can load", True)),
)


class ExLlamaV3(Engine[ExLlamaV3Definition]):
    """The backend `exllamav3`: renders the command line of a worker process that runs ExLlamaV3 on GPUs. Starts nothing
    itself, has no state."""

    name: ClassVar[str] = "exllamav3"
    image_kind: ClassVar[str | None] = "worker-exllamav3"
    start_timeout_s: ClassVar[float] = 3600.0
    """Long: the first start compiles ExLlamaV3."""
    most_inflight: ClassVar[int | None] = 16
    definition = ExLlamaV3Definition
    render_version: ClassVar[int] = 2
    thinking_switch: ClassVar[ThinkingControl] = "thinking"
    load_recommendations: ClassVar[Mapping[str, PairPresets]] = MappingProxyType({"exllama_cache_bit_pairs": _PAIRS})
    verdicts: ClassVar[tuple[tuple[str, Verdict], ...]] = _VERDICTS

    @property
    def load_fields(self) -> tuple[LoadField, ...]:
        """The fields that a load may set: the options, and before `exllama_cache_quant` two fields that no definition
        has, for the bits of the K and V cache. `load_override` turns these into `exllama_cache_quant`."""
        options = {field.name: field for field in super().load_fields}
        quant = options.pop(_QUANT)
        return (*options.values(), *_BIT_FIELDS, quant)

    def load_faults(self, params: Mapping[str, Any]) -> list[LoadFault]:
        """Return what is wrong with a load's values: each field's own faults, and that the bits of K and V must come
        together, both numbers or both null, and never with `exllama_cache_quant`, whose form is checked too."""
        faults = super().load_faults(params)
        given_names = [name for name in _BITS if name in params]
        if given_names and _QUANT in params:
            faults.append(LoadFault(given_names[0], f"cannot be combined with {_QUANT}"))
        elif len(given_names) == 1:
            other_name = _BITS[1 - _BITS.index(given_names[0])]
            faults.append(LoadFault(given_names[0], f"must be given together with {other_name}"))
        elif given_names and (params[_BITS[0]] is None) != (params[_BITS[1]] is None):
            faults.append(LoadFault(_BITS[0], f"and {_BITS[1]} must be both numbers or both null"))
        quant = params.get(_QUANT)
        if quant and not any(fault.field == _QUANT for fault in faults) and not re.fullmatch(QUANT, quant):
            rule = "must be `<bits>` or `<k_bits>,<v_bits>` with bits from 2 to 8, or null"
            faults.append(LoadFault(_QUANT, f"{rule}; is `{quant:.60}`"))
        return faults

    def load_override(self, params: Mapping[str, LoadValue]) -> dict[str, LoadValue]:
        """Return the values with the bits of K and V as `exllama_cache_quant`: `k,v`, or None. Raises KeyError where
        only one of them is given, in which `load_faults` finds a fault."""
        override = {name: value for name, value in params.items() if name not in _BITS}
        if _BITS[0] in params:
            k_bits, v_bits = (params[name] for name in _BITS)
            override[_QUANT] = None if k_bits is None else f"{k_bits},{v_bits}"
        return override

    def session_cache(self, definition: ExLlamaV3Definition) -> int:
        """Return the configured number of sessions (`configured_sessions`): ExLlamaV3's page cache finds what it has
        computed, while there is room."""
        return self.configured_sessions(definition)

    def derive_capabilities(self, definition: ExLlamaV3Definition) -> Capabilities:
        """Return which requests the model takes: text, and conversations only where `prompt_format` is declared,
        without tools, JSON schemas or log probabilities; all thinking modes for Gemma 4 and Qwen3. What the definition
        declares takes precedence. Whether the folder has a chat template is not seen here: a definition whose folder
        has one declares `multi_turn: true`."""
        family = family_of(definition.prompt_format, definition.model_path)
        derived = Capabilities(
            multi_turn=definition.prompt_format is not None,
            thinking_modes=thinking_modes(family, "gemma4", "qwen3"),
            tools=False,
            forced_tools=False,
            structured_output=False,
            logprobs=False,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: ExLlamaV3Definition) -> int | None:
        """Return the declared limit of one request in tokens: the smaller of `exllama_max_rq_tokens` and
        `exllama_cache_size`; None: neither is declared."""
        bounds = (definition.exllama_cache_size, definition.exllama_max_rq_tokens)
        return min((bound for bound in bounds if bound is not None), default=None)

    def compare_figures(self, definition: ExLlamaV3Definition, applied: AppliedFigures) -> tuple[FigureGap, ...]:
        """Return where the engine's limit of one request in tokens, its slots or the bits of its KV cache differ from
        the definition. The declared limit is `exllama_max_rq_tokens`, or the cache less one token if smaller."""
        limit, size = definition.exllama_max_rq_tokens, definition.exllama_cache_size
        room = None if size is None else size - 1
        is_by_limit = limit is not None and (room is None or limit <= room)
        field, bound = ("exllama_max_rq_tokens", limit) if is_by_limit else ("exllama_cache_size", room)
        k_bits, _, v_bits = (definition.exllama_cache_quant or "").partition(",")
        bits = f"{k_bits},{v_bits or k_bits}" if k_bits else None
        types = (applied.cache_type_k, applied.cache_type_v)
        told = None if None in types else ",".join(map(str, types))
        return (
            *compare_figure(definition, field, bound, applied.context_length, "--cache-size", "--max-rq-tokens"),
            *compare_slots(definition, self.target_inflight(definition), applied.slots),
            *compare_figure(definition, _QUANT, bits, told),
        )

    def list_artifacts(self, definition: ExLlamaV3Definition) -> tuple[str, ...]:
        """Return the model path, a folder, as a tuple of one."""
        return (definition.model_path,)

    def longest_token(self, definition: ExLlamaV3Definition, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the tokenizer in the model's folder; None: it was not
        read."""
        return longest_token_at(definition.model_path, artifacts)

    def render_command(self, definition: ExLlamaV3Definition, ctx: RenderContext) -> Launch:
        """Return the command line `python -m worker exllamav3 ...` and the definition's environment. On several GPUs
        the claims become limits for each GPU. As a process, raises KeyError if the runtime knows no `python`."""
        args = [*worker_program(self.name, ctx), "--model", ctx.resolve_path(definition.model_path)]
        args += render_options(definition, Flag)
        args += render_options(definition, Switch)
        if len(ctx.gpus) > 1:
            args += ("--use-per-device", ",".join(_limit_gib(gpu) for gpu in ctx.gpus))
        args += definition.extra_args
        image = self.resolve_image(definition, ctx.images)
        shm_bytes = SHM_BYTES if ctx.runtime == "docker" and definition.exllama_tensor_parallel else None
        return Launch(tuple(args), dict(definition.env), image, WORKER_TOKEN_ENV, shm_bytes)

    def predict_memory(self, definition: ExLlamaV3Definition, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes: see `predict_exllama`. Never None: `Unpredicted` where the
        folder was not read, or its config.json does not say enough."""
        load = ExLlamaLoad(
            cache_tokens=definition.exllama_cache_size,
            cache_quant=definition.exllama_cache_quant,
            gpus=definition.gpu_count or 1,
            tensor_parallel=bool(definition.exllama_tensor_parallel),
        )
        return predict_exllama(definition.model_path, artifacts, load)

    def is_held_to_claim(self, definition: ExLlamaV3Definition) -> bool:
        """Return True for several GPUs without tensor parallelism: each then holds whole layers within its claim. With
        tensor parallelism the claims only set the proportions."""
        return (definition.gpu_count or 0) > 1 and not definition.exllama_tensor_parallel

    def list_files(self, definition: ExLlamaV3Definition) -> tuple[FileCheck, ...]:
        """Return checks of the model's folder, its `config.json` and `tokenizer.json`, and of the files that options
        name."""
        path = definition.model_path
        files = (FileCheck("model_path", path, "file", name) for name in ("config.json", "tokenizer.json"))
        return (FileCheck("model_path", path, "folder"), *files, *super().list_files(definition))

    def describe_probe(self, definition: ExLlamaV3Definition) -> Probe:
        """Return the worker's probe: `/health`, then one token of a completion."""
        return worker_probe()

    def list_apis(self, definition: ExLlamaV3Definition) -> tuple[str, ...]:
        """Return the request paths that a worker answers for text: chat completions and their number of input tokens,
        completions, tokenizing, detokenizing and the chat template (`WORKER_CHAT_APIS`)."""
        return WORKER_CHAT_APIS

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of a load, from 0 to 1, by the worker's last line `loading: 40 %`; None: no such line."""
        return percent_progress(log_tail)


def _limit_gib(gpu: ClaimedGpu) -> str:
    """Return what ExLlamaV3 may allocate on a GPU, in GiB, as text. The CUDA context is subtracted: ExLlamaV3 does not
    count it. Never 0, which would exclude the GPU."""
    return f"{max(1, gpu.claim_mib - CUDA_OVERHEAD // MIB) / 1024:.3f}"
