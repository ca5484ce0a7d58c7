"""Who holds a GPU's memory, in words."""

from __future__ import annotations

from controller.gpus import Gpu, GpuProcess
from controller.planning.placement import holders_of


def gpu(*processes: GpuProcess) -> Gpu:
    return Gpu("GPU-a", 0, "fake", 80_000, 31_000, processes=processes)


def test_those_that_stay_are_not_named() -> None:
    ours = GpuProcess(7, 30_000, "python3", "rh-i-m-0-h-1")
    assert holders_of(gpu(), (), expected_mib=0) is None
    assert holders_of(gpu(ours), ["rh-i-m-0-h-1"], expected_mib=0) is None
    assert holders_of(gpu(ours), [], expected_mib=0) == "process 7 (python3), of rh-i-m-0-h-1: 30000 MiB"


def test_strangers_and_what_is_not_known_of_them() -> None:
    strangers = (GpuProcess(8, 500, "Xorg"), GpuProcess(9, None))
    words = "process 8 (Xorg), not of this Roundhouse: 500 MiB; process 9, not of this Roundhouse: an unknown part"
    assert holders_of(gpu(*strangers), ["rh-i-m-0-h-1"], expected_mib=0) == words


def test_a_crowd_is_counted() -> None:
    crowd = [GpuProcess(pid, 100 - pid) for pid in range(10, 16)]
    words = holders_of(gpu(*crowd), (), expected_mib=0)
    assert words is not None
    assert words.count("process") == 3
    assert words.endswith("; 3 more")
    assert "more" not in (holders_of(gpu(*crowd[:3]), (), expected_mib=0) or "")


def test_where_no_process_is_named_the_memory_is() -> None:
    silent = Gpu("GPU-a", 0, "fake", 80_000, 31_000)
    assert holders_of(silent, (), expected_mib=30_000) == "1000 MiB, by processes that the driver does not name here"
    assert holders_of(silent, (), expected_mib=30_999) == "1 MiB, by processes that the driver does not name here"
    assert holders_of(silent, (), expected_mib=31_000) is None
