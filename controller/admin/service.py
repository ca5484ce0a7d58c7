"""Admin service: rows of models, loads, unloads and resets, and waiting for their result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from controller.admin.override_rules import ModelStanding, decide_load, decide_unload
from controller.admin.row_cache import RowCache
from controller.admin.rows import Traffic, configured_row, gpu_memory, gpu_model, live_row
from controller.config.messages import suggest_name
from controller.desired.source import DesiredStateSource
from controller.engines.load_fields import LoadValue
from controller.gpus import Gpu, GpuDriver
from controller.journal.entry import NewEntry
from controller.journal.event_log import EventLog
from controller.observe.gateway_hub import GatewayHub
from controller.observe.remote_health import RemoteHealth
from controller.reconcile.operation_state import OperationState
from controller.reconcile.reconciler import Reconciler
from controller.redaction.patterns import mask_fields
from controller.reports.views import gpu_statuses, unread_gpu_statuses
from controller.runtimes.base import Runtime
from controller.schema.admin import AdminModel, GpuMemoryAnswer, ListContext, ModelLive, ReloadResult
from controller.schema.errors import RoundhouseError
from controller.schema.override import Override
from controller.schema.status import ModelState, ModelStatus
from controller.sizing.estimator import Estimator, largest_mib
from controller.sizing.history import MemoryHistory
from controller.state import DesiredModel
from controller.status.reconcile_round import Round
from controller.status.rollout import is_rolled_out, is_rollout_blocked

TAKEN_WITHIN_S = 2.0
"""Seconds for which an answer waits until the gateways apply the statement."""
NOT_YET = "the controller has not made its first observation yet"
"""Message of `controller_unavailable` before the first observation."""


@dataclass(frozen=True, slots=True)
class StatementResult:
    """What a request for a load or an unload has changed when `load_model` or `unload_model` returns, which is before
    engines start or stop: `revision` is the revision of the desired state that contains the statement, and `is_new` is
    whether the request changed anything. Pass it to `wait_for_load` or `wait_for_unload`."""

    revision: int
    """Revision of the desired state that contains the statement."""
    is_new: bool
    """False where the statement was in force already, so that nothing was changed."""


class AdminService:
    """What the admin API does: show models and GPU memory, load, unload, reset.

    A statement (an operator's load or unload) is decided on the desired state of that moment, including statements made
    just before, and is in force before anything is awaited. `wake` wakes the reconcile loop; `clock` gives Unix time in
    seconds. Before the first observation, every method but `resolve_known_name` raises RoundhouseError
    `controller_unavailable`.
    """

    def __init__(
        self,
        *,
        files: DesiredStateSource,
        reconciler: Reconciler,
        memory: OperationState,
        remotes: RemoteHealth,
        hub: GatewayHub,
        predictions: Estimator,
        memory_history: MemoryHistory,
        journal: EventLog,
        gpus: Runtime,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._reconciler = reconciler
        self._operation_state = memory
        self._remote_health = remotes
        self._hub = hub
        self._estimator = predictions
        self._memory_history = memory_history
        self._journal = journal
        self._gpu_host = gpus
        self._wake = wake
        self._clock = clock
        self._row_cache = RowCache()

    # Looking.

    def read_current_state(self) -> Round:
        """Return the desired state of this moment, including changes that no round has seen yet, with the last
        observation and what would be planned from both. That is the last round itself where nothing has changed since,
        else a preview, of which nothing is carried out, but in which models that its plan would evict are evicted.

        Raises RoundhouseError `controller_unavailable` before the first observation.
        """
        last_round = self._reconciler.round
        if last_round is not None and last_round.desired.revision == self._files.revision:
            return last_round
        now = self._clock()
        desired = self._files.desired_state()
        preview = self._reconciler.preview_round(desired, now) if desired is not None else None
        if preview is None:
            raise RoundhouseError("controller_unavailable", self._reconciler.error or NOT_YET)
        return preview

    async def list_models_json(self) -> bytes:
        """Return the rows of all declared models in name order, those of MCP servers that the controller runs
        (`mcp:NAME`) included, as the JSON of an `AdminModels`. Waits where heads of model files must be read for the
        estimates. Raises RoundhouseError `controller_unavailable` before the first observation."""
        newest_id, current_round = self._journal.newest_id, self.read_current_state()
        rows = b",".join(
            [self._row_cache.row_json(want, model) for want, model in await self._list_live_rows(current_round)]
        )
        self._row_cache.keep_only(current_round.desired.models)
        context_json = self._context(current_round, newest_id).model_dump_json().encode()
        return b'{"models":[%b],%b' % (rows, context_json[1:])

    def _context(self, current_round: Round, newest_id: int) -> ListContext:
        return ListContext(
            last_event_id=newest_id,
            observed_at=current_round.observed.at,
            observation_error=self._reconciler.error,
            desired_problems=self._files.list_problems(),
            paused=current_round.desired.paused,
        )

    async def get_model(self, name: str) -> AdminModel:
        """Return the row of a model, by its name or an alias. Waits where heads of its files must be read for the
        estimate. Raises RoundhouseError `unknown_model`, or `controller_unavailable` before the first observation."""
        current_round = self.read_current_state()
        [(want, model)] = await self._list_live_rows(current_round, self._find(current_round, name).name)
        return AdminModel(**dict(configured_row(want)), **dict(model))

    async def get_gpu_memory(self) -> GpuMemoryAnswer:
        """Return the GPUs with their use in MiB, and the GPU memory that each model needs. Without a readable GPU,
        `gpus` is empty and `error` says why. Waits where heads of model files must be read for the estimates. Raises
        RoundhouseError `controller_unavailable` before the first observation."""
        current_round = self.read_current_state()
        gpus = gpu_statuses(current_round.observed) or []
        driver = self._gpu_host.get_gpu_driver() or GpuDriver()
        return GpuMemoryAnswer(
            gpus=[gpu_memory(gpu) for gpu in gpus],
            unread_gpus=unread_gpu_statuses(current_round.observed),
            models=[gpu_model(want, model) for want, model in await self._list_live_rows(current_round)],
            error=None if gpus else self._gpu_host.get_gpu_error() or "there are no GPUs",
            driver_version=driver.version,
            cuda_version=driver.cuda_version,
        )

    def resolve_name(self, name: str) -> str:
        """Return the model's own name for a name or an alias. Raises RoundhouseError `unknown_model`, or
        `controller_unavailable` before the first observation."""
        return self._find(self.read_current_state(), name).name

    def resolve_known_name(self, name: str) -> str:
        """Return the model's own name for an alias of a declared model, else `name` itself; never raises.

        For events and history, which also contain models that are no longer declared.
        """
        last_round = self._reconciler.round
        models = last_round.desired.models.values() if last_round is not None else ()
        return next((each.name for each in models if name in each.definition.aliases), name)

    async def _list_live_rows(
        self, current_round: Round, only_name: str | None = None
    ) -> list[tuple[DesiredModel, ModelLive]]:
        models = current_round.desired.models
        model_statuses = [
            (models[each.name], each)
            for each in current_round.statuses
            if each.name in models and only_name in (None, each.name)
        ]
        estimates = await self._estimator.estimate_models(want for want, _ in model_statuses)
        replicas = current_round.observed.replicas
        idle_spans = {each.name: each.idle_span for each in replicas if each.idle_span is not None}
        traffic = Traffic(self._hub.views, self._clock(), idle_spans)
        gpus = current_round.observed.gpus
        return [
            (
                want,
                live_row(
                    want,
                    status,
                    traffic,
                    estimates.get(want.name),
                    self._observed_mib(want, gpus),
                    largest_mib(want, gpus),
                ),
            )
            for want, status in model_statuses
        ]

    def _observed_mib(self, want: DesiredModel, gpus: tuple[Gpu, ...] | None) -> int | None:
        sample = self._memory_history.largest_observed(want, gpus) if want.runs else None
        return sample.of_replica(want.gpu_count) if sample is not None else None

    def _find(self, current_round: Round, name: str) -> DesiredModel:
        models = current_round.desired.models
        desired_model = models.get(name) or next(
            (each for each in models.values() if name in each.definition.aliases), None
        )
        if desired_model is None:
            known_names = [each for model in models.values() for each in (model.name, *model.definition.aliases)]
            words = f"No model or alias is named {name!r:.200}{suggest_name(name, known_names)}."
            raise RoundhouseError("unknown_model", words, param="name")
        return desired_model

    # Saying.

    def load_model(
        self, name: str, params: Mapping[str, LoadValue], replicas: int | None, *, restart: bool = False, actor: str
    ) -> StatementResult:
        """Load a model: put the statement into force, record it, and wake the reconcile loop. Returns once the
        statement is in force, before any engine starts; call `wait_for_load` to wait for the result. `name` may be an
        alias. Earlier failures no longer delay the load. A model that is loaded or loading already is left as it is
        (`is_new` of the result is False), unless autoload brought it or `restart` is set.

        `params` are the backend's load fields, `replicas` is the number of engines (None means as declared), `actor` is
        who asks, for the journal. `restart` allows new values for a model that is loaded or loading.

        Raises:
            RoundhouseError: `unknown_model`; `invalid_load_request` for wrong fields, too many replicas, or values for
                a loaded or loading model without `restart`; `state_conflict` while the model is being unloaded;
                `controller_unavailable` before the first observation.
        """
        standing = self._read_standing(name)
        override = self.propose_load(name, params, replicas, restart=restart, actor=actor)
        if override is not None:
            if standing.state not in (ModelState.LOADED, ModelState.LOADING):
                self._operation_state.reset_failures(standing.want)
                self._remote_health.reset_health(standing.want.name)
            elif restart:
                self._operation_state.forget_failures(standing.want)
            self._set_override(override)
        return StatementResult(self._files.revision, override is not None)

    def propose_load(
        self, name: str, params: Mapping[str, LoadValue], replicas: int | None, *, restart: bool, actor: str
    ) -> Override | None:
        """Return the statement that a load would put into force; None: it would change nothing. Nothing is changed.

        The arguments are those of `load_model`, which raises what this does.
        """
        standing = self._read_standing(name)
        override = decide_load(standing, params, replicas, restart=restart, actor=actor, now=self._clock())
        if override is not None and (fault := self._files.find_load_fault(override.model, override.params)) is not None:
            field, reason = fault
            raise RoundhouseError("invalid_load_request", f"`{field}`: {reason}.", param=field)
        return override

    def unload_model(self, name: str, *, hold: bool, actor: str) -> StatementResult:
        """Unload a model: put the statement into force, record it, and wake the reconcile loop. Returns once the
        statement is in force, before any engine stops; call `wait_for_unload` to wait for the result. `name` may be an
        alias.

        With `hold`, requests do not load an autoload model again. Nothing changes, and `is_new` of the result is False,
        where the same unload is in force, or where the model is unloaded or unloading and no request would load it.
        Raises RoundhouseError `unknown_model`, or `controller_unavailable` before the first observation.
        """
        override = decide_unload(self._read_standing(name), hold=hold, actor=actor, now=self._clock())
        if override is not None:
            self._set_override(override)
        return StatementResult(self._files.revision, override is not None)

    def reset_model(self, name: str, *, actor: str) -> None:
        """Drop the override of a model (an operator's load or unload), so that the files and the demand of requests
        decide again, record that, and wake the reconcile loop. Returns at once. Does nothing if there is no override.
        `name` may be an alias. Raises RoundhouseError `unknown_model`, or `controller_unavailable` before the first
        observation."""
        model_name = self.resolve_name(name)
        if self._files.drop_override(model_name):
            self._record(model_name, actor, "back to what the files say", {"action": "reset"})
            self._wake()

    async def reload_files(self) -> ReloadResult:
        """Read the desired-state files now, look for the files of sources, and wake the reconcile loop. The removal of
        a model, an MCP server or the last key is confirmed by a second reading, two seconds later. After a change,
        waits up to 2 s for a round that knows it, and then up to 2 s for the gateways to apply it. Raises
        RoundhouseError `controller_unavailable` before the first observation; problems of the files raise nothing and
        are in the result."""
        before = self.read_current_state().desired.revision
        await self._files.read_files()
        if (wake_at := self._files.wake_at()) is not None:
            await asyncio.sleep(max(0.0, wake_at - self._clock()))
            await self._files.read_files()
        await self._files.refresh_sources()
        is_changed = self._files.revision != before
        if is_changed:
            self._wake()
            await self._wait_for_round(lambda _: True, self._files.revision, TAKEN_WITHIN_S)
        return ReloadResult(is_changed=is_changed, problems=list(self._files.list_problems()))

    def _read_standing(self, name: str) -> ModelStanding:
        current_round = self.read_current_state()
        want = self._find(current_round, name)
        debounced_state = self._files.in_force
        assert debounced_state is not None, "what is wanted comes from files"
        status = _status(current_round, want.name)
        return ModelStanding(
            want, debounced_state.declared_models[want.name], status.state, self._files.get_override(want.name)
        )

    def _set_override(self, override: Override) -> None:
        self._files.set_override(override)
        details: dict[str, Any] = override.model_dump(mode="json", include={"action", "replicas"}, exclude_none=True)
        details["params"] = mask_fields(override.params)
        if override.action == "unload":
            details["hold"] = override.hold
        self._record(override.model, override.actor, f"{override.action}ed by {override.actor}", details)
        self._wake()

    def _record(self, model: str, actor: str, message: str, details: Mapping[str, JsonValue]) -> None:
        entry = NewEntry(kind="statement", model=model, actor=actor, message=message, details=details)
        self._journal.record_entries([entry], self._clock())

    # Waiting.

    async def wait_for_load(
        self, name: str, result: StatementResult, timeout_s: float, *, restart: bool = False
    ) -> tuple[AdminModel, bool]:
        """Wait for a load, until it is done or `timeout_s` seconds have passed. Returns the model's row, and whether
        the load is done (False: the time is over, or the controller is paused). `name` is the model's own name, not an
        alias. With `restart`, the load is done once every wanted replica has the new values.

        Even with a short `timeout_s`, the method waits up to 2 s for a round that knows the statement, and then up to 2
        s for the gateways to apply it.

        Raises RoundhouseError: `model_failed` where the load failed (with `restart`, also where the old engines still
        serve); `state_conflict` where the model was unloaded or removed from the files, or `unknown_model` where no
        round knows of its removal yet.
        """
        is_done = await self._wait_for_round(
            lambda current_round: _load_is_done(current_round, name, restart), result.revision, timeout_s
        )
        return await self.get_model(name), is_done

    async def wait_for_unload(self, name: str, result: StatementResult, timeout_s: float) -> tuple[AdminModel, bool]:
        """Wait for an unload, until it is done or `timeout_s` seconds have passed. Returns the model's row, and whether
        the unload is done (False: the time is over, or the controller is paused). `name` is the model's own name, not
        an alias. Even with a short `timeout_s`, the method waits up to 2 s for a round that knows the statement, and
        then up to 2 s for the gateways to apply it.

        Raises RoundhouseError: `state_conflict` where the model was loaded again by an operator, or was removed from
        the files, or `unknown_model` where no round knows of its removal yet. A load by a request (autoload) counts as
        done.
        """
        is_done = await self._wait_for_round(
            lambda current_round: _unload_is_done(current_round, name), result.revision, timeout_s
        )
        return await self.get_model(name), is_done

    async def _wait_for_round(self, condition: Callable[[Round], bool], revision: int, timeout_s: float) -> bool:
        """Wait until `condition` holds in a round that contains `revision`. Returns whether that was in time.

        Also waits up to TAKEN_WITHIN_S until the gateways apply the statement: a client that was told `unloading` must
        not see its next request admitted.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        is_known = await self._finish_within(max(TAKEN_WITHIN_S, timeout_s), self._wait_for_revision(revision))
        if is_known:
            await self._finish_within(started_at + timeout_s - loop.time(), self._wait_until_true(condition))
        await self._finish_within(TAKEN_WITHIN_S, self._hub.wait_until_applied())
        last_round = self._reconciler.round
        return is_known and last_round is not None and condition(last_round)

    async def _wait_for_revision(self, revision: int) -> None:
        while (last_round := self._reconciler.round) is None or last_round.desired.revision < revision:
            await self._reconciler.wait_for_round()

    async def _wait_until_true(self, condition: Callable[[Round], bool]) -> None:
        while (last_round := self._reconciler.round) is None or not condition(last_round):
            if last_round is not None and last_round.desired.paused:
                raise TimeoutError  # nothing comes of it while nobody acts
            await self._reconciler.wait_for_round()

    async def _finish_within(self, timeout_s: float, work: Coroutine[None, None, None]) -> bool:
        """Return whether `work` finished within `timeout_s` seconds. Work that never waits finishes in time even with
        0."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await work
        except TimeoutError:
            return False
        return True


def _status(current_round: Round, name: str) -> ModelStatus:
    return next(status for status in current_round.statuses if status.name == name)


def _load_is_done(current_round: Round, name: str, restart: bool) -> bool:
    want = current_round.desired.models.get(name)
    if want is None or want.replicas == 0:
        reason = "it is no longer declared" if want is None else want.statement.reason
        raise RoundhouseError("state_conflict", f"The load of {name!r} was given up: {reason}.")
    status = _status(current_round, name)
    if status.state is ModelState.FAILED:
        raise RoundhouseError("model_failed", f"The model {name!r} could not be loaded: {status.last_error}")
    if not restart or status.state is not ModelState.LOADED:
        return status.state is ModelState.LOADED
    if is_rollout_blocked(status.last_error, status.blocked):
        message = (
            f"The model {name!r} could not be restarted, and serves as before: {status.last_error}. It is tried again; "
            f"`roundhouse reset {name}` takes the load back."
        )
        raise RoundhouseError("model_failed", message)
    return is_rolled_out(status.replicas, status.loaded_replicas, status.wanted_replicas)


def _unload_is_done(current_round: Round, name: str) -> bool:
    want = current_round.desired.models.get(name)
    if want is None:
        raise RoundhouseError("state_conflict", f"The model {name!r} is no longer declared; it ends as it drains.")
    if want.replicas:
        # `hold: false`: a request that came meanwhile loads it again, after it was unloaded.
        if want.statement.kind == "autoload":
            return True
        raise RoundhouseError("state_conflict", f"The unload of {name!r} was overtaken: {want.statement.reason}.")
    return _status(current_round, name).state is ModelState.UNLOADED
