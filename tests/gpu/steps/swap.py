"""Two models on demand, and room for one of them: by a load each time, and by vLLM's sleep."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp

from tests.gpu.rig import Rig, Streamed, mib_grown
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.support.installed_engines import ON_CPU
from tests.support.wait import until

MODEL: Final = "clockwork.gguf"
VLLM_MODEL: Final = "noisy-hf"
RETRY_S: Final = 20.0
SWAPS: Final = 10
SWAPS_SMALL: Final = 3
ROOM: Final = 0.6
"""Of the GPU, or of the memory that engines may have, for each of the two."""


LEVELS: Final = ("level1", "level2")
COLD_SWAPS, SLEEP_SWAPS = 2, 6
CANARY: Final = 12
"""Greedy tokens that a model must say again after each wake."""
IDLE_S: Final = 2.0
ASLEEP_S: Final = 60.0
ASLEEP_MOST: Final = 0.5
"""Of what it held awake: more is no sleep."""


async def swap_models(rig: Rig) -> Figures:
    """Seconds to an answer of a model whose room the other one has. Both are pinned to the same GPU: with another one
    free, there would be room for both and nothing to swap."""
    fields: dict[str, Any] = {"autoload": True, "min_residency_s": 0, "llama_server_n_ctx": 4096}
    fields |= _room(rig)
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


def _room(rig: Rig) -> dict[str, int]:
    """What two of a kind cannot have at once."""
    if rig.on_cpu:
        return {"memory_mib": int(rig.main_memory_mib * ROOM)}
    return {"vram_mib": int(rig.gpu(rig.uuids(1)[0]).total_mib * ROOM)}


async def _answer(rig: Rig, name: str) -> None:
    url = f"{(await rig.open_stack()).url}/v1/chat/completions"
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}]}

    async def is_answered() -> bool:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return "choices" in await answer.json()

    await until(f"an answer of {name}", is_answered)


def swap_vllm(level: str | None) -> Callable[[Rig], Awaitable[Figures]]:
    """Two models of vLLM: seconds to the first token of the one whose room the other has, which is loaded each time
    (None) or wakes. Each must say what it said when it was first loaded."""

    async def run(rig: Rig) -> Figures:
        fields: dict[str, Any] = {
            "autoload": True,
            "min_residency_s": 0,
            **_room(rig),
            **(ON_CPU if rig.on_cpu else {}),
        }
        fields |= {"vllm_max_model_len": 2048, "vllm_enforce_eager": True, "target_inflight": 8, "start_timeout_s": 480}
        fields |= {} if level is None else {"vllm_sleep": level}
        await rig.declare({name: rig.definition("vllm", VLLM_MODEL, **fields) for name in ("one", "two")})
        said: dict[str, str] = {}
        seconds: list[float] = []
        loads = 1 if level is None else 2  # only then both have been loaded, and the next is a wake
        figures: dict[str, Any] = {"loads_s": seconds[:loads]}
        for number in range(loads + (COLD_SWAPS if level is None else SLEEP_SWAPS)):
            name = ("one", "two")[number % 2]
            answer = await _first_token(rig, name)
            seconds.append(answer.first_s or 0.0)
            swaps = seconds[loads:]
            figures = {"loads_s": seconds[:loads], "swaps": len(swaps)}
            figures |= {"median_s": statistics.median(swaps), "longest_s": max(swaps)} if swaps else {}
            if answer.text != said.setdefault(name, answer.text):
                raise StepFailedError(f"{name} says {answer.text}, and said {said[name]}", figures)
        return figures

    return run


def sleep_when_idle(level: str) -> Callable[[Rig], Awaitable[Figures]]:
    """A model that falls asleep because nobody asks: its engine stays and gives back the GPU, and a request wakes it to
    the same tokens as before."""

    async def run(rig: Rig) -> Figures:
        fields: dict[str, Any] = {"autoload": True, "idle_ttl_s": IDLE_S, "vllm_sleep": level, "start_timeout_s": 480}
        fields |= {"vllm_max_model_len": 4096, "vllm_enforce_eager": True, "vllm_kv_cache_memory_bytes": 2**30}
        await rig.declare({"drowsy": rig.definition("vllm", VLLM_MODEL, **fields)})
        before = rig.used_mib("drowsy")
        first = await _first_token(rig, "drowsy")
        awake, engine = sum(mib_grown(before, rig.used_mib("drowsy")).values()), rig.engine_pids("drowsy")[:1]
        figures: dict[str, Any] = {"load_s": first.first_s, "awake_mib": awake}

        def is_asleep() -> bool:
            return sum(mib_grown(before, rig.used_mib("drowsy")).values()) < awake * ASLEEP_MOST

        try:
            await until("asleep", is_asleep, ASLEEP_S)
        except AssertionError:
            raise StepFailedError(f"it does not fall asleep within {ASLEEP_S:g} s", figures) from None
        figures["asleep_mib"] = sum(mib_grown(before, rig.used_mib("drowsy")).values())
        if rig.engine_pids("drowsy")[:1] != engine:
            raise StepFailedError("its engine ended: it was unloaded, and does not sleep", figures)
        again = await _first_token(rig, "drowsy")
        figures |= {"wake_s": again.first_s, "canary": again.text == first.text}
        if again.text != first.text or rig.engine_pids("drowsy")[:1] != engine:
            raise StepFailedError(f"it says {again.text} after the wake, and said {first.text}", figures)
        return figures

    return run


async def _first_token(rig: Rig, name: str) -> Streamed:
    """A whole answer, however long the model takes to be there; its `first_s` counts from the first try. Raises
    StepFailedError for any other."""
    began = tried = time.monotonic()
    answer = await rig.stream(name, CANARY)
    # A request that comes while the other model leaves may be told to come again.
    while not answer.is_whole and time.monotonic() - began < RETRY_S:
        await asyncio.sleep(0.1)
        tried = time.monotonic()
        answer = await rig.stream(name, CANARY)
    if not answer.is_whole or answer.first_s is None:
        raise StepFailedError(f"{name} does not answer: {answer.error}")
    answer.first_s += tried - began
    if not answer.text:
        raise StepFailedError(f"{name} says nothing that could be compared")
    return answer


_VLLM = Needs(engine="vllm", model=VLLM_MODEL, processes=True)
STEPS = (
    Step(
        "swap.pinned",
        "Two models on demand pinned to one GPU, room for one",
        Needs(on_cpu=True, engine="llama-server", model=MODEL),
        swap_models,
        limit_s=180,
    ),
    *(
        step
        for level in LEVELS
        for step in (
            Step(
                f"swap.vllm-{level}",
                f"vLLM: two models on demand, room for one, the other sleeps ({level}); canary",
                _VLLM,
                swap_vllm(level),
                limit_s=360,
            ),
            Step(
                f"sleep.{level}",
                f"vLLM: idle, asleep ({level}), awake; canary",
                _VLLM,
                sleep_when_idle(level),
                limit_s=240,
            ),
        )
    ),
    Step(
        "swap.vllm",
        "vLLM: two models on demand, room for one, loaded each time",
        Needs(engine="vllm", model=VLLM_MODEL, processes=True, on_cpu=True, is_long=True),
        swap_vllm(None),
        limit_s=420,
    ),
)
