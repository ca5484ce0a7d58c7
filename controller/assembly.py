"""One controller, put together: its parts, its tasks, its end."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Self

import aiohttp
import psutil
from prometheus_client import CollectorRegistry

from controller import __version__
from controller.admin.log_reader import LogReader
from controller.admin.service import Desk
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredFiles
from controller.journal.event_log import Journal
from controller.journal.recorder import Recorder
from controller.journal.round_events import Trouble
from controller.observe.gateway_hub import GatewayHub
from controller.observe.load_progress import LoadProgress
from controller.observe.prober import Prober
from controller.observe.remote_health import Remotes
from controller.reconcile.executor import Operations
from controller.reconcile.operation_state import WorkingMemory
from controller.reconcile.reconciler import Reconciler
from controller.reconcile.watchers import follow_files, follow_runtime
from controller.redaction.redactor import Concealment
from controller.reports.drift_detector import DriftWatch
from controller.reports.dry_run import dry_run
from controller.reports.metrics import create_registry
from controller.reports.views import plan_view, status_view
from controller.runtimes.base import Runtime, SeenReplica
from controller.runtimes.naming import replica_token
from controller.schema.admin import Drift, DryRun, ProposedFiles
from controller.schema.routing import GatewayReport
from controller.schema.status import ControllerStatus, PlanView
from controller.settings import ControllerSettings
from controller.sizing.estimator import Predictions
from controller.sizing.history import ObservedMemory
from controller.sizing.requirements import Needs
from controller.sizing.sampler import MemoryWatch
from controller.state import Phase
from controller.status.reconcile_round import Round
from controller.storage.state_dir import Store

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
DRIFT_EVERY_S = 30.0
JOURNAL_NAME = "journal.db"


class Controller:
    """Everything that one state folder's controller does, but for listening."""

    def __init__(
        self, settings: ControllerSettings, store: Store, runtime: Runtime, session: aiohttp.ClientSession
    ) -> None:
        clock = time.time
        self._settings = settings
        self._runtime = runtime
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self._stop_engines = False
        self.failed = False
        """Whether it ended by itself."""
        self._tasks: list[asyncio.Task[None]] = []
        self._instance = store.instance
        images = settings.images if runtime.kind == "docker" else {}
        self._defaults = Defaults(
            images,
            settings.start_timeout_s,
            settings.drain_timeout_s,
            settings.swap_wait_s,
            settings.preflight_recheck_s,
        )
        self.journal = Journal(store.folder / JOURNAL_NAME, keep=settings.history_entries)
        self._concealment = Concealment(lambda name: replica_token(store.secret, name))
        self._recorder = Recorder(self.journal, clock, self._concealment.text)
        self._files = DesiredFiles(
            settings.desired,
            settings.models.absolute(),
            store,
            self._defaults,
            resync_s=settings.resync_s,
            clock=clock,
            learn=self._concealment.learn,
            on_edit=self._recorder.edited,
        )
        memory = WorkingMemory(loaded_once=set(self._files.memory.loaded_once))
        self.hub = GatewayHub(
            store.instance, store.next_epoch(), wake=self._wake.set, clock=clock, on_link=self._recorder.gateway
        )
        self._prober = Prober(
            session,
            interval_s=settings.probe_interval_s,
            timeout_s=PROBE_TIMEOUT_S,
            wake=self._wake.set,
            clock=clock,
        )
        self._remotes = Remotes(
            session, interval_s=settings.probe_interval_s, timeout_s=PROBE_TIMEOUT_S, wake=self._wake.set
        )
        self._operations = Operations(
            runtime,
            memory,
            instance=store.instance,
            secret=store.secret,
            stop_timeout_s=settings.stop_timeout_s,
            wake=self._wake.set,
            clock=clock,
            conceal=self._concealment.text,
        )
        self._progress = LoadProgress(runtime, wake=self._wake.set)
        memory_history, predictions = ObservedMemory.load(store.folder), Predictions(settings.models.absolute(), clock)
        self._needs = Needs(predictions, memory_history, self._wake.set)
        self._reconciler = Reconciler(
            desired=self._files,
            runtime=runtime,
            operations=self._operations,
            memory=memory,
            prober=self._prober,
            remotes=self._remotes,
            hub=self.hub,
            wake=self._wake,
            resync_s=settings.resync_s,
            ready_before=self._files.memory.ready_since,
            clock=clock,
            on_round=self._recorded,
            conceal=self._concealment.text,
            progress=self._progress,
            host_mib=settings.engines_memory_mib or psutil.virtual_memory().total // 2**20,
            requirements=self._needs,
        )
        self._memory_watch = MemoryWatch(memory_history, store.folder, runtime, clock)
        self.desk = Desk(
            files=self._files,
            reconciler=self._reconciler,
            memory=memory,
            remotes=self._remotes,
            hub=self.hub,
            predictions=predictions,
            memory_history=memory_history,
            journal=self.journal,
            gpus=runtime,
            wake=self._wake.set,
            clock=clock,
        )
        self.logs = LogReader(runtime, replicas=self._replicas_of, conceal=self._concealment.text)
        self._drift = DriftWatch(runtime, file_since=self._files.all_since, clock=clock, conceal=self._concealment.text)

    @property
    def registry(self) -> CollectorRegistry:
        """The controller's metrics."""
        return create_registry(self._reconciler, self._operations.issued)

    async def __aenter__(self) -> Self:
        self._recorder.began(__version__, self._instance)
        self._files.recover()
        await self._files.read()
        self._tasks = [
            asyncio.create_task(self._reconciler.run(), name="the reconciler"),
            asyncio.create_task(
                follow_files(self._files, self._settings.desired, self._wake.set, self._ending), name="the file watch"
            ),
            asyncio.create_task(follow_runtime(self._runtime, self._wake.set), name="the runtime's events"),
            asyncio.create_task(self._look_for_drift(), name="the look for drift"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task of ours never ends by itself: should it, the controller ends too, and is started again."""
        if not task.cancelled() and not self._ending.is_set():
            log.critical("%s ended", task.get_name(), exc_info=task.exception())
            self.failed = True
            self._ending.set()

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._operations.give_up_pulls()
        if self._stop_engines:
            await self._end_engines()
        await self._operations.settled()
        await self._prober.close()
        await self._remotes.close()
        await self._progress.close()
        await self._memory_watch.close()
        await self._needs.close()
        await self._runtime.close()
        self._recorder.ended()
        self.journal.close()

    async def ended(self) -> None:
        """Wait until somebody asked the controller to end."""
        await self._ending.wait()

    async def _end_engines(self) -> None:
        """Stop every engine, whatever is under way."""
        await self._operations.settled()
        while replicas := await self._runtime.list():
            log.info("stopping %d engines", len(replicas))
            await asyncio.gather(*(self._end_engine(replica) for replica in replicas))

    async def _end_engine(self, replica: SeenReplica) -> None:
        if replica.phase is Phase.RUNNING:
            await self._runtime.stop(replica.name, self._settings.stop_timeout_s)
        else:
            await self._runtime.remove(replica.name)

    async def _look_for_drift(self) -> None:
        """From time to time, so that what differs is known to differ since then."""
        while True:
            await asyncio.sleep(DRIFT_EVERY_S)
            if self._reconciler.round is None or self._reconciler.error is not None:
                continue
            try:
                await self._drift.check(self._reconciler.round)
            except Exception:
                # What only tells must not take away what acts.
                log.exception("the look for drift failed")

    def _recorded(self, before: Round | None, after: Round | None) -> None:
        if after is not None:
            if self.hub.table is not None:
                self._files.published(after.desired.revision, self.hub.table.stamp)
            self._recorder.round(before, after, self.hub.views)
            self._memory_watch.follow(after)
        self._recorder.trouble(Trouble(tuple(self._files.problems()), self._reconciler.error))

    def _replicas_of(self, model: str) -> dict[str, float]:
        replicas = last_round.observed.replicas if (last_round := self._reconciler.round) is not None else ()
        return {replica.name: replica.created_at for replica in replicas if replica.id.model == model}

    # What the API may do.

    def status(self) -> ControllerStatus:
        """What there is."""
        return status_view(
            self._reconciler.round,
            instance=self._instance,
            runtime=self._runtime.kind,
            problems=self._files.problems(),
            error=self._reconciler.error,
            gateways=self.hub.connected,
        )

    def plan(self) -> PlanView | None:
        """The last round's plan."""
        last_round = self._reconciler.round
        return None if last_round is None else plan_view(last_round, time.time())

    async def dry_run(self, proposed: ProposedFiles) -> DryRun:
        """What proposed files would do."""
        current_round, debounced_state = self.desk.look(), self._files.settled
        assert debounced_state is not None, "what is wanted comes from files"
        return await dry_run(
            proposed,
            folder=self._settings.desired,
            models_root=self._settings.models.absolute(),
            desired_now=current_round.desired,
            observed=current_round.observed,
            overrides=self._files.memory.overrides,
            demand=self._files.memory.demand,
            rested=self._files.memory.rested,
            defaults=self._defaults,
            declared_now=debounced_state.declared,
            keys_now=debounced_state.declared_keys,
            runtime=self._runtime,
            concealment=self._concealment,
            now=time.time(),
        )

    async def drift(self) -> Drift:
        """What runs differently from what is declared."""
        current_round = self.desk.look()
        return await self._drift.check(current_round)

    def pause(self, paused: bool, *, actor: str) -> None:
        """Observe and never act, or act again."""
        word = "paused" if paused else "resumed"
        log.info("%s by %s", word, actor)
        self._files.pause(paused)
        self._recorder.said(f"{word} by {actor}", actor, {"action": "pause" if paused else "resume"})
        self._wake.set()

    def shut_down(self, *, stop_engines: bool) -> None:
        """Begin to end."""
        # A plain SIGTERM that follows must not take the engines' end back.
        self._stop_engines |= stop_engines
        self._ending.set()

    def take(self, report: GatewayReport) -> None:
        """A gateway's report: counts, demand, and replicas that it could not reach."""
        self.hub.report(report)
        for name in report.failed:
            self._prober.nudge(name)
        if self._files.ask_for(report):
            self._wake.set()
