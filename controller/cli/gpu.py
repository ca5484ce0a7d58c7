"""`roundhouse gpu`: show GPU memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli.exit_codes import ExitCode
from controller.cli.options import ControllerUrl, Json, State
from controller.cli.output import print_json, print_line, print_table
from controller.cli.settings import controller_url

if TYPE_CHECKING:
    from controller.schema.admin import GpuMemory, GpuMemoryAnswer, GpuModel
    from controller.schema.status import GpuProcessView, GpuStatus, UnreadGpuStatus

SOURCES = {
    "declared": "declared",
    "observed_load_delta": "measured",
    "predicted": "predicted",
    "model_artifact_size": "the files' size",
    "unavailable": "",
}
"""Source of an estimate to its name in the table."""


def gpu(controller: ControllerUrl = None, state: State = None, as_json: Json = False) -> int:
    """Show GPU memory, and the estimated memory of each model.

    On a machine without GPUs the exit code is 0, and the output says why there are no figures. Exit code 3: no
    controller answers.
    """
    from controller.cli.admin_client import ask_admin  # aiohttp takes 150 ms

    memory = ask_admin(controller_url(controller, state), lambda client: client.get_gpu_memory())
    if as_json:
        print_json(memory)
    else:
        _show(memory)
    return ExitCode.DONE


def _show(memory: GpuMemoryAnswer) -> None:
    if memory.gpus:
        print_table(("GPU", "NAME", "USED", "CLAIMED", "BUSY", "UUID"), [_gpu_row(each) for each in memory.gpus])
        processes = [_process_row(each, process) for each in memory.gpus for process in each.processes or ()]
        if processes:
            print_table(("GPU", "PID", "PROCESS", "USED", "REPLICA"), processes)
    else:
        print_line(f"no GPUs: {memory.error}" if memory.error else "no GPUs")
    for unread_gpu in memory.unread_gpus:
        print_line(unread_gpu_words(unread_gpu))
    if memory.models:
        columns = ("MODEL", "STATE", "ESTIMATE", "REPLICAS", "FROM", "MEASURED")
        print_table(columns, [_row(model) for model in memory.models])
        for model in memory.models:
            if model.vram_warning is not None:
                print_line(f"{model.name}: {model.vram_warning}")
    if memory.driver_version is not None:
        cuda = "" if memory.cuda_version is None else f", which runs CUDA up to {memory.cuda_version}"
        print_line(f"NVIDIA driver {memory.driver_version}{cuda}")


def _gpu_row(gpu: GpuMemory) -> tuple[str, ...]:
    busy = "-" if gpu.utilization_percent is None else f"{gpu.utilization_percent}%"
    return gpu_label(gpu), gpu.name, gpu.used_over_total, f"{gpu.claimed_mib}MiB", busy, gpu.uuid


def _process_row(gpu: GpuMemory, process: GpuProcessView) -> tuple[str, ...]:
    return gpu_label(gpu), str(process.pid), process.name or "-", mib_words(process.used_mib), process.replica or "-"


def gpu_label(gpu: GpuMemory | GpuStatus) -> str:
    """Return the label of a GPU: its index; for a MIG instance, the GPU's index and the instance's number, joined by
    `:`."""
    return str(gpu.index) if gpu.mig is None else f"{gpu.index}:{gpu.mig}"


def unread_gpu_words(gpu: UnreadGpuStatus) -> str:
    """Return a line that names a GPU that cannot be read, and says why and how many MiB of it engines claim, if any."""
    return f"{gpu.description}; {gpu.claimed_mib} MiB claimed" if gpu.claimed_mib else gpu.description


def _row(model: GpuModel) -> tuple[str, ...]:
    count = str(model.vram_estimate_replica_count)
    return (
        model.name,
        model.runtime_state.value,
        mib_words(model.vram_estimate_mib),
        count,
        SOURCES[model.vram_estimate_source],
        mib_words(model.vram_observed_mib),
    )


def mib_words(mib: int | None) -> str:
    """Return an amount of memory as the number followed by `MiB`, without a space; `-` for None (unknown)."""
    return "-" if mib is None else f"{mib}MiB"
