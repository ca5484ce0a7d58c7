"""vLLM: `vllm`, whose server our worker launches, and `vllm_serve`, a container of vLLM's image or a program. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import Field, model_validator

from contract.admin import Capabilities
from contract.desired import Settable
from controller.artifacts.heads import Artifact, longest_token_at
from controller.engines.base import (
    EMBEDDINGS,
    SHM_BYTES,
    ClaimedGpu,
    CodeCheck,
    Engine,
    EngineFigures,
    FigureGap,
    FileCheck,
    Launch,
    Probe,
    RenderContext,
    SleepCalls,
    Verdict,
    apply_declared,
    compare_figure,
    family_of,
    has_argument,
    thinking_modes,
)
from controller.engines.memory import (
    MIB,
    VLLM_SHARE,
    Forecast,
    Unpredicted,
    VllmLoad,
    beside_share_mib,
    predict_vllm,
)
from controller.engines.options import (
    Flag,
    Hashed,
    JsonFlag,
    LoadFault,
    PathFlag,
    SpecialFlag,
    Switch,
    find_memory_mover,
    render_options,
)
from controller.engines.vllm_fields import VllmFields
from controller.engines.worker import OLD_DRIVER, worker_python
from controller.state import AppliedFigures

TOKEN_ENV: Final = "VLLM_API_KEY"  # noqa: S105 - the variable's name, not its value

_NO_SHARE: Final = "0.01"
"""Share of a GPU's memory to ask for where the size of the cache is declared in bytes. vLLM ignores the share then, but
does not start unless that much is free (v1/worker/utils.py, `request_memory`); its default is nearly all."""

_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Variables that keep huggingface_hub from asking the hub. A file that is not in the model's folder is then missing at
once; in a closed network every request would first time out."""
_NAMING_FLAGS: Final = frozenset(
    {"--model", "--tokenizer", "--hf-config-path", "--speculative-config", "-sc", "--lora-modules", "--config"}
)
"""Arguments whose value may be, or contain, a name on the hub."""

SHARE_FLAG: Final = "--gpu-memory-utilization"
_SHARE_STEPS: Final = 10_000


def vllm_arguments(definition: VllmFields, ctx: RenderContext, inflight: int) -> list[str]:
    """Return the arguments of `vllm serve`: the model, the address, the options, and `extra_args` last.

    The program itself is not among them. `inflight` becomes `--max-num-seqs`. Without `ctx.gpus`, as in a preflight, no
    share of GPU memory follows from `vram_mib`. vLLM does not log requests, because the gateway does. Raises ValueError
    if a LoRA module has the model's own name, because requests could not choose it, or if `vram_mib` sets the share and
    leaves nothing for it.
    """
    model = ctx.resolve_path(definition.model_path) if definition.model_path is not None else definition.vllm_model
    assert model is not None, "one of both is validated"
    args = [
        *(model, "--host", ctx.host, "--port", str(ctx.port), "--served-model-name", ctx.served_name),
        *("--max-num-seqs", str(inflight), "--tensor-parallel-size", str(_parallel(definition))),
        "--disable-uvicorn-access-log",
    ]
    args += render_options(definition, Flag)
    if (share := _render_share(definition, ctx.gpus, inflight)) is not None:
        args += (SHARE_FLAG, share)
    if definition.vllm_tool_call_parser:
        args.append("--enable-auto-tool-choice")
    if definition.vllm_lora_modules:
        if ctx.served_name in definition.vllm_lora_modules:
            raise ValueError(f"vllm_lora_modules: {ctx.served_name!r} is the name of the model itself")
        args.append("--enable-lora")
    args += render_options(definition, Switch)
    if definition.vllm_embedding:
        args += ("--runner", "pooling")
    args += render_options(definition, PathFlag, ctx.resolve_path)
    args += JsonFlag("--mm-processor-kwargs").render(_processor_arguments(definition), str)
    args += render_options(definition, JsonFlag)
    args += JsonFlag("--speculative-config").render(_speculation(definition, ctx), str)
    return [*args, *definition.extra_args]


def vllm_environment(definition: VllmFields, ctx: RenderContext) -> dict[str, str]:
    """Return the environment variables of `vllm serve`, without the definition's `env` and without the token. They
    disable telemetry, and access to the hub where every model is certainly a path. Compiled kernels go to
    `ctx.cache_dir`, which outlives the engine; in containers so do downloads. Processes use the operator's Hub
    cache."""
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_CACHE_ROOT": str(ctx.cache_dir / "vllm"),
    }
    if ctx.runtime == "docker":
        env["HF_HOME"] = str(ctx.cache_dir / "huggingface")
    return env if _names_hub_models(definition) else env | _OFFLINE


