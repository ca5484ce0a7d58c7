"""What is called of NVIDIA's library is there, in the version that is installed, and the fake has the same shape."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pynvml
import pytest

from controller.runtimes import nvml
from tests.fakes.fake_nvml import FakeNvml, ProcessInfo, Utilization

FAKED = sorted(name for name in vars(FakeNvml) if name.startswith("nvml") and callable(getattr(FakeNvml, name)))


def _called() -> set[str]:
    """What `controller.runtimes.nvml` takes from the library."""
    tree = ast.parse(Path(nvml.__file__).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    errors = {f"NVMLError_{name}" for name in (*nvml._WORDS, *nvml._DRIVER_ERRORS)}
    return {name for name in names if name.lower().startswith("nvml")} | errors


def test_all_that_is_called_is_there_and_is_faked() -> None:
    called = _called()
    assert {"nvmlInit", "nvmlDeviceGetComputeRunningProcesses_v3", "NVMLError_GpuIsLost"} <= called
    fake = FakeNvml()
    for name in called:
        assert hasattr(pynvml, name), f"pynvml has no {name}"
        assert hasattr(fake, name), f"the fake has no {name}"
    assert {name for name in called if name.startswith("nvmlDevice")} <= set(FAKED)


@pytest.mark.parametrize("name", FAKED)
def test_the_fake_takes_what_the_library_takes(name: str) -> None:
    faked = list(inspect.signature(getattr(FakeNvml(), name)).parameters)
    assert faked == list(inspect.signature(getattr(pynvml, name)).parameters)


def test_the_fake_answers_with_the_library_s_fields() -> None:
    def fields(structure: type) -> set[str]:
        return {name for name, _ in vars(structure)["_fields_"]}

    assert set(vars(ProcessInfo(1, 2))) <= fields(pynvml.c_nvmlProcessInfo_v3_t)
    assert set(vars(Utilization(1, 2))) == fields(pynvml.c_nvmlUtilization_t)
    assert {"total", "free", "used"} <= fields(pynvml.c_nvmlMemory_v2_t)
    assert {"domain", "bus", "device"} <= fields(pynvml.nvmlPciInfo_t)


def test_without_a_version_old_drivers_are_no_error_of_nvml_s() -> None:
    """Why the versions are named: with an old driver, the plain names raise what nobody expects."""
    assert not issubclass(pynvml.NVMLLibraryMismatchError, pynvml.NVMLError)
