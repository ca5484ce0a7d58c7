"""ExLlamaV3: its build, its start, two GPUs. It loads the safetensors as they are, unquantised."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import time
from typing import Final

from tests.gpu.rig import Rig
from tests.gpu.step import Figures, Needs, Step, StepFailedError
from tests.gpu.steps.forecast import compare_forecast

MODEL: Final = "llama-hf"
CACHE: Final = 8192
BUILD_S: Final = 570.0


async def build_kernels(rig: Rig) -> Figures:
    """The first import compiles the kernels, unless the installed package brings them."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import exllamav3"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), BUILD_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise StepFailedError(f"exllamav3 cannot be imported: {output.decode(errors='replace')[-1500:]}")
    return {"version": importlib.metadata.version("exllamav3"), "import_s": time.monotonic() - began}


async def start_one(rig: Rig) -> Figures:
    """One GPU: forecast against observed."""
    await rig.declare({"one": rig.definition("exllamav3", MODEL, exllama_cache_size=CACHE)})
    return await compare_forecast(rig, "one", CACHE - 512)


async def start_two(rig: Rig) -> Figures:
    """Two GPUs without tensor parallelism: the layers are divided as they were claimed."""
    two = rig.definition("exllamav3", MODEL, gpus=rig.uuids(2), exllama_cache_size=CACHE)
    await rig.declare({"two": two})
    figures = await compare_forecast(rig, "two", CACHE - 512)
    by_gpu = figures["by_gpu_mib"]
    for uuid, claim in figures["claims_mib"].items():
        if by_gpu[uuid] > claim * 1.1 + 64:
            raise StepFailedError(f"GPU {uuid} has {by_gpu[uuid]} MiB in use, {claim} were claimed", figures)
    return figures


async def start_tensor_parallel(rig: Rig) -> Figures:
    """Two GPUs, each layer split over both."""
    two = rig.definition("exllamav3", MODEL, gpus=rig.uuids(2), exllama_cache_size=CACHE, exllama_tensor_parallel=True)
    await rig.declare({"split": two})
    return await compare_forecast(rig, "split", CACHE - 512)


_ONE = Needs(engine="exllamav3", model=MODEL)
_TWO = Needs(gpus=2, engine="exllamav3", model=MODEL)
STEPS = (
    Step(
        "exllamav3.build",
        "ExLlamaV3: the kernels are compiled",
        Needs(engine="exllamav3", processes=True),
        build_kernels,
    ),
    Step("exllamav3.start", "ExLlamaV3: one GPU, forecast against observed", _ONE, start_one),
    Step("exllamav3.two-gpus", "ExLlamaV3: two GPUs, each takes what was claimed", _TWO, start_two),
    Step("exllamav3.tensor-parallel", "ExLlamaV3: two GPUs, tensor parallelism", _TWO, start_tensor_parallel),
)
