"""Example answers about downloads in the OpenAPI document. A test validates them."""

from __future__ import annotations

from typing import Any, Final

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
            "memory_on": "gpu",
            "memory_source": "predicted",
        }
    ],
    "total_bytes": _SIZE,
    "is_complete": True,
}
REMOVAL: Final[dict[str, Any]] = {"removed": [_MAIN], "kept": [], "freed_bytes": _SIZE}