def _names_hub_models(definition: VllmFields) -> bool:
    """Return whether a model, an assistant or a tokenizer may have to come from the hub or its cache. Only an absolute
    path certainly does not."""
    assistant = definition.vllm_speculative_model if definition.vllm_speculative_method is not None else None
    if definition.model_path is None or (assistant is not None and not assistant.startswith("/")):
        return True
    words = definition.extra_args
    for number, word in enumerate(words):
        flag, has_value, value = word.partition("=")
        value = value if has_value else next(iter(words[number + 1 :]), "")
        if flag.replace("_", "-") in _NAMING_FLAGS and not value.startswith("/"):
            return True
    return False


def _parallel(definition: VllmFields) -> int:
    groups = definition.vllm_pipeline_parallel_size or 1
    return definition.vllm_tensor_parallel_size or (definition.gpu_count or groups) // groups


def _needs_no_share(definition: VllmFields) -> bool:
    is_sized_in_bytes = (
        definition.vllm_kv_cache_memory_bytes is not None and definition.vllm_gpu_memory_utilization is None
    )
    return is_sized_in_bytes and bool(definition.gpu_count)


def _render_share(definition: VllmFields, gpus: Sequence[ClaimedGpu], inflight: int) -> str | None:
    """Return the value of `--gpu-memory-utilization`; None: no such argument. `vram_mib`, a declared share and vLLM's
    own share are ceilings: vLLM is told less, by what it holds beside its share at `inflight` sequences at a time. It
    is told what is declared where a size of the cache or an argument in `extra_args` rules, and without `gpus`. Raises
    ValueError if `vram_mib` sets the share and leaves nothing for it."""
    declared = definition.vllm_gpu_memory_utilization
    if _needs_no_share(definition):
        return _NO_SHARE
    if definition.share_follows_vram:
        beside_mib = _check_beside_share(definition, inflight)
        return _share_of(min(gpus, key=_size).claim_mib - beside_mib, gpus) if gpus else None
    if definition.is_sized_by_share and gpus:
        ceiling_mib = int((VLLM_SHARE if declared is None else declared) * min(gpus, key=_size).total_mib)
        return _share_of(ceiling_mib - _beside_mib(definition, ceiling_mib, inflight), gpus)
    return None if declared is None else str(declared)


def _beside_mib(definition: VllmFields, ceiling_mib: int, inflight: int) -> int:
    gpu_count, is_eager = definition.gpu_count or 1, bool(definition.vllm_enforce_eager)
    return beside_share_mib(ceiling_mib, gpu_count, definition.env, sequences=inflight, eager=is_eager)


def _check_beside_share(definition: VllmFields, inflight: int) -> int:
    """Return the MiB of `vram_mib` that the share leaves, at `inflight` sequences at a time. Raises ValueError if that
    is all of it."""
    vram_mib = definition.vram_mib or 0
    beside_mib = _beside_mib(definition, vram_mib, inflight)
    if vram_mib <= beside_mib:
        raise ValueError(
            f"vram_mib: {vram_mib} MiB leave nothing for weights and KV cache, because vLLM takes up to {beside_mib} "
            "MiB for CUDA and its libraries: declare more"
        )
    return beside_mib


def _size(gpu: ClaimedGpu) -> int:
    return gpu.total_mib


def _share_of(share_mib: int, gpus: Sequence[ClaimedGpu]) -> str:
    """Return `share_mib` as a share of the smallest GPU's memory, rounded down to 0.0001. vLLM has one share for all
    GPUs, and its cache is as large on each as fits into the smallest. It takes the share of what CUDA can give: the
    memory of the GPU less what the driver keeps, and never more."""
    steps = share_mib * _SHARE_STEPS // min(gpus, key=_size).total_mib
    return str(max(1, min(_SHARE_STEPS, steps)) / _SHARE_STEPS)


def _processor_arguments(definition: VllmFields) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(definition.vllm_mm_processor_kwargs or {})
    if definition.vllm_max_pixels is not None:
        arguments["max_pixels"] = definition.vllm_max_pixels
    return arguments


def _speculation(definition: VllmFields, ctx: RenderContext) -> dict[str, Any] | None:
    if definition.vllm_speculative_method is None:
        return None
    tokens = definition.vllm_num_speculative_tokens
    config: dict[str, Any] = {
        **(definition.vllm_speculative_config or {}),
        "method": definition.vllm_speculative_method,
        "num_speculative_tokens": 1 if tokens is None else tokens,
    }
    if (assistant := definition.vllm_speculative_model) is not None:
        config["model"] = ctx.model_paths.get(assistant, assistant)
    return config


