"""What vLLM's log tells of a load. Pure."""

from __future__ import annotations

import re
from typing import Final

_SHARDS: Final = re.compile(r"(?:checkpoint|loading) shards:\s*(\d{1,3})%")


def vllm_progress(log_tail: str) -> float | None:
    """0 to 1 by the last state of `Loading safetensors checkpoint shards:  50% Completed | 2/4 [...]`.

    Of the weights alone: compiling and capturing graphs come afterwards.
    """
    found = _SHARDS.findall(log_tail)
    return min(1.0, int(found[-1]) / 100) if found else None
