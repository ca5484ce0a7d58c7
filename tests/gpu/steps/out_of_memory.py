"""Out of memory, at a load and while serving: told in words, tried again, and over once there is room.

Without a GPU it is the address space that is limited: of the next start by a script, of a running engine by prlimit.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable
from typing import Any, Final

import psutil

from contract.status import ModelState
from tests.gpu.rig import MIB, Rig
from tests.gpu.step import Figures, Needs, NotTriedError, Step, StepFailedError
from tests.support.wait import until

MODEL: Final = "llama.gguf"
NAME: Final = "oom"
LEFT_MIB: Final = 800
"""What is left of the GPU: room for a context of CUDA, and not for the weights."""
LONG: Final = 131_072
SPARE_MIB: Final = 32
"""Address space beyond what a short context takes: the cache of a long one has no room in it."""
_SETTLED: Final = (ModelState.LOADED, ModelState.FAILED)
_UNLIMITED: Final = "unlimited"


async def fail_load(rig: Rig) -> Figures:
    """A load that finds too little memory fails with its reason and is tried again; with room it goes well."""
    make_room = await (_limit_next_start(rig) if rig.on_cpu else _fill_before_load(rig))
    await rig.begin_load(NAME)
    failed = await rig.status_where(NAME, lambda model: model.state in _SETTLED, "loaded or failed")
    if failed.state is ModelState.LOADED:
        raise StepFailedError("it loads although there is no room")
    figures: dict[str, Any] = {"last_error": failed.last_error, "retry": failed.retry_at is not None}
    if "out of memory" not in (failed.last_error or ""):
        raise StepFailedError(
            "its reason is not told as out of memory", figures | {"log": rig.engine_log(NAME)[-1500:]}
        )
    if failed.retry_at is None:
        raise StepFailedError("it is not tried again", figures)
    make_room()
    await rig.begin_load(NAME)
    await rig.status_where(NAME, lambda model: model.state is ModelState.LOADED, "loaded once there is room")
    return figures


async def _fill_before_load(rig: Rig) -> Callable[[], object]:
    if rig.host.is_small:
        raise NotTriedError("the models of --small are smaller than a context of CUDA")
    definition = rig.definition("llama-server", MODEL, llama_server_n_ctx=4096, vram_mib=LEFT_MIB // 2)
    await rig.declare({NAME: definition})
    return (await rig.fill_gpu(definition["gpus"][0], leave=LEFT_MIB)).drop


async def _limit_next_start(rig: Rig) -> Callable[[], object]:
    limit, script = rig.folder / "address-space", rig.folder / "llama-server-limited"
    program = rig.host.programs["llama-server"]
    # An arena of glibc takes 64 MiB of address space, and their number differs from start to start. What the second
    # start does not take for arenas would be room for the long cache.
    script.write_text(f'#!/bin/sh\nexport MALLOC_ARENA_MAX=1\nulimit -v "$(cat "{limit}")"\nexec "{program}" "$@"\n')
    script.chmod(0o755)
    limit.write_text(_UNLIMITED)
    definition = rig.definition("llama-server", MODEL) | {"llama_server_binary": str(script)}
    await rig.declare({NAME: definition | {"llama_server_n_ctx": 4096}})
    await rig.load(NAME)
    space = max(psutil.Process(pid).memory_info().vms for pid in rig.engine_pids(NAME))
    await rig.unload(NAME)
    limit.write_text(str((space + SPARE_MIB * MIB) // 1024))
    await rig.declare({NAME: definition | {"llama_server_n_ctx": LONG}})
    return lambda: limit.write_text(_UNLIMITED)


async def fail_while_serving(rig: Rig) -> Figures:
    """An engine that finds no memory while it serves answers, or ends and is started again. Nobody waits for ever."""
    context = 4096 if rig.on_cpu else 32_768
    cache = {"llama_server_cache_type_k": "q8_0", "llama_server_cache_type_v": "q8_0"}
    await rig.declare({NAME: rig.definition("llama-server", MODEL, llama_server_n_ctx=context, **cache)})
    before, earlier = (await rig.load(NAME)).status.replicas[0].name, await rig.failures(NAME)
    make_room = _forbid_growth(rig) if rig.on_cpu else (await rig.fill_gpu(rig.uuids(1)[0])).drop
    answers = [(await rig.complete(NAME, context - 64))[0] for _ in range(2)]
    figures: dict[str, Any] = {"answers": answers}
    make_room()

    async def is_served() -> bool:
        return (await rig.complete(NAME, 64))[0] == 200

    try:
        await until("an answer once there is room", is_served)
    except AssertionError as error:
        raise StepFailedError(f"it does not serve again: {error}", figures) from None
    status = await rig.status_where(NAME, lambda model: model.state is ModelState.LOADED, "loaded")
    figures["ended"] = status.replicas[0].name != before
    figures["failures"] = [text for text in await rig.failures(NAME) if text not in earlier]
    # Without address space it may crash in any way; CUDA says that it is out of memory.
    if figures["ended"] and not rig.on_cpu and not any("out of memory" in text for text in figures["failures"]):
        raise StepFailedError("it ended, and its reason is not told as out of memory", figures)
    return figures


def _forbid_growth(rig: Rig) -> Callable[[], None]:
    """Let the engine's processes take no more address space than they have, until what is given is called."""
    processes = [psutil.Process(pid) for pid in rig.engine_pids(NAME)]
    for process in processes:
        _set_address_space(process, process.memory_info().vms + MIB)

    def allow() -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                _set_address_space(process, resource.RLIM_INFINITY)

    return allow


def _set_address_space(process: psutil.Process, most: int) -> None:
    # The soft limit alone: the hard one could not be raised again without root.
    process.rlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


STEPS = (
    Step(
        "oom.load",
        "Out of memory at a load: told, tried again, loaded once there is room",
        Needs(on_cpu=True, engine="llama-server", model=MODEL, processes=True),
        fail_load,
    ),
    Step(
        "oom.serving",
        "Out of memory while serving: answered or started again",
        Needs(on_cpu=True, engine="llama-server", model=MODEL, processes=True),
        fail_while_serving,
    ),
)
