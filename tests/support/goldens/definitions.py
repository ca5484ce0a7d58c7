"""Definitions of every backend that together set every option; a test holds that they do.

Those in `_WRITTEN` are written by hand. Options that none of them sets stand together in one more, `further`, with a
value that follows from their declaration.
"""

from __future__ import annotations

from typing import Any, Final

from tests.support.goldens.product import ENGINES, list_options
from tests.support.option_values import sample_value

SCHEDULING: Final[dict[str, Any]] = {
    "enabled": False,
    "autoload": True,
    "idle_ttl_s": 900.0,
    "min_residency_s": 30.0,
    "pinned": True,
    "replicas": 2,
    "replica_max": 3,
    "target_inflight": 2,
    "queue_limit": 5,
    "session_cache": 6,
    "aliases": ["org/other:name", "other"],
    "vram_mib": 8000,
    "memory_mib": 2048,
    "start_timeout_s": 120.0,
    "drain_timeout_s": 15.0,
}
"""What every backend has and that says when and where engines run."""

ENGINE: Final[dict[str, Any]] = {
    "image": "registry.example/engine:1.2",
    "env": {"B_NAME": "b=c d", "A_NAME": "ä"},
    "extra_args": ["--verbose", "--name=with spaces", "-x"],
    "modalities": ["text", "image"],
    "media_urls": True,
    "multi_turn": False,
    "thinking_modes": ["default", "disabled"],
    "tools": False,
    "structured_output": False,
    "matryoshka": True,
    "role": "aicore",
    "source": "hf:org/model:Q4_K_M",
}
"""What every backend has and that says what an engine is and can do."""

_EVERYTHING: Final = {**SCHEDULING, **ENGINE}

_VLLM: Final[dict[str, dict[str, Any]]] = {
    "minimal": {"model_path": "hf"},
    "everything": {
        **_EVERYTHING,
        "model_path": "org/model",
        "gpus": 2,
        "vllm_max_model_len": 16384,
        "vllm_dtype": "bfloat16",
        "vllm_quantization": "fp8",
        "vllm_gpu_memory_utilization": 0.85,
        "vllm_kv_cache_dtype": "fp8_e4m3",
        "vllm_kv_cache_memory_bytes": 2147483648,
        "vllm_tensor_parallel_size": 2,
        "vllm_max_pixels": 4014080,
        "vllm_mm_processor_kwargs": {"min_pixels": 3136, "deep": {"a": [1, None, True]}},
        "vllm_limit_mm_per_prompt": {"image": 4, "audio": 0},
        "vllm_speculative_method": "mtp",
        "vllm_speculative_model": "org/assistant",
        "vllm_num_speculative_tokens": 3,
        "vllm_enforce_eager": True,
        "vllm_trust_remote_code": True,
        "vllm_reasoning_parser": "qwen3",
        "vllm_tool_call_parser": "hermes",
        "vllm_chat_template_file": "templates/chat.jinja",
        "prompt_format": "qwen3_template",
    },
    "embedding-of-the-hub": {"vllm_model": "org/embed", "vllm_embedding": True, "target_inflight": 8},
    "cache-in-bytes": {"model_path": "hf", "device": "cuda", "vllm_kv_cache_memory_bytes": 1073741824},
}

