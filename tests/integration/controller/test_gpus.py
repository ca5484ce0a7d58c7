"""A whole controller with real engines as processes, on GPUs that are NVML's fake: the stub stands for what loads."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psutil
import pytest

from contract.status import ModelState
from controller.assembly import Controller
from controller.planning.gpu_use import SETTLED_S
from controller.planning.placement import holders_of
from controller.runtimes.nvml import NvmlReader
from controller.runtimes.process.runtime import ProcessRuntime
from controller.settings import ControllerSettings
from controller.state import Phase
from controller.state_dir import StateDir
from tests.fakes.fake_nvml import FakeGpu, FakeNvml
from tests.support.require import require
from tests.support.wait import until
from worker.clockwork import make_model

STUB: dict[str, Any] = {"backend": "stub", "gpus": 1}


class Host:
    """Folders and GPUs that outlive a controller."""

    def __init__(self, root: Path) -> None:
        self.settings = ControllerSettings(
            desired=root / "desired", state=root / "state", models=root, runtime="process", resync_s=0.2
        )
        self.settings.desired.mkdir()
        self.nvml = FakeNvml()
        self.memory = SimpleNamespace(**psutil.virtual_memory()._asdict())
        self.runtime: ProcessRuntime

    def declare(self, models: dict[str, Any]) -> None:
        """The files."""
        (self.settings.desired / "models.yaml").write_text(json.dumps({"models": models}))

    @contextlib.asynccontextmanager
    async def controller(self, *, host_pids: bool, stop_engines: bool = False) -> AsyncIterator[Controller]:
        """One controller's life."""
        with contextlib.closing(StateDir.open_folder(self.settings.state, "i")) as store:
            reader = NvmlReader(self.nvml, host_pids=host_pids, read_host_memory=lambda: self.memory)
            self.runtime = ProcessRuntime("i", self.settings.state, self.settings.models, nvml=reader)
            async with (
                aiohttp.ClientSession() as session,
                Controller(self.settings, store, self.runtime, session) as made,
            ):
                try:
                    yield made
                except BaseException:
                    stop_engines = True
                    raise
                finally:
                    made.shut_down(stop_engines=stop_engines)

    def pid(self) -> int:
        """Of the one engine."""
        [path] = (self.settings.state / "replicas").glob("*.json")
        return int(json.loads(path.read_text())["pid"])

    async def hold(self, card: FakeGpu, mib: int) -> None:
        """The engine takes memory as it loads."""

        async def started() -> bool:
            return any(each.phase is Phase.RUNNING for each in await self.runtime.list_replicas())

        await until("the engine is started", started)
        card.used_mib += mib
        card.computing[self.pid()] = mib


async def _observed(controller: Controller, mib: int) -> None:
    async def seen() -> bool:
        row = await controller.admin_service.get_model("m")
        return (row.vram_estimate_source, row.vram_estimate_mib) == ("observed_load_delta", mib)

    await until(f"{mib} MiB are observed", seen)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("host_pids", [True, False])
async def test_what_a_load_takes_of_its_gpu_is_observed_shown_and_remembered(host: Host, host_pids: bool) -> None:
    card = host.nvml.add(uuid="GPU-a", bus=1, total_mib=80_000, used_mib=300, busy_percent=12, computing={1: 300})
    host.declare({"m": STUB | {"stub_load_s": 1.0}})
    async with host.controller(host_pids=host_pids) as controller:
        await host.hold(card, 7000)
        await _observed(controller, 7000)
        memory = await controller.admin_service.get_gpu_memory()
        [gpu] = memory.gpus
        assert (gpu.used_mib, gpu.utilization_percent, memory.error) == (7300, 12, None)
        [replica] = [each.name for each in await host.runtime.list_replicas()]
        if host_pids:
            assert gpu.processes is not None
            expected = [(host.pid(), 7000, replica), (1, 300, None)]
            assert [(each.pid, each.used_mib, each.replica) for each in gpu.processes] == expected
        else:
            assert gpu.processes is None
        assert (controller.get_status().gpus or [])[0].processes == gpu.processes

    async with host.controller(host_pids=host_pids, stop_engines=True) as controller:
        await until("it is taken over", lambda: controller.get_plan() is not None)
        await _observed(controller, 7000)
        assert [each.name for each in await host.runtime.list_replicas()] == [replica]


