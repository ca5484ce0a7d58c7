"""`roundhouse gpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli.exits import Exit
from controller.cli.options import ControllerUrl, Json, State, controller_url
from controller.cli.output import say, say_json, say_table

if TYPE_CHECKING:
    from controller.schema.admin import GpuMemoryAnswer, GpuModel

SOURCES = {"observed_load_delta": "measured", "model_artifact_size": "the files' size", "unavailable": ""}


def gpu(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """GPU memory, and what models are estimated to take.

    A machine without GPUs is no error: the exit code is 0, and why there are no figures is told.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    memory = ask_admin(controller_url(controller, state), lambda client: client.gpu_memory())
    if as_json:
        say_json(memory)
    else:
        _show(memory)
    return Exit.DONE


def _show(memory: GpuMemoryAnswer) -> None:
    if memory.gpus:
        rows = [
            (str(each.index), each.name, each.used_over_total, f"{each.claimed_mib}MiB", each.uuid)
            for each in memory.gpus
        ]
        say_table(("GPU", "NAME", "USED", "CLAIMED", "UUID"), rows)
    else:
        say(f"no GPUs: {memory.error}" if memory.error else "no GPUs")
    if memory.models:
        say_table(("MODEL", "STATE", "ESTIMATE", "REPLICAS", "FROM"), [_row(model) for model in memory.models])


def _row(model: GpuModel) -> tuple[str, ...]:
    count = str(model.vram_estimate_replica_count)
    return (
        model.name,
        model.runtime_state.value,
        mib_words(model.vram_estimate_mib),
        count,
        SOURCES[model.vram_estimate_source],
    )


def mib_words(mib: int | None) -> str:
    """An estimate; `-` where there is none."""
    return "-" if mib is None else f"{mib}MiB"
