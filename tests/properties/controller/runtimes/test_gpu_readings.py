"""Whatever NVIDIA's library says or refuses to say, a reading is what is known of it, and its line says the same."""

from __future__ import annotations

import json
from typing import Any

import pynvml
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.hosts import Gpu, GpuDriver, GpuProcess, UnreadGpu
from controller.runtimes.nvml import NvmlReader, Reading
from tests.fakes.fake_nvml import FakeGpu, FakeNvml
from tests.support.campaign import campaign_count

SILENT = ["NotSupported", "NoPermission", "FunctionNotFound", "InsufficientSize", "InvalidArgument"]
ERRORS = [*SILENT, "GpuIsLost", "Unknown"]
FATAL = {"GpuIsLost", "Unknown"}
NEEDED = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo")
LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")

PROCESSES = st.dictionaries(st.integers(4 * 10**9, 4 * 10**9 + 5), st.none() | st.integers(0, 900), max_size=4)
REFUSALS = st.dictionaries(st.sampled_from(LISTS), st.sampled_from(ERRORS), max_size=2)


@st.composite
def hosts(draw: st.DrawFn) -> FakeNvml:
    """GPUs of all kinds in any order, some with instances, each of which may refuse to tell of its processes."""
    fake = FakeNvml(old_driver=draw(st.booleans()))
    for bus in draw(st.permutations(range(draw(st.integers(0, 4))))):
        fields: dict[str, Any] = {"used_mib": draw(st.integers(0, 1000)), "computing": draw(PROCESSES)}
        fields |= {"drawing": draw(PROCESSES), "errors": draw(REFUSALS)}
        card = fake.add(uuid=f"GPU-{bus}", bus=bus, **fields)
        for number in draw(st.sets(st.integers(0, 6), max_size=3)):
            card.add(number, f"MIG-{bus}-{number}", computing=draw(PROCESSES), errors=draw(REFUSALS))
    return fake


def devices(fake: FakeNvml) -> list[FakeGpu]:
    cards = sorted(fake.gpus, key=lambda card: card.bus)
    return [each for card in cards for each in ([card.instances[n] for n in sorted(card.instances)] or [card])]


def fails(device: FakeGpu, *, old_driver: bool) -> bool:
    """Whether a list of its processes fails in a way that is not just silence."""
    asked = () if old_driver else LISTS[:1] if device.errors.get(LISTS[0]) else LISTS
    return any(device.errors.get(each) in FATAL for each in asked)


@given(fake=hosts())
@settings(max_examples=campaign_count(40, 2_000))
def test_a_reading_is_what_is_known(fake: FakeNvml) -> None:
    there, old = devices(fake), fake._old
    reader = NvmlReader(fake, host_pids=True)
    gpus = reader.read_gpus()
    unread = [each.uuid for each in there if fails(each, old_driver=old)]
    assert [each.uuid for each in reader.unread_gpus] == unread
    there = [each for each in there if each.uuid not in unread]
    assert (gpus is None) == bool(unread and not there)
    if gpus is None:
        return
    assert [gpu.uuid for gpu in gpus] == [each.uuid for each in there]
    assert [str(gpu.index) for gpu in gpus] == [each.uuid.split("-")[1] for each in there]
    for gpu, device in zip(gpus, there, strict=True):
        if old or LISTS[0] in device.errors:
            assert gpu.processes is None
            continue
        assert gpu.processes is not None
        drawing = {} if device.is_instance or LISTS[1] in device.errors else device.drawing
        held = {each.pid: each.mib for each in gpu.processes}
        assert held.keys() == device.computing.keys() | drawing.keys()
        for pid, mib in held.items():
            said = {device.computing.get(pid), drawing.get(pid)} - {None}
            assert mib == (max(each for each in said if each is not None) if said else None)
        sizes = [each.mib or 0 for each in gpu.processes]
        assert sizes == sorted(sizes, reverse=True)


@given(fake=hosts(), function=st.sampled_from(NEEDED), error=st.sampled_from(sorted(set(ERRORS) - {"NotSupported"})))
@settings(max_examples=campaign_count(40, 2_000))
def test_a_gpu_that_refuses_what_is_needed_is_left_out_and_hides_no_other(
    fake: FakeNvml, function: str, error: str
) -> None:
    reader = NvmlReader(fake, host_pids=False)
    before = reader.read_gpus()
    card = fake.add(uuid="GPU-x", bus=99, errors={function: error})
    assert reader.read_gpus() == (before or None)
    assert reader.unread_gpus[-1].index == len(fake.gpus) - 1
    card.errors.clear()
    gpus = reader.read_gpus()
    assert gpus is not None
    assert gpus[-1].uuid == "GPU-x"
    assert (reader.error, reader.unread_gpus) == (None, ())


TEXT, MIB, INSTANCE = st.none() | st.text(), st.integers(0, 10**6), st.none() | st.integers(0, 6)
HELD = st.builds(GpuProcess, st.integers(1, 2**32), st.none() | st.integers(0), TEXT)
HOLDERS = st.none() | st.lists(HELD, max_size=3).map(tuple)
INDEX, PERCENT = st.integers(0, 99), st.none() | st.integers(0, 100)
GPUS = st.builds(Gpu, st.text(), INDEX, st.text(), MIB, MIB, PERCENT, HOLDERS, INSTANCE)
DRIVERS = st.builds(GpuDriver, TEXT, TEXT, st.lists(st.text()).map(tuple))
UNREAD = st.lists(st.builds(UnreadGpu, INDEX, st.text(), TEXT, TEXT, INSTANCE), max_size=2).map(tuple)


@given(st.builds(Reading, st.none() | st.lists(GPUS, max_size=3).map(tuple), TEXT, st.none() | DRIVERS, UNREAD))
@settings(max_examples=campaign_count(40, 2_000))
def test_a_line_says_the_same(reading: Reading) -> None:
    line = reading.to_line()
    assert "\n" not in line
    assert Reading.from_line(line) == reading


FIELDS = st.sampled_from(
    ["gpus", "error", "driver", "brands", "uuid", "index", "processes", "pid", "mib", "unread_gpus", "x"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner),
    max_leaves=12,
)


@given(content=JSON)
@settings(max_examples=campaign_count(40, 2_000))
def test_no_line_breaks_its_reader(content: object) -> None:
    try:
        reading = Reading.from_line(json.dumps(content))
    except ValueError:
        return
    assert all(isinstance(gpu, Gpu) for gpu in reading.gpus or ())


def test_the_errors_are_the_library_s() -> None:
    assert all(issubclass(getattr(pynvml, f"NVMLError_{name}"), pynvml.NVMLError) for name in ERRORS)
