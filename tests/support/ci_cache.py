"""Where `.ci/engines`, `.ci/litertlm` and `.ci/vllm` keep what they built, or would."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Literal

REPOSITORY = Path(__file__).resolve().parents[2]


@functools.cache
def cached_build(name: Literal["engines", "litertlm", "vllm"]) -> Path:
    """The folder of one of them; it need not exist."""
    command = [str(REPOSITORY / ".ci" / name), "--path"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
