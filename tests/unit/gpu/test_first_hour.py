"""The first hour on a GPU host: its steps and their results, checks in containers, and what tools say of GPUs."""

from __future__ import annotations

import asyncio
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.gpu import cuda_devices
from tests.gpu.__main__ import choose_steps, default_images
from tests.gpu.containers import check_command, restricted_config
from tests.gpu.models import TINY, write_hf_model, write_noisy_hf_model
from tests.gpu.results import FILE, OtherHostError, Results, print_report
from tests.gpu.rig import Streamed
from tests.gpu.step import (
    Available,
    Figures,
    Needs,
    NotTriedError,
    Outcome,
    Step,
    StepFailedError,
    find_missing,
)
from tests.gpu.steps import FIRST, STEPS, speed, swap
from tests.gpu.steps.containers import find_visible_problem
from tests.gpu.steps.kill import describe_ends
from tests.gpu.steps.speed import Place as Address
from tests.gpu.steps.speed import bench_arguments, read_bench
from tests.gpu.tool_output import (
    QUERY_FIELDS,
    docker_facts,
    explain_no_toolkit,
    parse_cdi_list,
    parse_gpu_list,
    parse_gpu_query,
    parse_module_version,
    parse_toolkit_version,
    parse_topology,
    parse_versions,
)
from tests.gpu.walk import walk_steps

HOST = {"device": "gpu", "runtime": "process", "small": False, "gpus": ["GPU-1"]}
ON_GPU = Available(gpus=1)
ON_CPU = Available(gpus=0, on_cpu=True, no_docker="no Docker Engine answers", no_toolkit="no toolkit")


@dataclass
class Place:
    """Where steps run: notes what it is asked for."""

    available: Available = ON_GPU
    prepared: list[str | None] = field(default_factory=list)
    settled: int = 0
    leftover: str | None = None

    async def prepare(self, model: str | None) -> None:
        self.prepared.append(model)

    async def settle(self) -> None:
        self.settled += 1
        if self.leftover:
            raise AssertionError(self.leftover)


def step(name: str, does: Callable[[], Figures] = dict, needs: Needs | None = None, limit_s: float = 600) -> Step:
    """A step that does this."""

    async def run(place: Place) -> Figures:
        return does()

    return Step(name, f"what {name} is about", needs or Needs(), run, limit_s)


def raising(error: BaseException) -> Callable[[], Figures]:
    """What raises it."""

    def does() -> Figures:
        raise error

    return does


async def wait_for_ever(place: Place) -> Figures:
    """Never ends by itself."""
    await asyncio.Event().wait()
    return {}


async def walk(steps: list[Step], folder: Path, place: Place | None = None) -> list[Outcome]:
    """One run over a folder."""
    results = Results.open_folder(folder, HOST, "0123456789ab")
    return [outcome for _, outcome in await walk_steps(steps, place or Place(), results, lambda *_: None)]


async def test_every_end_of_a_step_is_a_result(tmp_path: Path) -> None:
    endless = Step("e", "never ends", Needs(), wait_for_ever, limit_s=0)
    steps = [
        step("a", lambda: {"mib": 3}),
        step("b", raising(StepFailedError("takes too much", {"mib": 9}))),
        step("c", raising(NotTriedError("there is no room"))),
        step("d", raising(KeyError("nobody foresaw it"))),
        endless,
        step("f", needs=Needs(gpus=2)),
    ]
    place = Place()
    outcomes = await walk(steps, tmp_path, place)
    assert [(each.status, each.reason) for each in outcomes] == [
        ("passed", None),
        ("failed", "takes too much"),
        ("not tried", "there is no room"),
        ("failed", "KeyError: 'nobody foresaw it'"),
        ("failed", "took longer than 0 s"),
        ("not tried", "needs 2 GPUs, this host has 1"),
    ]
    assert (outcomes[0].figures, outcomes[1].figures) == ({"mib": 3}, {"mib": 9})
    assert place.settled == 5, "what is not tried has started nothing"
    kept = json.loads((tmp_path / FILE).read_text())
    assert kept["host"] == HOST
    assert list(kept["steps"]) == list("abcdef")
    assert kept["steps"]["b"] == {
        "title": "what b is about",
        "status": "failed",
        "reason": "takes too much",
        "figures": {"mib": 9},
        "seconds": kept["steps"]["b"]["seconds"],
        "commit": "0123456789ab",
    }


