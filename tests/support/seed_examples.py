"""What seed 001 gives as examples: a model of every backend, bodies of loads, wrong ones, the fields of a row."""

from __future__ import annotations

from typing import Any

from tests.support.roundhouse_stack import SENTENCE

GGUF = "clockwork.gguf"
MODELS: dict[str, Any] = {
    "stub": {"backend": "stub", "enabled": False, "replica_max": 4, "stub_text": SENTENCE, "stub_token_delay_ms": 20},
    "slow": {"backend": "stub", "enabled": False, "stub_load_s": 600},
    "broken": {"backend": "stub", "enabled": False, "stub_fail": "the seed wants a failure"},
    "llama-cpp": {
        "backend": "llama_cpp",
        "model_path": "missing.gguf",
        "prompt_format": "gemma4_template",
        "enabled": False,
        "replicas": 3,
        "replica_max": 4,
        "gguf_n_gpu_layers": -1,
        "gguf_n_ctx": 4096,
    },
    "exllama": {"backend": "exllamav3", "model_path": "exl", "enabled": False, "exllama_cache_quant": "8,8"},
    "vllm": {"backend": "vllm", "model_path": "hf", "enabled": False},
    "assistant": {"backend": "vllm", "source": "hf:google/gemma-4-26B-A4B-it-assistant", "enabled": False},
    "vllm-serve": {"backend": "vllm_serve", "model_path": "hf", "enabled": False},
    "llama-server": {"backend": "llama_server", "model_path": GGUF, "enabled": False},
    "draft": {
        "backend": "llama_server",
        "model_path": GGUF,
        "enabled": False,
        "llama_server_n_ctx": 512,
        "llama_server_spec_type": "draft-mtp",
    },
    "ct2": {"backend": "ct2", "model_path": "ct2", "enabled": False},
    "remote": {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1", "enabled": False},
}

ROW_OF_THE_SEED = {
    "name", "resolved_backend", "configured_enabled", "runtime_state", "is_loaded", "replicas", "replica_max",
    "loaded_replicas", "inflight_requests", "queue_depth", "runtime_inflight", "configured_target_inflight",
    "effective_target_inflight", "last_error", "vram_estimate_mib", "vram_estimate_replica_count",
    "vram_estimate_source", "load_constraints", "load_recommendations", "load_override", "capabilities", "definition",
}  # fmt: skip

EXAMPLES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama-cpp", {"replicas": 3}, {}),
    ("llama-cpp", {"gguf_n_ctx": 8192}, {"gguf_n_ctx": 8192}),
    ("llama-cpp", {"gguf_n_ctx": 16384}, {"gguf_n_ctx": 16384}),
    ("llama-cpp", {"gguf_n_ctx": 32768}, {"gguf_n_ctx": 32768}),
    (
        "llama-cpp",
        {"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"},
        {"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"},
    ),
    *[
        (
            "exllama",
            {"exllama_cache_size": 32768, **quant, "exllama_max_rq_tokens": 32768},
            {"exllama_cache_size": 32768, "exllama_cache_quant": shown, "exllama_max_rq_tokens": 32768},
        )
        for quant, shown in (
            ({"exllama_cache_quant": None}, None),
            ({"exllama_cache_quant": "8,8"}, "8,8"),
            ({"exllama_cache_quant": "8,4"}, "8,4"),
            ({"exllama_cache_k_bits": 8, "exllama_cache_v_bits": 4}, "8,4"),
            ({"exllama_cache_k_bits": None, "exllama_cache_v_bits": None}, None),
        )
    ],
    *[
        (
            backend,
            vllm := {
                "vllm_max_model_len": 16384,
                "vllm_kv_cache_dtype": "fp8",
                "vllm_kv_cache_memory_bytes": 2147483648,
                "vllm_max_pixels": 4014080,
                "vllm_speculative_method": "mtp",
                "vllm_speculative_model": "google/gemma-4-26B-A4B-it-assistant",
                "vllm_num_speculative_tokens": 1,
            },
            vllm,
        )
        for backend in ("vllm", "vllm-serve")
    ],
    ("vllm", {"vllm_kv_cache_dtype": "turboquant_4bit_nc"}, {"vllm_kv_cache_dtype": "turboquant_4bit_nc"}),
    ("vllm", {"vllm_speculative_method": None}, {"vllm_speculative_method": None}),
]

SCHEMA = [
    ("llama-cpp", {"gguf_n_ctx": 0}, "gguf_n_ctx"),
    ("exllama", {"exllama_cache_size": 0}, "exllama_cache_size"),
    ("exllama", {"exllama_max_rq_tokens": 0}, "exllama_max_rq_tokens"),
    ("llama-cpp", {"gguf_n_ctx": "8192"}, "gguf_n_ctx"),
    ("llama-cpp", {"gguf_n_ctx": 1.5}, "gguf_n_ctx"),
    ("llama-cpp", {"gguf_n_ctx": True}, "gguf_n_ctx"),
    ("llama-cpp", {"gguf_n_ctx": None}, "gguf_n_ctx"),
    ("llama-cpp", {"gguf_type_k": 8}, "gguf_type_k"),
    ("llama-cpp", {"replicas": 0}, "replicas"),
    ("llama-cpp", {"no_such_field": 1}, "no_such_field"),
    ("llama-cpp", [], None),
    ("llama-cpp", b"{", None),
]
VALUES: list[tuple[str, dict[str, Any], str]] = [
    ("llama-cpp", {"gguf_type_k": "q8-0"}, "gguf_type_k"),
    ("llama-cpp", {"gguf_type_k": "foo"}, "gguf_type_k"),
    ("llama-cpp", {"gguf_flash_attn": "maybe"}, "gguf_flash_attn"),
    ("exllama", {"exllama_cache_k_bits": 8}, "exllama_cache_k_bits"),
    ("exllama", {"exllama_cache_v_bits": 8}, "exllama_cache_v_bits"),
    ("exllama", {"exllama_cache_k_bits": 8, "exllama_cache_v_bits": None}, "exllama_cache_k_bits"),
    ("exllama", {"exllama_cache_k_bits": 9, "exllama_cache_v_bits": 8}, "exllama_cache_k_bits"),
    (
        "exllama",
        {"exllama_cache_quant": "8", "exllama_cache_k_bits": 8, "exllama_cache_v_bits": 8},
        "exllama_cache_k_bits",
    ),
    ("exllama", {"exllama_cache_size": 8000}, "exllama_cache_size"),
    ("exllama", {"exllama_cache_quant": "fp16"}, "exllama_cache_quant"),
    ("llama-server", {"llama_server_spec_type": "medusa"}, "llama_server_spec_type"),
    ("llama-server", {"llama_server_spec_draft_n_max": 7}, "llama_server_spec_draft_n_max"),
    ("llama-server", {"llama_server_spec_draft_p_min": 1.5}, "llama_server_spec_draft_p_min"),
    ("vllm", {"vllm_max_model_len": 255}, "vllm_max_model_len"),
    ("llama-cpp", {"exllama_cache_size": 32768}, "exllama_cache_size"),
    ("vllm", {"llama_server_n_ctx": 4096}, "llama_server_n_ctx"),
    ("stub", {"gguf_n_ctx": 4096}, "gguf_n_ctx"),
    ("stub", {"replicas": 5}, "replicas"),
]
