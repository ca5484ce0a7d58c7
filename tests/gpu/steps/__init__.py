"""The steps of the first hour, one module for each subject. They are walked by what they tell in a second."""

from __future__ import annotations

from typing import Final

from tests.gpu.step import Step
from tests.gpu.steps import (
    containers,
    exllamav3,
    forecast,
    host_facts,
    kill,
    llama_server,
    out_of_memory,
    speed,
    swap,
    vllm,
)

_ALL: Final = (
    *(*host_facts.STEPS, *containers.STEPS, *llama_server.STEPS, *kill.STEPS, *swap.STEPS, *speed.STEPS),
    *(*forecast.STEPS, *out_of_memory.STEPS, *vllm.STEPS, *exllamav3.STEPS),
)
FIRST: Final = (
    # Seconds each.
    *(
        "host",
        "probe",
        "image",
        "llama",
        "kill.engine",
        "kill.streams",
        "swap.pinned",
        "forecast",
        "oom",
        "speed.llama",
    ),
    # A minute each, for the start of vLLM.
    *("vllm.vram", "speed.vllm", "sleep.level1", "kill.vllm-streams", "vllm.bytes", "vllm.share", "exllamav3"),
    # Several starts each.
    *("swap.vllm-level1", "swap.vllm-level2", "sleep.level2", "vllm.two-on-one", "swap.vllm"),
)
"""Names of steps, or their beginnings up to a dot, in the order in which they are walked; the others come after."""


def _rank(step: Step) -> int:
    return next((place for place, name in enumerate(FIRST) if f"{step.name}.".startswith(f"{name}.")), len(FIRST))


STEPS: Final[tuple[Step, ...]] = tuple(sorted(_ALL, key=_rank))
