"""The options of llama-server. Pure. Flags are those of llama.cpp's `common/arg.cpp`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from controller.engines.options import Flag, Hashed, Loadable, PathFlag, SpecialFlag, Switch
from controller.schema.desired import Definition

GgmlType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
DRAFT_N_MAX: Final = 2
DRAFT_P_MIN: Final = 0.0
"""Limits of drafting where only a kind of speculation is set. A UI shows them as defaults, so they are rendered:
llama-server's own defaults are others."""


class LlamaServerDefinition(Definition):
    """A GGUF model served by llama-server."""

    backend: Literal["llama_server"] | None = None
    model_path: str = Field(description="The GGUF file, in a models folder.")
    llama_server_binary: Annotated[str | None, Hashed.ALWAYS] = Field(
        default=None, description="Path of the llama-server program (process); default: on PATH, else embedded."
    )
    llama_server_library_path: str | None = Field(
        default=None, description="Folders of its shared libraries (process), as LD_LIBRARY_PATH takes them."
    )
    llama_server_n_ctx: Annotated[int | None, Flag("--ctx-size"), Loadable(), Hashed.ALWAYS] = Field(
        default=None, ge=1, description="Context length in tokens, shared by all slots; default: the model's own."
    )
    llama_server_n_gpu_layers: Annotated[int | None, Flag("--n-gpu-layers"), Hashed.ALWAYS] = Field(
        default=None, ge=-1, description="Layers kept on the GPU; -1 or left out: as many as there are."
    )
    llama_server_flash_attn: Annotated[Literal["on", "off", "auto"], Flag("--flash-attn"), Hashed.ALWAYS] = Field(
        default="auto", description="Flash attention."
    )
    llama_server_cache_type_k: Annotated[GgmlType | None, Flag("--cache-type-k"), Hashed.ALWAYS] = Field(
        default=None, description="Type of the K cache; default f16."
    )
    llama_server_cache_type_v: Annotated[GgmlType | None, Flag("--cache-type-v"), Hashed.ALWAYS] = Field(
        default=None, description="Type of the V cache; default f16."
    )
    llama_server_mmproj: Annotated[str | None, PathFlag("--mmproj", "gguf"), Hashed.ALWAYS] = Field(
        default=None, description="Multimodal projector (GGUF), for images."
    )
    llama_server_image_max_tokens: Annotated[int | None, Flag("--image-max-tokens"), Loadable(), Hashed.ALWAYS] = Field(
        default=None, ge=1, description="Vision tokens per image at most."
    )
    llama_server_draft_model_path: Annotated[str | None, PathFlag("--model-draft", "gguf"), Hashed.ALWAYS] = Field(
        default=None, description="Draft model (GGUF), for speculation."
    )
    llama_server_spec_type: Annotated[
        Literal["draft-mtp"] | None,
        Flag("--spec-type"),
        Loadable({"default": "draft-mtp", "examples": ["draft-mtp"]}, null="as if none were configured"),
        Hashed.ALWAYS,
    ] = Field(default=None, description="Kind of speculative decoding; default: none.")
    llama_server_spec_draft_n_max: Annotated[
        int | None, Flag("--spec-draft-n-max"), Loadable({"default": DRAFT_N_MAX}), Hashed.ALWAYS
    ] = Field(
        default=None,
        ge=1,
        le=6,
        description="Tokens drafted at most; default: 2 with a `llama_server_spec_type`, else llama-server's own.",
    )
    llama_server_spec_draft_p_min: Annotated[
        float | None, Flag("--spec-draft-p-min"), Loadable({"default": DRAFT_P_MIN}), Hashed.ALWAYS
    ] = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Least probability of a drafted token; default: 0 with a `llama_server_spec_type`, else "
        "llama-server's own.",
    )
    llama_server_embedding: Annotated[bool, Switch("--embeddings"), Hashed.ALWAYS] = Field(
        default=False, description="Serve embeddings, and nothing else."
    )
    llama_server_pooling: Annotated[
        Literal["none", "mean", "cls", "last", "rank"] | None, Flag("--pooling"), Hashed.ALWAYS
    ] = Field(default=None, description="Pooling of embeddings; default: the model's own.")
    llama_server_reranking: Annotated[bool, Switch("--reranking"), Hashed.ALWAYS] = Field(
        default=False, description="Serve reranking."
    )
    llama_server_threads: Annotated[int | None, Flag("--threads"), Hashed.ALWAYS] = Field(
        default=None, ge=1, description="CPU threads for generation."
    )
    llama_server_cache_ram_mib: Annotated[int | None, SpecialFlag("--cache-ram")] = Field(
        default=None, ge=0, description="Main memory for prompts that have left their slot, in MiB; default: none."
    )
    llama_server_reasoning_format: Annotated[
        Literal["none", "deepseek", "deepseek-legacy", "auto"] | None, Flag("--reasoning-format"), Hashed.ALWAYS
    ] = Field(default=None, description="How thoughts are returned.")
    llama_server_chat_template_file: Annotated[str | None, PathFlag("--chat-template-file", "file"), Hashed.ALWAYS] = (
        Field(default=None, description="Jinja chat template, in a models folder; default: the model's own.")
    )

    @model_validator(mode="after")
    def _has_room_for_prompts(self) -> Self:
        if self.memory_mib is not None and (self.llama_server_cache_ram_mib or 0) >= self.memory_mib:
            raise ValueError(
                f"llama_server_cache_ram_mib is a part of memory_mib, so it is less than {self.memory_mib}"
            )
        return self
