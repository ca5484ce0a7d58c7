"""Assembly of one controller from its parts: construction, background tasks, shutdown, and what the API may ask."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Self

import aiohttp
from prometheus_client import CollectorRegistry

from contract.admin import CommandLines, Drift, DryRun, ProposedFiles
from contract.errors import RoundhouseError
from contract.override import Override
from contract.routing import GatewayReport
from contract.status import ControllerStatus, PlanView
from controller import __version__
from controller.admin.hosts import HostService
from controller.admin.service import AdminService, DeclarationService, LogReader
from controller.config.validate import PlacedSource
from controller.desired.file_source import DesiredOptions, find_placed_sources
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredCallbacks, DesiredStateSource
from controller.downloads.file_service import ModelFileService
from controller.downloads.service import DownloadLog, DownloadService, SourceDownloads
from controller.engines import REPLICA_ENGINES
from controller.executor import Executor, ExecutorOptions, OperationState
from controller.journal import EventLog, Recorder, ToolCallRecorder
from controller.memory_estimator import Estimator, Requirements
from controller.memory_history import MemoryHistory, MemorySampler
from controller.model_status import Round
from controller.observe.gateway_hub import GatewayHub, GatewayPlace, RemoteHealth
from controller.observe.prober import LoadProgress, Prober
from controller.observe.sleep import HttpSleeper
from controller.planning.placement import explain_never_fits
from controller.reconciler import Reconciler, RoundSources, follow_files, follow_model_files, follow_runtime
from controller.redaction import Redactor
from controller.reports.drift_detector import DriftDetector
from controller.reports.dry_run import DryRunner
from controller.reports.metrics import MemorySource, RoundCounts, create_registry
from controller.reports.views import list_command_lines, plan_view, status_view
from controller.round_events import Trouble
from controller.runtimes import end_replicas, read_memory_limit
from controller.runtimes.base import Runtime, replica_token
from controller.runtimes.cluster.host_files import HostFiles
from controller.runtimes.cluster.runtime import ClusterRuntime
from controller.runtimes.logs import find_highest_attempt
from controller.settings import ControllerSettings, DownloadPermission, decide_downloads
from controller.state import AttemptNumbers, DesiredModel
from controller.state_dir import StateDir
from controller.transfers_client import TransfersClient, transfers_address

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
"""Seconds after which a health probe of an engine or a remote model fails."""
DRIFT_EVERY_S = 30.0
"""Seconds between two drift checks."""
JOURNAL_NAME = "journal.db"
"""SQLite file of events and history in the state folder."""
EXIT_FAILED = 1
"""Exit code after a background task failed."""
EXIT_RUNTIME_SILENT = 5
"""Exit code where the runtime does not answer, or nobody listens at the Docker socket any more."""


class Controller:
    """One controller: all parts and tasks of it except the HTTP server, and the methods that its API calls. Making one
    reads the state folder, and raises StateError where a file in it is damaged, cannot be read, or is of a newer
    version.

    An async context manager, to be entered once. Entering reads the desired-state files and starts the tasks; leaving
    ends the tasks, stops the engines if `shut_down` asked for that, waits for running operations, and closes `runtime`
    and the journal. Does not close `store` and `session`. To be used in one event loop; not thread-safe.
    """

    def __init__(
        self, settings: ControllerSettings, store: StateDir, runtime: Runtime, session: aiohttp.ClientSession
    ) -> None:
        clock = time.time
        self._settings = settings
        self._runtime = runtime
        self._wake = asyncio.Event()
        self._end_event = asyncio.Event()
        self._stop_engines = False
        self._engines_grace_s = settings.stop_timeout_s
        self.exit_code = 0
        """Exit code of the program, as `controller.__main__` lists them. Not 0 when the controller ends by itself."""
        self._tasks: list[asyncio.Task[None]] = []
        self._oversized: frozenset[str] = frozenset()
        """Models of which the log has said that they never have room here."""
        self._store = store
        self._instance = store.instance
        images = settings.images if runtime.kind == "docker" else {}
        defaults = Defaults(
            images,
            settings.start_timeout_s,
            settings.drain_timeout_s,
            settings.swap_wait_s,
            settings.preflight_recheck_s,
        )
        self._roots = models = settings.models.absolute()
        desired_options = DesiredOptions(
            settings.desired, models, defaults, settings.resync_s, settings.trusted_declarations
        )
        self.journal = EventLog(store.folder / JOURNAL_NAME, keep=settings.history_entries)
        self._redactor = Redactor(lambda name: replica_token(store.secret, name))
        self._recorder = Recorder(self.journal, clock, self._redactor.redact_text)
        self._tool_calls = ToolCallRecorder(self.journal, clock, self._redactor.redact_text)
        self._files = DesiredStateSource(
            desired_options,
            store,
            clock,
            DesiredCallbacks(
                learn=self._redactor.learn_secrets,
                on_edit=self._recorder.record_edits,
                on_superseded=self._recorder.record_superseded,
                find_sources=self._find_sources,
            ),
        )
        self._dry_runner = DryRunner(desired_options, self._find_sources, runtime, self._redactor)
        stored_state = self._files.stored_state
        # Where what was stored is lost: numbers of ended logs must not be used again.
        attempts = stored_state.attempts or AttemptNumbers(dropped=find_highest_attempt(store.folder))
        self._memory = memory = OperationState(
            loaded_once=set(stored_state.loaded_once), attempts=attempts, sleepers=dict(stored_state.sleepers)
        )
        self.hub = GatewayHub(
            store.instance,
            store.next_epoch(clock()),
            wake=self._wake.set,
            clock=clock,
            on_link=self._recorder.record_gateway,
            place=GatewayPlace(store.load_gateway(), store.save_gateway),
            keys_used=stored_state.keys_used or None,
        )
        self._prober = Prober(
            session,
            interval_s=settings.probe_interval_s,
            timeout_s=PROBE_TIMEOUT_S,
            wake=self._wake.set,
            clock=clock,
        )
        self._remote_health = RemoteHealth(
            self.hub,
            interval_s=settings.probe_interval_s,
            timeout_s=PROBE_TIMEOUT_S,
            wake=self._wake.set,
            clock=clock,
        )
        self._round_counts = RoundCounts()
        self._transfers = TransfersClient(transfers_address(settings.transfers_address, settings.transfers_token_file))
        download_log = DownloadLog(self.journal, clock)
        self.downloads = DownloadService(
            self._transfers,
            get_permission=self._get_download_permission,
            get_observed=lambda: self._reconciler.round.observed if self._reconciler.round is not None else None,
            roots=models,
            download_log=download_log,
            clock=clock,
        )
        source_downloads = SourceDownloads(self.downloads, look_for_source=self._look_for_source, wake=self._wake.set)
        cluster = runtime if isinstance(runtime, ClusterRuntime) else None
        if cluster is not None:
            cluster.list_model_paths = self._list_model_paths
            cluster.head = HostFiles(models, self._transfers, is_client_open=True)
        self._executor = Executor(
            runtime,
            memory,
            source_downloads,
            HttpSleeper(session),
            options=ExecutorOptions(
                store.instance,
                store.secret,
                settings.stop_timeout_s,
                self._redactor.redact_text,
                fetch_files=None if cluster is None else cluster.fetch_files,
                cancel_fetch=None if cluster is None else cluster.cancel_fetch,
            ),
            wake=self._wake.set,
            clock=clock,
        )
        self._progress = LoadProgress(runtime, wake=self._wake.set)
        memory_history = MemoryHistory.load_history(store.folder)
        self._predictions = predictions = Estimator(models, clock)
        self._memory_figures = MemorySource(predictions.known_estimates, memory_history.observed_requirements)
        self._requirements = Requirements(predictions, memory_history, self._wake.set)
        self._memory_sampler = MemorySampler(memory_history, store.folder, runtime, clock)
        host_mib, is_host_limited = read_memory_limit(settings)
        sources = RoundSources(
            desired=self._files,
            runtime=runtime,
            memory=memory,
            prober=self._prober,
            remotes=self._remote_health,
            clock=clock,
            ready_before=self._files.stored_state.ready_since,
            redact=self._redactor.redact_text,
            progress=self._progress,
            read_hosts=cluster.read_hosts if cluster is not None else None,
            host_lost_s=settings.host_lost_s,
            host_mib=host_mib,
            is_host_limited=is_host_limited,
            requirements=self._requirements,
            get_gpu_use=self._memory_sampler.get_gpu_use,
            get_longest_tokens=predictions.longest_tokens,
            get_held_memory=self._memory_sampler.get_held_memory,
            get_download_fractions=lambda: source_downloads.fractions,
            get_head_models=frozenset if cluster is None else cluster.list_head_models,
        )
        self._reconciler = Reconciler(
            sources,
            self._executor,
            self.hub,
            wake=self._wake,
            resync_s=settings.resync_s,
            on_round=self._on_round,
            on_duration=self._round_counts.record_duration,
        )
        self.admin_service = AdminService(
            self._files,
            self._reconciler,
            self.hub,
            predictions=predictions,
            memory_history=memory_history,
            journal=self.journal,
            wake=self._wake.set,
        )
        self.declaration_service = DeclarationService(self._files, self._wake.set, clock)
        self.host_service = HostService(
            self.admin_service.read_current_state,
            self._files,
            self._recorder,
            # The runtime of several hosts has it; that of one has nothing to forget.
            expel_host=None if cluster is None else cluster.expel_host,
            wake=self._wake.set,
        )
        self.model_files = ModelFileService(
            self._transfers,
            read_round=self.admin_service.read_current_state,
            check_allowed=self.downloads.check_allowed,
            roots=models,
            estimator=predictions,
            download_log=download_log,
            declare=lambda name, fields, actor: self.declaration_service.put_declaration(
                "models", name, fields, actor=actor
            ),
        )
        self.logs = LogReader(runtime, replicas=self._replicas_of, redact=self._redactor.redact_text)
        self._drift_detector = DriftDetector(
            runtime,
            file_since=self._files.file_source.all_declared_since,
            clock=clock,
            redact=self._redactor.redact_text,
        )

    @property
    def registry(self) -> CollectorRegistry:
        """A new Prometheus registry, at each access, with the controller's metrics."""
        return create_registry(
            self._reconciler,
            self._executor.count_issued,
            self._round_counts,
            lambda: self._drift_detector.latest,
            self._memory_figures,
        )

    async def __aenter__(self) -> Self:
        self._recorder.record_start(__version__, self._instance)
        self._files.recover_last_good()
        await self._files.read_files()
        await self._transfers.__aenter__()
        self._tasks = [
            asyncio.create_task(self._reconciler.run(), name="the reconciler"),
            asyncio.create_task(
                follow_files(self._files, self._settings.desired, self._wake.set, self._end_event),
                name="the file watch",
            ),
            asyncio.create_task(follow_runtime(self._runtime, self._wake.set), name="the runtime's events"),
            asyncio.create_task(self._look_for_drift(), name="the look for drift"),
            asyncio.create_task(self.downloads.follow_transfers(), name="the look at downloads"),
            asyncio.create_task(self._look_for_models(), name="the look for models"),
            asyncio.create_task(
                follow_model_files(self._list_failed, self._roots, self._retry_model), name="the look at missing files"
            ),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)
        return self

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """End the controller when a task ends unexpectedly, so that a supervisor starts the controller again."""
        if not task.cancelled() and not self._end_event.is_set():
            log.critical("%s ended", task.get_name(), exc_info=task.exception())
            self._end_by_itself(EXIT_FAILED)

    def _end_by_itself(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._end_event.set()

    async def __aexit__(self, *_: object) -> None:
        self._end_event.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transfers.__aexit__()
        self._executor.cancel_pulls()
        if self._stop_engines:
            try:
                await self._end_engines()
            except Exception:  # the rest must be closed all the same
                log.exception("not all engines could be stopped")
                self.exit_code = EXIT_FAILED
        await self._executor.wait_until_idle()
        await self._prober.close()
        await self._progress.close()
        await self._memory_sampler.close()
        await self._requirements.close()
        await self._runtime.close()
        self._recorder.record_end()
        self.journal.close()

    async def wait_for_end(self) -> None:
        """Wait until the controller is to end: `shut_down` was called, a background task failed, or the Docker socket
        is gone for too long. `exit_code` then has the program's exit code. Nothing is stopped before the caller leaves
        the context."""
        await self._end_event.wait()

    async def _end_engines(self) -> None:
        """Stop and remove every replica of this instance, except on hosts that do not answer. Waits for running
        operations first."""
        await self._executor.wait_until_idle()
        await end_replicas(self._runtime, self._engines_grace_s)

    def _list_model_paths(self) -> dict[str, tuple[str, ...]]:
        """Return the model paths of each declared model that engines here serve, by its name, with those that options
        name. Absolute ones of options are left to the preflight: they are not copied between hosts."""
        last_round = self._reconciler.round
        is_current = last_round is not None and last_round.desired.revision == self._files.revision
        state = last_round.desired if is_current and last_round is not None else self._files.desired_state()
        models = [each for each in state.models.values() if each.runs] if state is not None else []
        found = {}
        for each in models:
            engine = REPLICA_ENGINES[each.backend]
            more = (check.path for check in engine.list_files(each.definition))
            here = (path for path in more if not path.startswith(("/", "~")))
            found[each.name] = tuple(dict.fromkeys((*engine.list_artifacts(each.definition), *here)))
        return found

    async def _look_for_drift(self) -> None:
        """Check drift every `DRIFT_EVERY_S`, so that each difference is known with the time since which it lasts."""
        while True:
            await asyncio.sleep(DRIFT_EVERY_S)
            if self._reconciler.round is None or self._reconciler.error is not None:
                continue
            try:
                await self._drift_detector.check_drift(self._reconciler.round)
            except Exception:
                # A failing report must not end the controller.
                log.exception("the look for drift failed")

    async def _look_for_models(self) -> None:
        """Declare the models whose files lie in the models folders, every few seconds, while the files say
        `discover`."""
        while True:
            try:
                if self._files.is_discovering and self._reconciler.round is not None:
                    discovered = await self.model_files.discover_models(self._files.stored_state.discovered)
                    if discovered is not None and self._files.set_discovered(discovered):
                        self._wake.set()
            except RoundhouseError as error:
                log.debug("model files are not looked for: %s", error)
            except Exception:
                # What one file holds must not end the controller.
                log.exception("the look for models failed")
            await asyncio.sleep(self.model_files.look_pause_s)

    def _on_round(self, before: Round | None, after: Round | None) -> None:
        self._round_counts.count_round(before, after)
        if after is not None:
            if self.hub.table is not None:
                self._files.demand.note_published(after.desired.revision, self.hub.table.stamp)
            self._recorder.record_round(before, after, self.hub.views)
            self._memory_sampler.follow_round(after)
            self._warn_of_oversized(after)
        self._store.save_epoch()
        silence, limit_s = self._reconciler.silence, self._settings.docker_gone_s
        if silence is not None and silence.ends_controller(time.monotonic(), limit_s):
            log.critical("nobody listens at the Docker socket for %g s: ending, to be started on the new one", limit_s)
            self._end_by_itself(EXIT_RUNTIME_SILENT)
        unsaved = tuple(self.list_unsaved())
        self._recorder.record_trouble(Trouble(tuple(self._files.file_source.problems), self._reconciler.error, unsaved))

    def _warn_of_oversized(self, last_round: Round) -> None:
        """Log each model that has no room on this host whatever is unloaded, once while that is so."""
        found = {
            name: reason
            for name, model in last_round.desired.models.items()
            if (reason := explain_never_fits(model, last_round.observed)) is not None
        }
        for name in sorted(found.keys() - self._oversized):
            place = self._files.file_source.list_places().get(f"models.{name}", "declared at run time")
            log.warning("%s (%s) can never be loaded here: it %s", name, place, found[name])
        self._oversized = frozenset(found)

    def list_unsaved(self) -> list[str]:
        """Return what could not be written to the state folder, in words. Every write is tried again."""
        unsaved = self._files.list_unsaved()
        if not self._store.is_epoch_saved:
            unsaved.append("this start of the controller")
        if not self.journal.is_saved:
            unsaved.append("the newest events")
        if not self._memory_sampler.is_saved:
            unsaved.append("what models were seen to take")
        return unsaved

    def _get_download_permission(self) -> DownloadPermission:
        state = self._files.in_force
        return decide_downloads(
            self._settings.downloads,
            has_keys=state is not None and bool(state.keys),
            hosts=self._settings.gateway_hosts,
        )

    async def _look_for_source(self, source: str) -> bool:
        await self._files.refresh_sources()
        return source in self._files.sources

    def _replicas_of(self, model: str) -> dict[str, float]:
        replicas = last_round.observed.replicas if (last_round := self._reconciler.round) is not None else ()
        return {replica.name: replica.created_at for replica in replicas if replica.id.model == model}

    def _list_failed(self) -> list[DesiredModel]:
        last_round = self._reconciler.round
        return [] if last_round is None else self._memory.list_failed(last_round.desired.models.values())

    async def _retry_model(self, model: DesiredModel) -> None:
        """Try a model again whose files have changed. Its memory is predicted anew before, for it is placed by that."""
        paths = REPLICA_ENGINES[model.backend].list_artifacts(model.definition)
        await self._predictions.read_artifacts(paths, fresh_s=0.0)
        self._memory.forget_failures(model)
        self._wake.set()

    def _find_sources(self, sources: frozenset[str]) -> Mapping[str, PlacedSource]:
        return find_placed_sources(self._settings.models.absolute().first, sources)

    # For the API.

    def get_status(self) -> ControllerStatus:
        """Return models, gateways, GPUs and problems, as `roundhouse status` shows them. Also before the first
        observation; never raises."""
        status = ControllerStatus(
            instance=self._instance,
            version=__version__,
            runtime=self._runtime.kind,
            generation=0,
            observation_error=self._reconciler.error,
            desired_problems=list(self._files.file_source.problems),
            gateways=self.hub.connected_ids,
            gateway_addresses=self.hub.addresses,
            refused_gateways=list(self.hub.refusals),
            unsaved=self.list_unsaved(),
            keys_used=self.hub.keys_used,
        )
        keys = self.hub.table.keys if self.hub.table is not None else ()
        return status_view(status, self._reconciler.round, keys, time.time())

    def get_health_error(self) -> str | None:
        """Return why the controller is unhealthy: the runtime has not answered for 30 s or longer. None means healthy,
        also while the runtime has been silent for less than that."""
        silence = self._reconciler.silence
        return self._reconciler.error if silence is not None and silence.is_unhealthy(time.monotonic()) else None

    def get_plan(self) -> PlanView | None:
        """Plan anew from the last complete round, and return what the controller would do now, as `roundhouse plan`
        shows it: without the actions that the round has begun, and as if every preflight passed that has not failed.
        Nothing is carried out. None means that no round is complete yet."""
        last_round = self._reconciler.round
        return None if last_round is None else plan_view(last_round, time.time())

    async def run_dry_run(self, proposed: ProposedFiles, loads: Sequence[Override] = ()) -> DryRun:
        """Return what proposed desired-state files and declarations, and the statements of `loads`, would change.
        Changes nothing; errors in the content of files and declarations are part of the result. Raises RoundhouseError:
        `controller_unavailable` before the first observation; `declared_in_files` for a declaration of a model that the
        files declare; `invalid_request` for a name that is no desired-state file's, a file that is too large or no
        valid Unicode, and a missing file that is to be removed."""
        current_round, debounced_state = self.admin_service.read_current_state(), self._files.in_force
        assert debounced_state is not None, "what is wanted comes from files"
        return await self._dry_runner.run(
            proposed,
            loads,
            current=current_round,
            in_force=debounced_state,
            stored=self._files.stored_state,
            now=time.time(),
        )

    async def find_drift(self) -> Drift:
        """Compare what the last observation saw running with what is declared, and return the differences. Where the
        runtime does not answer about a replica, its last answer about that replica is used. Where it has never answered
        about one, image and arguments of that one are not compared. Raises RoundhouseError `controller_unavailable`
        before the first observation."""
        current_round = self.admin_service.read_current_state()
        return await self._drift_detector.check_drift(current_round)

    def list_command_lines(self) -> CommandLines:
        """Return the command line of each model's newest engine that the last observation saw running, with its secrets
        masked. Models without a running engine, or whose engine has no known command line, are left out. Raises
        RoundhouseError `controller_unavailable` before the first observation."""
        observed = self.admin_service.read_current_state().observed
        return list_command_lines(observed.replicas, self._redactor.redact_text)

    def set_paused(self, paused: bool, *, actor: str) -> None:
        """Pause or resume the controller, and record that in the journal as done by `actor`, also where nothing
        changes. A paused controller observes and plans, and begins no action; operations that run already go on. The
        pause survives a restart. Blocks for a write to the state folder; a failed write raises nothing and is tried
        again."""
        word = "paused" if paused else "resumed"
        log.info("%s by %s", word, actor)
        self._files.set_paused(paused)
        self._recorder.record_statement(f"{word} by {actor}", actor, {"action": "pause" if paused else "resume"})
        self._wake.set()

    def shut_down(self, *, stop_engines: bool, engines_grace_s: float | None = None) -> None:
        """Begin to end the controller, and return at once: this ends `wait_for_end`. With `stop_engines`, every engine
        is stopped when the context is left, and killed after `engines_grace_s` seconds (None:
        `settings.stop_timeout_s`); a later call without it does not revoke that."""
        # A later plain SIGTERM must not revoke the request to stop the engines.
        self._stop_engines |= stop_engines
        if engines_grace_s is not None:
            self._engines_grace_s = engines_grace_s
        self._end_event.set()

    def take_report(self, report: GatewayReport) -> None:
        """Store a gateway's report in place of its previous one: request counts, demand, health of remote models.
        Begins to probe the replicas that the gateway could not reach, records its calls of tools, and wakes the
        reconciler where the report changes what is decided. Blocks for a write to the state folder where the report has
        new demand, and once a minute where keys were used."""
        self.hub.take_report(report)
        if self.hub.keys_used is not None:
            self._files.remember_keys_used(self.hub.keys_used)
        self._remote_health.take_report(report)
        self._tool_calls.record_calls(report)
        for name in report.failed:
            self._prober.probe_now(name)
        if self._files.demand.take_demand(report):
            self._wake.set()
