"""The steps of the first hour, one module for each subject, in the order in which they are walked."""

from __future__ import annotations

from typing import Final

from tests.gpu.step import Step
from tests.gpu.steps import containers, exllamav3, forecast, host_facts, kill, llama_server, out_of_memory, swap, vllm

STEPS: Final[tuple[Step, ...]] = (
    *host_facts.STEPS,
    *containers.STEPS,
    *llama_server.STEPS,
    *forecast.STEPS,
    *swap.STEPS,
    *out_of_memory.STEPS,
    *vllm.STEPS,
    *exllamav3.STEPS,
    *kill.STEPS,
)
