"""What the host is: driver, toolkit, Docker Engine, topology, MIG, modes of device files."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import Any

from tests.gpu import tool_output
from tests.gpu.cuda_devices import CudaError, list_devices, load_library
from tests.gpu.host import device_modes, first_line, run_tool
from tests.gpu.rig import Rig
from tests.gpu.step import Figures, Needs, NotTriedError, Step, StepFailedError

QUERY = ("nvidia-smi", f"--query-gpu={','.join(tool_output.QUERY_FIELDS)}", "--format=csv,noheader,nounits")


async def read_system(rig: Rig) -> Figures:
    """Kernel, memory, WSL2, and whether /dev/nvidia* may be opened by everybody."""
    kernel = platform.release()
    return {
        "system": _os_name(),
        "kernel": kernel,
        "wsl2": "microsoft" in kernel.lower() or Path("/dev/dxg").exists(),
        "python": platform.python_version(),
        "devices": device_modes(),
    }


async def read_driver(rig: Rig) -> Figures:
    """The driver, its kernel module, the newest CUDA that it runs, and each GPU as nvidia-smi and CUDA tell of it."""
    head, listed, asked = await asyncio.gather(
        *(asyncio.to_thread(run_tool, *argv) for argv in (("nvidia-smi",), ("nvidia-smi", "-L"), QUERY))
    )
    module = Path("/proc/driver/nvidia/version")
    figures: dict[str, Any] = {
        **tool_output.parse_versions(head.text),
        "module": tool_output.parse_module_version(module.read_text()) if module.exists() else None,
        "gpus": tool_output.parse_gpu_query(asked.text),
        "mig": {uuid: kind for gpu in tool_output.parse_gpu_list(listed.text) for uuid, kind in gpu.instances.items()},
        "unread": next((run.error for run in (head, listed, asked) if run.error), None),
    }
    # Of a GPU in MIG mode only the instances can be used, and there may be none.
    in_mig_mode = {row["uuid"] for row in figures["gpus"] if row["mig.mode.current"] == "Enabled"}
    usable = {uuid for gpu in tool_output.parse_gpu_list(listed.text) for uuid in gpu.usable_uuids} - in_mig_mode
    known = {gpu.uuid for gpu in rig.host.gpus}
    if known != usable:
        raise StepFailedError(f"nvidia-smi lists {sorted(usable)}, Roundhouse reads {sorted(known)}", figures)
    try:
        figures["cuda_sees"] = list_devices(load_library())
    except CudaError as error:
        raise StepFailedError(f"CUDA does not start on this host: {error}", figures) from error
    return figures


async def read_topology(rig: Rig) -> Figures:
    """How the GPUs are connected with each other."""
    run = await asyncio.to_thread(run_tool, "nvidia-smi", "topo", "-m")
    if run.error:
        raise NotTriedError(run.error)
    return {"links": tool_output.parse_topology(run.text), "text": run.text}


async def read_docker(rig: Rig) -> Figures:
    """The Docker Engine: its version, its runtimes, its CDI devices, its cgroups."""
    info = rig.host.docker_info
    assert not isinstance(info, str), "the step needs an Engine that answers"
    facts = tool_output.docker_facts(info)
    if not rig.on_cpu and (missing := tool_output.explain_no_toolkit(facts)):
        raise StepFailedError(missing, facts)
    return facts


async def read_toolkit(rig: Rig) -> Figures:
    """The NVIDIA Container Toolkit and the CDI devices that it has written down."""
    version, devices = await asyncio.gather(
        asyncio.to_thread(run_tool, "nvidia-ctk", "--version"), asyncio.to_thread(run_tool, "nvidia-ctk", "cdi", "list")
    )
    if version.error:
        raise NotTriedError(version.error)
    return {
        "version": tool_output.parse_toolkit_version(version.text) or first_line(version),
        "cdi_devices": tool_output.parse_cdi_list(devices.text),
        "unread": devices.error,
    }


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


STEPS = (
    Step("host.system", "System, kernel, modes of /dev/nvidia*", Needs(gpus=0, on_cpu=True), read_system),
    Step("host.driver", "Driver, CUDA, MIG: nvidia-smi, NVML and CUDA agree", Needs(), read_driver),
    Step("host.topology", "How the GPUs are connected", Needs(), read_topology),
    Step("host.docker", "Docker Engine: NVIDIA runtime, CDI, cgroups", Needs(gpus=0, docker=True), read_docker),
    Step("host.toolkit", "NVIDIA Container Toolkit and its CDI devices", Needs(), read_toolkit),
)