VllmFieldsT = TypeVar("VllmFieldsT", bound=VllmFields)
_GIB: Final = 1024 * MIB
_METHOD: Final = "vllm_speculative_method"
_OF_METHOD: Final = ("vllm_speculative_model", "vllm_num_speculative_tokens")
_SPECULATION_FLAGS: Final = ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens")
_LORA_FLAGS: Final = ("--enable-lora", "--lora-modules")
_FP8: Final = {"fp8", "fp8_e4m3"}
"""Two words of vLLM's for one data type."""
_TOKENS = ("/tokenize", "/detokenize")
_GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    *_TOKENS,
)
_EMBEDDING = ("/v1/embeddings", "/v1/rerank", *_TOKENS)
"""Rankings are by similarity of embeddings."""


class VllmDefinition(VllmFields):
    """A model served by vLLM in a worker process. Either `model_path` or `vllm_model` is required."""

    backend: Annotated[Literal["vllm"], Settable.ALWAYS]


_SHARDS: Final = re.compile(r"(?:checkpoint|loading) shards:\s*(\d{1,3})%")

_CAUSE: Final = re.compile(
    r"^(?:\([\w-]+(?: rank=\d+)? pid=\d+\) )?(?:ERROR [\d: -]+ \[[\w.]+:\d+\] )?\s*"
    r"(?:(?:[A-Za-z_][\w.]*\.)?(?P<kind>[A-Z]\w*(?:Error|Exception)): |Value error, "
    r"|(?=Input should be |Failed: Cuda error )|vllm[\w ]*: error: )(?P<text>.+)$",
    re.MULTILINE,
)
"""The line that names an exception, as Python, vLLM's log, pydantic, argparse or a CUDA kernel of vLLM writes it."""
_TOLD: Final = re.compile(
    r"^(?:No module named|there is no model|vLLM (?:was killed|ended|crashed)|terminate called|ERROR: "
    r"|(?:\([\w-]+ pid=\d+\) )?\s*Please pass the argument ).*$",
    re.MULTILINE,
)
"""Other lines about an end: of our launcher, C++, uvicorn, and the second line of what transformers says. A successful
start writes none of them."""
_NO_CAUSE: Final = re.compile(
    r"initialization failed|validation errors? for |returned non-zero exit status|Error raised in subprocess:"
)
"""Sentences of the processes above the one that failed, which do not name the cause."""
_SERVING: Final = re.compile(
    r"Application startup complete|EngineCore encountered a fatal error|EngineDeadError|vLLM .* while serving"
)
"""Sentences of an engine that has loaded."""
_CAUSE_LENGTH: Final = 300

