"""The options of `vllm` and `vllm_serve`. Pure.

Flags are those of `vllm serve` (vllm/entrypoints/common/cli_args.py and vllm/engine/arg_utils.py, 0.33). It also says
`--disable-x` for `--no-enable-x`, which 0.32, the last one for the CPU, does not know.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from contract.desired import Definition, Settable
from controller.engines.base import ChatFormat
from controller.engines.options import (
    MOVES_MEMORY,
    Anything,
    Flag,
    Hashed,
    JsonFlag,
    Loadable,
    PathFlag,
    SpecialFlag,
    Switch,
)

_SPECULATION: Final = {
    "method": "vllm_speculative_method",
    "model": "vllm_speculative_model",
    "num_speculative_tokens": "vllm_num_speculative_tokens",
}
"""Entries of `--speculative-config` that options of their own set."""
_SIZE_FLAGS: Final = ("--gpu-memory-utilization", "--device-memory-utilization", "--kv-cache-memory")


class VllmFields(Definition):
    """The options that `vllm` and `vllm_serve` share: the base of their definition classes. Exactly one of `model_path`
    and `vllm_model` must be set."""

    model_path: Annotated[str | None, Settable.IN_MODELS_FOLDER] = Field(
        default=None, description="Path of the model's folder (or GGUF file), in a models folder."
    )
    vllm_model: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None, min_length=1, description="Name of the model on the Hugging Face Hub, instead of `model_path`."
    )
    vllm_revision: Annotated[str | None, Flag("--revision"), Settable.ALWAYS] = Field(
        default=None,
        min_length=1,
        description="Branch, tag or commit of the model on the Hub; default: the main branch.",
    )
    vllm_load_format: Annotated[str | None, Flag("--load-format"), Settable.FROM_FILES] = Field(
        default=None,
        min_length=1,
        description="Format of the weights, such as safetensors, mistral or bitsandbytes; default: auto.",
    )
    vllm_config_format: Annotated[Literal["auto", "hf", "mistral"] | None, Flag("--config-format"), Settable.ALWAYS] = (
        Field(default=None, description="Format of the configuration; default: auto.")
    )
    vllm_tokenizer_mode: Annotated[str | None, Flag("--tokenizer-mode"), Settable.ALWAYS] = Field(
        default=None, min_length=1, description="Kind of tokenizer, such as hf or mistral; default: auto."
    )
    vllm_hf_overrides: Annotated[dict[str, Anything] | None, JsonFlag("--hf-overrides"), Settable.FROM_FILES] = Field(
        default=None, description="Entries of config.json to replace, such as `rope_parameters` for a longer context."
    )
    vllm_max_model_len: Annotated[
        int | None, Flag("--max-model-len"), Loadable({"minimum": 256, "step": 256}), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(default=None, ge=1, description="Context length in tokens; default: the model's own.")
    vllm_max_num_batched_tokens: Annotated[int | None, Flag("--max-num-batched-tokens"), Settable.ALWAYS] = Field(
        default=None, ge=1, description="Maximum tokens that one step computes; default: vLLM's own, by the GPU."
    )
    vllm_enable_prefix_caching: Annotated[
        bool | None, Switch("--enable-prefix-caching", "--no-enable-prefix-caching"), Settable.ALWAYS
    ] = Field(
        default=None,
        description="Reuse the KV cache of prompts with the same beginning; default: vLLM's own, by the model.",
    )
    vllm_enable_chunked_prefill: Annotated[
        bool | None, Switch("--enable-chunked-prefill", "--no-enable-chunked-prefill"), Settable.ALWAYS
    ] = Field(
        default=None,
        description="Compute long prompts in chunks, batched with the tokens of other requests; default: vLLM's "
        "own, by the model.",
    )
    vllm_dtype: Annotated[
        Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None,
        Flag("--dtype"),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(default=None, description="Data type of the weights; default: the model's own.")
    vllm_quantization: Annotated[str | None, Flag("--quantization"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Quantization method; default: as the model's files say."
    )
    vllm_gpu_memory_utilization: Annotated[
        float | None, SpecialFlag("--gpu-memory-utilization"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(
        default=None,
        gt=0,
        le=1,
        description="Most of each GPU's memory that the engine uses, as a share: vLLM is told a little less; default: "
        "derived from `vram_mib`, else 0.92.",
    )
    vllm_kv_cache_dtype: Annotated[
        str | None,
        Flag("--kv-cache-dtype"),
        Loadable(
            {
                "default": "auto",
                "allowed_values": ["auto", "fp8", "fp8_e4m3", "fp8_e5m2"],
                "examples": ["auto", "fp8"],
            },
            open_values=True,
        ),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None, min_length=1, description="Data type of the KV cache, any that vLLM supports; default: auto."
    )
    vllm_kv_cache_memory_bytes: Annotated[
        int | None,
        Flag("--kv-cache-memory-bytes"),
        Loadable({"minimum": 2**28, "step": 2**28, "unit": "bytes", "display_unit": "mib"}),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None,
        ge=1,
        description="Size of the KV cache per GPU in bytes; overrides `vllm_gpu_memory_utilization`.",
    )
    vllm_kv_offloading_size: Annotated[float | None, Flag("--kv-offloading-size"), Settable.ALWAYS] = Field(
        default=None,
        gt=0,
        le=65536,
        description="Main memory in GiB, for all GPUs together, for KV cache blocks offloaded from them; default: "
        "none.",
    )
    vllm_cpu_offload_gb: Annotated[float | None, Flag("--cpu-offload-gb"), MOVES_MEMORY, Settable.ALWAYS] = Field(
        default=None, gt=0, le=65536, description="Weights kept in main memory, in GiB per GPU; default: none."
    )
    vllm_tensor_parallel_size: Annotated[
        int | None, SpecialFlag("--tensor-parallel-size"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(
        default=None,
        ge=1,
        le=64,
        description="GPUs that each layer is split over; default: all GPUs of the replica.",
    )
    vllm_pipeline_parallel_size: Annotated[
        int | None, Flag("--pipeline-parallel-size"), MOVES_MEMORY, Settable.ALWAYS
    ] = Field(
        default=None,
        ge=1,
        le=64,
        description="Pipeline stages: groups of GPUs that each hold some of the layers; default: 1.",
    )
    vllm_enable_expert_parallel: Annotated[bool, Switch("--enable-expert-parallel"), Settable.ALWAYS] = Field(
        default=False, description="Distribute whole experts over the GPUs instead of splitting each expert."
    )
    vllm_disable_custom_all_reduce: Annotated[bool, Switch("--disable-custom-all-reduce"), Settable.ALWAYS] = Field(
        default=False,
        description="Use NCCL for all-reduce instead of vLLM's own implementation, which fails on some machines.",
    )
    vllm_attention_backend: Annotated[str | None, Flag("--attention-backend"), Settable.ALWAYS] = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_]+$",
        description="Attention implementation, such as FLASH_ATTN or FLASHINFER; default: vLLM's own, by the GPU.",
    )
    vllm_max_pixels: Annotated[
        int | None,
        Loadable({"minimum": 200704, "step": 200704, "unit": "pixels"}),
        SpecialFlag("--mm-processor-kwargs"),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None, ge=1, description="Maximum pixels per image; becomes `max_pixels` of `vllm_mm_processor_kwargs`."
    )
    vllm_mm_processor_kwargs: Annotated[
        dict[str, Anything] | None, SpecialFlag("--mm-processor-kwargs"), Hashed.ALWAYS, Settable.FROM_FILES
    ] = Field(default=None, description="Arguments of the model's image processor.")
    vllm_limit_mm_per_prompt: Annotated[
        dict[str, Annotated[int, Field(ge=0)]] | None, JsonFlag("--limit-mm-per-prompt"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(default=None, description="Maximum number of inputs per request and kind, such as `image`.")
    vllm_speculative_method: Annotated[
        str | None,
        Loadable(
            {
                "format": "vllm_speculative_method",
                "default": None,
                "examples": ["mtp", "draft_model", "mlp_speculator"],
            },
            null="none, whatever is configured",
        ),
        SpecialFlag("--speculative-config"),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None,
        min_length=1,
        description="Method of speculative decoding, such as mtp, draft_model or eagle3; default: none.",
    )
    vllm_speculative_model: Annotated[
        str | None,
        Loadable(
            {
                "format": "hf_id_or_local_path",
                "default": None,
                "examples": ["google/gemma-4-26B-A4B-it-assistant"],
            },
            null="the method needs none",
        ),
        SpecialFlag("--speculative-config"),
        Hashed.ALWAYS,
        Settable.IN_MODELS_FOLDER_OR_DECLARED,
    ] = Field(
        default=None,
        min_length=1,
        description="Assistant, draft or speculator model: a name on the Hub, an absolute path in a models folder, or "
        "another path as the engine sees it.",
    )
    vllm_num_speculative_tokens: Annotated[
        int | None, Loadable({"default": 1}), SpecialFlag("--speculative-config"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(default=None, ge=1, description="Tokens drafted at a time; default: 1.")
    vllm_speculative_config: Annotated[
        dict[str, Anything] | None, SpecialFlag("--speculative-config"), Settable.FROM_FILES
    ] = Field(
        default=None,
        description="Additional entries of `--speculative-config`, such as `prompt_lookup_max`; ignored without "
        "`vllm_speculative_method`.",
    )
    vllm_embedding: Annotated[bool, SpecialFlag("--runner pooling"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=False, description="Serve embeddings only."
    )
    vllm_enforce_eager: Annotated[bool, Switch("--enforce-eager"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=False,
        description="Do not use CUDA graphs: faster start, less memory, slower generation.",
    )
    vllm_trust_remote_code: Annotated[bool, Switch("--trust-remote-code"), Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=False, description="Run Python code from the model's files."
    )
    vllm_reasoning_parser: Annotated[str | None, Flag("--reasoning-parser"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Parser that separates the model's reasoning from its answer; default: none."
    )
    vllm_tool_call_parser: Annotated[str | None, Flag("--tool-call-parser"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, description="Parser of tool calls. Setting it enables tool calls; default: none."
    )
    vllm_enable_prompt_tokens_details: Annotated[bool, Switch("--enable-prompt-tokens-details"), Settable.ALWAYS] = (
        Field(default=False, description="Report in `usage` how many tokens of the prompt were cached.")
    )
    vllm_generation_config: Annotated[Literal["auto", "vllm"] | None, Flag("--generation-config"), Settable.ALWAYS] = (
        Field(
            default=None,
            description="Source of sampling defaults: the model's generation_config.json (auto) or vLLM's own defaults "
            "(vllm); default: auto.",
        )
    )
    vllm_override_generation_config: Annotated[
        dict[str, Anything] | None, JsonFlag("--override-generation-config"), Settable.ALWAYS
    ] = Field(
        default=None,
        description="Sampling parameters for requests that do not set them, such as `temperature` and `top_p`.",
    )
    vllm_chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"] | None, Flag("--chat-template-content-format"), Settable.ALWAYS
    ] = Field(
        default=None,
        description="Form in which the chat template gets message contents; default: auto, by the template.",
    )
    vllm_chat_template_kwargs: Annotated[
        dict[str, Anything] | None, JsonFlag("--default-chat-template-kwargs"), Settable.ALWAYS
    ] = Field(default=None, description="Arguments of the chat template for requests that do not set them.")
    vllm_lora_modules: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")], str] | None,
        PathFlag("--lora-modules", "folder", inside="adapter_config.json"),
        Settable.IN_MODELS_FOLDER,
    ] = Field(
        default=None,
        min_length=1,
        description="LoRA modules: names, each with a PEFT folder in a models folder. A request chooses one by name "
        "in `lora`.",
    )
    vllm_max_lora_rank: Annotated[
        Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None, Flag("--max-lora-rank"), Settable.ALWAYS
    ] = Field(default=None, description="Highest rank of a LoRA module, for which memory is reserved; default: 16.")
    vllm_max_loras: Annotated[int | None, Flag("--max-loras"), Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        le=1024,
        description="Maximum LoRA modules that one step computes; memory is reserved for each; default: 1.",
    )
    vllm_chat_template_file: Annotated[
        str | None, PathFlag("--chat-template", "file"), Hashed.ALWAYS, Settable.IN_MODELS_FOLDER
    ] = Field(default=None, description="Path of a Jinja chat template, in a models folder; default: the model's own.")
    prompt_format: Annotated[ChatFormat | None, Hashed.NEVER, Settable.ALWAYS] = Field(
        default=None,
        description="Prompt format of the model's own chat template; default: derived from the model's name.",
    )

    @property
    def share_follows_vram(self) -> bool:
        """Whether `vram_mib` sets the share of each GPU's memory that the engine takes. True if `vram_mib` is set, the
        replica has GPUs, and neither an option nor an argument in `extra_args` sets the share or the size of the KV
        cache."""
        is_sized = self.vllm_gpu_memory_utilization is not None or self._is_sized_otherwise
        return self.vram_mib is not None and bool(self.gpu_count) and not is_sized

    @property
    def is_sized_by_share(self) -> bool:
        """Whether the declared share of each GPU's memory, or vLLM's own, is what the engine takes. True if the replica
        has GPUs, and neither `vram_mib` sets the share, nor anything the size of the KV cache, nor an argument in
        `extra_args` either of them."""
        return bool(self.gpu_count) and not (self.share_follows_vram or self._is_sized_otherwise)

    @property
    def _is_sized_otherwise(self) -> bool:
        return self.vllm_kv_cache_memory_bytes is not None or any(
            arg.replace("_", "-").startswith(_SIZE_FLAGS) for arg in self.extra_args
        )

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.model_path is None and self.vllm_model is None:
            raise ValueError("needs one of `model_path` and `vllm_model`")
        if self.model_path is not None and self.vllm_model is not None:
            raise ValueError("model_path and vllm_model exclude each other")
        return self

    @model_validator(mode="after")
    def _no_more_parallel_than_gpus(self) -> Self:
        parallel_size, gpu_count = self.vllm_tensor_parallel_size, self.gpu_count
        if parallel_size is not None and gpu_count and parallel_size > gpu_count:
            raise ValueError(f"vllm_tensor_parallel_size is {parallel_size}, above the {gpu_count} GPUs of a replica")
        groups = self.vllm_pipeline_parallel_size
        if groups is not None and gpu_count and groups * (parallel_size or 1) > gpu_count:
            raise ValueError(f"vllm_pipeline_parallel_size is {groups}: too many for the {gpu_count} GPUs of a replica")
        return self

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        for name, field in _SPECULATION.items():
            if name in (self.vllm_speculative_config or {}):
                raise ValueError(f"vllm_speculative_config does not take {name}: set `{field}`")
        return self

    @model_validator(mode="after")
    def _no_code_by_override(self) -> Self:
        if not self.vllm_trust_remote_code and _holds_key(self.vllm_hf_overrides, "auto_map"):
            raise ValueError("vllm_hf_overrides names code (`auto_map`), which needs `vllm_trust_remote_code: true`")
        return self

    @model_validator(mode="after")
    def _no_code_by_speculation(self) -> Self:
        if not self.vllm_trust_remote_code and self.vllm_speculative_method == "custom_class":
            raise ValueError(
                "vllm_speculative_method custom_class imports the code that vllm_speculative_model names, which needs "
                "`vllm_trust_remote_code: true`"
            )
        return self


def _holds_key(value: JsonValue, name: str) -> bool:
    if isinstance(value, dict):
        return name in value or any(_holds_key(each, name) for each in value.values())
    return isinstance(value, list) and any(_holds_key(each, name) for each in value)
