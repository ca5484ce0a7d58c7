"""Where operators ask and say: rows of models, loads, unloads, and the wait for what they come to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import JsonValue

from controller.admin.override_rules import Standing, decide_load, decide_unload
from controller.admin.row_cache import Cards
from controller.admin.rows import Traffic, configured, gpu_memory, gpu_model, live
from controller.config.messages import suggestion
from controller.desired.source import DesiredFiles
from controller.engines.load_fields import LoadValue
from controller.journal.entry import NewEntry
from controller.journal.event_log import Journal
from controller.observe.gateway_hub import GatewayHub
from controller.observe.remote_health import Remotes
from controller.reconcile.operation_state import WorkingMemory
from controller.reconcile.reconciler import Reconciler
from controller.redaction.patterns import masked
from controller.reports.views import gpu_statuses
from controller.schema.admin import AdminModel, GpuMemoryAnswer, ListContext, ModelLive
from controller.schema.errors import RoundhouseError
from controller.schema.override import Override
from controller.schema.status import ModelState, ModelStatus
from controller.sizing.estimator import Predictions, largest_mib
from controller.sizing.history import ObservedMemory
from controller.state import DesiredModel, Gpu
from controller.status.reconcile_round import Round

TAKEN_WITHIN_S = 2.0
"""How long an answer is held back for a statement to come into force at the gateways."""
NOT_YET = "the controller has not made its first observation yet"


class GpuReason(Protocol):
    """The part of a runtime that says why there are no figures of GPUs."""

    def gpu_error(self) -> str | None:
        """None: there are."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What came of saying something."""

    revision: int
    """Of the desired state that holds it."""
    is_new: bool
    """False: it stood already."""


