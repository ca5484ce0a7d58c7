"""What this host has: GPUs, driver, Docker Engine, toolkit, engines, images."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import docker

from controller.hosts import Gpu
from controller.runtimes.nvml import NvmlReader
from tests.gpu import tool_output
from tests.gpu.step import Available

TOOL_LIMIT_S = 30
ENGINE_IMAGES: Final[Mapping[str, str]] = {
    "llama-server": "llama-server",
    "vllm": "vllm",
    "exllamav3": "worker-exllamav3",
}
"""Engine to the kind of image that it runs in."""
CUDA_LIBRARY = "libggml-cuda.so"
"""Beside a llama-server that was built for CUDA with shared libraries; one without them tells by `--list-devices`."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What a program printed; `error` says why it could not be asked, None: it ended with 0."""

    text: str = ""
    error: str | None = None


def run_tool(*argv: str) -> ToolRun:
    """Run a program that only tells."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return ToolRun(error=f"{argv[0]} is not on PATH")
    except (OSError, subprocess.TimeoutExpired) as error:
        return ToolRun(error=f"{' '.join(argv)}: {error}")
    if done.returncode:
        text = (done.stderr.strip() or done.stdout.strip())[-300:]
        return ToolRun(done.stdout, f"{' '.join(argv)} ended with {done.returncode}: {text}")
    return ToolRun(done.stdout)


@dataclass(frozen=True)
class Host:
    """One look at the host. `programs`: engine to the program that the command line named."""

    images: Mapping[str, str]
    programs: Mapping[str, Path]
    runtime: Literal["process", "docker"] = "process"
    on_cpu: bool = False
    is_small: bool = False

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """By NVML, in PCI order; none where the walk leaves them alone."""
        return () if self.on_cpu else read_gpus()

    @cached_property
    def docker_info(self) -> dict[str, Any] | str:
        """What the Docker Engine tells of itself, or why nothing answers."""
        try:
            client = connect_docker()
            try:
                return dict(client.info())
            finally:
                client.close()
        except Exception as error:  # the client's own errors, requests', and the lack of the package
            return f"no Docker Engine answers: {error}"

    @cached_property
    def available(self) -> Available:
        """What steps can count on."""
        info = self.docker_info
        facts = info if isinstance(info, str) else tool_output.docker_facts(info)
        return Available(
            gpus=len(self.gpus),
            is_small=self.is_small,
            no_docker=facts if isinstance(facts, str) else None,
            no_toolkit=facts if isinstance(facts, str) else tool_output.explain_no_toolkit(facts),
            is_root=os.geteuid() == 0,
            images=self._present_images(),
            no_engine=self._missing_engines(),
            runtime=self.runtime,
            on_cpu=self.on_cpu,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Whose the results are: another host, or another way to run, is another one."""
        device = "cpu" if self.on_cpu else "gpu"
        uuids = [gpu.uuid for gpu in self.gpus]
        return {"device": device, "runtime": self.runtime, "small": self.is_small, "gpus": uuids}

    def describe_gpus(self) -> str:
        """The title of the table."""
        if self.on_cpu:
            return f"main memory, {os.cpu_count()} cores, no GPU"
        names = [f"{gpu.name}, {gpu.total_mib} MiB" for gpu in self.gpus]
        return "; ".join(names) or "no GPU"

    def _present_images(self) -> set[str]:
        if isinstance(self.docker_info, str):
            return set()
        client = connect_docker()
        try:
            tags = {tag for image in client.images() for tag in image.get("RepoTags") or ()}
            return {kind for kind, image in self.images.items() if image in tags}
        finally:
            client.close()

    def _missing_engines(self) -> dict[str, str]:
        if self.runtime == "docker":
            present = self._present_images()
            missing = {engine: self.images[kind] for engine, kind in ENGINE_IMAGES.items() if kind not in present}
            return {engine: f"image {image} is not here" for engine, image in missing.items()}
        reasons = {
            "llama-server": self._explain_llama_server(),
            "vllm": None if "vllm" in self.programs else "vLLM is not installed: --vllm names its program",
            "exllamav3": None if importlib.util.find_spec("exllamav3") else "exllamav3 is not installed here",
        }
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def _explain_llama_server(self) -> str | None:
        program = self.programs.get("llama-server")
        if program is None:
            return "llama-server is not on PATH: .ci/engines builds it, --llama-server names it"
        if self.on_cpu or any(program.parent.glob(f"{CUDA_LIBRARY}*")):
            return None
        devices = run_tool(str(program), "--list-devices")
        return None if "CUDA0" in devices.text else f"{program} was built without CUDA, or finds no GPU"


def connect_docker() -> docker.APIClient:
    """The Docker Engine that the environment names, as the command line and the controller find it."""
    return docker.from_env(version="auto", timeout=TOOL_LIMIT_S).api


def read_gpus() -> tuple[Gpu, ...]:
    """The GPUs by NVML; none where there is no driver or it fails."""
    reader = NvmlReader()
    try:
        return reader.read_gpus() or ()
    finally:
        reader.close()


def find_programs(named: Mapping[str, str | None]) -> dict[str, Path]:
    """The engines' programs: as named, else on PATH. One that is not there is left out."""
    names = {"llama-server": "llama-server", "vllm": "vllm"}
    found = {engine: named.get(engine) or shutil.which(name) for engine, name in names.items()}
    return {engine: Path(path).absolute() for engine, path in found.items() if path and Path(path).exists()}


def device_modes() -> dict[str, str]:
    """The modes and owners of NVIDIA's device files, and of WSL2's, as `crw-rw-rw- 0:0`."""
    folder = Path("/dev")
    paths = [*folder.glob("nvidia*"), *folder.glob("nvidia-caps/*"), *folder.glob("dxg")]
    return {str(path): _describe_mode(path.stat()) for path in sorted(paths) if not path.is_dir()}


def _describe_mode(found: os.stat_result) -> str:
    return f"{stat.filemode(found.st_mode)} {found.st_uid}:{found.st_gid}"


def first_line(run: ToolRun) -> str | None:
    """The first line that a program printed; None: it printed none."""
    lines: Sequence[str] = run.text.strip().splitlines()
    return lines[0] if lines else None