_WRITTEN: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "llama_server": {
        "minimal": {"model_path": "m.gguf"},
        "everything": {
            **_EVERYTHING,
            "backend": "llama_server",
            "model_path": "org/m.gguf",
            "gpus": ["GPU-b", 0],
            "llama_server_binary": "/opt/llama/llama-server",
            "llama_server_library_path": "/opt/llama/lib:/opt/cuda/lib",
            "llama_server_n_ctx": 8192,
            "llama_server_n_gpu_layers": -1,
            "llama_server_flash_attn": "on",
            "llama_server_cache_type_k": "q8_0",
            "llama_server_cache_type_v": "q4_0",
            "llama_server_mmproj": "org/mmproj.gguf",
            "llama_server_image_max_tokens": 1024,
            "llama_server_draft_model_path": "org/draft.gguf",
            "llama_server_spec_type": "draft-mtp",
            "llama_server_spec_draft_n_max": 4,
            "llama_server_spec_draft_p_min": 0.25,
            "llama_server_threads": 6,
            "llama_server_cache_ram_mib": 512,
            "llama_server_reasoning_format": "deepseek",
            "llama_server_chat_template_file": "templates/chat.jinja",
        },
        "speculation-by-default": {"model_path": "m.gguf", "llama_server_spec_type": "draft-mtp"},
        "draft-model-alone": {"model_path": "m.gguf", "llama_server_draft_model_path": "draft.gguf"},
        "embedding": {"model_path": "m.gguf", "llama_server_embedding": True, "llama_server_pooling": "mean"},
        "reranking": {"model_path": "m.gguf", "llama_server_reranking": True, "llama_server_pooling": "rank"},
    },
    "llama_cpp": {
        "minimal": {"model_path": "m.gguf"},
        "everything": {
            **_EVERYTHING,
            "model_path": "org/m.gguf",
            "gpus": 1,
            "gguf_n_ctx": 4096,
            "gguf_n_gpu_layers": 20,
            "gguf_flash_attn": "off",
            "gguf_type_k": "q8_0",
            "gguf_type_v": "f16",
            "prompt_format": "gemma4_template",
        },
        "embedding": {"model_path": "m.gguf", "gguf_embedding": True},
        "another-template": {"model_path": "m.gguf", "gguf_chat_format": "chatml"},
    },
    "vllm": _VLLM,
    "vllm_serve": {
        **_VLLM,
        "everything": {
            **_VLLM["everything"],
            "vllm_serve_binary": "/opt/vllm/bin/vllm",
            "vllm_serve_library_path": "/opt/vllm/lib",
        },
        "sleep": {"model_path": "hf", "gpus": 1, "vllm_sleep": "level2"},
    },
    "exllamav3": {
        "minimal": {"model_path": "exl3", "device": "cuda"},
        "everything": {
            **_EVERYTHING,
            "model_path": "org/exl3",
            "gpus": 2,
            "exllama_cache_size": 32768,
            "exllama_cache_quant": "8,4",
            "exllama_max_rq_tokens": 16384,
            "exllama_tensor_parallel": True,
            "prompt_format": "qwen3_template",
        },
    },
    "ct2": {
        "minimal": {"model_path": "ct2"},
        "everything": {
            **_EVERYTHING,
            "model_path": "org/ct2",
            "gpus": [0],
            "ct2_tokenizer": "org/tokenizer",
            "ct2_compute_type": "int8_float16",
            "ct2_max_tokens": 2048,
            "ct2_inter_threads": 2,
            "ct2_intra_threads": 3,
            "prompt_format": "mistral_template",
        },
    },
    "litert_lm": {
        "minimal": {"model_path": "m.litertlm"},
        "everything": {
            **_EVERYTHING,
            "backend": "litert_lm",
            "model_path": "org/m.litertlm",
            "gpus": 1,
            "litert_lm_backend": "gpu",
            "litert_lm_vision_backend": "cpu",
            "litert_lm_max_tokens": 1024,
        },
    },
    "onnx": {
        "minimal": {"model_path": "m.onnx"},
        "everything": {
            **_EVERYTHING,
            "backend": "onnx",
            "model_path": "org/m.onnx",
            "gpus": 0,
            "onnx_tokenizer": "org/vocab.txt",
            "onnx_max_tokens": 256,
            "onnx_pooling": "cls",
            "onnx_normalize": False,
            "onnx_threads": 2,
        },
    },
    "openai_remote": {
        "minimal": {"base_url": "https://models.example/v1"},
        "everything": {
            **_EVERYTHING,
            "replicas": 1,
            "replica_max": 1,
            "gpus": 0,
            "model_path": "not/used",
            "base_url": "http://models.example:8000/api/v1/",
            "remote_model": "org/theirs",
            "api_key_env": "THEIR_KEY",
            "remote_apis": ["/v1/chat/completions", "/v1/responses"],
            "remote_fields": ["top_k"],
            "thinking_field": "reasoning_effort",
            "max_tokens_field": "max_completion_tokens",
            "health_path": "/health",
        },
        "key-in-a-file": {"base_url": "https://models.example", "api_key_file": "/run/secrets/key"},
    },
    "stub": {
        "minimal": {},
        "everything": {
            **_EVERYTHING,
            "model_path": "not-used",
            "gpus": 1,
            "stub_text": '-x and "more"',
            "stub_load_s": 1.5,
            "stub_token_delay_ms": 20,
            "stub_fail": "as asked",
        },
        "on-the-cpu": {"device": "cpu"},
    },
}


def _complete(backend: str, definitions: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {name for fields in definitions.values() for name in fields}
    options = [option for option in list_options(ENGINES[backend].definition) if option.name not in names]
    further = {option.name: sample_value(option) for option in options}
    return {**definitions, "further": definitions["minimal"] | further} if further else definitions


DEFINITIONS: Final = {backend: _complete(backend, definitions) for backend, definitions in _WRITTEN.items()}
"""Backend to name to fields. `backend` is added where a definition does not need to say it."""
