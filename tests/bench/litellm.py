"""LiteLLM's proxy, to be compared with: how it is installed, configured and started. 115 packages, 700 MiB."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench.environment import program

VERSION = "1.104.0"
"""Of the releases whose dependencies the package index held on 2026-11-21, the newest of several tried."""

ENV = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it fetches a price list otherwise
    "LITELLM_LOG": "ERROR",
    "LITELLM_TELEMETRY": "False",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


def installed(cache: Path) -> Path:
    """The `litellm` program. Takes a minute the first time.

    Raises:
        UnavailableError: it is not there, and cannot be had.
    """
    return program(cache, "litellm", VERSION, "litellm[proxy]")


def config(engine_port: int, secret: str) -> str:
    """One model, one key, no database, no callbacks. JSON, which is YAML too."""
    model = {"model": "openai/bench", "api_base": f"http://127.0.0.1:{engine_port}/v1", "api_key": "none"}
    return json.dumps(
        {
            "model_list": [{"model_name": "bench", "litellm_params": model}],
            "general_settings": {"master_key": secret},
            "litellm_settings": {"telemetry": False, "callbacks": []},
        }
    )


def command(litellm: Path, config_file: Path, port: int) -> list[str]:
    """How it is started, with one worker."""
    options = {"config": config_file, "port": port, "host": "127.0.0.1", "num_workers": 1, "telemetry": False}
    return [str(litellm), *(text for name, value in options.items() for text in (f"--{name}", str(value)))]
