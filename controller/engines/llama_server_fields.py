"""The options of llama-server. Pure. Flags are those of llama.cpp's `common/arg.cpp`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from contract.desired import Definition, Settable
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

GgmlType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
SpecType = Literal[
    "draft-mtp", "draft-simple", "draft-eagle3", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"
]
"""Kinds of speculative decoding: by the model's own draft layers (mtp), by a draft model (simple, eagle3), or by
repeating what the prompt and the answer already hold (ngram)."""
DRAFT_N_MAX: Final = 2
DRAFT_P_MIN: Final = 0.0
"""Limits of drafting where only a kind of speculation is set. A UI shows them as defaults, so they are rendered:
llama-server's own defaults are others."""


class LlamaServerDefinition(Definition):
    """A GGUF model served by llama-server."""

    backend: Annotated[Literal["llama_server"] | None, Settable.ALWAYS] = None
    model_path: Annotated[str, Settable.IN_MODELS_FOLDER] = Field(
        description="Path of the GGUF file, in a models folder."
    )
    llama_server_binary: Annotated[str | None, Hashed.ALWAYS, Settable.FROM_FILES] = Field(
        default=None,
        description="Path of the llama-server program (process runtime only); default: the one on PATH, else the "
        "embedded one.",
    )
    llama_server_library_path: Annotated[str | None, Settable.FROM_FILES] = Field(
        default=None,
        description="Folders of llama-server's shared libraries (process runtime only), in the format of "
        "LD_LIBRARY_PATH.",
    )
    llama_server_n_ctx: Annotated[int | None, Flag("--ctx-size"), Loadable(), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="Context length in tokens, shared by all slots; default: the model's own."
    )
    llama_server_n_batch: Annotated[int | None, Flag("--batch-size"), Settable.ALWAYS] = Field(
        default=None, ge=1, description="Maximum tokens of a prompt per batch (logical batch size); default: 2048."
    )
    llama_server_n_ubatch: Annotated[int | None, Flag("--ubatch-size"), Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        description="Maximum tokens computed in one pass (physical batch size). A text to embed must fit into it; "
        "default: 512.",
    )
    llama_server_n_predict: Annotated[int | None, Flag("--predict"), Settable.ALWAYS] = Field(
        default=None, ge=1, description="Maximum output tokens of a request that sets no maximum; default: no limit."
    )
    llama_server_swa_full: Annotated[bool, Switch("--swa-full"), Settable.ALWAYS] = Field(
        default=False,
        description="Cache the whole context for layers with a sliding window, to reuse more prompts.",
    )
    llama_server_context_shift: Annotated[bool, Switch("--context-shift"), Settable.ALWAYS] = Field(
        default=False,
        description="When the context is full, drop its oldest tokens instead of ending the answer.",
    )
    llama_server_n_gpu_layers: Annotated[int | None, Flag("--n-gpu-layers"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=-1, description="Layers on the GPU; -1: all; default: all."
    )
    llama_server_n_cpu_moe: Annotated[int | None, Flag("--n-cpu-moe"), MOVES_MEMORY, Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        le=4096,
        description="Layers, counted from the first, whose experts stay in main memory.",
    )
    llama_server_cpu_moe: Annotated[bool, Switch("--cpu-moe"), MOVES_MEMORY, Settable.ALWAYS] = Field(
        default=False, description="Keep the experts of all layers in main memory."
    )
    llama_server_override_tensor: Annotated[str | None, Flag("--override-tensor"), MOVES_MEMORY, Settable.ALWAYS] = (
        Field(
            default=None,
            min_length=1,
            description="Where tensors are placed: pairs `pattern=buffer type`, comma-separated, such as `exps=CPU`.",
        )
    )
    llama_server_split_mode: Annotated[
        Literal["none", "layer", "row", "tensor"] | None, Flag("--split-mode"), MOVES_MEMORY, Settable.ALWAYS
    ] = Field(default=None, description="How the model is split over several GPUs; default: layer.")
    llama_server_main_gpu: Annotated[int | None, Flag("--main-gpu"), MOVES_MEMORY, Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        le=63,
        description="Index, from 0, of the replica's GPU that holds the whole model (split mode none) or the "
        "intermediate results (row).",
    )
    llama_server_tensor_split: Annotated[
        list[Annotated[float, Field(ge=0)]] | None, Flag("--tensor-split"), MOVES_MEMORY, Settable.ALWAYS
    ] = Field(
        default=None,
        min_length=1,
        max_length=15,
        description="Proportions of the model on each GPU, such as [3, 1]; default: those of the replica's claims.",
    )
    llama_server_kv_offload: Annotated[bool, Switch(off="--no-kv-offload"), MOVES_MEMORY, Settable.ALWAYS] = Field(
        default=True, description="Keep the KV cache on the GPU."
    )
    llama_server_load_mode: Annotated[
        Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"] | None, Flag("--load-mode"), Settable.ALWAYS
    ] = Field(
        default=None,
        description="How the file is read: none (without a memory map), mmap, mlock (locked in memory), dio (direct "
        "I/O); default: auto.",
    )
    llama_server_flash_attn: Annotated[
        Literal["on", "off", "auto"], Flag("--flash-attn"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(default="auto", description="Whether to use flash attention.")
    llama_server_cache_type_k: Annotated[GgmlType | None, Flag("--cache-type-k"), Hashed.ALWAYS, Settable.ALWAYS] = (
        Field(default=None, description="Data type of the K cache; default: f16.")
    )
    llama_server_cache_type_v: Annotated[GgmlType | None, Flag("--cache-type-v"), Hashed.ALWAYS, Settable.ALWAYS] = (
        Field(default=None, description="Data type of the V cache; default: f16.")
    )
    llama_server_rope_scaling: Annotated[
        Literal["none", "linear", "yarn"] | None, Flag("--rope-scaling"), Settable.ALWAYS
    ] = Field(
        default=None,
        description="RoPE scaling method, for contexts beyond the trained length; default: the model's own.",
    )
    llama_server_rope_scale: Annotated[float | None, Flag("--rope-scale"), Settable.ALWAYS] = Field(
        default=None,
        ge=0.001,
        le=1000,
        description="Factor by which RoPE scaling extends the context; default: the model's own.",
    )
    llama_server_rope_freq_base: Annotated[float | None, Flag("--rope-freq-base"), Settable.ALWAYS] = Field(
        default=None, ge=1, le=1e12, description="Base frequency of RoPE; default: the model's own."
    )
    llama_server_rope_freq_scale: Annotated[float | None, Flag("--rope-freq-scale"), Settable.ALWAYS] = Field(
        default=None,
        ge=0.001,
        le=1000,
        description="Frequency factor of RoPE, the inverse of `llama_server_rope_scale`; default: the model's own.",
    )
    llama_server_yarn_orig_ctx: Annotated[int | None, Flag("--yarn-orig-ctx"), Settable.ALWAYS] = Field(
        default=None,
        ge=1,
        description="Trained context length, for YaRN; default: the model's own.",
    )
    llama_server_mmproj: Annotated[
        str | None, PathFlag("--mmproj", "gguf"), Hashed.ALWAYS, Settable.IN_MODELS_FOLDER
    ] = Field(default=None, description="Path of the multimodal projector (GGUF) for images, in a models folder.")
    llama_server_mmproj_offload: Annotated[bool, Switch(off="--no-mmproj-offload"), Settable.ALWAYS] = Field(
        default=True, description="Keep the projector on the GPU."
    )
    llama_server_lora: Annotated[list[str] | None, PathFlag("--lora", "gguf"), Settable.IN_MODELS_FOLDER] = Field(
        default=None,
        min_length=1,
        description="Paths of LoRA adapters (GGUF), in models folders, for requests that name none in `lora`.",
    )
    llama_server_lora_scales: Annotated[
        list[Annotated[float, Field(ge=-100, le=100)]] | None, SpecialFlag("--lora-scaled"), Settable.ALWAYS
    ] = Field(
        default=None,
        min_length=1,
        description="Scale of each adapter of `llama_server_lora`, in its order; 1 where left out; 0: the adapter "
        "applies only to requests that name it in `lora`. Ignored without `llama_server_lora`.",
    )
    llama_server_image_min_tokens: Annotated[int | None, Flag("--image-min-tokens"), Settable.ALWAYS] = Field(
        default=None, ge=1, description="Minimum vision tokens per image."
    )
    llama_server_image_max_tokens: Annotated[
        int | None, Flag("--image-max-tokens"), Loadable(), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(default=None, ge=1, description="Maximum vision tokens per image.")
    llama_server_draft_model_path: Annotated[
        str | None, PathFlag("--model-draft", "gguf"), Hashed.ALWAYS, Settable.IN_MODELS_FOLDER
    ] = Field(default=None, description="Path of the draft model (GGUF) for speculative decoding, in a models folder.")
    llama_server_draft_n_gpu_layers: Annotated[int | None, Flag("--spec-draft-ngl"), Settable.ALWAYS] = Field(
        default=None, ge=0, description="Layers of the draft model on the GPU; default: all."
    )
    llama_server_draft_cache_type_k: Annotated[GgmlType | None, Flag("--spec-draft-type-k"), Settable.ALWAYS] = Field(
        default=None, description="Data type of the draft model's K cache; default: f16."
    )
    llama_server_draft_cache_type_v: Annotated[GgmlType | None, Flag("--spec-draft-type-v"), Settable.ALWAYS] = Field(
        default=None, description="Data type of the draft model's V cache; default: f16."
    )
    llama_server_spec_type: Annotated[
        SpecType | None,
        Flag("--spec-type"),
        Loadable(
            {"default": "draft-mtp", "allowed_values": ["draft-mtp"], "examples": ["draft-mtp"]},
            null="as if none were configured",
        ),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None,
        description="Method of speculative decoding; default: draft-simple if `llama_server_draft_model_path` is "
        "set, else none.",
    )
    llama_server_spec_draft_n_max: Annotated[
        int | None,
        Flag("--spec-draft-n-max"),
        Loadable({"default": DRAFT_N_MAX, "maximum": 6}),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(
        default=None,
        ge=1,
        le=64,
        description="Maximum tokens drafted at a time; default: 2 if `llama_server_spec_type` is set, else "
        "llama-server's own.",
    )
    llama_server_spec_draft_n_min: Annotated[int | None, Flag("--spec-draft-n-min"), Settable.ALWAYS] = Field(
        default=None, ge=0, description="Minimum tokens of a draft; shorter ones are discarded; default: 0."
    )
    llama_server_spec_draft_p_min: Annotated[
        float | None, Flag("--spec-draft-p-min"), Loadable({"default": DRAFT_P_MIN}), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Minimum probability of a drafted token; default: 0 if `llama_server_spec_type` is set, else "
        "llama-server's own.",
    )
    llama_server_embedding: Annotated[bool, Switch("--embeddings"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=False, description="Serve embeddings only."
    )
    llama_server_pooling: Annotated[
        Literal["none", "mean", "cls", "last", "rank"] | None, Flag("--pooling"), Hashed.ALWAYS, Settable.ALWAYS
    ] = Field(default=None, description="Pooling method of embeddings; default: the model's own.")
    llama_server_reranking: Annotated[bool, Switch("--reranking"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=False, description="Serve the reranking API."
    )
    llama_server_threads: Annotated[int | None, Flag("--threads"), Hashed.ALWAYS, Settable.ALWAYS] = Field(
        default=None, ge=1, description="CPU threads for generation; default: llama-server's own."
    )
    llama_server_threads_batch: Annotated[int | None, Flag("--threads-batch"), Settable.ALWAYS] = Field(
        default=None, ge=1, description="CPU threads for prompts; default: as many as for generation."
    )
    llama_server_cache_ram_mib: Annotated[int | None, SpecialFlag("--cache-ram"), Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        description="Main memory in MiB for cached prompts that have left their slot; default: none.",
    )
    llama_server_cache_reuse: Annotated[int | None, Flag("--cache-reuse"), Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        description="Minimum tokens of a part of a cached prompt that is reused at another position; default: 0 (no "
        "reuse).",
    )
    llama_server_ctx_checkpoints: Annotated[int | None, Flag("--ctx-checkpoints"), Settable.ALWAYS] = Field(
        default=None,
        ge=0,
        description="Maximum cache checkpoints per slot, in main memory, for models whose cache cannot be truncated; "
        "default: 32.",
    )
    llama_server_slot_prompt_similarity: Annotated[float | None, Flag("--slot-prompt-similarity"), Settable.ALWAYS] = (
        Field(
            default=None,
            ge=0,
            le=1,
            description="Minimum share of a prompt that must match a slot's cache for the slot to be chosen; default: "
            "0.1.",
        )
    )
    llama_server_slot_save: Annotated[bool, SpecialFlag("--slot-save-path"), Settable.ALWAYS] = Field(
        default=False,
        description="Let `POST /slots/{id}` save a slot's cache into a file in the replica's own folder, and restore "
        "it.",
    )
    llama_server_props: Annotated[bool, Switch("--props"), Settable.ALWAYS] = Field(
        default=False, description="Let `POST /props` change the engine's properties."
    )
    llama_server_warmup: Annotated[bool, Switch(off="--no-warmup"), Settable.ALWAYS] = Field(
        default=True, description="Run the model once with an empty prompt before the engine is ready."
    )
    llama_server_reasoning_format: Annotated[
        Literal["none", "deepseek", "deepseek-legacy", "auto"] | None,
        Flag("--reasoning-format"),
        Hashed.ALWAYS,
        Settable.ALWAYS,
    ] = Field(default=None, description="Form in which the model's reasoning is returned; default: llama-server's own.")
    llama_server_reasoning: Annotated[Literal["on", "off", "auto"] | None, Flag("--reasoning"), Settable.ALWAYS] = (
        Field(
            default=None,
            description="Whether the model thinks if the request does not set it; default: auto (by the chat "
            "template).",
        )
    )
    llama_server_reasoning_budget: Annotated[int | None, Flag("--reasoning-budget"), Settable.ALWAYS] = Field(
        default=None,
        ge=-1,
        description="Maximum reasoning tokens of an answer; -1: no limit; 0: no reasoning; default: -1.",
    )
    llama_server_reasoning_effort: Annotated[
        Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None, Flag("--reasoning-effort"), Settable.ALWAYS
    ] = Field(
        default=None, description="Reasoning effort that is passed to the chat template; default: the template's own."
    )
    llama_server_chat_template: Annotated[str | None, Flag("--chat-template"), Settable.ALWAYS] = Field(
        default=None,
        min_length=1,
        description="Name of a chat template built into llama.cpp, such as chatml, or a Jinja template; default: the "
        "model's own.",
    )
    llama_server_chat_template_kwargs: Annotated[
        dict[str, Anything] | None, JsonFlag("--chat-template-kwargs"), Settable.ALWAYS
    ] = Field(default=None, description="Arguments of the chat template for requests that do not set them.")
    llama_server_chat_template_file: Annotated[
        str | None, PathFlag("--chat-template-file", "file"), Hashed.ALWAYS, Settable.IN_MODELS_FOLDER
    ] = Field(default=None, description="Path of a Jinja chat template, in a models folder; default: the model's own.")
    llama_server_temperature: Annotated[float | None, Flag("--temp"), Settable.ALWAYS] = Field(
        default=None, ge=0, le=100, description="Temperature for requests that do not set it; default: 0.8."
    )
    llama_server_top_k: Annotated[int | None, Flag("--top-k"), Settable.ALWAYS] = Field(
        default=None, ge=0, description="Top-k sampling for requests that do not set it; 0: off; default: 40."
    )
    llama_server_top_p: Annotated[float | None, Flag("--top-p"), Settable.ALWAYS] = Field(
        default=None, ge=0, le=1, description="Top-p sampling for requests that do not set it; 1: off; default: 0.95."
    )
    llama_server_min_p: Annotated[float | None, Flag("--min-p"), Settable.ALWAYS] = Field(
        default=None, ge=0, le=1, description="Min-p sampling for requests that do not set it; 0: off; default: 0.05."
    )
    llama_server_repeat_penalty: Annotated[float | None, Flag("--repeat-penalty"), Settable.ALWAYS] = Field(
        default=None,
        ge=0.01,
        le=100,
        description="Repetition penalty for requests that do not set it; default: 1 (off).",
    )
    llama_server_presence_penalty: Annotated[float | None, Flag("--presence-penalty"), Settable.ALWAYS] = Field(
        default=None,
        ge=-100,
        le=100,
        description="Presence penalty for requests that do not set it; default: 0 (off).",
    )

    @model_validator(mode="after")
    def _has_room_for_prompts(self) -> Self:
        if self.memory_mib is not None and (self.llama_server_cache_ram_mib or 0) >= self.memory_mib:
            raise ValueError(
                f"llama_server_cache_ram_mib is a part of memory_mib, so it is less than {self.memory_mib}"
            )
        return self

    @model_validator(mode="after")
    def _has_draft_model(self) -> Self:
        needs_model = self.llama_server_spec_type in ("draft-simple", "draft-eagle3")
        if needs_model and self.llama_server_draft_model_path is None:
            raise ValueError(
                f"llama_server_spec_type is {self.llama_server_spec_type}, which needs `llama_server_draft_model_path`"
            )
        return self

    @model_validator(mode="after")
    def _adapters_can_be_written(self) -> Self:
        adapters = self.llama_server_lora or []
        scales = self.llama_server_lora_scales or []
        if adapters and len(scales) > len(adapters):
            raise ValueError(f"llama_server_lora_scales has {len(scales)} values for {len(adapters)} adapters")
        separators = ",:" if scales else ","
        if mark := next((each for each in separators if any(each in path for path in adapters)), None):
            raise ValueError(f"llama_server_lora: llama-server takes no path with {mark!r}")
        return self

    @model_validator(mode="after")
    def _one_chat_template(self) -> Self:
        if self.llama_server_chat_template is not None and self.llama_server_chat_template_file is not None:
            raise ValueError("llama_server_chat_template and llama_server_chat_template_file exclude each other")
        return self
