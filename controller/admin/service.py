"""Operators' requests: rows of models, runtime declarations, loads, unloads and resets, waiting for their result, and
logs of engines, with secrets masked.

The JSON of rows is cached: measured with 200 models, one list takes 14 ms of the controller's processor time without
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from contract.admin import AdminModel, GpuMemoryAnswer, ListContext, ModelLive, ReloadResult
from contract.declarations import (
    DeclarationKind,
    DeclarationsView,
    DeclarationView,
    RuntimeDeclaration,
    RuntimeDeclarations,
)
from contract.desired import Definition
from contract.errors import RoundhouseError
from contract.override import Override
from contract.status import ModelState, ModelStatus
from controller.admin.override_rules import ModelStanding, decide_load, decide_unload
from controller.config.messages import suggest_name
from controller.desired.source import DesiredStateSource
from controller.engines.options import LoadValue
from controller.hosts import Gpu, GpuDriver, Host
from controller.journal import EventLog
from controller.memory_estimator import Estimator, largest_mib
from controller.memory_history import MemoryHistory
from controller.model_status import Round
from controller.observe.gateway_hub import GatewayHub
from controller.reconciler import Reconciler
from controller.redaction import Redact, mask_fields
from controller.reports.views import (
    Traffic,
    configured_row,
    gpu_memory,
    gpu_model,
    gpu_statuses,
    host_statuses,
    live_row,
    unread_gpu_statuses,
)
from controller.rollout import is_rolled_out, is_rollout_blocked
from controller.round_events import NewEntry
from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.state import DesiredModel

POLL_S = 0.3
"""Seconds between two reads of a followed log."""
MOST_LINES = 10_000
"""Maximum number of lines of one read."""
MOST_ENDED = 5
"""Maximum number of ended engines whose logs are searched for one that is not empty."""
AWAY = "roundhouse: the runtime does not answer; going on when it does\n"
"""Line that a followed log shows once while the runtime does not answer."""


@dataclass(slots=True)
class _Log:
    """Position in one engine's log. `created_at` is the Unix time at which the engine was created, because a name may
    be used again where the state folder could not be written. None means that the engine is gone."""

    created_at: float | None
    lines: int = MOST_LINES
    """Maximum number of existing lines that the next read returns."""
    cursor: str | None = None
    is_ended: bool = False


class LogReader:
    """Reads the logs of all models' engines for the admin API. Keeps no state between calls. `replicas` maps a model to
    its present engines, by name, with the Unix time at which each was created. `redact` masks secrets."""

    def __init__(
        self,
        source: Runtime,
        *,
        replicas: Callable[[str], Mapping[str, float]],
        redact: Redact,
    ) -> None:
        self._source = source
        self._replicas = replicas
        self._redact = redact

    async def open_logs(self, model: str, replica: str | None, *, lines: int, follow: bool) -> AsyncIterator[str]:
        """Open the logs of a model, or of one of its replicas, and return an iterator over text: whole lines, each with
        its newline. Once there are several engines, each line begins with its engine's name and ` | `. Secrets are
        masked. `model` is the model's own name; one that is not known has no logs.

        Reads the last `lines` lines of each engine before it returns. Where no engine is present, reads the newest
        ended one that wrote anything, among the last 5. Without `follow`, the iterator ends after these. With it, the
        iterator goes on with new lines, of new engines too, until the caller closes it; a runtime that stops answering
        then shows as one line, and raises nothing.

        Raises RoundhouseError `unknown_replica` where the model has no such replica, present or ended, and
        RuntimeUnavailableError where the runtime does not answer before the return.
        """
        replicas, ended_names = dict(self._replicas(model)), await self._source.list_ended_logs(model)
        if replica is not None and replica not in (*replicas, *ended_names):
            raise RoundhouseError("unknown_replica", f"{model!r} has no replica {replica!r:.200}.", param="replica")
        names = [replica] if replica is not None else sorted(replicas)
        # Of those that ended, the last one that said anything: one that was called off as it began did not.
        for candidates in [names] if names or not ended_names else [[name] for name in ended_names[:MOST_ENDED]]:
            logs = {name: _Log(replicas.get(name), lines) for name in candidates}
            request_logs = _ModelLogs(self._source, self._redact, model, logs)
            if first_parts := [text async for text in request_logs.read_parts()]:
                break
        return self._stream_text(request_logs, first_parts, model, replica, follow=follow)

    async def _stream_text(
        self, request_logs: _ModelLogs, first_parts: list[str], model: str, replica: str | None, *, follow: bool
    ) -> AsyncIterator[str]:
        for text in first_parts:
            yield text
        is_away = False
        while follow:
            await asyncio.sleep(POLL_S)
            replicas = self._replicas(model)
            request_logs.track_engines({name: replicas[name] for name in sorted(replicas) if replica in (None, name)})
            try:
                async for text in request_logs.read_parts():
                    yield text
                is_away = False
            except RuntimeUnavailableError:
                if not is_away:
                    yield AWAY
                is_away = True


class _ModelLogs:
    """The logs that one request reads, with their positions."""

    def __init__(self, source: Runtime, redact: Redact, model: str, logs: dict[str, _Log]) -> None:
        self._source = source
        self._redact = redact
        self._model = model
        self._logs = logs
        self._read_names = set(logs)
        """Every engine that was read. With several, each line begins with its engine's name."""

    def track_engines(self, replicas: Mapping[str, float]) -> None:
        """Follow these engines from now on, new ones from their first line. Logs of other engines are read to their
        end. `replicas` maps engine names to the Unix times at which they were created."""
        for name, log in list(self._logs.items()):
            if name not in replicas:
                log.created_at = None
                if log.is_ended:
                    del self._logs[name]
        for name, created_at in replicas.items():
            if name not in self._logs or self._logs[name].created_at != created_at:
                self._logs[name] = _Log(created_at)
        self._read_names |= replicas.keys()

    async def read_parts(self) -> AsyncIterator[str]:
        """Yield what each engine wrote since the last call, with secrets masked. Raises RuntimeUnavailableError; the
        next call goes on where this one ended."""
        for name, log in self._logs.items():
            if not log.is_ended and (text := await self._read_part(name, log)):
                yield text

    async def _read_part(self, name: str, log: _Log) -> str:
        part = await self._source.read_log_after(name, log.cursor, log.lines)
        # What it writes after this first look is new, also where there was no log yet.
        log.lines = MOST_LINES
        if part is None:
            log.is_ended = log.created_at is None
            return ""
        log.cursor, log.is_ended = part.cursor, not part.running
        prefix = f"{name} | " if len(self._read_names) > 1 else ""
        return self._redact(self._model, "".join(f"{prefix}{line}\n" for line in part.lines), name)


