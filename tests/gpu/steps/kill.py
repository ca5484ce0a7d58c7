"""kill -9: how long the memory of a killed engine stays in use, and that the model serves again by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psutil

from contract.status import ModelState, ModelStatus
from tests.gpu.rig import Rig
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.gpu.steps.vllm import CACHE, FIELDS

NAME: Final = "killed"
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


STEPS = (
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
