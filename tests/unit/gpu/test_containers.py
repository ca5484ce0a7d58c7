"""What a check in a container is given, and what its output means."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import cuda_devices
from tests.gpu.containers import check_command, restricted_config
from tests.gpu.steps.containers import find_visible_problem

ONE = "GPU-f15ae561-21b1-6003-c768-861fc285203b"
OTHER = "GPU-466be1f8-6148-1a27-a450-592604f3df54"
LISTED = f"GPU 0: NVIDIA A10 (UUID: {ONE})\n\n"
# What `llama-server --list-devices` prints, by its sources.
DEVICES = "Available devices:\n  CUDA0: NVIDIA A10 (22518 MiB, 22264 MiB free)\n"


def test_a_check_is_as_restricted_as_an_engine() -> None:
    config = restricted_config("roundhouse/worker:latest", check_command("worker"), {ONE: 1})
    host = config["HostConfig"]
    assert config["User"] == "10001:10001"
    assert (host["CapDrop"], host["CapAdd"], host["ReadonlyRootfs"], host["NetworkMode"]) == (["ALL"], [], True, "none")
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["DeviceRequests"] == [{"DeviceIDs": [ONE], "Capabilities": [["gpu", "compute", "utility"]]}]
    assert host["Mounts"] == []
    assert "CUDA_VISIBLE_DEVICES" in config["Env"], "what an image says is removed"


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (LISTED + DEVICES, None),
        (LISTED + json.dumps({"devices": [ONE]}), None),
        (LISTED + json.dumps({"devices": []}), "CUDA sees [], claimed"),
        (LISTED + json.dumps({"devices": [OTHER, ONE]}), "claimed"),
        (json.dumps({"error": "cuInit: 100 CUDA_ERROR_NO_DEVICE"}), "CUDA does not start: cuInit: 100"),
        (LISTED + "Available devices:\n", "llama-server sees [], claimed"),
        (LISTED.replace(ONE, OTHER) + DEVICES, "nvidia-smi lists"),
        # As user 10001 where /dev/nvidia* are not for everybody
        ("Failed to initialize NVML: Insufficient Permissions\n", "nvidia-smi lists []"),
    ],
)
def test_exactly_the_claimed_gpus_must_be_seen(output: str, problem: str | None) -> None:
    found = find_visible_problem(output, [ONE])
    assert (found is None) if problem is None else problem in (found or "")


class FakeCuda:
    """Stands for libcuda.so.1: its names, its codes, devices that a test declares."""

    def __init__(self, *devices: tuple[bytes, bytes], init: int = 0, free: int = 0) -> None:
        self._devices = devices
        self._init = init
        self.free = free

    def cuInit(self, flags: int) -> int:  # noqa: N802
        """CUDA_SUCCESS or an error."""
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        """As many as there are."""
        count._obj.value = len(self._devices)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        """Handles are numbers."""
        device._obj.value = number
        return 0

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:  # noqa: N802
        """Sixteen bytes."""
        ctypes.memmove(ctypes.addressof(uuid._obj), self._devices[device.value][0], 16)
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:  # noqa: N802
        """As nvidia-smi shows it."""
        name.value = self._devices[device.value][1]
        return 0

    def cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        """The name of one error is enough."""
        text._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        """Nothing to keep."""
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        """Nothing to set."""
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        """Bytes."""
        free._obj.value = total._obj.value = self.free
        return 0

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:  # noqa: N802
        """CUDA_ERROR_OUT_OF_MEMORY is 2; the last 3 MiB are in no piece."""
        if size.value > self.free - 3 * 2**20:
            return 2
        self.free -= size.value
        return 0


A10 = (bytes.fromhex("f15ae56121b16003c768861fc285203b"), b"NVIDIA A10")
SLICE = (bytes.fromhex("ce861fb0a24858cea9a8f9adbc22a66a"), b"NVIDIA A100-SXM4-80GB MIG 1g.20gb")


def test_devices_are_named_as_nvidia_smi_names_them() -> None:
    assert cuda_devices.list_devices(FakeCuda(A10, SLICE)) == [ONE, "MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a"]


def test_memory_is_taken_down_to_what_is_to_be_left() -> None:
    assert cuda_devices.hold_memory(FakeCuda(A10, free=1000 * 2**20), ONE, 300, 0) == 300 * 2**20
    cuda = FakeCuda(A10, free=1000 * 2**20)
    assert cuda_devices.hold_memory(cuda, ONE, None, 200) == 800 * 2**20
    assert cuda_devices.hold_memory(cuda, ONE, None, 0) == 197 * 2**20, "all that can be had"


def test_a_cuda_that_does_not_start_says_why() -> None:
    with pytest.raises(cuda_devices.CudaError, match="cuInit: 100 CUDA_ERROR_NO_DEVICE"):
        cuda_devices.call(FakeCuda(init=100), "cuInit", 0)


def test_the_program_needs_nothing_but_python() -> None:
    """As it runs in a container: a text, isolated from this tree."""
    source = Path(cuda_devices.__file__).read_text()
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert set(answer) in ({"error"}, {"devices"}), done.stderr
    assert done.returncode == ("error" in answer)
