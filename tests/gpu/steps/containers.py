"""Docker: the probe against nvidia-smi, also after a daemon-reload, and what each image sees of the claimed GPUs."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from controller.runtimes.docker.client import Daemon
from controller.runtimes.docker.gpus import GpuProbe
from tests.gpu.containers import check_command, read_cuda_answer, restricted_config, run_container
from tests.gpu.host import run_tool
from tests.gpu.rig import Rig
from tests.gpu.step import Figures, Needs, NotTriedError, Step, StepFailedError
from tests.gpu.tool_output import parse_gpu_list
from tests.support.wait import until

IMAGES: Final = ("worker", "llama-server", "vllm", "worker-exllamav3", "worker-vllm")
AFTER_RELOAD_S: Final = 90.0
"""Within which the probe must tell of the GPUs again: five failed readings, two seconds apart, and a new container."""


async def compare_probe(rig: Rig) -> Figures:
    """The probe container tells of the same GPUs, with the same memory, as nvidia-smi on the host."""
    async with _Probe(rig) as probe:
        return await probe.compare()


async def compare_after_reload(rig: Rig) -> Figures:
    """The same, also after `systemctl daemon-reload`, which takes the devices from running containers on some hosts."""
    async with _Probe(rig) as probe:
        await probe.compare()
        done = await asyncio.to_thread(run_tool, "systemctl", "daemon-reload")
        if done.error:
            raise NotTriedError(done.error)
        loop = asyncio.get_running_loop()
        began, lost = loop.time(), 0

        async def is_read() -> bool:
            nonlocal lost
            gpus = await probe.read()
            lost += not gpus
            # A reading from before the reload must not count.
            return bool(gpus) and loop.time() - began > 10

        try:
            await until("the probe reads the GPUs again", is_read, AFTER_RELOAD_S)
        except AssertionError:
            raise StepFailedError(
                f"the probe reads no GPU {AFTER_RELOAD_S:g} s after the reload: {probe.reason}"
            ) from None
        return {"seconds": loop.time() - began, "failed_readings": lost}


class _Probe:
    """The real probe, beside nvidia-smi."""

    def __init__(self, rig: Rig) -> None:
        self._daemon = Daemon(None, timeout_s=60, threads=2)
        self._probe = GpuProbe(self._daemon, f"gpu{secrets.token_hex(3)}", rig.host.images["controller"])

    async def __aenter__(self) -> _Probe:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._probe.close()
        self._daemon.close()

    @property
    def reason(self) -> str | None:
        return self._probe.reason

    async def read(self) -> dict[str, int]:
        return {gpu.uuid: gpu.total_mib for gpu in await self._probe.read_gpus() or ()}

    async def compare(self) -> Figures:
        seen = await self.read()
        listed = await asyncio.to_thread(run_tool, "nvidia-smi", "-L")
        usable = {uuid for gpu in parse_gpu_list(listed.text) for uuid in gpu.usable_uuids}
        if set(seen) != usable:
            raise StepFailedError(f"the probe tells of {sorted(seen)}, nvidia-smi of {sorted(usable)}: {self.reason}")
        return {"gpus": seen}


def check_image(kind: str) -> Callable[[Rig], Awaitable[Figures]]:
    """As user 10001, read-only, without capabilities, by uuid: CUDA starts, and sees exactly the claimed GPUs. Each GPU
    is tried alone, then all of them."""

    async def check(rig: Rig) -> Figures:
        uuids = rig.uuids(len(rig.host.gpus))
        whole = [uuid for uuid in uuids if rig.gpu(uuid).mig is None]
        for claimed in [[uuid] for uuid in uuids] + ([whole] if len(whole) > 1 else []):
            config = restricted_config(rig.host.images[kind], check_command(kind), dict.fromkeys(claimed, 1))
            done = await asyncio.to_thread(run_container, config, f"rhgpu-{secrets.token_hex(4)}")
            if done.refusal is not None:
                raise StepFailedError(f"the container was not started: {done.refusal}")
            if problem := find_visible_problem(done.output, claimed):
                raise StepFailedError(f"{problem}\n{done.output[-1000:]}")
        return {"tried": len(uuids)}

    return check


def find_visible_problem(output: str, claimed: list[str]) -> str | None:
    """What is wrong with the GPUs that a container sees, by what `check_command` printed; None: nothing."""
    answer = read_cuda_answer(output)
    if answer is not None:
        if "error" in answer:
            return f"CUDA does not start: {answer['error']}"
        return None if set(answer["devices"]) == set(claimed) else f"CUDA sees {answer['devices']}, claimed: {claimed}"
    listed = {uuid for gpu in parse_gpu_list(output) for uuid in gpu.usable_uuids}
    if listed != set(claimed):
        return f"nvidia-smi lists {sorted(listed)}, claimed: {claimed}"
    devices = re.findall(r"^\s+(CUDA\d+):", output, re.MULTILINE)
    return None if len(devices) == len(claimed) else f"llama-server sees {devices}, claimed: {claimed}"


_PROBE = Needs(docker=True, toolkit=True, image="controller")
STEPS = (
    Step("probe.compare", "The probe container tells what nvidia-smi tells", _PROBE, compare_probe),
    Step(
        "probe.reload",
        "The same after systemctl daemon-reload",
        Needs(docker=True, toolkit=True, image="controller", root=True),
        compare_after_reload,
    ),
    *(
        Step(
            f"image.{kind}",
            f"Image {kind} as 10001, read-only, no capabilities: CUDA starts on exactly the claimed GPUs",
            Needs(docker=True, toolkit=True, image=kind),
            check_image(kind),
        )
        for kind in IMAGES
    ),
)