MAX_DECLARATIONS = 10_000
"""Runtime declarations of one kind at most: they are kept in one file, which each change writes anew."""


class DeclarationService:
    """Shows and changes the runtime declarations of one controller. A change is in force before a method returns, and
    written to the state folder; a failed write raises nothing and is tried again."""

    def __init__(self, files: DesiredStateSource, wake: Callable[[], None], clock: Callable[[], float]) -> None:
        """`wake` makes the controller plan again. `clock` gives Unix time in seconds."""
        self._files = files
        self._wake = wake
        self._clock = clock

    def list_declarations(self) -> DeclarationsView:
        """Return all runtime declarations with secrets masked, and why some are not in force."""
        declared = self._files.declarations
        return DeclarationsView(
            models={name: _masked(each) for name, each in declared.models.items()},
            keys=declared.keys,  # the hash of a secret is none
            problems=list(self._files.file_source.declaration_problems),
            places=self._files.file_source.list_places(),
        )

    def get_declaration(self, kind: DeclarationKind, name: str) -> DeclarationView:
        """Return one runtime declaration with secrets masked. Raises RoundhouseError `unknown_declaration` if there is
        none of this kind and name; what the files declare is none."""
        declaration = _of_kind(self._files.declarations, kind).get(name)
        if declaration is None:
            message = f"There is no runtime declaration of {_subject(kind, name)}; what files declare is not one."
            raise RoundhouseError("unknown_declaration", message, param="name")
        return _view(kind, name, declaration)

    def put_declaration(
        self, kind: DeclarationKind, name: str, fields: Mapping[str, JsonValue], *, actor: str
    ) -> tuple[DeclarationView, bool]:
        """Declare a model or a key for `actor`, with `fields` as a desired-state file has them below the name, and
        return the declaration with secrets masked, and whether it is new (False: it replaces an earlier one, or has the
        same fields, which changes nothing). It is in force before the return.

        Raises RoundhouseError: `declared_in_files` if the files declare the name; `invalid_declaration` if the fields
        have a problem or no request may set one of them (`param` is the field of the first one), or if 10,000
        (`MAX_DECLARATIONS`) of this kind are declared already.
        """
        if self._files.declares(kind, name):
            place = self._files.file_source.list_places().get(f"{kind}.{name}", "the desired-state files")
            message = f"The {'model' if kind == 'models' else 'key'} {name} is declared in {place}: edit it there."
            raise RoundhouseError("declared_in_files", message, param="name")
        known = _of_kind(self._files.declarations, kind)
        earlier = known.get(name)
        if earlier is None and len(known) >= MAX_DECLARATIONS:
            message = f"There are {MAX_DECLARATIONS} runtime declarations of {kind}: delete some, or use files."
            raise RoundhouseError("invalid_declaration", message)
        declaration = RuntimeDeclaration(fields=dict(fields), declared_at=self._clock(), actor=actor)
        problems = self._files.check_declaration(kind, name, declaration)
        if problems:
            # Without the prefix: the caller named model and key itself.
            words = "; ".join(f"{each.field}: {each.message}" for each in problems)
            raise RoundhouseError("invalid_declaration", f"{words}.", param=problems[0].field)
        if earlier is not None and earlier.fields == dict(fields):
            return _view(kind, name, earlier), False
        self._files.put_declaration(kind, name, declaration)
        self._wake()
        return _view(kind, name, declaration), earlier is None

    def drop_declaration(
        self, kind: DeclarationKind, name: str, *, actor: str, even_last: bool = False
    ) -> DeclarationView:
        """Remove a runtime declaration for `actor`, and return what it was, with secrets masked. A model is drained and
        its engines end; a key is refused from then on. Raises RoundhouseError: `unknown_declaration` if there is none
        of this kind and name; `last_key` if it is the last key, which only `even_last` removes."""
        view = self.get_declaration(kind, name)
        # As in files, whose last key goes only with a second reading: it may be a slip, and lets everybody in.
        if kind == "keys" and not even_last and self._files.is_last_key(name):
            message = f"{name} is the last key: without it, everybody who reaches the gateway may use it."
            raise RoundhouseError("last_key", message, param="name")
        self._files.drop_declaration(kind, name, actor)
        self._wake()
        return view


