"""LiteLLM's proxy, to be compared with: how it is installed, configured and started. 115 packages, 700 MiB."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

VERSION = "1.104.0"
"""Of the releases whose dependencies the package index held on 2026-11-21, the newest of several tried."""
REQUIREMENT = f"litellm[proxy]=={VERSION}"
_INSTALL_LIMIT_S = 900

ENV = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it fetches a price list otherwise
    "LITELLM_LOG": "ERROR",
    "LITELLM_TELEMETRY": "False",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


class UnavailableError(Exception):
    """It cannot be installed; the message says why."""


def installed(cache: Path) -> Path:
    """The `litellm` program, in a virtual environment of its own, from the package index unless it is there already.
    Takes a minute the first time. Raises UnavailableError: it is not there, and cannot be had."""
    home = cache / f"litellm-{VERSION}"
    found, complete = home / "bin" / "litellm", home / ".complete"
    if complete.exists() and found.exists():
        return found
    print(f"installing {REQUIREMENT} into {home}", file=sys.stderr)
    try:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run(
            [home / "bin" / "python", "-m", "pip", "install", "--quiet", REQUIREMENT],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_LIMIT_S,
        )
    except subprocess.CalledProcessError as error:
        told = [line for line in str(error.stderr).splitlines() if line.startswith("ERROR")]
        raise UnavailableError(told[-1][-300:] if told else f"pip ended with {error.returncode}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(str(error)) from None
    complete.touch()
    return found


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