async def test_what_is_declared_and_what_is_held_are_both_shown_and_the_larger_is_claimed(host: Host) -> None:
    card = host.nvml.add(uuid="GPU-a", bus=1, total_mib=20_000)
    host.declare({"m": STUB | {"vram_mib": 6_000}})
    async with host.controller(host_pids=True) as controller:
        await host.hold(card, 7_000)

        def claims() -> list[dict[str, int]]:
            found = [each.claims for model in controller.get_status().models for each in model.replicas]
            return [{uuid: mib for uuid, mib in each.items() if uuid == "GPU-a"} for each in found]

        await until("what it holds is claimed", lambda: claims() == [{"GPU-a": 7_000}])
        row = await controller.admin_service.get_model("m")
        assert (row.vram_estimate_mib, row.vram_estimate_source, row.vram_observed_mib) == (6_000, "declared", 7_000)
        words = "`vram_mib` declares 6000 MiB of each GPU, and a replica was seen to take 7000, 17% more"
        assert (row.vram_warning or "").startswith(words)
        [status] = controller.get_status().models
        assert status.vram_warning == row.vram_warning
        memory = await controller.admin_service.get_gpu_memory()
        assert [gpu.claimed_mib for gpu in memory.gpus] == [7_000]
        card.used_mib = card.computing[host.pid()] = 9_000
        await until("it grows", lambda: claims() == [{"GPU-a": 9_000}])
        card.used_mib = card.computing[host.pid()] = 8_000
        drift = await controller.find_drift()
        assert [item.kind for item in drift.items] == [], "its command line is that of its start"
        [started] = [each.claims for each in await host.runtime.list_replicas()]
        assert started["GPU-a"] == 6_000

    async with host.controller(host_pids=True, stop_engines=True) as controller:
        await until("a restart knows it", lambda: claims() == [{"GPU-a": 9_000}])


async def test_a_process_that_outlives_its_engine_is_named(host: Host) -> None:
    card = host.nvml.add(uuid="GPU-a", bus=1, total_mib=8_000)
    host.declare({"m": STUB | {"vram_mib": 6_000}})
    async with host.controller(host_pids=True, stop_engines=True) as controller:
        await host.hold(card, 6_000)
        await until("it is seen", lambda: any(each.processes for each in controller.get_status().gpus or ()))
        [replica] = [each.name for each in await host.runtime.list_replicas()]
        pid = host.pid()
        host.declare({"m": STUB | {"enabled": False}})

        async def gone() -> bool:
            return await host.runtime.list_replicas() == []

        await until("it is unloaded", gone)
        [gpu] = await host.runtime.read_gpus() or ()
        words = holders_of(gpu, [], expected_mib=0)
        assert words is not None
        assert words.startswith(f"process {pid}")
        assert words.endswith(f", of {replica}: 6000 MiB")


async def test_on_unified_memory_engines_with_and_without_the_gpu_share_the_host_s(host: Host) -> None:
    host.nvml.add(uuid="GPU-a", bus=1, name="NVIDIA GB10", errors={"nvmlDeviceGetMemoryInfo": "NotSupported"})
    # Not what this host happens to have in use, but what is claimed, is to decide.
    host.memory.available = host.memory.total
    half_mib = host.memory.total // 2**20 // 2
    host.declare({"a": STUB | {"vram_mib": half_mib}, "b": {"backend": "stub", "memory_mib": half_mib + 2}})
    async with host.controller(host_pids=False, stop_engines=True) as controller:

        def told() -> bool:
            models = {each.name: each for each in controller.get_status().models}
            return (
                models.keys() == {"a", "b"}
                and models["a"].state == "loaded"
                and "of main memory; free: " in (models["b"].last_error or "")
            )

        await until("there is room for one of them", told)
        [claims] = [each.claims for each in await host.runtime.list_replicas()]
        assert claims == {"GPU-a": half_mib}
        assert [gpu.is_unified for gpu in controller.get_status().gpus or ()] == [True]


async def test_an_engine_on_a_mig_instance_claims_it(host: Host) -> None:
    card = host.nvml.add(uuid="GPU-a", bus=1, total_mib=40_000)
    card.add(0, "MIG-x", total_mib=4_864)
    card.add(1, "MIG-y", total_mib=9_856)
    host.declare({"m": STUB | {"gpus": ["0:1"], "vram_mib": 5_000}})
    async with host.controller(host_pids=False, stop_engines=True) as controller:

        async def runs() -> bool:
            return any(each.phase is Phase.RUNNING for each in await host.runtime.list_replicas())

        await until("it runs", runs)
        assert [each.claims for each in await host.runtime.list_replicas()] == [{"MIG-y": 5_000}]
        environment = Path(f"/proc/{host.pid()}/environ").read_bytes().split(b"\0")
        assert b"CUDA_VISIBLE_DEVICES=MIG-y" in environment
        assert [gpu.mig for gpu in controller.get_status().gpus or ()] == [0, 1]