class Desk:
    """One controller's desk. Whatever is stated here is decided on what stands at that moment, statements of the same
    moment included, and is in force before anything is awaited."""

    def __init__(
        self,
        *,
        files: DesiredFiles,
        reconciler: Reconciler,
        memory: WorkingMemory,
        remotes: Remotes,
        hub: GatewayHub,
        predictions: Predictions,
        memory_history: ObservedMemory,
        journal: Journal,
        gpus: GpuReason,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._reconciler = reconciler
        self._memory = memory
        self._remotes = remotes
        self._hub = hub
        self._predictions = predictions
        self._taken = memory_history
        self._journal = journal
        self._gpus = gpus
        self._wake = wake
        self._clock = clock
        self._cards = Cards()

    # Looking.

    def look(self) -> Round:
        """What is wanted at this moment, and what was last seen. Raises `controller_unavailable` before the first."""
        last_round = self._reconciler.round
        if last_round is not None and last_round.desired.revision == self._files.revision:
            return last_round
        now = self._clock()
        desired = self._files.state(now)
        preview = self._reconciler.glance(desired, now) if desired is not None else None
        if preview is None:
            raise RoundhouseError("controller_unavailable", self._reconciler.error or NOT_YET)
        return preview

    async def models_json(self) -> bytes:
        """Every declared model, as `AdminModels`."""
        newest_id, current_round = self._journal.newest, self.look()
        rows = b",".join([self._cards.json(want, model) for want, model in await self._lives(current_round)])
        self._cards.keep_only(current_round.desired.models)
        context_json = self._context(current_round, newest_id).model_dump_json().encode()
        return b'{"models":[%b],%b' % (rows, context_json[1:])

    def _context(self, current_round: Round, newest_id: int) -> ListContext:
        return ListContext(
            last_event_id=newest_id,
            observed_at=current_round.observed.at,
            observation_error=self._reconciler.error,
            desired_problems=self._files.problems(),
            paused=current_round.desired.paused,
        )

    async def model(self, name: str) -> AdminModel:
        """One model by name or alias. Raises `unknown_model`."""
        current_round = self.look()
        [(want, model)] = await self._lives(current_round, self._find(current_round, name).name)
        return AdminModel(**dict(configured(want)), **dict(model))

    async def gpu_memory(self) -> GpuMemoryAnswer:
        """GPUs, and what models take of them."""
        current_round = self.look()
        gpus = gpu_statuses(current_round.observed) or []
        return GpuMemoryAnswer(
            gpus=[gpu_memory(gpu) for gpu in gpus],
            models=[gpu_model(want, model) for want, model in await self._lives(current_round)],
            error=None if gpus else self._gpus.gpu_error() or "there are no GPUs",
        )

    def name_of(self, name: str) -> str:
        """The model's own name. Raises `unknown_model`."""
        return self._find(self.look(), name).name

    def known_name(self, name: str) -> str:
        """The model's own name where `name` is an alias of one that is declared; else as it is."""
        last_round = self._reconciler.round
        models = last_round.desired.models.values() if last_round is not None else ()
        return next((each.name for each in models if name in each.definition.aliases), name)

    async def _lives(self, current_round: Round, only_name: str | None = None) -> list[tuple[DesiredModel, ModelLive]]:
        models = current_round.desired.models
        model_statuses = [
            (models[each.name], each)
            for each in current_round.statuses
            if each.name in models and only_name in (None, each.name)
        ]
        estimates = await self._predictions.of(want for want, _ in model_statuses)
        traffic = Traffic(self._hub.views, self._clock())
        gpus = current_round.observed.gpus
        return [
            (
                want,
                live(
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
        sample = self._taken.most(want, gpus) if want.runs else None
        return sample.of_replica(want.gpu_count) if sample is not None else None

    def _find(self, current_round: Round, name: str) -> DesiredModel:
        models = current_round.desired.models
        desired_model = models.get(name) or next(
            (each for each in models.values() if name in each.definition.aliases), None
        )
        if desired_model is None:
            known_names = [each for model in models.values() for each in (model.name, *model.definition.aliases)]
            words = f"No model or alias is named {name!r:.200}{suggestion(name, known_names)}."
            raise RoundhouseError("unknown_model", words, param="name")
        return desired_model

    # Saying.

    def load(self, name: str, params: Mapping[str, LoadValue], replicas: int | None, *, actor: str) -> Stated:
        """State a load, where it says something new.

        Raises:
            RoundhouseError: `unknown_model`, `invalid_load_request`, `state_conflict`.
        """
        standing = self._standing(name)
        override = decide_load(standing, params, replicas, actor=actor, now=self._clock())
        if override is not None:
            if standing.state not in (ModelState.LOADED, ModelState.LOADING):
                self._memory.try_anew(standing.want)
                self._remotes.ask_anew(standing.want.name)
            self._state(override)
        return Stated(self._files.revision, override is not None)

    def unload(self, name: str, *, hold: bool, actor: str) -> Stated:
        """State an unload, where it says something new. Raises `unknown_model`."""
        override = decide_unload(self._standing(name), hold=hold, actor=actor, now=self._clock())
        if override is not None:
            self._state(override)
        return Stated(self._files.revision, override is not None)

    def reset(self, name: str, *, actor: str) -> None:
        """Let the files rule again. Raises `unknown_model`."""
        model_name = self.name_of(name)
        if self._files.drop_override(model_name):
            self._record(model_name, actor, "back to what the files say", {"action": "reset"})
            self._wake()

    def _standing(self, name: str) -> Standing:
        current_round = self.look()
        want = self._find(current_round, name)
        debounced_state = self._files.settled
        assert debounced_state is not None, "what is wanted comes from files"
        status = _status(current_round, want.name)
        return Standing(want, debounced_state.declared[want.name], status.state, self._files.override(want.name))

    def _state(self, override: Override) -> None:
        self._files.state_override(override)
        details: dict[str, Any] = override.model_dump(mode="json", include={"action", "replicas"}, exclude_none=True)
        details["params"] = masked(override.params)
        if override.action == "unload":
            details["hold"] = override.hold
        self._record(override.model, override.actor, f"{override.action}ed by {override.actor}", details)
        self._wake()

    def _record(self, model: str, actor: str, message: str, details: Mapping[str, JsonValue]) -> None:
        entry = NewEntry(kind="statement", model=model, actor=actor, message=message, details=details)
        self._journal.record([entry], self._clock())

    # Waiting.

    async def after_load(self, name: str, result: Stated, timeout_s: float) -> tuple[AdminModel, bool]:
        """The row once the model is loaded, and True; or as it is when the time is up, and False.

        Raises:
            RoundhouseError: `model_failed`, or `state_conflict`: somebody unloaded it or took it out of the files.
        """
        is_done = await self._until(
            lambda current_round: _load_is_done(current_round, name), result.revision, timeout_s
        )
        return await self.model(name), is_done

    async def after_unload(self, name: str, result: Stated, timeout_s: float) -> tuple[AdminModel, bool]:
        """The row once the model is unloaded, and True; or as it is when the time is up, and False.

        Raises:
            RoundhouseError: `state_conflict`: somebody loaded it again.
        """
        is_done = await self._until(
            lambda current_round: _unload_is_done(current_round, name), result.revision, timeout_s
        )
        return await self.model(name), is_done

    async def _until(self, condition: Callable[[Round], bool], revision: int, timeout_s: float) -> bool:
        """Wait until a round that knows `revision` has it so. Whether that was in time.

        In any case what was stated is in force at the gateways before this returns, if they take it soon: a client that
        was told `unloading` must not find that its next request is let in.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        is_known = await self._within(max(TAKEN_WITHIN_S, timeout_s), self._known(revision))
        if is_known:
            await self._within(started_at + timeout_s - loop.time(), self._holds(condition))
        await self._within(TAKEN_WITHIN_S, self._hub.taken())
        last_round = self._reconciler.round
        return is_known and last_round is not None and condition(last_round)

    async def _known(self, revision: int) -> None:
        while (last_round := self._reconciler.round) is None or last_round.desired.revision < revision:
            await self._reconciler.next_round()

    async def _holds(self, condition: Callable[[Round], bool]) -> None:
        while (last_round := self._reconciler.round) is None or not condition(last_round):
            if last_round is not None and last_round.desired.paused:
                raise TimeoutError  # nothing comes of it while nobody acts
            await self._reconciler.next_round()

    async def _within(self, timeout_s: float, work: Coroutine[None, None, None]) -> bool:
        """Whether the work was done in time. What is done at once is in time, whatever the time."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await work
        except TimeoutError:
            return False
        return True


def _status(current_round: Round, name: str) -> ModelStatus:
    return next(status for status in current_round.statuses if status.name == name)


def _load_is_done(current_round: Round, name: str) -> bool:
    want = current_round.desired.models.get(name)
    if want is None or want.replicas == 0:
        reason = "it is no longer declared" if want is None else want.statement.reason
        raise RoundhouseError("state_conflict", f"The load of {name!r} was given up: {reason}.")
    status = _status(current_round, name)
    if status.state is ModelState.FAILED:
        raise RoundhouseError("model_failed", f"The model {name!r} could not be loaded: {status.last_error}")
    return status.state is ModelState.LOADED


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
