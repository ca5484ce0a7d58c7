"""Where `.ci/cluster`, `engines`, `litertlm`, `prometheus` and `vllm` there keep what they built, or would."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path
from typing import Literal

REPOSITORY = Path(__file__).resolve().parents[2]


@functools.cache
def cached_build(name: Literal["cluster", "engines", "litertlm", "prometheus", "vllm"]) -> Path:
    """The folder of one of them; it need not exist."""
    command = [str(REPOSITORY / ".ci" / name), "--path"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def add_llama_server_to_path() -> None:
    """Let programs find llama-server where `.ci/engines` built it; nothing where it did not."""
    if not (REPOSITORY / ".ci").is_dir():  # mutation tests run in a copy without it
        return
    folder, folders = cached_build("engines") / "app", os.environ["PATH"].split(os.pathsep)
    if folder.is_dir() and str(folder) not in folders:
        os.environ["PATH"] = os.pathsep.join([*folders, str(folder)])
