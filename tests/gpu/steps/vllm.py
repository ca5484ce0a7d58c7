"""vLLM: what binds its memory, tensor parallelism, a second start, no network."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from contract.status import ModelState
from tests.gpu.rig import Rig, mib_grown
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.gpu.steps.forecast import compare_forecast
from tests.support.installed_engines import ON_CPU

MODEL: Final = "llama-hf"
CACHE: Final = 512 * 2**20
LENGTH: Final = 8192
FIELDS: Final[dict[str, Any]] = {"vllm_max_model_len": LENGTH, "target_inflight": 8, "start_timeout_s": 480}
SHARE: Final = 0.3
ANSWER: Final = 8
"""Tokens of the context that are left for the answer."""
_NEEDS = Needs(engine="vllm", model=MODEL)


def _definition(rig: Rig, **fields: Any) -> dict[str, Any]:
    base = FIELDS | (dict(ON_CPU) if rig.on_cpu else {})
    if rig.on_cpu:
        base["vllm_max_model_len"] = 2048
    return rig.definition("vllm", MODEL, **base | fields)


async def declare_vram(rig: Rig) -> Figures:
    """`vram_mib` alone: no more than that is in use."""
    given = int(rig.gpu(rig.uuids(1)[0]).total_mib * SHARE)
    return await _hold_against(rig, "vram", given, vram_mib=given)


async def declare_share(rig: Rig) -> Figures:
    """`vllm_gpu_memory_utilization` alone: no more than that share is in use."""
    given = int(rig.gpu(rig.uuids(1)[0]).total_mib * SHARE)
    return await _hold_against(rig, "share", given, vllm_gpu_memory_utilization=SHARE)


async def _hold_against(rig: Rig, name: str, given_mib: int, **fields: Any) -> Figures:
    await rig.declare({name: _definition(rig, **fields)})
    before = rig.used_mib(name)
    loaded = await rig.load(name)
    after_load = sum(mib_grown(before, rig.used_mib(name)).values())
    # One request that fills the context, then as many as there are slots: workspaces grow with the first long ones.
    answers = [await rig.complete(name, LENGTH - ANSWER)]
    answers += await asyncio.gather(*(rig.complete(name, LENGTH - ANSWER) for _ in range(FIELDS["target_inflight"])))
    used = max(after_load, sum(mib_grown(before, rig.used_mib(name)).values()))
    figures = {
        "given_mib": given_mib,
        "after_load_mib": after_load,
        "used_mib": used,
        "used_of_given": used / given_mib,
        "predicted_mib": loaded.predicted_mib,
        "load_s": loaded.seconds,
    }
    if refused := [body for status, body in answers if status != 200]:
        raise StepFailedError(f"a prompt of {LENGTH - ANSWER} tokens was refused: {refused[0]}", figures)
    if used > given_mib:
        raise StepFailedError(f"takes {used} MiB of the {given_mib} that it was given", figures)
    await rig.unload(name)
    return {**figures, "released_s": await rig.released(before, name)}


async def declare_bytes(rig: Rig) -> Figures:
    """The cache in bytes alone: what was predicted is what is taken."""
    await rig.declare({"bytes": _definition(rig, vllm_kv_cache_memory_bytes=CACHE)})
    return await compare_forecast(rig, "bytes", None if rig.on_cpu else LENGTH - 64)


async def share_one_gpu(rig: Rig) -> Figures:
    """Two engines on one GPU, one after the other, and both answer."""
    given = int(rig.gpu(rig.uuids(1)[0]).total_mib * SHARE)
    names = ("first", "second")
    await rig.declare({name: _definition(rig, vram_mib=given) for name in names})
    figures = {f"{name}_load_s": (await rig.load(name)).seconds for name in names}
    for name in names:
        status, body = await rig.complete(name, 64)
        if status != 200:
            raise StepFailedError(f"{name} answers {status}: {body}", figures)
    return figures


async def split_over_two(rig: Rig) -> Figures:
    """Tensor parallelism over two GPUs, the cache in bytes."""
    two = _definition(rig, gpus=rig.uuids(2), vllm_tensor_parallel_size=2, vllm_kv_cache_memory_bytes=CACHE)
    await rig.declare({"two": two})
    return await compare_forecast(rig, "two", LENGTH - 64)


async def start_twice(rig: Rig) -> Figures:
    """A second start finds what the first one compiled."""
    await rig.declare({"twice": _definition(rig, vllm_kv_cache_memory_bytes=CACHE)})
    first = (await rig.load("twice")).seconds
    await rig.unload("twice")
    second = (await rig.load("twice")).seconds
    return {"first_s": first, "second_s": second}


async def start_without_network(rig: Rig) -> Figures:
    """A hub is named that takes every connection and answers none: a local model must not ask it."""
    with silent_hub() as hub:
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.port}"}
        await rig.declare({"offline": _definition(rig, vllm_kv_cache_memory_bytes=CACHE, env=env)})
        await rig.begin_load("offline")
        settled = (ModelState.LOADED, ModelState.FAILED)
        status = await rig.status_where("offline", lambda model: model.state in settled, "loaded or failed")
        figures = {"asked_the_hub": hub.connections, "last_error": status.last_error}
    if status.state is not ModelState.LOADED or hub.connections:
        raise StepFailedError(f"it is {status.state}, and asked the hub {hub.connections} times", figures)
    return figures


class SilentHub:
    """A listener on loopback that counts its connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._open.append(self._socket.accept()[0])
            except OSError:
                return
            self.connections += 1

    def close(self) -> None:
        """Stop listening."""
        self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self._open):
            each.close()


@contextmanager
def silent_hub() -> Iterator[SilentHub]:
    """It, while it is needed."""
    hub = SilentHub()
    try:
        yield hub
    finally:
        hub.close()


_ON_CPU = Needs(engine="vllm", model=MODEL, on_cpu=True, is_long=True)
STEPS = (
    Step("vllm.vram", "vLLM: declared against held after full prompts: vram_mib", _NEEDS, declare_vram),
    Step("vllm.bytes", "vLLM: the cache in bytes alone, forecast against observed", _ON_CPU, declare_bytes),
    Step("vllm.share", "vLLM: declared against held after full prompts: the share", _NEEDS, declare_share),
    Step("vllm.two-on-one", "vLLM: two engines on one GPU", _NEEDS, share_one_gpu),
    Step(
        "vllm.tp2", "vLLM: tensor parallelism over two GPUs", Needs(gpus=2, engine="vllm", model=MODEL), split_over_two
    ),
    Step("vllm.second-start", "vLLM: a second start", _NEEDS, start_twice),
    Step(
        "vllm.no-network",
        "vLLM: a local model asks no hub",
        Needs(engine="vllm", model=MODEL, on_cpu=True, is_long=True, processes=True),
        start_without_network,
    ),
)
