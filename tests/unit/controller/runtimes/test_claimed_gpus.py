"""Claims and the GPUs that they name."""

from __future__ import annotations

import pytest

from controller.engines.base import ClaimedGpu
from controller.gpus import Gpu, UnreadGpu
from controller.runtimes.base import StartError
from controller.runtimes.claimed_gpus import describe_claims, find_claimed_gpus, is_wsl2, visible_gpus
from controller.state import HOST

FIRST = Gpu("GPU-z", 0, "fake", 24_000)
SECOND = Gpu("GPU-a", 1, "fake", 16_000)
INSTANCE = Gpu("MIG-b", 2, "fake", 5_000, mig=1)
OTHER_INSTANCE = Gpu("MIG-a", 2, "fake", 5_000, mig=3)
GPUS = (OTHER_INSTANCE, SECOND, INSTANCE, FIRST)


def test_claimed_gpus_are_in_pci_order_whatever_their_uuids_are() -> None:
    claims = {"GPU-a": 100, "GPU-z": 200, HOST: 5}
    found = find_claimed_gpus(claims, GPUS, None)
    assert found == (FIRST, SECOND)
    assert describe_claims(claims, found) == (ClaimedGpu("GPU-z", 200, 24_000), ClaimedGpu("GPU-a", 100, 16_000))
    assert find_claimed_gpus({"MIG-a": 1, "MIG-b": 1}, GPUS, None) == (INSTANCE, OTHER_INSTANCE)


def test_claims_of_main_memory_alone_need_no_reading() -> None:
    assert find_claimed_gpus({HOST: 5}, None, "they cannot be read") == ()


def test_a_gpu_that_is_not_there_and_gpus_that_are_unknown_are_told_apart() -> None:
    with pytest.raises(StartError, match="GPU GPU-x is not there"):
        find_claimed_gpus({"GPU-a": 1, "GPU-x": 1}, GPUS, None)
    lost = (UnreadGpu(3, "it has fallen off the bus", "GPU-x"), UnreadGpu(4, "Unknown Error"))
    with pytest.raises(StartError, match=r"^GPU 3 \(GPU-x\) is left out: it has fallen off the bus$"):
        find_claimed_gpus({"GPU-a": 1, "GPU-x": 1}, GPUS, None, lost)
    with pytest.raises(StartError, match="the driver is away"):
        find_claimed_gpus({"GPU-a": 1}, None, "the driver is away")


def test_no_claims_hide_every_gpu() -> None:
    assert visible_gpus([]) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""}
    gpus = [Gpu("GPU-b", 2, "fake", 1), Gpu("GPU-a", 10, "fake", 1)]
    assert visible_gpus(gpus)["CUDA_VISIBLE_DEVICES"] == "2,10"


def test_a_mig_instance_is_named_by_its_uuid() -> None:
    assert visible_gpus([Gpu("MIG-a", 0, "fake", 1, mig=1)])["CUDA_VISIBLE_DEVICES"] == "MIG-a"


def test_gpus_are_named_by_uuid_where_their_numbers_may_be_others_to_cuda() -> None:
    assert visible_gpus([Gpu("GPU-b", 2, "fake", 1)], by_uuid=True)["CUDA_VISIBLE_DEVICES"] == "GPU-b"


@pytest.mark.parametrize(
    ("release", "has_dxg", "is_one"),
    [
        ("5.15.153.1-microsoft-standard-WSL2", False, True),
        ("4.19.121-microsoft-standard", False, True),
        ("6.6.36.3-own-build", True, True),
        ("6.1.0-28-amd64", False, False),
        ("6.8.0-1021-azure", False, False),
    ],
)
def test_wsl2_is_known_by_its_kernel_or_its_device(release: str, has_dxg: bool, is_one: bool) -> None:
    assert is_wsl2(release, has_dxg=has_dxg) is is_one