_OUT_OF_MEMORY: Final = (
    r"OutOfMemoryError|out of memory|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|Available memory on node"
)
_WHILE_SERVING: Final[tuple[tuple[str, Verdict], ...]] = (
    (
        _OUT_OF_MEMORY,
        Verdict(
            "out of memory while it served (lower vllm_gpu_memory_utilization or vram_mib, or the cache in bytes, so "
            "that more is left for requests, or target_inflight, which makes them fewer)"
        ),
    ),
)
"""Verdicts of an engine that has loaded, before `_VERDICTS`."""
_VERDICTS: Final[tuple[tuple[str, Verdict], ...]] = (
    (r"error: (unrecognized arguments|argument |ambiguous option)", Verdict("bad argument", True)),
    (r"No module named .?vllm", Verdict("vLLM is not installed (extra `vllm`)", True)),
    OLD_DRIVER,
    (
        r"No available memory for the cache blocks",
        Verdict(
            "out of memory: its share has no room for a KV cache (raise vram_mib or vllm_gpu_memory_utilization, or "
            "lower target_inflight)"
        ),
    ),
    (
        r"Free memory on device .* is less than",
        Verdict(
            "out of memory: less is free than it takes at once (lower vram_mib or vllm_gpu_memory_utilization, or end "
            "what else uses the GPU)"
        ),
    ),
    (
        _OUT_OF_MEMORY,
        Verdict(
            "out of memory while it loaded (lower vllm_kv_cache_memory_bytes, vllm_max_model_len or target_inflight, "
            "or give it more GPUs)"
        ),
    ),
    (
        r"KV cache is needed, which is larger than",
        Verdict("the KV cache has no room for one whole request (lower vllm_max_model_len, or give it more memory)"),
    ),
    (r"(?i)cuda error|NCCL error", Verdict("the GPU, its driver or its libraries failed vLLM")),
    (
        r"Model architectures .* failed to be inspected",
        Verdict(
            "vLLM could not look into the model's class (rarely the model's fault: the GPU, its driver, vLLM's files)"
        ),
    ),
    (
        r"does not recognize this architecture|Model architectures .* are not supported|has no vLLM implementation",
        Verdict("unsupported model architecture", True),
    ),
    (r"greater than the derived max_model_len", Verdict("vllm_max_model_len is more than the model can do", True)),
    (r"divisible by tensor parallel size", Verdict("the model cannot be split over that many GPUs", True)),
    (
        r"World size \(\d+\) is larger than the number of available GPUs",
        Verdict("vllm_tensor_parallel_size is more than the GPUs that the engine sees", True),
    ),
    (r"invalid tool call parser", Verdict("no such vllm_tool_call_parser", True)),
    (r"(?i)reasoning parser:? .*(not found|chose from)", Verdict("no such vllm_reasoning_parser", True)),
    (r"Unknown quantization method", Verdict("no such vllm_quantization", True)),
    (r"validation errors? for SpeculativeConfig", Verdict("vLLM cannot speculate like that", True)),
    (r"`trust_remote_code=True`", Verdict("the model brings code of its own: vllm_trust_remote_code is not set", True)),
    (r"SafetensorError", Verdict("the model's files are corrupted or incomplete", True)),
    (r"Cannot find any model weights", Verdict("there are no weights in the model's folder", True)),
    (
        r"HarmonyError: (invalid tiktoken vocab file|the env var TIKTOKEN_ENCODINGS_BASE)",
        Verdict("TIKTOKEN_ENCODINGS_BASE names no folder with o200k_base.tiktoken and cl100k_base.tiktoken", True),
    ),
    (
        r"HarmonyError: error downloading or loading vocab file",
        Verdict(
            "this vLLM brings no vocabulary for gpt-oss along, and cannot download it: put o200k_base.tiktoken and "
            "cl100k_base.tiktoken into a folder below the models folder and set TIKTOKEN_ENCODINGS_BASE to it (`env`)"
        ),
    ),
    (
        r"outgoing traffic has been disabled|offline mode is enabled",
        Verdict(
            "a file is missing in the model's folder or the hub's cache, and HF_HUB_OFFLINE keeps vLLM from the hub",
            True,
        ),
    ),
    (r"(?i)couldn't connect to|LocalEntryNotFoundError|MaxRetryError", Verdict("the model's hub cannot be reached")),
    (
        r"Invalid repository ID or local directory|Repo id must be in the form|RepositoryNotFoundError"
        r"|is not a valid model identifier",
        Verdict("there is no such model", True),
    ),
    (r"(?i)address already in use", Verdict("port taken")),
)


def vllm_progress(log_tail: str) -> float | None:
    """Return the progress of reading weights, from 0 to 1; None: the log has no progress bar of checkpoint shards. Read
    from the last `Loading safetensors checkpoint shards: 50% Completed | 2/4 [...]`. 1 does not mean ready: compiling
    and capturing graphs come after the weights."""
    percentages = _SHARDS.findall(log_tail)
    return min(1.0, int(percentages[-1]) / 100) if percentages else None


def vllm_verdict(log_tail: str) -> Verdict | None:
    """Return why vLLM ended, by the end of its log. `log_tail` must be of one run.

    The message of a known cause is the cause in plain words and, if the log names an exception, a colon and the first
    exception, cut to 300 characters; exceptions that only report the end of another process do not count. `plain` is
    the message without the exception. The message of an unknown cause is that exception alone, `plain` is empty, and
    `permanent` is False. None: the log names no cause.
    """
    exception_lines = [*_CAUSE.finditer(log_tail)]
    causes = (match for match in exception_lines if not _NO_CAUSE.search(match["text"]))
    cause = next((f"{each['kind']}: {each['text']}" if each["kind"] else each["text"] for each in causes), "")
    cause = cause[:_CAUSE_LENGTH]
    log_lines = "\n".join(match[0] for match in (*exception_lines, *_TOLD.finditer(log_tail)))
    for pattern, verdict in (*_WHILE_SERVING, *_VERDICTS) if _SERVING.search(log_tail) else _VERDICTS:
        if re.search(pattern, log_lines):
            if not cause:
                return verdict
            return Verdict(f"{verdict.message}: {cause}", verdict.permanent, plain=verdict.message)
    return Verdict(cause, plain="") if cause else None


