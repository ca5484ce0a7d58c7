"""Example answers in the OpenAPI document. A test validates them."""

from __future__ import annotations

from typing import Any, Final

_CACHE_TYPE: Final = {
    "kind": "string_or_null",
    "format": "ggml_type_name",
    "default": "f16",
    "allowed_values": ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"],
    "examples": ["f16", "q8_0", "q4_0"],
}
ROW: Final[dict[str, Any]] = {
    "name": "google_gemma-4-E2B-it-Q8_0-gguf",
    "resolved_backend": "llama_cpp",
    "configured_enabled": False,
    "replica_max": 4,
    "configured_target_inflight": 1,
    "effective_target_inflight": 1,
    "load_constraints": {
        "gguf_n_ctx": {"kind": "integer", "minimum": 1, "step": 1},
        "gguf_type_k": _CACHE_TYPE,
        "gguf_type_v": _CACHE_TYPE,
    },
    "load_recommendations": {
        "gguf_cache_type_pairs": {
            "kind": "pair_presets",
            "fields": ["gguf_type_k", "gguf_type_v"],
            "recommended_pairs": [
                {"label": "f16/f16", "gguf_type_k": "f16", "gguf_type_v": "f16"},
                {"label": "q8_0/q8_0", "gguf_type_k": "q8_0", "gguf_type_v": "q8_0"},
            ],
        }
    },
    "capabilities": {
        "modalities": ["text"],
        "media_urls": False,
        "multi_turn": True,
        "thinking_modes": ["default", "enabled", "disabled"],
        "tools": True,
        "forced_tools": True,
        "structured_output": True,
        "logprobs": False,
    },
    "definition": {
        "model_path": "google_gemma-4-E2B-it-Q8_0/google_gemma-4-E2B-it-Q8_0.gguf",
        "backend": "llama_cpp",
        "prompt_format": "gemma4_template",
        "enabled": False,
        "replicas": 3,
        "replica_max": 4,
        "gguf_n_ctx": 4096,
        "gguf_type_k": None,
        "gguf_type_v": None,
    },
    "aliases": [],
    "declared_by": "files",
    "runtime_state": "loaded",
    "is_loaded": True,
    "replicas": 3,
    "loaded_replicas": 3,
    "inflight_requests": 1,
    "queue_depth": 0,
    "runtime_inflight": 1,
    "last_error": None,
    "exit_code": None,
    "vram_estimate_mib": 12340,
    "vram_estimate_replica_count": 3,
    "vram_estimate_source": "model_artifact_size",
    "vram_observed_mib": None,
    "vram_warning": None,
    "load_override": {"gguf_n_ctx": 32768, "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"},
    "statement": {"kind": "load", "since": 1795255585.8, "reason": "load ordered by command line of ada"},
    "retry_at": None,
    "load_progress": None,
    "prefill_requests": 1,
    "prefill_progress": 0.42,
    "blocked": [],
    "drift": [],
    "held_by": [],
    "replica_details": [],
}
"""Example of an `AdminModel`."""
MODELS: Final[dict[str, Any]] = {
    "last_event_id": 1795255585810,
    "observed_at": 1795255586.2,
    "observation_error": None,
    "desired_problems": [],
    "paused": False,
    "models": [ROW],
}
"""Example of an `AdminModels`."""
GPU_MEMORY: Final[dict[str, Any]] = {
    "gpus": [
        {
            "index": 0,
            "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "used_mib": 75603,
            "total_mib": 97887,
            "used_over_total": "75603MiB / 97887MiB",
            "uuid": "GPU-5d3c2f70-6a0e-4d0e-9b1f-2f1b2a7d9c11",
            "claimed_mib": 73728,
            "utilization_percent": 97,
            "processes": [
                {"pid": 41872, "name": "VLLM::EngineCore", "used_mib": 74994, "replica": "rh-3f9c1a-chat-0-5d1e7a90-1"},
                {"pid": 1310, "name": "Xorg", "used_mib": 96, "replica": None},
            ],
            "mig": None,
            "is_unified": False,
        }
    ],
    "unread_gpus": [
        {
            "index": 1,
            "mig": None,
            "uuid": "GPU-0c1a7b52-9d0e-4f60-8a34-7be1c6a1f0d2",
            "pci_address": "0000:0a:00.0",
            "reason": "it has fallen off the bus: reboot the host, and see `dmesg` for its Xid (NVML: GPU is lost)",
            "description": "GPU 1 (GPU-0c1a7b52-9d0e-4f60-8a34-7be1c6a1f0d2, PCI 0000:0a:00.0) is left out: "
            "it has fallen off the bus: reboot the host, and see `dmesg` for its Xid (NVML: GPU is lost)",
            "claimed_mib": 0,
        }
    ],
    "host_mib": 257712,
    "models": [
        {
            name: ROW[name]
            for name in (
                "name",
                "runtime_state",
                "is_loaded",
                "configured_target_inflight",
                "effective_target_inflight",
                "vram_estimate_mib",
                "vram_estimate_replica_count",
                "vram_estimate_source",
                "vram_observed_mib",
                "vram_warning",
            )
        }
    ],
    "error": None,
    "driver_version": "580.65.06",
    "cuda_version": "13.0",
}
"""Example of a `GpuMemoryAnswer`."""


