"""One controller's loop, files, desk and journal, over a fake host and a clock of the test's own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.keys import Key
from contract.routing import GatewayReport, ModelRoute, Stamp
from contract.status import ModelState
from contract.tools import McpServerRoute, ToolRoute
from controller.admin.service import AdminService
from controller.artifacts.model_roots import ModelRoots
from controller.desired.file_source import DesiredOptions
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredStateSource
from controller.executor import Executor, ExecutorOptions, OperationState
from controller.journal import EventLog
from controller.memory_estimator import Estimator
from controller.memory_history import MemoryHistory
from controller.model_status import Round
from controller.observe.gateway_hub import GatewayHub, RemoteHealth
from controller.reconciler import Reconciler, RoundSources
from controller.runtimes.base import StartRequest
from controller.state import AttemptNumbers
from controller.state_dir import StateDir
from controller.state_machine import LEGAL
from tests.fakes.fake_runtime import FakeDownloader, FakeProber, FakeRuntime, FakeSleeper


class AddressedRuntime(FakeRuntime):
    async def start_replica(self, request: StartRequest) -> None:
        await super().start_replica(request)
        self.replicas[request.name] = replace(self.replicas[request.name], base_url="http://engine")


class RecordingHub(GatewayHub):
    """Checks every transition that it publishes, to two gateways: `gw`, and `slow`, which the test may hold back."""

    lags = False
    """Whether `slow` works by the table that it has."""
    holds: frozenset[str] = frozenset()
    """Replicas that `slow` has a request inside of."""

    def publish_table(
        self,
        models: tuple[ModelRoute, ...],
        keys: tuple[Key, ...] = (),
        tools: tuple[ToolRoute, ...] = (),
        mcp_servers: tuple[McpServerRoute, ...] = (),
    ) -> Stamp:
        before = {route.name: route.state for route in self.table.models} if self.table else {}
        for route in models:
            was = before.get(route.name, route.state)
            assert route.state is was or route.state in LEGAL[was], f"{was} -> {route.state}"
            assert bool(route.endpoints) <= (route.state is ModelState.LOADED)
        stamp = super().publish_table(models, keys, tools, mcp_servers)
        self.take_report(GatewayReport(gateway_id="gw", stamp=stamp))
        self.slow_reports()
        return stamp

    def slow_reports(self) -> None:
        """`slow` tells what it has, if it has a table at all."""
        known = next((view.report.stamp for view in self.views if view.report.gateway_id == "slow"), None)
        stamp = known if self.lags else self.table.stamp if self.table is not None else None
        if stamp is not None:
            self.take_report(GatewayReport(gateway_id="slow", stamp=stamp, inflight=dict.fromkeys(self.holds, 1)))


class ControllerHarness:
    """One controller's harness over a state folder and a host that outlive it."""

    def __init__(self, root: Path, runtime: AddressedRuntime, time: list[float]) -> None:
        def clock() -> float:
            return time[0]

        wake = asyncio.Event()
        self.store = StateDir.open_folder(root / "state")
        self.files = DesiredStateSource(
            DesiredOptions(root / "desired", ModelRoots((root,)), Defaults(), 1.0), self.store, clock
        )
        self.files.recover_last_good()
        stored_state = self.files.stored_state
        self.memory = OperationState(
            loaded_once=set(stored_state.loaded_once), attempts=stored_state.attempts or AttemptNumbers()
        )
        self.hub = RecordingHub("i", self.store.next_epoch(1.0), wake=wake.set, clock=clock)
        self.hub.open_link("gw")
        self.downloader = FakeDownloader()
        self.operations = Executor(
            runtime,
            self.memory,
            self.downloader,
            FakeSleeper(),
            options=ExecutorOptions("i", b"s", 1.0),
            wake=wake.set,
            clock=clock,
        )
        self.prober = FakeProber()
        remotes = RemoteHealth(self.hub, interval_s=1.0, timeout_s=1.0, wake=wake.set, clock=clock)
        parts: dict[str, Any] = {"prober": self.prober}
        sources = RoundSources(
            desired=self.files,
            runtime=runtime,
            memory=self.memory,
            remotes=remotes,
            clock=clock,
            ready_before=self.files.stored_state.ready_since,
            **parts,
        )
        self.reconciler = Reconciler(sources, self.operations, self.hub, wake=wake, resync_s=1.0, on_round=self._told)
        self.memory_history = MemoryHistory()
        self.journal = EventLog(root / "state" / "journal.db", keep=100)
        self.admin_service = AdminService(
            self.files,
            self.reconciler,
            self.hub,
            predictions=Estimator(ModelRoots((root,)), clock),
            memory_history=self.memory_history,
            journal=self.journal,
            wake=wake.set,
        )

    def _told(self, _before: Round | None, after: Round | None) -> None:
        if after is not None and self.hub.table is not None:
            self.files.demand.note_published(after.desired.revision, self.hub.table.stamp)

    def ask_for(self, model: str, at: float) -> bool:
        """A gateway that works by the current table tells of a request at `at`, by its clock."""
        stamp = self.hub.table.stamp if self.hub.table is not None else None
        return self.files.demand.take_demand(GatewayReport(gateway_id="gw", stamp=stamp, demand={model: at}))

    def end(self) -> None:
        """As after SIGKILL, but for the lock."""
        self.journal.close()
        self.store.close()