class VllmEngine(Engine[VllmFieldsT]):
    """Base of the backends `vllm` and `vllm_serve`, which both run vLLM's own server: its arguments, probe, memory and
    log. A subclass says by which program the server is started."""

    start_timeout_s: ClassVar[float] = 1800.0
    context_field: ClassVar[str] = "vllm_max_model_len"
    default_target_inflight: ClassVar[int] = 64
    preempts_when_full: ClassVar[bool] = True
    takes_dimensions: ClassVar[bool] = True
    renders_inflight: ClassVar[bool] = True
    render_version: ClassVar[int] = 2
    takes_mig_instances: ClassVar[bool] = False

    def max_choices(self, definition: VllmFieldsT) -> int | None:
        """Return None, no limit to `n`: answers of a request that do not run yet wait inside vLLM."""
        return None

    def load_faults(self, params: Mapping[str, Any]) -> list[LoadFault]:
        """Return what is wrong with a load's values: each field's own faults, and fields of speculative decoding in a
        load that sets its method to null."""
        faults = super().load_faults(params)
        if params.get(_METHOD, "") is None:
            idle_names = (name for name in _OF_METHOD if params.get(name) is not None)
            faults += [LoadFault(name, f"has no effect without {_METHOD}, which is null") for name in idle_names]
        return faults

    def rendered_vram_mib(self, definition: VllmFieldsT) -> int | None:
        """Return `vram_mib` (MiB on each GPU) where it sets the share of each GPU that vLLM takes; else None."""
        return definition.vram_mib if definition.share_follows_vram else None

    def compared_arguments(self, definition: VllmFieldsT, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command line without the share of each GPU: the spec hash covers what is declared, and an earlier
        version computed another share from it, or none."""
        words = tuple(argv)
        if SHARE_FLAG not in words:
            return words
        place = words.index(SHARE_FLAG)
        return words[:place] + words[place + 2 :]

    def session_cache(self, definition: VllmFieldsT) -> int:
        """Return the configured number of sessions (`configured_sessions`): vLLM's prefix cache finds what it has
        computed, while there is room."""
        return self.configured_sessions(definition)

    def derive_capabilities(self, definition: VllmFieldsT) -> Capabilities:
        """Return which requests the model takes: embeddings alone with `vllm_embedding`; else text, images where
        `vllm_limit_mm_per_prompt` allows some or, without such a limit, `vllm_max_pixels` or `vllm_mm_processor_kwargs`
        is set, tools where `vllm_tool_call_parser` is set, and all thinking modes for Gemma 4 and Qwen3. What the
        definition declares takes precedence."""
        if definition.vllm_embedding:
            return apply_declared(definition, EMBEDDINGS)
        family = family_of(definition.prompt_format, definition.vllm_model, definition.model_path)
        derived = Capabilities(
            modalities=("text", "image") if _takes_images(definition) else ("text",),
            thinking_modes=thinking_modes(family, "gemma4", "qwen3"),
            tools=definition.vllm_tool_call_parser is not None,
        )
        return apply_declared(definition, derived)

    def context_length(self, definition: VllmFieldsT) -> int | None:
        """Return the declared context length (`vllm_max_model_len`) in tokens; None: not declared."""
        return definition.vllm_max_model_len

    def compare_figures(self, definition: VllmFieldsT, applied: AppliedFigures) -> tuple[FigureGap, ...]:
        """Return what differs of the context length, the KV cache, the share of each GPU, prefix caching, and the use
        of speculative decoding. Empty where `extra_args` name a file of options."""
        if has_argument(definition, "", "--config"):
            return ()
        speculates = "on" if applied.speculates and definition.vllm_speculative_method is None else None
        declared = (
            ("vllm_max_model_len", definition.vllm_max_model_len, applied.context_length),
            ("vllm_kv_cache_dtype", _told_cache_type(definition, applied), applied.cache_type_k),
            ("vllm_kv_cache_memory_bytes", definition.vllm_kv_cache_memory_bytes, applied.kv_cache_bytes),
            ("vllm_gpu_memory_utilization", _told_share(definition, applied), applied.gpu_share),
        )
        return (
            *(gap for field, value, told in declared for gap in compare_figure(definition, field, value, told)),
            *compare_figure(
                definition,
                "vllm_enable_prefix_caching",
                definition.vllm_enable_prefix_caching,
                applied.prefix_caching,
                *("--enable-prefix-caching", "--no-enable-prefix-caching"),
            ),
            *compare_figure(definition, "vllm_speculative_method", "none", speculates, *_SPECULATION_FLAGS),
        )

    def kv_cache_tokens(self, definition: VllmFieldsT, told: EngineFigures) -> int | None:
        """Return the size of the KV cache in tokens, as the replica reports it, while vLLM preempts requests; None
        while it does not, or where the size is not reported. Without preemption no limit is useful: prompts with a
        common prefix share the cache, which is not visible from outside."""
        return told.kv_cache_tokens if told.is_preempting else None

    def lora_modules(self, definition: VllmFieldsT) -> tuple[str, ...] | None:
        """Return the names of the declared LoRA modules, each of which vLLM serves as a model of that name. Empty,
        never None, where none is declared."""
        return tuple(definition.vllm_lora_modules or ())

    def list_artifacts(self, definition: VllmFieldsT) -> tuple[str, ...]:
        """Return the model path, as a tuple of one; empty where the model is a name on the hub."""
        return (definition.model_path,) if definition.model_path is not None else ()

    def longest_token(self, definition: VllmFieldsT, artifacts: Mapping[str, Artifact]) -> int | None:
        """Return the length in bytes of the longest token of the tokenizer in the model's folder. None: it was not
        read, the model is a name on the hub, or `extra_args` may name another tokenizer."""
        path, args = definition.model_path, definition.extra_args
        names_other = any("tokenizer" in arg or arg.startswith("--config") for arg in args)
        return None if names_other or path is None else longest_token_at(path, artifacts)

    def predict_memory(self, definition: VllmFieldsT, artifacts: Mapping[str, Artifact]) -> Forecast | None:
        """Predict the memory of one replica, in bytes: a share of each GPU; or, where `vllm_kv_cache_memory_bytes`
        declares the size of the cache, what weights, cache and computing take. See `predict_vllm`. Never None:
        `Unpredicted` where a needed file was not read, or an option changes memory in ways not known."""
        if (mover := find_memory_mover(definition)) is not None:
            return Unpredicted(f"{mover} changes what is where")
        if definition.vllm_lora_modules and definition.vllm_kv_cache_memory_bytes is not None:
            return Unpredicted("what vllm_lora_modules take beside the declared cache is not known")
        return predict_vllm(_build_load(definition, self.target_inflight(definition)), artifacts)

    def render_command(self, definition: VllmFieldsT, ctx: RenderContext) -> Launch:
        """Return the program with the arguments of `vllm serve`, and the environment; the definition's `env` takes
        precedence in it. Shared memory is set for containers only. Raises ValueError where a LoRA module has the
        model's own name or `vram_mib` leaves nothing for vLLM's share, and what `build_program` raises."""
        arguments = vllm_arguments(definition, ctx, self.target_inflight(definition))
        env = vllm_environment(definition, ctx) | self.own_environment(definition, ctx) | definition.env
        return Launch(
            (*self.build_program(definition, ctx), *arguments),
            env,
            self.resolve_image(definition, ctx.images),
            TOKEN_ENV,
            SHM_BYTES if ctx.runtime == "docker" else None,
        )

    def build_program(self, definition: VllmFieldsT, ctx: RenderContext) -> tuple[str, ...]:
        """Return the program that starts the server, up to the arguments of `vllm serve`. Each backend overrides it;
        this base raises TypeError."""
        raise TypeError(f"backend {self.name} has no program")

    def own_environment(self, definition: VllmFieldsT, ctx: RenderContext) -> dict[str, str]:
        """Return the environment variables that the program needs beside those of `vllm_environment`. Here none."""
        return {}

    def list_files(self, definition: VllmFieldsT) -> tuple[FileCheck, ...]:
        """Return checks of the model path, unless it is a name on the hub, and of the files that options name."""
        model = () if definition.model_path is None else (FileCheck("model_path", definition.model_path),)
        return (*model, *super().list_files(definition))

    def list_paths(self, definition: VllmFieldsT) -> tuple[str, ...]:
        """Return the paths of `list_files`, and the assistant where its name is an absolute path."""
        assistant = definition.vllm_speculative_model or ""
        return (*super().list_paths(definition), *([assistant] if assistant.startswith("/") else []))

    def list_code_checks(self, definition: VllmFieldsT) -> tuple[CodeCheck, ...]:
        """Return the model path and the assistant, where they are no names on the hub; none if `vllm_trust_remote_code`
        or `--trust-remote-code` in `extra_args` allows their code."""
        if definition.vllm_trust_remote_code or "--trust-remote-code" in definition.extra_args:
            return ()
        switch, assistant = "vllm_trust_remote_code", definition.vllm_speculative_model or ""
        model = () if definition.model_path is None else (CodeCheck("model_path", definition.model_path, switch),)
        if not assistant.startswith("/"):
            return model
        return (*model, CodeCheck("vllm_speculative_model", assistant, switch))

    def describe_probe(self, definition: VllmFieldsT) -> Probe:
        """Return the probe: `/health`, then one token or, with `vllm_embedding`, one embedding; and vLLM's metrics."""
        is_embedding = definition.vllm_embedding
        return Probe(
            health_path="/health",
            ready_path="/v1/embeddings" if is_embedding else "/v1/completions",
            ready_body={"input": "a"} if is_embedding else {"prompt": "a", "max_tokens": 1},
            metrics_path="/metrics",
            busy_metrics=("vllm:num_requests_running", "vllm:num_requests_waiting"),
            progress_metrics=("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
            cache_metric=None if is_embedding else "vllm:cache_config_info",
            preemption_metric=None if is_embedding else "vllm:num_preemptions_total",
            figure_paths=("/v1/models", "/metrics"),
            template_path=None if is_embedding else "/tokenize",
        )

    def list_apis(self, definition: VllmFieldsT) -> tuple[str, ...]:
        """Return the request paths that vLLM answers: those for generating text or, with `vllm_embedding`, for
        embeddings and rankings."""
        return _EMBEDDING if definition.vllm_embedding else _GENERATING

    def parse_progress(self, log_tail: str) -> float | None:
        """Return the progress of reading weights, from 0 to 1 (see `vllm_progress`); None: the log shows none. 1 does
        not mean ready."""
        return vllm_progress(log_tail)

    def explain_exit(self, exit_code: int | None, log_tail: str) -> Verdict | None:
        """Return the cause of the end that the log names, in words (see `vllm_verdict`); None: the log names none.
        `log_tail` must be of one run; `exit_code` is not looked at."""
        return vllm_verdict(log_tail)


def _told_cache_type(definition: VllmFields, applied: AppliedFigures) -> str | None:
    """Return the declared data type of the KV cache, in the engine's word where that means the same; None: the model's
    own is declared, or none."""
    declared, told = definition.vllm_kv_cache_dtype, applied.cache_type_k
    if declared == "auto":
        return None
    return told if {declared, told} == _FP8 else declared


def _told_share(definition: VllmFields, applied: AppliedFigures) -> float | None:
    """Return the declared share of each GPU, or the smaller one that vLLM was told, so that the declared one is a
    ceiling; None: none is declared."""
    declared, told = definition.vllm_gpu_memory_utilization, applied.gpu_share
    return told if declared is not None and told is not None and told < declared else declared


def _takes_images(definition: VllmFields) -> bool:
    if definition.vllm_limit_mm_per_prompt and "image" in definition.vllm_limit_mm_per_prompt:
        return definition.vllm_limit_mm_per_prompt["image"] > 0
    return definition.vllm_max_pixels is not None or bool(definition.vllm_mm_processor_kwargs)


class Vllm(VllmEngine[VllmDefinition]):
    """The backend `vllm`: renders the command line of a worker process that starts vLLM's server as its child. Starts
    nothing itself."""

    name: ClassVar[str] = "vllm"
    definition = VllmDefinition
    image_kind: ClassVar[str | None] = "worker-vllm"

    def build_program(self, definition: VllmDefinition, ctx: RenderContext) -> tuple[str, ...]:
        """Return the worker's Python with `-m worker vllm --`. As a process, raises KeyError if the runtime knows no
        `python`."""
        return (worker_python(ctx), "-m", "worker", self.name, "--")


def _build_load(definition: VllmFields, sequences: int) -> VllmLoad:
    """Return the definition in the terms of the memory formulas."""
    has_draft_model = definition.vllm_speculative_method is not None
    return VllmLoad(
        path=definition.model_path,
        model=definition.vllm_model,
        sequences=sequences,
        gpus=definition.gpu_count or 0,
        tensor_parallel=definition.vllm_tensor_parallel_size,
        kv_cache=definition.vllm_kv_cache_memory_bytes,
        gpu_share=definition.vllm_gpu_memory_utilization,
        claim=definition.vram_mib * MIB if definition.vram_mib and definition.share_follows_vram else None,
        batch=definition.vllm_max_num_batched_tokens,
        host_cache=int((definition.vllm_kv_offloading_size or 0) * _GIB),
        dtype=definition.vllm_dtype,
        eager=bool(definition.vllm_enforce_eager),
        draft_model=definition.vllm_speculative_model if has_draft_model else None,
        env=definition.env,
        extra_args=definition.extra_args,
    )


class VllmServeDefinition(VllmFields):
    """A model served by `vllm serve`. Either `model_path` or `vllm_model` is required."""

    backend: Annotated[Literal["vllm_serve"], Settable.ALWAYS]
    vllm_serve_binary: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None, description="Path of the vllm program (process runtime only); default: the one on PATH."
    )
    vllm_serve_library_path: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None,
        description="Folders of vLLM's shared libraries (process runtime only), in the format of LD_LIBRARY_PATH.",
    )
    vllm_sleep: Annotated[Literal["off", "level1", "level2"], SpecialFlag("--enable-sleep-mode"), Settable.ALWAYS] = (
        Field(
            default="off",
            description="What an evicted or idle replica does: it ends (`off`), or it sleeps and keeps about 1 GiB of "
            "its GPUs, with its weights in main memory (`level1`) or in their files alone (`level2`).",
        )
    )

    @model_validator(mode="after")
    def _can_sleep(self) -> Self:
        if self.vllm_sleep == "off":
            return self
        if not self.gpu_count:
            raise ValueError("vllm_sleep needs `gpus`: on the CPU vLLM cannot sleep")
        if self.vllm_embedding:
            raise ValueError("vllm_sleep is for models that generate text, not with `vllm_embedding`")
        # Adapters were seen to be lost by a sleep, and drafts by one of level 2 (vllm#39934, #52479).
        if self.vllm_lora_modules or any(arg.startswith(_LORA_FLAGS) for arg in self.extra_args):
            raise ValueError("vllm_sleep is not for models with LoRA modules, which vLLM may lose by a sleep")
        speculates = self.vllm_speculative_method or any(arg.startswith(_SPECULATION_FLAGS) for arg in self.extra_args)
        if self.vllm_sleep == "level2" and speculates:
            raise ValueError("vllm_sleep: level2 reads the model's own weights again, not those of a draft: use level1")
        return self