def example_response(value: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` entry for status 200 with `value` as its example."""
    return {200: {"content": {"application/json": {"example": value}}}}


_COMMIT: Final = "4d5c1f3ea1b7c0ed5d5f7a0c6f0a3a1a6f9f0d11"
_SHA256: Final = "882e8d2db44dc554fb0ea5077cb7e4bc49e7342a1f0da57901c0802ea21a0863"
_MAIN: Final = "ggml-org/gemma-3-4b-it-GGUF/gemma-3-4b-it-Q4_K_M.gguf"
_PINNED: Final = f"hf:ggml-org/gemma-3-4b-it-GGUF/gemma-3-4b-it-Q4_K_M.gguf@{_COMMIT}"
_REFERENCE: Final = "hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
_SIZE: Final = 2_489_757_856
_ID: Final = "dl_9f0c5b1f5a7d4f6c8e2b3a10"
_INSPECTION: Final[dict[str, Any]] = {
    "reference": _REFERENCE,
    "pinned": _PINNED,
    "revision": _COMMIT,
    "files": [
        {
            "path": "gemma-3-4b-it-Q4_K_M.gguf",
            "target": _MAIN,
            "size": _SIZE,
            "sha256": _SHA256,
            "is_present": False,
        }
    ],
    "main": _MAIN,
    "projector": None,
    "total_bytes": _SIZE,
    "missing_bytes": _SIZE,
    "free_bytes": 214_748_364_800,
}
_FORECAST: Final[dict[str, Any]] = {
    "summary": "fits on GPU 0 beside qwen",
    "backend": "llama_server",
    "devices": [
        {
            "gpus": ["0"],
            "needed_mib": 5120,
            "free_mib": 9216,
            "total_mib": 24576,
            "fits": True,
            "fits_alone": True,
            "beside": ["qwen"],
            "reason": None,
        },
        {
            "gpus": [],
            "needed_mib": 5376,
            "free_mib": 60000,
            "total_mib": 64000,
            "fits": True,
            "fits_alone": True,
            "beside": ["qwen"],
            "reason": None,
        },
    ],
    "reason": None,
}
INSPECTED: Final[dict[str, Any]] = {
    "name": "gemma-3-4b-it",
    "inspection": _INSPECTION,
    "fields": {"backend": "llama_server", "source": _PINNED},
    "forecast": _FORECAST,
}
MODEL_SEARCH: Final[dict[str, Any]] = {
    "repositories": [
        {
            "repository": "ggml-org/gemma-3-4b-it-GGUF",
            "downloads": 48210,
            "is_gated": False,
            "licence": "gemma",
            "left_out": 0,
            "reason": None,
            "choices": [
                {
                    "reference": "hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
                    "format": "gguf",
                    "quantisation": "Q4_K_M",
                    "main": "ggml-org/gemma-3-4b-it-GGUF/gemma-3-4b-it-Q4_K_M.gguf",
                    "projector": "ggml-org/gemma-3-4b-it-GGUF/mmproj-model-f16.gguf",
                    "file_count": 2,
                    "size": 3341195296,
                    "forecast": {
                        "summary": "about 4530 MiB; fits on GPU 0 beside qwen",
                        "backend": None,
                        "devices": [
                            {
                                "gpus": ["0"],
                                "needed_mib": 4530,
                                "free_mib": 22284,
                                "total_mib": 97887,
                                "fits": True,
                                "fits_alone": True,
                                "beside": ["qwen"],
                                "reason": None,
                            }
                        ],
                        "reason": None,
                    },
                    "is_present": False,
                    "used_by": [],
                }
            ],
        }
    ],
}
"""Example of a `ModelSearch`."""
ORDERED: Final[dict[str, Any]] = {
    "id": _ID,
    "reference": _REFERENCE,
    "pinned": _PINNED,
    "state": "downloading",
    "files": [{"path": _MAIN, "size": _SIZE, "done_bytes": 734_003_200, "sha256": _SHA256}],
    "main": _MAIN,
    "projector": None,
    "total_bytes": _SIZE,
    "done_bytes": 734_003_200,
    "bytes_per_s": 104_857_600.0,
    "remaining_s": 16.7,
    "has_finished": False,
    "waiting": None,
    "error": None,
    "created_at": 1795255585.8,
    "ended_at": None,
    "inspection": _INSPECTION,
    "forecast": _FORECAST,
}
MODEL_FILES: Final[dict[str, Any]] = {
    "folders": ["/models"],
    "models": [
        {
            "path": _MAIN,
            "folder": "/models",
            "kind": "file",
            "size": _SIZE,
            "origin": "download",
            "download": _ID,
            "reference": _PINNED,
            "used_by": ["gemma"],
            "memory_mib": 5120,
            "memory_by_model": {},
            "memory_on": "gpu",
            "memory_source": "predicted",
            "serve_as": None,
            "reason": None,
        }
    ],
    "total_bytes": _SIZE,
    "is_complete": True,
}
FILE_DECLARATION: Final[dict[str, Any]] = {
    "path": _MAIN,
    "name": "gemma-3-4b-it-Q4_K_M",
    "fields": {"model_path": _MAIN, "backend": "llama_server", "llama_server_n_ctx": 32768, "gpus": 1},
    "forecast": INSPECTED["forecast"],
    "context": 32768,
    "trained_context": 131072,
    "has_chat_template": True,
    "projector": None,
    "reason": None,
    "declared": "new",
}
REMOVAL: Final[dict[str, Any]] = {"removed": [_MAIN], "kept": [], "freed_bytes": _SIZE}
