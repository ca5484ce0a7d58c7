"""kill -9: how long the memory of a killed engine stays in use, and that the model serves again by itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import psutil

from contract.status import ModelState, ModelStatus
from tests.gpu.rig import Rig, Streamed
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.gpu.steps.vllm import CACHE, FIELDS
from tests.support.installed_engines import ON_CPU

NAME: Final = "killed"
STREAMS: Final = 8
LONG, CPU_LONG, SPARE = 8192, 2048, 128
"""Context of a request whose answer, as long as it allows, is killed before it ends; without a GPU vLLM is slow. The
cache has room for twice as many, for the gateway lets none wait for another's."""
BEGIN_S, TOLD_S, AGAIN_S = 60.0, 30.0, 240.0
WORKER: Final = "Worker"
"""In the names that vLLM gives to its processes of tensor parallelism, such as `VLLM::Worker_TP1`."""


async def kill_engine(rig: Rig) -> Figures:
    """llama-server's only process."""
    await rig.declare({NAME: rig.definition("llama-server", "llama.gguf", llama_server_n_ctx=4096)})
    return await _kill(rig, rig.used_mib(NAME), lambda processes: processes[0])


async def kill_worker(rig: Rig) -> Figures:
    """One worker of two: the engine must end as a whole, and give back both GPUs."""
    fields = FIELDS | {"vllm_tensor_parallel_size": 2, "vllm_kv_cache_memory_bytes": CACHE}
    await rig.declare({NAME: rig.definition("vllm", "llama-hf", gpus=rig.uuids(2), **fields)})
    return await _kill(rig, rig.used_mib(NAME), _last_worker)


async def _kill(
    rig: Rig, before: Mapping[str, int], choose: Callable[[list[psutil.Process]], psutil.Process]
) -> Figures:
    first = (await rig.load(NAME)).status.replicas[0].name
    victim = choose([psutil.Process(pid) for pid in rig.engine_pids(NAME)])
    figures: dict[str, Any] = {"killed": victim.name()}
    began = time.monotonic()
    victim.send_signal(signal.SIGKILL)
    # The next start comes after a backoff, and takes memory later still: there is a moment in which all of it is free.
    figures["released_s"] = await rig.released(before, NAME)

    def has_returned(model: ModelStatus) -> bool:
        return model.state is ModelState.LOADED and [each.name for each in model.replicas] != [first]

    await rig.status_where(NAME, has_returned, "loaded again")
    figures["loaded_again_s"] = time.monotonic() - began
    status, body = await rig.complete(NAME, 16)
    if status != 200:
        raise StepFailedError(f"it answers {status}: {body}", figures)
    return figures


def _last_worker(processes: list[psutil.Process]) -> psutil.Process:
    workers = [process for process in processes if WORKER in process.name() or WORKER in " ".join(process.cmdline())]
    if not workers:
        raise StepFailedError(f"none of vLLM's processes is a worker: {[process.name() for process in processes]}")
    return workers[-1]


def kill_under_streams(engine: str, model: str) -> Callable[[Rig], Awaitable[Figures]]:
    """The engine while clients read from it: each is told, the memory comes back, and it serves again."""

    async def run(rig: Rig) -> Figures:
        fields: dict[str, Any] = {"llama_server_n_ctx": 2 * STREAMS * LONG}
        if engine == "vllm":
            length = CPU_LONG if rig.on_cpu else LONG
            fields = {"vllm_max_model_len": length, "start_timeout_s": 480, **(ON_CPU if rig.on_cpu else {})}
        else:
            length = LONG
        await rig.declare({NAME: rig.definition(engine, model, target_inflight=STREAMS, **fields)})
        before = rig.used_mib(NAME)
        await rig.load(NAME)
        begun = [asyncio.Event() for _ in range(STREAMS)]
        clients = [asyncio.create_task(rig.stream(NAME, length - SPARE, begun=each)) for each in begun]
        try:
            async with asyncio.timeout(BEGIN_S):
                await asyncio.gather(*(each.wait() for each in begun))
            killed = time.monotonic()
            psutil.Process(rig.engine_pids(NAME)[0]).send_signal(signal.SIGKILL)
            figures: dict[str, Any] = {"released_s": await rig.released(before, NAME)}
            async with asyncio.timeout(TOLD_S):
                ends = await asyncio.gather(*clients)
        except TimeoutError:
            # The time that is over has cancelled those that were waited for.
            told = [each.result() for each in clients if each.done() and not each.cancelled()]
            raise StepFailedError(f"streams neither began nor ended: {describe_ends(told)} of {STREAMS}") from None
        finally:
            for each in clients:
                each.cancel()
        figures |= {"told_s": time.monotonic() - killed, "clients": describe_ends(ends)}
        if figures["clients"] != {"told": STREAMS}:
            raise StepFailedError("not every client was told that its answer broke off", figures)
        again = await rig.stream(NAME, 4)
        while not again.is_whole and time.monotonic() - killed < AGAIN_S:
            await asyncio.sleep(0.1)
            again = await rig.stream(NAME, 4)
        if not again.is_whole:
            raise StepFailedError(f"it does not answer again: {again.error}", figures)
        return {**figures, "answers_again_s": time.monotonic() - killed}

    return run


def describe_ends(ends: list[Streamed]) -> dict[str, int]:
    """How many clients were told of an error, got the whole answer, or neither."""
    words = ["told" if each.error else "whole" if each.is_whole else "cut off in silence" for each in ends]
    return {word: words.count(word) for word in sorted({*words})}


STEPS = (
    Step(
        "kill.streams",
        "kill -9 of llama-server under 8 streams: clients told, memory free, serves again",
        Needs(on_cpu=True, engine="llama-server", model="llama.gguf", processes=True),
        kill_under_streams("llama-server", "llama.gguf"),
        limit_s=180,
    ),
    Step(
        "kill.vllm-streams",
        "kill -9 of vLLM under 8 streams: clients told, memory free, serves again",
        Needs(on_cpu=True, is_long=True, engine="vllm", model="llama-hf", processes=True),
        kill_under_streams("vllm", "llama-hf"),
        limit_s=420,
    ),
    Step(
        "kill.engine",
        "kill -9 of llama-server: seconds until memory is free",
        Needs(on_cpu=True, engine="llama-server", model="llama.gguf", processes=True),
        kill_engine,
    ),
    Step(
        "kill.tp-worker",
        "kill -9 of a tensor parallel worker of vLLM: seconds until both GPUs are free",
        Needs(gpus=2, engine="vllm", model="llama-hf", processes=True),
        kill_worker,
    ),
)