_GUARD: Final = "roundhouse_route_guard"
# Read at import, with the code beside it: it is the code of another program.
_GUARD_TEXT: Final = files("controller.engines").joinpath("vllm_guard.py").read_text(encoding="utf-8")
_CANARY: Final = {
    "prompt": "The first ten prime numbers are 2, 3, 5,",
    "max_tokens": 16,
    "temperature": 0,
    "ignore_eos": True,
}
_WAKE: Final[Mapping[str, tuple[tuple[str, Mapping[str, Any] | None], ...]]] = {
    "level1": (("/wake_up", None),),
    # The memory of the weights first, then the weights, then the cache: both at once would not fit beside a reload.
    "level2": (
        ("/wake_up?tags=weights", None),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/wake_up?tags=kv_cache", None),
    ),
}


class VllmServe(VllmEngine[VllmServeDefinition]):
    """The backend `vllm_serve`: renders the command line of vLLM's own program, `vllm serve`, in a container or as a
    process. Starts nothing itself, has no state."""

    name: ClassVar[str] = "vllm_serve"
    definition = VllmServeDefinition
    image_kind: ClassVar[str | None] = "vllm"

    def build_program(self, definition: VllmServeDefinition, ctx: RenderContext) -> tuple[str, ...]:
        """Return the program and `serve`. The program is the declared `vllm_serve_binary` where the engine is a
        process, else `vllm`, which is looked up on PATH when it is started."""
        binary = definition.vllm_serve_binary if ctx.runtime == "process" else None
        return (binary or "vllm", "serve")

    def own_environment(self, definition: VllmServeDefinition, ctx: RenderContext) -> dict[str, str]:
        """Return `LD_LIBRARY_PATH` with the declared folders of shared libraries, as a process where they are declared.
        With `vllm_sleep`, the variable that makes vLLM serve the routes for it is set as well."""
        env = {}
        if definition.vllm_serve_library_path and ctx.runtime == "process":
            env["LD_LIBRARY_PATH"] = definition.vllm_serve_library_path
        if definition.vllm_sleep != "off":
            env["VLLM_SERVER_DEV_MODE"] = "1"
        return env

    def render_command(self, definition: VllmServeDefinition, ctx: RenderContext) -> Launch:
        """Return the command of `VllmEngine.render_command`. With `vllm_sleep`, vLLM also gets the file that guards the
        routes of its development mode. Raises ValueError as there."""
        launch = super().render_command(definition, ctx)
        if definition.vllm_sleep == "off":
            return launch
        folder = ctx.cache_dir / "vllm-guard"
        paths = filter(None, (str(folder), definition.env.get("PYTHONPATH", ctx.python_path)))
        return replace(
            launch,
            argv=(*launch.argv, "--enable-sleep-mode", "--middleware", f"{_GUARD}.RouteGuard"),
            env={**launch.env, "PYTHONPATH": ":".join(paths)},
            folders=(*launch.folders, folder),
            files={folder / f"{_GUARD}.py": _GUARD_TEXT},
        )

    def describe_sleep(self, definition: VllmServeDefinition) -> SleepCalls | None:
        """Return vLLM's routes of its development mode; None: `vllm_sleep` is off."""
        level = definition.vllm_sleep
        if level == "off":
            return None
        return SleepCalls(
            sleep=((f"/sleep?level={level[-1]}", None),),
            wake=_WAKE[level],
            state_path="/is_sleeping",
            canary_path="/v1/completions",
            canary_body=_CANARY,
            keeps_weights=level == "level1",
        )
