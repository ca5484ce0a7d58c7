"""What operators state is decided on what stands at that moment, and waits end as they should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.admin import AdminModel, AdminModels
from contract.errors import RoundhouseError
from contract.routing import GatewayReport, PrefillTokens, Stamp
from contract.status import ModelState
from controller.admin.service import TAKEN_WITHIN_S, AdminService
from controller.hosts import Gpu, GpuDriver, UnreadGpu
from controller.planning.draining import IDLE_PROOF_S
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
        (self.root / "desired" / "models.yaml").write_text(json.dumps({"models": models}))

    async def start(self) -> None:
        self.harness = ControllerHarness(self.root, self.runtime, self.time)
        await self.harness.files.read_files()

    async def round(self, count: int = 1, *, ready: bool = True) -> None:
        """Rounds; every engine is ready at once unless the test says otherwise."""
        for _ in range(count):
            assert await self.harness.reconciler.run_round() is not None, self.harness.reconciler.error
            await self.harness.operations.wait_until_idle()
            if ready:
                for name in self.runtime.replicas:
                    self.harness.prober.ready.setdefault(name, self.time[0])
            self.time[0] += 0.1

    async def turns(self, count: int) -> None:
        """Rounds, between which those who wait can look."""
        for _ in range(count):
            await self.round()
            await asyncio.sleep(0)

    @property
    def service(self) -> AdminService:
        return self.harness.admin_service

    async def row(self, name: str = "m") -> AdminModel:
        return await self.service.get_model(name)

    async def state(self, name: str = "m") -> ModelState:
        return (await self.row(name)).runtime_state

    def load(self, replicas: int | None = None, **params: Any) -> None:
        self.service.load_model("m", params, replicas, actor="a")

    def unload(self, *, hold: bool = True) -> None:
        self.service.unload_model("m", hold=hold, actor="a")

    async def begin_load(
        self, params: dict[str, Any] | None = None, replicas: int | None = None, *, wait_s: float = 60, **how: bool
    ) -> asyncio.Task[tuple[AdminModel, bool]]:
        """Load `m` and wait for what that comes to."""
        result = self.service.load_model("m", params or {}, replicas, actor="a", **how)
        waiting = asyncio.create_task(self.service.wait_for_load("m", result, wait_s, **how))
        await asyncio.sleep(0)
        return waiting


@asynccontextmanager
async def opened(root: Path, models: dict[str, Any]) -> AsyncIterator[Bench]:
    bench = Bench(root, models)
    await bench.start()
    await bench.round()
    yield bench
    bench.harness.end()


@contextmanager
def refusal(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[RoundhouseError]]:
    with pytest.raises(RoundhouseError, match=match) as refused:
        yield refused
    assert refused.value.entry.code == code


async def test_two_loads_of_one_moment_are_one_and_the_second_sees_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        bench.load(2)
        with refusal("invalid_load_request"):
            bench.load(3)
        bench.service.load_model("m", {}, None, actor="b")
        assert (await bench.row()).statement.reason == "load ordered by a"
        await bench.round(4)
        assert len(bench.runtime.replicas) == 2


async def test_a_load_of_a_failed_model_tries_at_once_whatever_the_backoff(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        bench.runtime.preflight_error = "the file is missing"
        bench.load()
        await bench.round(4)
        assert await bench.state() is ModelState.FAILED
        bench.runtime.preflight_error = None
        await bench.round()
        assert await bench.state() is ModelState.FAILED, "it is looked at again later"
        bench.load()
        assert await bench.state() is ModelState.LOADING
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED


async def test_other_values_are_taken_by_a_model_that_serves_where_a_restart_is_requested(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": LLAMA}) as bench:
        await bench.round(4)
        [first] = bench.runtime.replicas
        with refusal("invalid_load_request", "`restart=true`"):
            bench.load(llama_server_n_ctx=512)
        waiting = await bench.begin_load({"llama_server_n_ctx": 512}, restart=True)
        await bench.turns(1)
        assert (await bench.state(), waiting.done()) == (ModelState.LOADED, False), "the old one serves meanwhile"
        await bench.turns(6)
        row, done = await waiting
        assert (done, row.load_override, row.loaded_replicas) == (True, {"llama_server_n_ctx": 512}, 1)
        assert first not in bench.runtime.replicas
        bench.service.reset_model("m", actor="a")
        assert (await bench.row()).load_override == {}


async def test_a_restart_that_fails_leaves_what_serves_and_names_the_way_back(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": LLAMA}) as bench:
        await bench.round(4)
        [first] = bench.runtime.replicas
        bench.runtime.preflight_error = "the context is too large"
        for _ in range(2):  # the second try is not answered with what the first one came to
            waiting = await bench.begin_load({"llama_server_n_ctx": 512}, restart=True)
            await bench.turns(1)
            assert not waiting.done()
            await bench.turns(3)
            with refusal("model_failed", "serves as before: the context is too large") as refused:
                await waiting
            assert "`roundhouse reset m`" in refused.value.message
        assert (await bench.state(), list(bench.runtime.replicas)) == (ModelState.LOADED, [first])
        bench.service.reset_model("m", actor="a")
        await bench.round(3)
        row = await bench.row()
        assert (row.last_error, row.load_override, list(bench.runtime.replicas)) == (None, {}, [first])


async def test_more_replicas_by_a_restart_touch_none_that_serves(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        await bench.round(4)
        [first] = bench.runtime.replicas
        waiting = await bench.begin_load(replicas=3, restart=True)
        await bench.turns(6)
        row, done = await waiting
        assert (done, row.loaded_replicas) == (True, 3)
        assert first in bench.runtime.replicas


async def test_an_unload_before_the_load_was_seen_starts_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        bench.load()
        bench.unload()
        await bench.round(3)
        assert await bench.state() is ModelState.UNLOADED
        assert not [call for call in bench.runtime.calls if call.startswith("start")]


async def test_a_wait_ends_with_what_the_load_came_to(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        loading = await bench.begin_load()
        await bench.turns(4)
        row, done = await loading
        assert (row.runtime_state, done) == (ModelState.LOADED, True)
        bench.runtime.hold.clear()
        bench.unload()
        await bench.round(4)
        loading = await bench.begin_load()
        bench.runtime.hold.set()
        bench.declare({})
        await bench.harness.files.read_files()
        bench.time[0] += 3
        await bench.harness.files.read_files()
        await bench.turns(3)
        with refusal("state_conflict", "no longer declared"):
            await loading


async def test_a_wait_is_over_when_its_time_is_up_and_the_load_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        waiting = await bench.begin_load(wait_s=0.0)
        await bench.round(ready=False)
        row, done = await waiting
        assert (row.runtime_state, done) == (ModelState.LOADING, False)
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED


@pytest.mark.parametrize("autoload", [True, False])
async def test_a_load_keeps_a_model_that_the_files_loaded_and_that_could_be_evicted(
    tmp_path: Path, autoload: bool
) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True, "autoload": autoload}}) as bench:
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED
        bench.load()
        assert (await bench.row()).statement.kind == ("load" if autoload else "file")


async def test_an_unload_that_frees_is_done_though_a_request_loads_the_model_again(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True, "autoload": True}}) as bench:
        await bench.round(4)
        unloaded = bench.service.unload_model("m", hold=False, actor="a")
        waiting = asyncio.create_task(bench.service.wait_for_unload("m", unloaded, 60))
        await bench.turns(1)
        bench.time[0] += 0.1
        assert bench.harness.ask_for("m", bench.time[0])
        await bench.turns(5)
        _, done = await waiting
        assert done


async def test_the_list_is_what_the_rows_are(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB, "n": STUB | {"enabled": True, "aliases": ["other"]}}) as bench:
        await bench.round(4)
        listed = AdminModels.model_validate_json(await bench.service.list_models_json())
        assert listed.models == [await bench.row(name) for name in ("m", "other")]
        assert listed.last_event_id == bench.harness.journal.newest_id
        bench.declare({"n": STUB | {"enabled": True, "aliases": ["third"]}, "m": STUB})
        await bench.harness.files.read_files()
        await bench.round()
        again = AdminModels.model_validate_json(await bench.service.list_models_json())
        assert again.models[1].aliases == ["third"]


async def test_gpus_are_shown_as_nvidia_smi_does_with_what_models_are_estimated_to_take(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"gpus": 1, "vram_mib": 4000, "replicas": 2}}) as bench:
        bench.runtime.found_gpus = (Gpu("GPU-a", 0, "fake", 8_000, 100),)
        bench.runtime.gpu_driver = GpuDriver("570.195.03", "12.8", ("geforce",))
        reconciler = bench.harness.reconciler
        reconciler.sources = replace(reconciler.sources, host_mib=64_000)
        bench.load()
        await bench.round(4)
        memory = await bench.service.get_gpu_memory()
        assert (memory.error, [gpu.used_over_total for gpu in memory.gpus]) == (None, ["100MiB / 8000MiB"])
        assert (memory.gpus[0].claimed_mib, memory.host_mib) == (8000, 64_000)
        assert (memory.driver_version, memory.cuda_version) == ("570.195.03", "12.8")
        assert memory.unread_gpus == []
        [model] = memory.models
        estimate = (model.vram_estimate_mib, model.vram_estimate_replica_count, model.vram_estimate_source)
        assert estimate == (8000, 2, "declared")
        bench.runtime.found_gpus, bench.runtime.gpu_reason = None, "the GPUs cannot be read now: lost"
        bench.runtime.gpu_driver = None
        bench.runtime.unread_gpus = (UnreadGpu(0, "lost", "GPU-a"),)
        await bench.round()
        memory = await bench.service.get_gpu_memory()
        assert (memory.gpus, memory.error) == ([], "the GPUs cannot be read now: lost")
        assert (memory.driver_version, memory.cuda_version) == (None, None)
        [unread] = memory.unread_gpus
        assert (unread.description, unread.claimed_mib) == ("GPU 0 (GPU-a) is left out: lost", 8000)


async def test_figures_are_unknown_while_a_gateway_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        await bench.round(4)
        [replica] = bench.runtime.replicas
        hub = bench.harness.hub
        report = GatewayReport(gateway_id="gw", stamp=None, inflight={replica: 2}, queued={"m": 3})

        async def figures() -> tuple[int | None, int | None, int | None]:
            row = await bench.row()
            return row.inflight_requests, row.runtime_inflight, row.queue_depth

        hub.take_report(report)
        assert await figures() == (2, 2, 3)
        hub.take_report(report.model_copy(update={"gateway_id": "second"}))
        assert await figures() == (4, 4, 6)
        hub.close_link("gw")
        assert await figures() == (None, None, None)
        [lost_at] = [view.lost_at for view in hub.views if view.lost_at is not None]
        bench.harness.prober.idle_spans[replica] = IdleSpan(lost_at, lost_at + IDLE_PROOF_S)
        await bench.round()
        assert await figures() == (2, 2, 3), "what is left is counted"


async def test_the_prompts_that_are_read_are_summed_over_the_gateways_that_are_there(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True}}) as bench:
        await bench.round(4)
        row, hub = await bench.row(), bench.harness.hub
        assert (row.prefill_requests, row.prefill_progress) == (0, None)
        hub.open_link("c")
        first = PrefillTokens(requests=1, processed=100, total=300)
        second = PrefillTokens(requests=2, processed=0, total=100)
        for name, prefill in (("a", {"m": first, "other": first}), ("b", {}), ("c", {"m": second})):
            hub.take_report(GatewayReport(gateway_id=name, stamp=None, prefill=prefill))
        row = await bench.row()
        assert (row.prefill_requests, row.prefill_progress) == (3, 0.25)
        hub.close_link("c")
        row = await bench.row()
        assert (row.prefill_requests, row.prefill_progress) == (1, 1 / 3)


async def test_a_wait_goes_on_while_rounds_take_long_and_ends_while_paused(
    tmp_path: Path, loop_clock: LoopClock
) -> None:
    async with opened(tmp_path, {"m": STUB}) as bench:
        loading = await bench.begin_load()
        await loop_clock.skip(TAKEN_WITHIN_S * 2)  # no round in all that time: the runtime hangs
        assert not loading.done()
        bench.harness.files.set_paused(True)
        await bench.turns(2)
        row, done = await loading
        assert (row.runtime_state, done) == (ModelState.LOADING, False)
        assert "paused" in row.blocked[0]


async def test_an_edit_that_revokes_an_unload_keeps_what_still_serves(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"enabled": True, "replicas": 2}}) as bench:
        await bench.round(4)
        hub, second = bench.harness.hub, max(bench.runtime.replicas)
        inside = GatewayReport(gateway_id="other", stamp=Stamp(epoch=99, seq=1), inflight={second: 1})
        hub.open_link("other")
        hub.take_report(inside)
        bench.unload()
        await bench.round(3)
        assert list(bench.runtime.replicas) == [second], "the idle one is gone"
        bench.service.reset_model("m", actor="a")
        await bench.round()
        row = await bench.row()
        assert (row.runtime_state, row.loaded_replicas) == (ModelState.LOADED, 1)
        await bench.round(4)
        assert (await bench.row()).loaded_replicas == 2
        assert second in bench.runtime.replicas


async def test_a_remote_is_unloaded_when_its_last_request_is_done(tmp_path: Path) -> None:
    remote = {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1"}
    async with opened(tmp_path, {"m": remote}) as bench:
        hub = bench.harness.hub
        inside = GatewayReport(gateway_id="other", stamp=Stamp(epoch=99, seq=1), inflight={"m": 1})
        hub.open_link("other")
        hub.take_report(inside)
        bench.unload()
        await bench.round(3)
        row = await bench.row()
        assert (row.runtime_state, row.inflight_requests) == (ModelState.UNLOADING, 1)
        with refusal("state_conflict"):
            bench.load()
        hub.take_report(inside.model_copy(update={"inflight": {}}))
        await bench.round(2)
        assert await bench.state() is ModelState.UNLOADED


async def test_what_was_asked_before_an_unload_does_not_undo_it(tmp_path: Path) -> None:
    async with opened(tmp_path, {"m": STUB | {"autoload": True}}) as bench:
        harness, ahead = bench.harness, bench.time[0] + 300
        assert harness.ask_for("m", ahead), "a gateway whose clock is ahead"
        await bench.round(4)
        bench.unload(hold=False)
        assert not harness.ask_for("m", ahead + 1), "it came before the gateway knew of the unload"
        await bench.round(4)
        assert not harness.ask_for("m", ahead + 1), "the gateway tells it again"
        await bench.round(2)
        assert await bench.state() is ModelState.UNLOADED
        assert harness.ask_for("m", ahead + 2)
        await bench.round(4)
        assert await bench.state() is ModelState.LOADED
        bench.unload()
        await bench.round(4)
        bench.service.reset_model("m", actor="a")
        await bench.round(4)
        assert await bench.state() is ModelState.UNLOADED, "nobody asks for it now"


async def test_a_remote_that_nobody_wants_is_unloaded_whatever_gateways_do(tmp_path: Path) -> None:
    remote = {"backend": "openai_remote", "base_url": "http://127.0.0.1:9/v1", "enabled": False}
    async with opened(tmp_path, {"r": remote, "m": STUB}) as bench:
        seen = set()
        bench.harness.hub.take_report(GatewayReport(gateway_id="slow", stamp=None))
        bench.load()
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
        bench.unload()
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
    with refusal("controller_unavailable"):
        bench.load()
    bench.harness.end()


async def test_the_assistant_of_a_load_is_in_a_models_folder_or_declared(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "out").symlink_to(tmp_path.parent)
    models = {
        "m": {"backend": "vllm", "vllm_model": "org/m", "enabled": False, "vllm_speculative_method": "mtp"},
        "n": {"backend": "vllm", "source": "hf:org/assistant", "enabled": False},
    }
    async with opened(tmp_path, models) as bench:
        for name in ("org/other", "/etc", str(tmp_path / "out"), f"{tmp_path}/../x", "inside", "~/x", "os.path"):
            with refusal("invalid_load_request") as refused:
                bench.load(vllm_speculative_model=name)
            assert refused.value.param == "vllm_speculative_model"
        for allowed in ("org/assistant", str(tmp_path / "inside"), None):
            override = bench.service.propose_load(
                "m", {"vllm_speculative_model": allowed}, None, restart=False, actor="a"
            )
            assert override is not None
            assert override.params == {"vllm_speculative_model": allowed}


async def test_a_secret_in_a_loads_parameter_is_shown_nowhere(tmp_path: Path) -> None:
    vllm = {"backend": "vllm", "vllm_model": "org/m", "enabled": False}
    async with opened(tmp_path, {"m": vllm}) as bench:
        bench.load(vllm_kv_cache_dtype="https://user:pa55word@host/x")
        await bench.round(2)
        row = await bench.row()
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
        broken = await bench.service.reload_files()
        assert (broken.is_changed, len(broken.problems)) == (False, 1)
        (tmp_path / "desired" / "broken.yaml").unlink()
        reload = asyncio.create_task(bench.service.reload_files())
        while not reload.done():
            await asyncio.sleep(0.01)
            bench.time[0] += 1.0
            await bench.round()
        assert (await reload).is_changed
        await bench.round(3)
        kept = set(bench.runtime.replicas)
        assert {name.split("-")[2] for name in kept} == {"m", "new"}
        assert len(before & kept) == 1, "the unchanged one was not started again"
        assert not (await bench.service.reload_files()).is_changed


async def test_a_request_during_a_reload_is_no_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, {"m": STUB | {"autoload": True}}) as bench:
        await bench.round()

        async def request() -> None:
            assert bench.harness.ask_for("m", bench.time[0])

        monkeypatch.setattr(bench.harness.files, "refresh_sources", request)
        assert not (await bench.service.reload_files()).is_changed