async def test_what_does_not_end_is_told_and_costs_the_step(tmp_path: Path) -> None:
    [outcome] = await walk([step("a")], tmp_path, Place(leftover="m still runs"))
    assert outcome.status == "failed"
    assert outcome.reason == "passed; and what it started does not end: m still runs"


async def test_the_next_run_tries_only_what_has_no_result(tmp_path: Path) -> None:
    tried: list[str] = []

    def noted(name: str, end: BaseException | None = None) -> Step:
        def does() -> Figures:
            tried.append(name)
            if end is not None:
                raise end
            return {"run": len(tried)}

        return step(name, does)

    steps = [noted("a"), noted("b", StepFailedError("no")), noted("c", NotTriedError("no room")), noted("d.x")]
    first = await walk(steps, tmp_path)
    again = await walk([*steps, noted("e")], tmp_path)
    assert tried == ["a", "b", "c", "d.x", "c", "e"], "what was not tried has no result"
    assert again[:2] == first[:2], "as it was kept"

    results = Results.open_folder(tmp_path, HOST, "0123456789ab")
    results.forget(["b", "d"])
    tried.clear()
    await walk(steps, tmp_path)
    assert tried == ["b", "c", "d.x"]


async def test_a_step_that_is_interrupted_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(asyncio.CancelledError):
        await walk([step("a"), step("b", raising(asyncio.CancelledError()))], tmp_path)
    assert list(json.loads((tmp_path / FILE).read_text())["steps"]) == ["a"]
    assert [each.status for each in await walk([step("a"), step("b")], tmp_path)] == ["passed", "passed"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps({"schema": 1, "host": HOST | {"gpus": ["GPU-2"]}, "steps": {}}), "another host"),
        (json.dumps({"schema": 1, "host": HOST | {"device": "cpu"}, "steps": {}}), "another way to run"),
        (json.dumps({"schema": 2, "host": HOST, "steps": {}}), "another"),
        ("{}", "no file of results"),
        ("half a fi", "no file of results"),
    ],
)
def test_results_of_another_host_are_not_mixed_with_these(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(OtherHostError, match=f"{words}.*--folder"):
        Results.open_folder(tmp_path, HOST, "0123456789ab")


@pytest.mark.parametrize(
    ("needs", "available", "reason"),
    [
        (Needs(), ON_GPU, None),
        (Needs(), Available(gpus=0), "no GPU"),
        (Needs(gpus=2), ON_GPU, "needs 2 GPUs, this host has 1"),
        (Needs(gpus=0), ON_CPU, None),
        (Needs(), ON_CPU, "no GPU"),
        (Needs(gpus=2, on_cpu=True), ON_CPU, None),
        (Needs(on_cpu=True), Available(gpus=0), "no GPU"),
        (Needs(docker=True, toolkit=True), ON_CPU, "no GPU"),
        (Needs(gpus=0, docker=True), ON_CPU, "no Docker Engine answers"),
        (Needs(docker=True, toolkit=True), Available(gpus=1, no_toolkit="no NVIDIA runtime"), "no NVIDIA runtime"),
        (Needs(root=True), ON_GPU, "needs root"),
        (Needs(root=True), Available(gpus=1, is_root=True), None),
        (Needs(image="vllm"), Available(gpus=1, images=["worker"]), "image vllm is not here"),
        (Needs(engine="vllm"), Available(gpus=1, no_engine={"vllm": "vLLM is not installed"}), "vLLM is not installed"),
        (Needs(processes=True), Available(gpus=1, runtime="docker"), "needs engines as processes: --runtime process"),
        (Needs(on_cpu=True, is_long=True), Available(gpus=0, on_cpu=True, is_small=True), "left out by --small"),
    ],
)
def test_what_a_host_lacks_is_the_reason(needs: Needs, available: Available, reason: str | None) -> None:
    assert find_missing(needs, available) == reason


def test_without_a_gpu_no_step_about_gpus_is_tried() -> None:
    """A step that runs without a GPU measures main memory; any other has to say that there is none."""
    untried = {each.name for each in STEPS if find_missing(each.needs, ON_CPU) is None}
    assert {name.split(".")[0] for name in untried} == {
        *("host", "llama", "forecast", "swap", "oom", "vllm", "kill", "speed"),
    }
    assert not {each.name for each in STEPS if each.needs.gpus > 1} & untried
    about_gpus = [each for each in STEPS if each.needs.gpus and not each.needs.on_cpu]
    assert {find_missing(each.needs, ON_CPU) for each in about_gpus} == {"no GPU"}


def test_steps_are_named_once_and_chosen_by_their_beginning() -> None:
    names = [each.name for each in STEPS]
    assert len(set(names)) == len(names)
    assert choose_steps(STEPS, None) == [*STEPS]
    assert [each.name for each in choose_steps(STEPS, ["probe", "vllm.tp2"])] == [
        *("probe.compare", "probe.reload", "vllm.tp2")
    ]
    assert choose_steps(STEPS, ["swa"]) == []


def test_steps_come_in_the_order_of_what_they_tell() -> None:
    names = [each.name for each in STEPS]
    placed = [[name for name in names if f"{name}.".startswith(f"{first}.")] for first in FIRST]
    assert all(placed), "every name in the order is one of a step"
    assert names[: sum(map(len, placed))] == [name for each in placed for name in each]
    starts_vllm = [each.name for each in STEPS if each.needs.engine == "vllm"]
    short = [each.name for each in STEPS if each.needs.engine == "llama-server" and each.needs.gpus < 2]
    assert max(map(names.index, short)) < min(map(names.index, starts_vllm))
    assert all(each.limit_s <= 600 for each in STEPS)


async def test_what_has_no_time_left_is_not_tried_and_is_tried_in_the_next_run(tmp_path: Path) -> None:
    endless = Step("b", "never ends", Needs(), wait_for_ever)
    steps = [step("a"), endless, step("c")]
    results, place = Results.open_folder(tmp_path, HOST, "0123456789ab"), Place()
    rows = await walk_steps(steps, place, results, lambda *_: None, limit_s=0.2)
    seen = [(each.name, outcome.status, outcome.reason) for each, outcome in rows]
    reason = "no time left: --limit"
    assert seen == [("a", "passed", None), ("b", "not tried", reason), ("c", "not tried", reason)]
    assert place.settled == 2, "what was cut off has started something"
    assert [each.status for each in await walk([step("a"), step("b"), step("c")], tmp_path)] == ["passed"] * 3


def test_of_a_stream_its_tokens_its_end_or_what_was_told_instead_are_read() -> None:
    streamed = Streamed()
    lines = [
        b": hello\n",
        b'data: {"choices": []}\n',
        b'data: {"choices": [{"text": "a"}]}\n',
        b"\n",
    ]
    for at_s, line in enumerate([*lines, b'data: {"choices": [{"text": "b"}]}\n']):
        streamed.read_line(line, at_s)
    assert (streamed.text, streamed.first_s, streamed.is_whole, streamed.error) == ("ab", 2, False, None)
    broken, whole = Streamed(), Streamed()
    broken.read_line(b'data: {"error": {"code": "engine_failed"}}\n', 1)
    whole.read_line(b"data: [DONE]\n", 1)
    assert broken.error == '{"code": "engine_failed"}'
    assert describe_ends([streamed, broken, whole, broken]) == {"told": 2, "whole": 1, "cut off in silence": 1}


async def test_the_seconds_of_a_swap_count_from_the_first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to come again has waited, too."""

    class Refusing:
        def __init__(self) -> None:
            self.answers = [Streamed(error="come again"), Streamed("a", first_s=0.5, is_whole=True)]

        async def stream(self, name: str, tokens: int) -> Streamed:
            return self.answers.pop(0)

    times = iter((10.0, 10.1, 13.0))
    monkeypatch.setattr(swap, "time", SimpleNamespace(monotonic=lambda: next(times)))
    rig: Any = Refusing()
    assert (await swap._first_token(rig, "m")).first_s == 3.5


def test_no_prompt_of_a_round_of_speed_is_another_round_s() -> None:
    prompts = {tuple(speed._prompt(number, turn)) for number in range(50) for turn in range(1, 7)}
    assert len(prompts) == 300
    heads = {each[:1] for each in prompts}
    assert len(heads) == 6, "a prefix cache finds nothing of another round"


def test_a_round_of_vllm_s_load_test_is_read_and_its_flags_are_its_own() -> None:
    address = Address("gateway", 8080, "none", "m")
    words = [*bench_arguments(Path("/vllm"), address, (32, 256, 128, 5), Path("/models/m"), Path("/out"))]
    assert words[:5] == ["/vllm", "bench", "serve", "--backend", "openai"]
    pairs = dict(pairwise(words))
    assert (pairs["--base-url"], pairs["--model"], pairs["--tokenizer"]) == ("http://127.0.0.1:8080", "m", "/models/m")
    assert (pairs["--max-concurrency"], pairs["--num-prompts"], pairs["--result-dir"]) == ("32", "256", "/out")
    assert pairs["--seed"] == "5"
    result = {"completed": 256, "failed": 0, "output_throughput": 9.5, "median_ttft_ms": 7.0, "other": [1]}
    assert read_bench(result) == {"tokens_per_s": 9.5, "ttft_p50_ms": 7.0}
    for wrong in ({"failed": 1}, {"completed": 0}):
        with pytest.raises(RuntimeError, match="requests failed"):
            read_bench(result | wrong)


def test_every_image_that_a_step_needs_has_a_name() -> None:
    assert {each.needs.image for each in STEPS} - {None} <= set(default_images())


def test_the_table_has_a_row_for_each_step_and_escapes_what_engines_say() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    rows: list[tuple[Step, Outcome]] = [
        (step("a"), Outcome("passed", None, {"mib": 3, "links": {"GPU0-GPU1": "NV12"}, "s": 1.234, "none": None})),
        (step("b"), Outcome("failed", "seen [red]this\nand [/] that", {"list": ["x"]})),
        (step("c"), Outcome("not tried", "no GPU")),
    ]
    print_report("one GPU", rows, console)
    text = console.export_text()
    for words in ("mib 3, links {GPU0-GPU1: NV12}, s 1.23", "seen [red]this and [/] that; list [x]", "no GPU"):
        assert words in text
    assert "1 passed, 1 failed, 1 not tried" in text


def test_figures_that_json_does_not_know_are_kept_as_texts(tmp_path: Path) -> None:
    results = Results(tmp_path, HOST, "c")
    figures: dict[str, Any] = {"path": Path("/x")}
    results.add(step("a"), Outcome("passed", None, figures))
    assert json.loads(results.path.read_text())["steps"]["a"]["figures"] == {"path": "/x"}


def test_a_noisy_model_is_as_large_as_one_of_zeros_and_no_zeros(tmp_path: Path) -> None:
    write_hf_model(tmp_path / "zeros", TINY)
    write_noisy_hf_model(tmp_path / "noisy", TINY)
    zeros, noisy = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("zeros", "noisy"))
    head = 8 + int.from_bytes(zeros[:8], "little")
    assert len(noisy) == len(zeros)
    assert noisy[:head] == zeros[:head]
    assert zeros[head:].count(0) == len(zeros) - head
    assert noisy[head:].count(0) < len(noisy) / 50
    tokenizer = json.loads((tmp_path / "noisy" / "tokenizer.json").read_text())
    assert [*tokenizer["model"]["vocab"].values()] == [*range(TINY.vocabulary)], "each token has a text of its own"


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
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._devices)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 0

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:  # noqa: N802
        ctypes.memmove(ctypes.addressof(uuid._obj), self._devices[device.value][0], 16)
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:  # noqa: N802
        name.value = self._devices[device.value][1]
        return 0

    def cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:  # noqa: N802
        free._obj.value = total._obj.value = self.free
        return 0

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:  # noqa: N802
        # CUDA_ERROR_OUT_OF_MEMORY is 2; the last 3 MiB are in no piece.
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


# https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227
FOUR_GPUS = """\
GPU 0: NVIDIA A10 (UUID: GPU-f15ae561-21b1-6003-c768-861fc285203b)
GPU 1: NVIDIA A10 (UUID: GPU-466be1f8-6148-1a27-a450-592604f3df54)
GPU 2: Tesla T4 (UUID: GPU-bf507abe-ec25-2053-5435-1c82511a3ae8)
GPU 3: Tesla T4 (UUID: GPU-a1329f2e-1e73-88f2-4d4b-1ce18debbc6d)
"""
# https://github.com/influxdata/telegraf/issues/5812
WITH_INSTANCES = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-513536b6-7d19-9063-b049-1e69664bb298)
  MIG 1g.20gb     Device  0: (UUID: MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a)
  MIG 1g.20gb     Device  1: (UUID: MIG-a45882f0-9215-5733-a0c1-49286ab31cb5)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-d8594bd4-0fc3-8595-e355-7c98138f3b95)
"""
# https://github.com/snowflakedb/ArcticTraining/pull/345, a DGX Spark
UNIFIED_MEMORY_HEAD = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.126.09             Driver Version: 580.126.09     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
"""
# https://github.com/NVIDIA/nvidia-container-toolkit/issues/70: under WSL2 the driver is Windows'
WSL2_HEAD = "| NVIDIA-SMI 510.52       Driver Version: 511.79       CUDA Version: 11.6     |"
# https://github.com/noonghunna/club-3090/issues/1229
TWO_ON_ONE_BRIDGE = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""
# https://github.com/kubernetes/kubernetes/issues/53497, its first three GPUs, with a network card beside them
WITH_A_NETWORK_CARD = """\
        GPU0    GPU1    GPU2    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     PHB     0-9,20-29
GPU1    PIX      X      PHB     PHB     0-9,20-29
GPU2    PHB     PHB      X      PHB     0-9,20-29
mlx4_0  PHB     PHB     PHB      X
"""
# `docker info --format '{{json .}}'` of Debian 12's Docker Engine, without a GPU; what matters of it
PLAIN_DOCKER = json.loads(
    '{"ServerVersion":"20.10.24+dfsg1","OperatingSystem":"Debian GNU/Linux 12 (bookworm)","CgroupDriver":"cgroupfs",'
    '"CgroupVersion":"1","Runtimes":{"io.containerd.runc.v2":{"path":"runc"},"io.containerd.runtime.v1.linux":'
    '{"path":"runc"},"runc":{"path":"runc"}},"DefaultRuntime":"runc","SecurityOptions":'
    '["name=seccomp,profile=default"],"CDISpecDirs":null}'
)
# The same fields as API 1.50 and later has them (docs.docker.com, schemas SystemInfo and DeviceInfo), put together.
CDI_DOCKER = json.loads(
    '{"ServerVersion":"29.4.0","OperatingSystem":"Ubuntu 24.04.3 LTS","CgroupDriver":"systemd","CgroupVersion":"2",'
    '"Runtimes":{"io.containerd.runc.v2":{"path":"runc"},"runc":{"path":"runc"}},"DefaultRuntime":"runc",'
    '"SecurityOptions":["name=seccomp,profile=builtin","name=rootless","name=cgroupns"],'
    '"CDISpecDirs":["/etc/cdi","/var/run/cdi"],'
    '"DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=0"},{"Source":"cdi","ID":"nvidia.com/gpu=all"}]}'
)


def test_gpus_and_their_instances() -> None:
    gpus = parse_gpu_list(FOUR_GPUS)
    expected = [(0, "NVIDIA A10"), (1, "NVIDIA A10"), (2, "Tesla T4"), (3, "Tesla T4")]
    assert [(gpu.index, gpu.name) for gpu in gpus] == expected
    assert gpus[3].usable_uuids == ("GPU-a1329f2e-1e73-88f2-4d4b-1ce18debbc6d",)
    split, whole = parse_gpu_list(WITH_INSTANCES)
    assert split.instances["MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a"] == "1g.20gb"
    assert len(split.usable_uuids) == 2
    assert whole.usable_uuids == (whole.uuid,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        # In a container, after a daemon-reload: the thread of FOUR_GPUS.
        "Failed to initialize NVML: Unknown Error\n",
        # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/387
        "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n",
    ],
)
def test_sentences_in_place_of_gpus_are_no_gpus(text: str) -> None:
    assert parse_gpu_list(text) == []
    assert parse_gpu_query(text) == []
    assert parse_topology(text) == {}


def test_a_value_that_the_driver_does_not_tell_is_none() -> None:
    # https://github.com/XuehaiPan/nvitop/pull/208, a DGX Spark: no memory of its own
    fields = ("memory.total", "memory.used", "memory.free", "utilization.gpu", "power.draw", "temperature.gpu")
    [gpu] = parse_gpu_query("[N/A], [N/A], [N/A], 0 %, 11.17 W, 35\n", fields)
    assert gpu == dict(zip(fields, (None, None, None, "0 %", "11.17 W", "35"), strict=True))


def test_each_gpu_of_a_query() -> None:
    # Put together: the figures are those that nvidia-smi shows of an H100.
    line = (
        "0, GPU-5e375e7e-b41f-155b-dcdc-534524c356fc, NVIDIA H100 80GB HBM3, 00000000:04:00.0, 81559, 1, "
        "580.159.04, 9.0, Disabled, Enabled, Default\n"
    )
    [gpu] = parse_gpu_query(line)
    assert list(gpu) == list(QUERY_FIELDS)
    assert (gpu["memory.total"], gpu["compute_cap"], gpu["mig.mode.current"]) == ("81559", "9.0", "Disabled")


def test_versions_of_driver_and_cuda_are_parsed() -> None:
    assert parse_versions(UNIFIED_MEMORY_HEAD) == {"driver": "580.126.09", "cuda": "13.0"}
    assert parse_versions(WSL2_HEAD) == {"driver": "511.79", "cuda": "11.6"}
    expected = {"driver": None, "cuda": None}
    assert parse_versions("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == expected


def test_the_version_of_the_kernels_module_is_parsed() -> None:
    # https://github.com/nix-community/nixGL/issues/186 and issues/139; the closed one by open-gpu-kernel-modules#171.
    lines = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (dvs-builder@U16-A24-9-2)",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  35.3.1  Release Build  (buildbrain@mobile-u64-6289)",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023",
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)",
    )
    assert [parse_module_version(line) for line in lines] == ["565.57.01", "35.3.1", "535.54.03", None]


def test_the_topology_of_gpus_is_parsed() -> None:
    assert parse_topology(TWO_ON_ONE_BRIDGE) == {"GPU0-GPU1": "PHB"}
    assert parse_topology(WITH_A_NETWORK_CARD) == {"GPU0-GPU1": "PIX", "GPU0-GPU2": "PHB", "GPU1-GPU2": "PHB"}
    # With colours, as to a terminal.
    assert parse_topology("\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n") == {"GPU0-GPU1": "NV12"}


def test_devices_and_version_of_the_container_toolkit_are_parsed() -> None:
    # Isaac ROS's page on CDI
    text = (
        "INFO[0000] Found 4 CDI devices\nnvidia.com/gpu=0\nnvidia.com/gpu=all\nnvidia.com/pva=0\nnvidia.com/pva=all\n"
    )
    assert parse_cdi_list(text) == ["nvidia.com/gpu=0", "nvidia.com/gpu=all", "nvidia.com/pva=0", "nvidia.com/pva=all"]
    assert parse_cdi_list("INFO[0000] Found 0 CDI devices\n") == []
    version = "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
    assert parse_toolkit_version(version) == "1.17.8"
    assert parse_toolkit_version("command not found") is None


def test_what_docker_can_do() -> None:
    plain, cdi = docker_facts(PLAIN_DOCKER), docker_facts(CDI_DOCKER)
    assert (plain["version"], plain["cgroups"], plain["rootless"]) == ("20.10.24+dfsg1", "1, cgroupfs", False)
    assert (
        explain_no_toolkit(plain)
        == "the Docker Engine knows neither an NVIDIA runtime nor CDI devices of nvidia.com/gpu"
    )
    assert (cdi["cdi_devices"], cdi["rootless"]) == (["nvidia.com/gpu=0", "nvidia.com/gpu=all"], True)
    assert explain_no_toolkit(cdi) is None
    with_runtime = PLAIN_DOCKER | {"Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
    assert explain_no_toolkit(docker_facts(with_runtime)) is None