def _of_kind(declared: RuntimeDeclarations, kind: DeclarationKind) -> Mapping[str, RuntimeDeclaration]:
    return declared.models if kind == "models" else declared.keys


def _subject(kind: DeclarationKind, name: str) -> str:
    return f"the {'model' if kind == 'models' else 'key'} {name}"


def _masked(declaration: RuntimeDeclaration) -> RuntimeDeclaration:
    return declaration.model_copy(update={"fields": mask_fields(declaration.fields)})


def _view(kind: DeclarationKind, name: str, declaration: RuntimeDeclaration) -> DeclarationView:
    return DeclarationView(kind=kind, name=name, **dict(_masked(declaration) if kind == "models" else declaration))


@dataclass(frozen=True, slots=True)
class _CachedRow:
    declared_definition: Definition
    definition: Definition
    json: bytes
    """JSON of the `ModelConfigured` part, without its closing brace."""


class RowCache:
    """Cached JSON of the part of each model's row that only an edit or a load changes (`ModelConfigured`), by model
    name. The admin service has one. Models that are gone stay cached until `keep_only`. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[str, _CachedRow] = {}

    def row_json(self, want: DesiredModel, model: ModelLive) -> bytes:
        """Return a model's row as the JSON of an `AdminModel`: the cached part for `want`, made anew where its
        definition changed, then the fields of `model`."""
        cached_row = self._rows.get(want.name)
        if (
            cached_row is None
            or cached_row.declared_definition is not want.declared_definition
            or cached_row.definition != want.definition
        ):
            configured_json = configured_row(want).model_dump_json().encode()
            cached_row = self._rows[want.name] = _CachedRow(
                want.declared_definition, want.definition, configured_json[:-1]
            )
        return cached_row.json + b"," + model.model_dump_json().encode()[1:]

    def keep_only(self, names: Collection[str]) -> None:
        """Drop the cached rows of models that are not in `names`, because they are no longer declared. `names` must
        contain every model that is still listed. Rows are dropped only where more are cached than `names` has."""
        if len(self._rows) > len(names):
            self._rows = {name: cached_row for name, cached_row in self._rows.items() if name in names}


TAKEN_WITHIN_S = 2.0
"""Seconds for which an answer waits until the gateways apply the statement."""
NOT_YET = "the controller has not made its first observation yet"
"""Message of `controller_unavailable` before the first observation."""


@dataclass(frozen=True, slots=True)
class StatementResult:
    """What a load or an unload has changed when `load_model` or `unload_model` returns, before engines start or stop:
    `revision` of the desired state contains the statement, and `is_new` is whether it changed anything. Pass it to
    `wait_for_load` or `wait_for_unload`."""

    revision: int
    is_new: bool


class AdminService:
    """What the admin API does: show models and GPU memory, load, unload, reset. A statement (an operator's load or
    unload) is decided on the desired state of that moment, including statements made just before, and is in force
    before anything is awaited. `wake` wakes the reconcile loop; `clock` gives Unix time in seconds. Before the first
    observation, every method but `resolve_known_name` raises RoundhouseError `controller_unavailable`."""

    def __init__(
        self,
        files: DesiredStateSource,
        reconciler: Reconciler,
        hub: GatewayHub,
        *,
        predictions: Estimator,
        memory_history: MemoryHistory,
        journal: EventLog,
        wake: Callable[[], None],
    ) -> None:
        self._files = files
        self._reconciler = reconciler
        self._operation_state = reconciler.sources.memory
        self._remote_health = reconciler.sources.remotes
        self._hub = hub
        self._estimator = predictions
        self._memory_history = memory_history
        self._journal = journal
        self._gpu_host = reconciler.sources.runtime
        self._wake = wake
        self._clock = reconciler.sources.clock
        self._row_cache = RowCache()

    # Looking.

    def read_current_state(self) -> Round:
        """Return the desired state of this moment, including changes that no round has seen yet, with the last
        observation and what would be planned from both. That is the last round itself where nothing has changed since,
        else a preview, of which nothing is carried out, but in which models that its plan would evict are evicted.
        Raises RoundhouseError `controller_unavailable` before the first observation."""
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
            desired_problems=list(self._files.file_source.problems),
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
            host_mib=_sum_memory(current_round.observed.hosts),
            models=[gpu_model(want, model) for want, model in await self._list_live_rows(current_round)],
            error=None if gpus else self._gpu_host.get_gpu_error() or "there are no GPUs",
            driver_version=driver.version,
            cuda_version=driver.cuda_version,
            hosts=host_statuses(current_round.observed),
            is_cut_off=current_round.observed.is_cut_off,
        )

    def resolve_name(self, name: str) -> str:
        """Return the model's own name for a name or an alias. Raises RoundhouseError `unknown_model`, or
        `controller_unavailable` before the first observation."""
        return self._find(self.read_current_state(), name).name

    def resolve_known_name(self, name: str) -> str:
        """Return the model's own name for an alias of a declared model, else `name` itself; never raises. For events
        and history, which also contain models that are no longer declared."""
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
            RoundhouseError: `unknown_model`; `invalid_load_request` for wrong fields, fields that no request may set,
                too many replicas, or values for a loaded or loading model without `restart`; `state_conflict` while the
                model is being unloaded; `controller_unavailable` before the first observation.
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
        """Return the statement that `load_model` with these arguments would put into force; None: it would change
        nothing. Changes nothing. Raises the RoundhouseErrors of `load_model`: `unknown_model`, `invalid_load_request`,
        `state_conflict` and `controller_unavailable`."""
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
        self.read_current_state()
        before = self._files.declared_changes
        await self._files.read_files()
        if (wake_at := self._files.wake_at()) is not None:
            await asyncio.sleep(max(0.0, wake_at - self._clock()))
            await self._files.read_files()
        await self._files.refresh_sources()
        is_changed = self._files.declared_changes != before
        if is_changed:
            self._wake()
            await self._wait_for_round(lambda _: True, self._files.revision, TAKEN_WITHIN_S)
        return ReloadResult(is_changed=is_changed, problems=list(self._files.file_source.problems))

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
        self._record(override.model, override.actor, f"{override.action} ordered by {override.actor}", details)
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
        """Wait until `condition` holds in a round that contains `revision`. Returns whether that was in time. Also
        waits up to TAKEN_WITHIN_S until the gateways apply the statement: a client that was told `unloading` must not
        see its next request admitted."""
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


def _sum_memory(hosts: Collection[Host]) -> int | None:
    """Return the main memory of all hosts in MiB; None: that of one is not bounded."""
    known = [host.memory_mib for host in hosts if host.memory_mib is not None]
    return sum(known) if len(known) == len(hosts) else None


def _status(current_round: Round, name: str) -> ModelStatus:
    return next(status for status in current_round.statuses if status.name == name)


def _load_is_done(current_round: Round, name: str, restart: bool) -> bool:
    want = current_round.desired.models.get(name)
    if want is None or want.replicas == 0:
        reason = "it is no longer declared" if want is None else want.statement.reason
        raise RoundhouseError("state_conflict", f"The load of {name!r} was given up: {reason}.")
    status = _status(current_round, name)
    if status.state is ModelState.FAILED:
        message = f"The model {name!r} could not be loaded: {status.last_error}"
        raise RoundhouseError("model_failed", message, model=name)
    if not restart or status.state is not ModelState.LOADED:
        return status.state is ModelState.LOADED
    if is_rollout_blocked(status.last_error, status.blocked):
        message = (
            f"The model {name!r} could not be restarted, and serves as before: {status.last_error}. It is tried again; "
            f"`roundhouse reset {name}` takes the load back."
        )
        raise RoundhouseError("model_failed", message, model=name)
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
