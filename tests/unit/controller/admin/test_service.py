"""The desk: what is said there is decided on what stands at that moment, and waits end as they should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.admin.service import TAKEN_WITHIN_S
from controller.gpus import Gpu, GpuDriver, UnreadGpu
from controller.planning.draining import IDLE_PROOF_S
from controller.schema.admin import AdminModels
from controller.schema.errors import RoundhouseError
from controller.schema.routing import GatewayReport, PrefillTokens, Stamp
from controller.schema.status import ModelState
from controller.state import IdleSpan
from tests.support.controller_harness import AddressedRuntime, ControllerHarness
from tests.support.loop_clock import LoopClock, loop_clock

__all__ = ["loop_clock"]

LLAMA: dict[str, Any] = {"backend": "llama_server", "model_path": "clockwork.gguf", "llama_server_n_ctx": 1024}
STUB: dict[str, Any] = {"backend": "stub", "enabled": False, "replica_max": 3}


class Bench:
    """A controller whose rounds the test runs."""

    def __init__(self, root: Path, models: dict[str, Any]) -> None:
        self.time = [1_000.0]
        self.root = root
        self.runtime = AddressedRuntime(lambda: self.time[0])
        (root / "desired").mkdir()
        self.declare(models)
        self.harness: ControllerHarness

    def declare(self, models: dict[str, Any]) -> None:
        """Write the file."""
        (self.root / "desired" / "models.yaml").write_text(json.dumps({"models": models}))

    async def start(self) -> None:
        """Begin a harness."""
        self.harness = ControllerHarness(self.root, self.runtime, self.time)
        await self.harness.files.read_files()

    async def round(self, count: int = 1, *, ready: bool = True) -> None:
        """Rounds; every engine is ready at once unless the test says otherwise."""
        for _ in range(count):
            done = await self.harness.reconciler.run_round()
            assert done is not None, self.harness.reconciler.error
            await self.harness.operations.wait_until_idle()
            if ready:
                for name in self.runtime.replicas:
                    self.harness.prober.ready.setdefault(name, self.time[0])
            self.time[0] += 0.1

    async def state(self, name: str = "m") -> ModelState:
        """What the row says."""
        return (await self.harness.admin_service.get_model(name)).runtime_state


@asynccontextmanager
async def opened(root: Path, models: dict[str, Any]) -> AsyncIterator[Bench]:
    bench = Bench(root, models)
    await bench.start()
    await bench.round()
    yield bench
    bench.harness.end()


def _code(refused: pytest.ExceptionInfo[RoundhouseError]) -> str:
    return refused.value.entry.code


async def test_two_loads_of_one_moment_are_one_and_the_second_sees_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        desk = bench.harness.admin_service
        desk.load_model("m", {}, 2, actor="a")
        with pytest.raises(RoundhouseError) as refused:
            desk.load_model("m", {}, 3, actor="b")
        assert _code(refused) == "invalid_load_request"
        desk.load_model("m", {}, None, actor="b")
        assert (await desk.get_model("m")).statement.reason == "loaded by a"
        await bench.round(4)
        assert len(bench.runtime.replicas) == 2


async def test_a_load_of_a_failed_model_tries_at_once_whatever_the_backoff(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        bench.runtime.preflight_error = "the file is missing"
        bench.harness.admin_service.load_model("m", {}, None, actor="a")
        await bench.round(4)
        assert await bench.state() is ModelState.FAILED
        bench.runtime.preflight_error = None
        await bench.round()
        assert await bench.state() is ModelState.FAILED, "it is looked at again later"
        bench.harness.admin_service.load_model("m", {}, None, actor="a")
        assert await bench.state() is ModelState.LOADING
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED


async def test_other_values_are_taken_by_a_model_that_serves_where_a_restart_is_asked_for(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": LLAMA}) as bench:
        desk = bench.harness.admin_service
        await bench.round(4)
        [first] = bench.runtime.replicas
        with pytest.raises(RoundhouseError, match="`restart=true`") as refused:
            desk.load_model("m", {"llama_server_n_ctx": 512}, None, actor="a")
        assert _code(refused) == "invalid_load_request"
        result = desk.load_model("m", {"llama_server_n_ctx": 512}, None, restart=True, actor="a")
        waiting = asyncio.create_task(desk.wait_for_load("m", result, 60, restart=True))
        await _turns(bench, 1)
        assert (await bench.state(), waiting.done()) == (ModelState.LOADED, False), "the old one serves meanwhile"
        await _turns(bench, 6)
        row, done = await waiting
        assert (done, row.load_override, row.loaded_replicas) == (True, {"llama_server_n_ctx": 512}, 1)
        assert first not in bench.runtime.replicas
        desk.reset_model("m", actor="a")
        assert (await desk.get_model("m")).load_override == {}


async def test_a_restart_that_fails_leaves_what_serves_and_names_the_way_back(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": LLAMA}) as bench:
        desk = bench.harness.admin_service
        await bench.round(4)
        [first] = bench.runtime.replicas
        bench.runtime.preflight_error = "the context is too large"
        for _ in range(2):  # the second try is not answered with what the first one came to
            result = desk.load_model("m", {"llama_server_n_ctx": 512}, None, restart=True, actor="a")
            waiting = asyncio.create_task(desk.wait_for_load("m", result, 60, restart=True))
            await _turns(bench, 1)
            assert not waiting.done()
            await _turns(bench, 3)
            with pytest.raises(RoundhouseError, match="serves as before: the context is too large") as refused:
                await waiting
            assert _code(refused) == "model_failed"
            assert "`roundhouse reset m`" in refused.value.message
        assert (await bench.state(), list(bench.runtime.replicas)) == (ModelState.LOADED, [first])
        desk.reset_model("m", actor="a")
        await bench.round(3)
        row = await desk.get_model("m")
        assert (row.last_error, row.load_override, list(bench.runtime.replicas)) == (None, {}, [first])


async def test_more_replicas_by_a_restart_touch_none_that_serves(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        desk = bench.harness.admin_service
        await bench.round(4)
        [first] = bench.runtime.replicas
        result = desk.load_model("m", {}, 3, restart=True, actor="a")
        waiting = asyncio.create_task(desk.wait_for_load("m", result, 60, restart=True))
        await _turns(bench, 6)
        row, done = await waiting
        assert (done, row.loaded_replicas) == (True, 3)
        assert first in bench.runtime.replicas


async def test_an_unload_before_the_load_was_seen_starts_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        bench.harness.admin_service.load_model("m", {}, None, actor="a")
        bench.harness.admin_service.unload_model("m", hold=True, actor="b")
        await bench.round(3)
        assert await bench.state() is ModelState.UNLOADED
        assert not [call for call in bench.runtime.calls if call.startswith("start")]


async def test_a_wait_ends_with_what_the_load_came_to(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        desk = bench.harness.admin_service
        loading = asyncio.create_task(desk.wait_for_load("m", desk.load_model("m", {}, None, actor="a"), 60))
        await _turns(bench, 4)
        row, done = await loading
        assert (row.runtime_state, done) == (ModelState.LOADED, True)
        bench.runtime.hold.clear()
        desk.unload_model("m", hold=True, actor="a")
        await bench.round(4)
        loading = asyncio.create_task(desk.wait_for_load("m", desk.load_model("m", {}, None, actor="a"), 60))
        await asyncio.sleep(0)
        bench.runtime.hold.set()
        bench.declare({})
        await bench.harness.files.read_files()
        bench.time[0] += 3
        await bench.harness.files.read_files()
        await _turns(bench, 3)
        with pytest.raises(RoundhouseError) as refused:
            await loading
        assert _code(refused) == "state_conflict"
        assert "no longer declared" in refused.value.message


async def test_a_wait_is_over_when_its_time_is_up_and_the_load_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        desk = bench.harness.admin_service
        waiting = asyncio.create_task(desk.wait_for_load("m", desk.load_model("m", {}, None, actor="a"), 0.0))
        await asyncio.sleep(0)
        await bench.round(ready=False)
        row, done = await waiting
        assert (row.runtime_state, done) == (ModelState.LOADING, False)
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED


async def test_an_unload_that_frees_is_done_though_a_request_loads_the_model_again(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True, "autoload": True}}) as bench:
        await bench.round(4)
        desk = bench.harness.admin_service
        waiting = asyncio.create_task(desk.wait_for_unload("m", desk.unload_model("m", hold=False, actor="a"), 60))
        await _turns(bench, 1)
        bench.time[0] += 0.1
        assert bench.harness.ask_for("m", bench.time[0])
        await _turns(bench, 5)
        _, done = await waiting
        assert done


async def test_the_list_is_what_the_rows_are(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB, "n": STUB | {"enabled": True, "aliases": ["other"]}}) as bench:
        await bench.round(4)
        listed = AdminModels.model_validate_json(await bench.harness.admin_service.list_models_json())
        assert listed.models == [await bench.harness.admin_service.get_model(name) for name in ("m", "other")]
        assert listed.last_event_id == bench.harness.journal.newest_id
        bench.declare({"n": STUB | {"enabled": True, "aliases": ["third"]}, "m": STUB})
        await bench.harness.files.read_files()
        await bench.round()
        again = AdminModels.model_validate_json(await bench.harness.admin_service.list_models_json())
        assert again.models[1].aliases == ["third"]


async def test_gpus_are_shown_as_nvidia_smi_does_with_what_models_are_estimated_to_take(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"gpus": 1, "vram_mib": 4000, "replicas": 2}}) as bench:
        bench.runtime.found_gpus = (Gpu("GPU-a", 0, "fake", 8_000, 100),)
        bench.runtime.gpu_driver = GpuDriver("570.195.03", "12.8", ("geforce",))
        bench.harness.admin_service.load_model("m", {}, None, actor="a")
        await bench.round(4)
        memory = await bench.harness.admin_service.get_gpu_memory()
        assert (memory.error, [gpu.used_over_total for gpu in memory.gpus]) == (None, ["100MiB / 8000MiB"])
        assert memory.gpus[0].claimed_mib == 8000
        assert (memory.driver_version, memory.cuda_version) == ("570.195.03", "12.8")
        assert memory.unread_gpus == []
        [model] = memory.models
        estimate = (model.vram_estimate_mib, model.vram_estimate_replica_count, model.vram_estimate_source)
        assert estimate == (8000, 2, "declared")
        bench.runtime.found_gpus, bench.runtime.gpu_reason = None, "the GPUs cannot be read now: lost"
        bench.runtime.gpu_driver = None
        await bench.round()
        memory = await bench.harness.admin_service.get_gpu_memory()
        assert (memory.gpus, memory.error) == ([], "the GPUs cannot be read now: lost")
        assert (memory.driver_version, memory.cuda_version) == (None, None)
        bench.runtime.unread_gpus = (UnreadGpu(0, "lost", "GPU-a"),)
        await bench.round()
        memory = await bench.harness.admin_service.get_gpu_memory()
        assert (memory.gpus, memory.error) == ([], "the GPUs cannot be read now: lost")
        [unread] = memory.unread_gpus
        assert (unread.description, unread.claimed_mib) == ("GPU 0 (GPU-a) is left out: lost", 8000)


async def test_figures_are_unknown_while_a_gateway_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        await bench.round(4)
        [replica] = bench.runtime.replicas
        hub = bench.harness.hub
        report = GatewayReport(gateway_id="gw", stamp=None, inflight={replica: 2}, queued={"m": 3})
        hub.take_report(report)
        row = await bench.harness.admin_service.get_model("m")
        assert (row.inflight_requests, row.runtime_inflight, row.queue_depth) == (2, 2, 3)
        hub.take_report(report.model_copy(update={"gateway_id": "second"}))
        row = await bench.harness.admin_service.get_model("m")
        assert (row.inflight_requests, row.runtime_inflight, row.queue_depth) == (4, 4, 6)
        hub.close_link("gw")
        row = await bench.harness.admin_service.get_model("m")
        assert (row.inflight_requests, row.runtime_inflight, row.queue_depth) == (None, None, None)
        [lost_at] = [view.lost_at for view in hub.views if view.lost_at is not None]
        bench.harness.prober.idle_spans[replica] = IdleSpan(lost_at, lost_at + IDLE_PROOF_S)
        await bench.round()
        row = await bench.harness.admin_service.get_model("m")
        assert (row.inflight_requests, row.runtime_inflight, row.queue_depth) == (2, 2, 3), "what is left is counted"


async def test_the_prompts_that_are_read_are_summed_over_the_gateways_that_are_there(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        await bench.round(4)
        row = await bench.harness.admin_service.get_model("m")
        assert (row.prefill_requests, row.prefill_progress) == (0, None)
        bench.harness.hub.open_link("c")
        for name, prefill in (("a", PrefillTokens(requests=1, processed=100, total=300)), ("b", None)):
            told = {} if prefill is None else {"m": prefill, "other": prefill}
            bench.harness.hub.take_report(GatewayReport(gateway_id=name, stamp=None, prefill=told))
        bench.harness.hub.take_report(
            GatewayReport(gateway_id="c", stamp=None, prefill={"m": PrefillTokens(requests=2, processed=0, total=100)})
        )
        row = await bench.harness.admin_service.get_model("m")
        assert (row.prefill_requests, row.prefill_progress) == (3, 0.25)
        bench.harness.hub.close_link("c")
        row = await bench.harness.admin_service.get_model("m")
        assert (row.prefill_requests, row.prefill_progress) == (1, 1 / 3)


async def test_a_wait_goes_on_while_rounds_take_long_and_ends_while_paused(
    tmp_path: Path, loop_clock: LoopClock
) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        desk = bench.harness.admin_service
        loading = asyncio.create_task(desk.wait_for_load("m", desk.load_model("m", {}, None, actor="a"), 60))
        await loop_clock.skip(TAKEN_WITHIN_S * 2)  # no round in all that time: the runtime hangs
        assert not loading.done()
        bench.harness.files.set_paused(True)
        await _turns(bench, 2)
        row, done = await loading
        assert (row.runtime_state, done) == (ModelState.LOADING, False)
        assert "paused" in row.blocked[0]


async def test_an_edit_that_revokes_an_unload_keeps_what_still_serves(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True, "replicas": 2}}) as bench:
        await bench.round(4)
        hub, desk = bench.harness.hub, bench.harness.admin_service
        second = max(bench.runtime.replicas)
        inside = GatewayReport(gateway_id="other", stamp=Stamp(epoch=99, seq=1), inflight={second: 1})
        hub.open_link("other")
        hub.take_report(inside)
        desk.unload_model("m", hold=True, actor="a")
        await bench.round(3)
        assert list(bench.runtime.replicas) == [second], "the idle one is gone"
        desk.reset_model("m", actor="a")
        await bench.round()
        row = await desk.get_model("m")
        assert (row.runtime_state, row.loaded_replicas) == (ModelState.LOADED, 1)
        await bench.round(4)
        assert (await desk.get_model("m")).loaded_replicas == 2
        assert second in bench.runtime.replicas


async def test_a_remote_is_unloaded_when_its_last_request_is_done(tmp_path: Path) -> None:
    remote = {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1"}
    async with opened(tmp_path, {"m": remote}) as bench:
        hub, desk = bench.harness.hub, bench.harness.admin_service
        inside = GatewayReport(gateway_id="other", stamp=Stamp(epoch=99, seq=1), inflight={"m": 1})
        hub.open_link("other")
        hub.take_report(inside)
        desk.unload_model("m", hold=True, actor="a")
        await bench.round(3)
        row = await desk.get_model("m")
        assert (row.runtime_state, row.inflight_requests) == (ModelState.UNLOADING, 1)
        with pytest.raises(RoundhouseError) as refused:
            desk.load_model("m", {}, None, actor="a")
        assert _code(refused) == "state_conflict"
        hub.take_report(inside.model_copy(update={"inflight": {}}))
        await bench.round(2)
        assert await bench.state() is ModelState.UNLOADED


async def test_what_was_asked_before_an_unload_does_not_undo_it(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"autoload": True}}) as bench:
        harness, desk, ahead = bench.harness, bench.harness.admin_service, bench.time[0] + 300
        assert harness.ask_for("m", ahead), "a gateway whose clock is ahead"
        await bench.round(4)
        desk.unload_model("m", hold=False, actor="a")
        assert not harness.ask_for("m", ahead + 1), "it came before the gateway knew of the unload"
        await bench.round(4)
        assert not harness.ask_for("m", ahead + 1), "the gateway tells it again"
        await bench.round(2)
        assert await bench.state() is ModelState.UNLOADED
        assert harness.ask_for("m", ahead + 2)
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED
        desk.unload_model("m", hold=True, actor="a")
        await bench.round(4)
        desk.reset_model("m", actor="a")
        await bench.round(4)
        assert await bench.state() is ModelState.UNLOADED, "nobody asks for it now"


async def test_a_remote_that_nobody_wants_is_unloaded_whatever_gateways_do(tmp_path: Path) -> None:
    remote = {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1", "enabled": False}
    async with opened(tmp_path, {"r": remote, "m": STUB}) as bench:
        seen = set()
        bench.harness.hub.take_report(GatewayReport(gateway_id="slow", stamp=None))
        bench.harness.admin_service.load_model("m", {}, None, actor="a")
        for _ in range(4):
            await bench.round()
            seen.add(await bench.state("r"))
        assert seen == {ModelState.UNLOADED}


async def test_an_engine_that_crashed_while_paused_is_not_loading_when_it_is_unloaded(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        await bench.round(4)
        bench.harness.files.set_paused(True)
        [name] = bench.runtime.replicas
        bench.runtime.end(name, 139)
        await bench.round(2)
        bench.harness.admin_service.unload_model("m", hold=True, actor="a")
        seen = []
        for _ in range(3):
            await bench.round()
            seen.append(await bench.state())
        bench.harness.files.set_paused(False)
        for _ in range(4):
            await bench.round()
            seen.append(await bench.state())
        assert ModelState.LOADING not in seen
        assert seen[-1] is ModelState.UNLOADED


async def test_nothing_is_said_of_models_before_the_first_look(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"m": STUB})
    await bench.start()
    with pytest.raises(RoundhouseError) as refused:
        bench.harness.admin_service.load_model("m", {}, None, actor="a")
    assert _code(refused) == "controller_unavailable"
    bench.harness.end()


async def _turns(bench: Bench, count: int) -> None:
    """Rounds, between which those who wait can look."""
    for _ in range(count):
        await bench.round()
        await asyncio.sleep(0)


async def test_the_assistant_of_a_load_is_in_a_models_folder_or_declared(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "out").symlink_to(tmp_path.parent)
    models = {
        "m": {"backend": "vllm", "vllm_model": "org/m", "enabled": False, "vllm_speculative_method": "mtp"},
        "n": {"backend": "vllm", "source": "hf:org/assistant", "enabled": False},
    }
    async with opened(tmp_path, models) as bench:
        service = bench.harness.admin_service
        for name in ("org/other", "/etc", str(tmp_path / "out"), f"{tmp_path}/../x", "inside", "~/x", "os.path"):
            with pytest.raises(RoundhouseError) as refused:
                service.load_model("m", {"vllm_speculative_model": name}, None, actor="a")
            assert (_code(refused), refused.value.param) == ("invalid_load_request", "vllm_speculative_model")
        for allowed in ("org/assistant", str(tmp_path / "inside"), None):
            override = service.propose_load("m", {"vllm_speculative_model": allowed}, None, restart=False, actor="a")
            assert override is not None
            assert override.params == {"vllm_speculative_model": allowed}


async def test_a_secret_in_a_loads_parameter_is_shown_nowhere(tmp_path: Path) -> None:
    vllm = {"backend": "vllm", "vllm_model": "org/m", "enabled": False}
    async with opened(tmp_path, {"m": vllm}) as bench:
        secret = "https://user:pa55word@host/x"
        bench.harness.admin_service.load_model("m", {"vllm_kv_cache_dtype": secret}, None, actor="a")
        await bench.round(2)
        row = await bench.harness.admin_service.get_model("m")
        assert row.load_override["vllm_kv_cache_dtype"] == "https://***@host/x"
        told = bench.harness.journal.read_page(("statement",), "m", None, 50)
        assert "***@host" in str(told)
        assert "pa55word" not in f"{row} {told}"


async def test_a_reload_applies_an_edit_at_once_and_keeps_the_rest(tmp_path: Path) -> None:
    runs = {**STUB, "enabled": True}
    async with opened(tmp_path, {"m": runs, "n": runs}) as bench:
        await bench.round(3)
        before = set(bench.runtime.replicas)
        assert len(before) == 2
        bench.declare({"m": runs, "new": runs})
        (tmp_path / "desired" / "broken.yaml").write_text("models: [")
        desk = bench.harness.admin_service
        broken = await desk.reload_files()
        assert (broken.is_changed, len(broken.problems)) == (False, 1)
        (tmp_path / "desired" / "broken.yaml").unlink()
        reload = asyncio.create_task(desk.reload_files())
        while not reload.done():
            await asyncio.sleep(0.01)
            bench.time[0] += 1.0
            await bench.round()
        assert (await reload).is_changed
        await bench.round(3)
        kept = set(bench.runtime.replicas)
        assert {name.split("-")[2] for name in kept} == {"m", "new"}
        assert len(before & kept) == 1, "the unchanged one was not started again"
        assert not (await desk.reload_files()).is_changed