async def test_a_gpu_that_falls_off_the_bus_hides_no_other_and_stops_no_engine(host: Host) -> None:
    host.nvml.add(uuid="GPU-a", bus=1, total_mib=8_000)
    lost = host.nvml.add(uuid="GPU-b", bus=2, total_mib=8_000)
    host.declare({"m": STUB | {"gpus": ["1"], "vram_mib": 6_000}})
    async with host.controller(host_pids=False, stop_engines=True) as controller:
        await until("it is loaded", lambda: [each.state for each in controller.get_status().models] == ["loaded"])
        [engine] = [each.name for each in await host.runtime.list_replicas()]
        lost.errors["nvmlDeviceGetHandleByIndex"] = "GpuIsLost"
        named = STUB | {"gpus": ["1"], "vram_mib": 100}
        host.declare({"m": STUB | {"gpus": ["1"], "vram_mib": 6_000}, "n": STUB | {"gpus": 1}, "x": named})
        lost_words = "GPU 1 (GPU-b, PCI 0000:02:00.0) is left out: it has fallen off the bus: reboot the host"

        def told() -> bool:
            states = {each.name: each for each in controller.get_status().models}
            return (
                states.keys() == {"m", "n", "x"}
                and states["n"].state == states["m"].state == "loaded"
                and lost_words in (states["x"].last_error or "")
            )

        await until("the other one is used, and who names it is told why", told)
        names = {each.name: each.claims for each in await host.runtime.list_replicas()}
        assert names.pop(engine) == {"GPU-b": 6_000}
        assert list(names.values()) == [{"GPU-a": 8_000}]
        memory = await controller.admin_service.get_gpu_memory()
        assert [gpu.uuid for gpu in memory.gpus] == ["GPU-a"]
        assert [(gpu.uuid, gpu.claimed_mib) for gpu in memory.unread_gpus] == [("GPU-b", 6_000)]
        [other] = [
            json.loads(path.read_text())["pid"]
            for path in (host.settings.state / "replicas").glob("*.json")
            if path.stem != engine
        ]
        assert b"CUDA_VISIBLE_DEVICES=GPU-a" in Path(f"/proc/{other}/environ").read_bytes().split(b"\0")


@pytest.mark.engines
@pytest.mark.embedded
@pytest.mark.parametrize("host_pids", [True, False])
async def test_an_engine_off_its_gpu_has_failed(host: Host, monkeypatch: pytest.MonkeyPatch, host_pids: bool) -> None:
    available = importlib.util.find_spec("xllamacpp") is not None
    require("embedded", available, "xllamacpp is not installed (extra `embedded`)")
    ahead = [0.0]
    monkeypatch.setattr("controller.assembly.time", SimpleNamespace(time=lambda: time.time() + ahead[0]))
    make_model(host.settings.models.first / "m.gguf")
    host.nvml.add(uuid="GPU-a", bus=1, total_mib=8_000, used_mib=300, drawing={1: 300})
    # A CPU build, told to use no device, is what a CUDA build is whose CUDA did not start.
    leaves_gpu = {"gpus": 1, "vram_mib": 500, "extra_args": ["--device", "none"], "llama_server_threads": 1}
    host.declare({"m": {"model_path": "m.gguf", "llama_server_n_ctx": 512, **leaves_gpu}})
    async with host.controller(host_pids=host_pids, stop_engines=True) as controller:

        def serves() -> bool:
            return [model.state for model in controller.get_status().models] == [ModelState.LOADED]

        def entries(kind: str, words: str) -> list[Any]:
            found = controller.journal.read_after(0, 100)
            return [each for each in found if each.kind == kind and words in each.message]

        await until("it serves", serves)
        ahead[0] += SETTLED_S
        reason = "it is ready and holds 0 MiB of GPU-a: it does not compute there"
        [failure, *_] = await until("it has failed", lambda: entries("failure", reason))
        assert (failure.details["failures"], failure.details["was_ready"]) == (1, True)
        assert failure.details["retry_at"] > failure.at, "not at once: it never served as declared"
        await until("its state says so", lambda: entries("state", f"failed: {reason}"))
