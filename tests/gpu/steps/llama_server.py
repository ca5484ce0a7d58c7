"""llama-server: that it computes where it was told to, and ends where it cannot."""

from __future__ import annotations

from contract.status import ModelState
from tests.gpu.rig import MAIN_MEMORY, Rig, mib_grown
from tests.gpu.step import Figures, Needs, Step, StepFailedError

NAME = "llama"
MODEL = "llama.gguf"


async def load_and_grow(rig: Rig) -> Figures:
    """The memory that is in use grows by the model's weights at least, on the claimed GPU and nowhere else."""
    definition = rig.definition("llama-server", MODEL, llama_server_n_ctx=4096)
    await rig.declare({NAME: definition})
    before = rig.used_mib(NAME)
    loaded = await rig.load(NAME)
    grown = mib_grown(before, rig.used_mib(NAME))
    weights = (await rig.open_stack()).models.joinpath(MODEL).stat().st_size // 2**20
    figures = {"weights_mib": weights, "grown_mib": grown, "load_s": loaded.seconds}
    claimed = [MAIN_MEMORY] if rig.on_cpu else definition["gpus"]
    for place, mib in grown.items():
        if place in claimed and mib < weights * 0.8:
            raise StepFailedError(f"{place} has {mib} MiB more in use, the weights alone are {weights}", figures)
        if place not in claimed and mib > 0.2 * weights:
            raise StepFailedError(f"{place} was not claimed, and has {mib} MiB more in use", figures)
    await rig.unload(NAME)
    return {**figures, "released_s": await rig.released(before, NAME)}


async def break_cuda(rig: Rig) -> Figures:
    """With a CUDA that finds no device, the engine must end: computing on the CPU in silence is the trap."""
    script = rig.folder / "llama-server-without-cuda"
    program = rig.host.programs["llama-server"]
    script.write_text(f'#!/bin/sh\nCUDA_VISIBLE_DEVICES=-1 exec "{program}" "$@"\n')
    script.chmod(0o755)
    broken = rig.definition("llama-server", MODEL, llama_server_n_ctx=4096) | {"llama_server_binary": str(script)}
    await rig.declare({NAME: broken})
    await rig.begin_load(NAME)
    settled = (ModelState.LOADED, ModelState.FAILED)
    status = await rig.status_where(NAME, lambda model: model.state in settled, "loaded or failed")
    if status.state is ModelState.LOADED:
        raise StepFailedError("it became ready without a GPU, so it computes on the CPU")
    return {"last_error": status.last_error, "retry": status.retry_at is not None}


STEPS = (
    Step(
        "llama.grows",
        "llama-server: the weights are where they were claimed",
        Needs(on_cpu=True, engine="llama-server", model=MODEL),
        load_and_grow,
    ),
    Step(
        "llama.broken-cuda",
        "llama-server: with CUDA broken on purpose it fails",
        Needs(engine="llama-server", model=MODEL, processes=True),
        break_cuda,
    ),
)
