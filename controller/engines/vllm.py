"""vLLM: the fields of `vllm` (in a worker process) and `vllm_serve` (its own server), and the backend `vllm`.

The engines come with a later version.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, WithJsonSchema, model_validator

from controller.engines.base import Engine, FileCheck, Probe
from controller.engines.capabilities import EMBEDDINGS, declared_over
from controller.engines.families import ChatFormat, family_of, thinking_modes
from controller.engines.load_fields import LoadField
from controller.engines.vllm_log import vllm_progress
from controller.engines.worker import not_yet
from controller.schema.admin import Capabilities, LoadConstraint
from controller.schema.desired import Definition

# Inline in the JSON Schema of the files, which has no place for pydantic's own definition of it.
Anything = Annotated[JsonValue, WithJsonSchema({})]


class VllmFields(Definition):
    """What `vllm` and `vllm_serve` have in common."""

    model_path: str | None = Field(
        default=None, description="The model's folder (or GGUF file), relative to the models folder."
    )
    vllm_model: str | None = Field(
        default=None, min_length=1, description="The model's name on the Hugging Face hub, instead of `model_path`."
    )
    vllm_max_model_len: int | None = Field(
        default=None, ge=1, description="Context length in tokens; default: the model's own."
    )
    vllm_dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = Field(
        default=None, description="Type of the weights; default: the model's own."
    )
    vllm_quantization: str | None = Field(default=None, description="Quantization; default: as the model's files say.")
    vllm_gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of each GPU's memory that the engine takes; keep it low and set the cache in bytes.",
    )
    vllm_kv_cache_dtype: str | None = Field(
        default=None, min_length=1, description="Type of the KV cache, any that vLLM knows; default: auto."
    )
    vllm_kv_cache_memory_bytes: int | None = Field(
        default=None, ge=1, description="Size of the KV cache in bytes; rules over `vllm_gpu_memory_utilization`."
    )
    vllm_tensor_parallel_size: int | None = Field(
        default=None, ge=1, le=64, description="GPUs that share each layer; default: all of the replica."
    )
    vllm_max_pixels: int | None = Field(
        default=None, ge=1, description="Pixels per image at most; becomes `max_pixels` of `vllm_mm_processor_kwargs`."
    )
    vllm_mm_processor_kwargs: dict[str, Anything] | None = Field(
        default=None, description="Arguments of the model's image processor."
    )
    vllm_limit_mm_per_prompt: dict[str, Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="Images (`image`) and the like that one request may hold."
    )
    vllm_speculative_method: str | None = Field(
        default=None,
        min_length=1,
        description="Speculative decoding, such as mtp, draft_model or mlp_speculator; without it there is none.",
    )
    vllm_speculative_model: str | None = Field(
        default=None,
        min_length=1,
        description="Assistant, draft or speculator: a name on the hub, or a path as the engine sees it.",
    )
    vllm_num_speculative_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that are guessed at a time; default 1."
    )
    vllm_embedding: bool = Field(default=False, description="Serve embeddings, and nothing else.")
    vllm_enforce_eager: bool = Field(default=False, description="No CUDA graphs: slower, starts sooner, less memory.")
    vllm_trust_remote_code: bool = Field(default=False, description="Run code that comes with the model.")
    vllm_reasoning_parser: str | None = Field(default=None, description="Parser that takes thoughts out of answers.")
    vllm_tool_call_parser: str | None = Field(default=None, description="Parser of tool calls; also turns them on.")
    vllm_chat_template_file: str | None = Field(
        default=None, description="Jinja chat template, relative to the models folder; default: the model's own."
    )
    prompt_format: ChatFormat | None = Field(
        default=None, description="Names what the model's chat template is; default: told by the model's name."
    )

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.model_path is None and self.vllm_model is None:
            raise ValueError("needs one of `model_path` and `vllm_model`")
        if self.model_path is not None and self.vllm_model is not None:
            raise ValueError("model_path and vllm_model exclude each other")
        return self


class VllmDefinition(VllmFields):
    """A model served by vLLM in a worker process."""

    backend: Literal["vllm"]


SHARED_HASHED = tuple(
    name for name in VllmFields.model_fields if name.startswith("vllm_") and name not in Definition.model_fields
)
"""Everything but `prompt_format`, which only names what is there."""

_LOAD_FIELDS = (
    LoadField("vllm_max_model_len", "Context length in tokens.", LoadConstraint(kind="integer", minimum=256, step=256)),
    LoadField(
        "vllm_kv_cache_dtype",
        "Type of the KV cache; any that vLLM knows.",
        LoadConstraint(
            kind="enum",
            default="auto",
            allowed_values=["auto", "fp8", "fp8_e4m3", "fp8_e5m2"],
            examples=["auto", "fp8"],
        ),
        open_values=True,
    ),
    LoadField(
        "vllm_kv_cache_memory_bytes",
        "Size of the KV cache in bytes; rules over vllm_gpu_memory_utilization.",
        LoadConstraint(kind="integer", minimum=2**28, step=2**28, unit="bytes", display_unit="mib"),
    ),
    LoadField(
        "vllm_max_pixels",
        "Pixels per image at most.",
        LoadConstraint(kind="integer", minimum=200704, step=200704, unit="pixels"),
    ),
    LoadField(
        "vllm_speculative_method",
        "Speculative decoding; null: none, whatever is configured.",
        LoadConstraint(
            kind="string_or_null",
            format="vllm_speculative_method",
            default=None,
            examples=["mtp", "draft_model", "mlp_speculator"],
        ),
    ),
    LoadField(
        "vllm_speculative_model",
        "Assistant, draft or speculator: a name on the hub, or a path as the engine sees it.",
        LoadConstraint(
            kind="string_or_null",
            format="hf_id_or_local_path",
            default=None,
            examples=["google/gemma-4-26B-A4B-it-assistant"],
        ),
    ),
    LoadField(
        "vllm_num_speculative_tokens",
        "Tokens that are guessed at a time.",
        LoadConstraint(kind="integer", minimum=1, step=1, default=1),
    ),
)


class VllmEngine(Engine):
    """What `vllm` and `vllm_serve` declare alike; they start nothing yet."""

    start_timeout_s: ClassVar[float] = 1800.0
    default_target_inflight: ClassVar[int] = 64
    takes_dimensions: ClassVar[bool] = True
    renders_inflight: ClassVar[bool] = True
    hashed_fields: ClassVar[tuple[str, ...]] = SHARED_HASHED
    load_fields: ClassVar[tuple[LoadField, ...]] = _LOAD_FIELDS

    def capabilities(self, definition: Definition) -> Capabilities:
        """Images where anything is said about them; tools with the parser of their calls."""
        assert isinstance(definition, VllmFields)
        if definition.vllm_embedding:
            return declared_over(definition, EMBEDDINGS)
        family = family_of(definition.prompt_format, definition.vllm_model, definition.model_path)
        derived = Capabilities(
            modalities=("text", "image") if _takes_images(definition) else ("text",),
            thinking_modes=thinking_modes(family, "gemma4", "qwen3"),
            tools=definition.vllm_tool_call_parser is not None,
        )
        return declared_over(definition, derived)

    def context_length(self, definition: Definition) -> int | None:
        """As declared."""
        assert isinstance(definition, VllmFields)
        return definition.vllm_max_model_len

    def artifacts(self, definition: Definition) -> tuple[str, ...]:
        """The model, where it lies in the models folder."""
        return (definition.model_path,) if definition.model_path is not None else ()

    def progress(self, log_tail: str) -> float | None:
        """By the bar that vLLM draws while it reads checkpoint shards."""
        return vllm_progress(log_tail)

    def files(self, definition: Definition) -> tuple[FileCheck, ...]:
        """The model and the template, where they lie in the models folder."""
        assert isinstance(definition, VllmFields)
        checks = []
        if definition.model_path is not None:
            checks.append(FileCheck("model_path", definition.model_path))
        if definition.vllm_chat_template_file is not None:
            checks.append(FileCheck("vllm_chat_template_file", definition.vllm_chat_template_file, "file"))
        return tuple(checks)

    def probe(self, definition: Definition) -> Probe:
        """vLLM's own health, figures, and one token or one embedding."""
        assert isinstance(definition, VllmFields)
        embedding = definition.vllm_embedding
        return Probe(
            health_path="/health",
            ready_path="/v1/embeddings" if embedding else "/v1/completions",
            ready_body={"input": "a"} if embedding else {"prompt": "a", "max_tokens": 1},
            metrics_path="/metrics",
            busy_metrics=("vllm:num_requests_running", "vllm:num_requests_waiting"),
            progress_metrics=("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        )

    def apis(self, definition: Definition) -> tuple[str, ...]:
        """An embedding model serves nothing else."""
        assert isinstance(definition, VllmFields)
        return ("/v1/embeddings",) if definition.vllm_embedding else ("/v1/chat/completions", "/v1/completions")


def _takes_images(definition: VllmFields) -> bool:
    if definition.vllm_limit_mm_per_prompt and "image" in definition.vllm_limit_mm_per_prompt:
        return definition.vllm_limit_mm_per_prompt["image"] > 0
    return definition.vllm_max_pixels is not None or bool(definition.vllm_mm_processor_kwargs)


class Vllm(VllmEngine):
    """vLLM in a worker process."""

    name: ClassVar[str] = "vllm"
    definition = VllmDefinition

    def missing(self, definition: Definition) -> str | None:
        """The engine."""
        return not_yet("vLLM")
