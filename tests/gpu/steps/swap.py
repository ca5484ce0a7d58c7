"""Two models on demand, and room for one of them."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import aiohttp

from tests.gpu.rig import Rig
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.support.wait import until

MODEL: Final = "clockwork.gguf"
SWAPS: Final = 10
SWAPS_SMALL: Final = 3
ROOM: Final = 0.6
"""Of the GPU, or of the memory that engines may have, for each of the two."""


async def swap_models(rig: Rig) -> Figures:
    """Seconds to an answer of a model whose room the other one has. Both are pinned to the same GPU: with another one
    free, there would be room for both and nothing to swap."""
    fields: dict[str, Any] = {"autoload": True, "min_residency_s": 0, "llama_server_n_ctx": 4096}
    if rig.on_cpu:
        fields["memory_mib"] = int(rig.main_memory_mib * ROOM)
    else:
        fields["vram_mib"] = int(rig.gpu(rig.uuids(1)[0]).total_mib * ROOM)
    names = ("one", "two")
    await rig.declare({name: rig.definition("llama-server", MODEL, **fields) for name in names})
    seconds = []
    for number in range(1 + (SWAPS_SMALL if rig.host.is_small else SWAPS)):
        name, other = names[number % 2], names[(number + 1) % 2]
        began = time.monotonic()
        await _answer(rig, name)
        seconds.append(time.monotonic() - began)
        if rig.engine_pids(other) and rig.host.runtime == "process":
            raise StepFailedError(f"{other} still runs beside {name}: nothing was swapped")
    swaps = seconds[1:]  # the first is a load without one
    return {"swaps": len(swaps), "median_s": statistics.median(swaps), "longest_s": max(swaps)}


async def _answer(rig: Rig, name: str) -> None:
    url = f"{(await rig.open_stack()).url}/v1/chat/completions"
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}]}

    async def is_answered() -> bool:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return "choices" in await answer.json()

    await until(f"an answer of {name}", is_answered)


STEPS = (
    Step(
        "swap.pinned",
        "Two models on demand pinned to one GPU, room for one",
        Needs(on_cpu=True, engine="llama-server", model=MODEL),
        swap_models,
    ),
)
