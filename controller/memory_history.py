"""Observed memory of replicas, measured and kept over restarts.

It is measured once a replica is ready, every ten minutes from then on, and when the driver shows growth, and kept by
model, parameters, replica count and GPU type.

It is stored in `<state>/observed-memory.json`. It only improves estimates, so a file that is damaged, or that a newer
Roundhouse wrote, is replaced by an empty one.

A replica's memory of a GPU is that of its processes, where the driver reports it. Otherwise it is the growth of the
GPU's used memory from before the start until the replica was ready. No other replica interferes with that, because only
one replica at a time loads or stops on a GPU.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_write import write_atomic
from controller.engines import spec_hash
from controller.hosts import Gpu, is_memory_key
from controller.model_status import Round
from controller.planning.gpu_use import SETTLED_S, measure_gpu_use
from controller.runtimes.base import Runtime, RuntimeUnavailableError
from controller.state import (
    DesiredModel,
    Health,
    HeldMemory,
    ObservedReplica,
    ObservedState,
    OpKind,
    Phase,
    Requirement,
)
from controller.state_dir import OBSERVED_MEMORY_NAME

log = logging.getLogger(__name__)


FILE_NAME: Final = OBSERVED_MEMORY_NAME
SCHEMA_VERSION: Final = 1
LOADS_KEPT: Final = 3
"""Newest loads that are kept per kind. The largest of them counts: another one may have held less because it served
less."""
KINDS_KEPT: Final = 16
"""Kinds (parameters, replica count, GPU type) that are kept per model."""
CPU: Final = "cpu"
"""GPU type of replicas without GPUs."""
_TYPE_SEPARATOR: Final = ", "
"""Between the names of GPUs of several types."""


@dataclass(frozen=True, slots=True)
class ObservedSample:
    """The most memory that one replica of a model was observed to hold in the loads that the history keeps. In MiB;
    None: not measured, or it has no GPU."""

    per_gpu_mib: int | None
    """MiB on one GPU, the one on which it held the most; None: it has no GPU, or it could not be measured."""
    host_mib: int | None
    """MiB of main memory, including mapped model files; None: it could not be measured."""
    replicas: int
    """Number of replicas that the model had at that time."""
    at: float
    """Unix time of the last measurement."""

    def of_replica(self, gpus: int) -> int | None:
        """Return the MiB of `gpus` GPUs together, taking each to hold as much as the fullest one, or the MiB of main
        memory if `gpus` is 0. None: not known."""
        if gpus == 0:
            return self.host_mib
        return None if self.per_gpu_mib is None else self.per_gpu_mib * gpus


class _Load(BaseModel):
    """The most memory that one replica was observed to hold."""

    model_config = ConfigDict(extra="ignore")

    replica: str
    per_gpu_mib: int | None = Field(default=None, ge=0)
    host_mib: int | None = Field(default=None, ge=0)
    at: float

    @property
    def held(self) -> HeldMemory:
        return HeldMemory(self.per_gpu_mib, self.host_mib)


class _Kind(BaseModel):
    """The last loads of a model with the same parameters, replica count and GPU type, oldest first."""

    model_config = ConfigDict(extra="ignore")

    model: str
    digest: str
    gpu: str
    replicas: int = Field(ge=1)
    loads: list[_Load] = Field(min_length=1)


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA_VERSION
    kinds: list[_Kind] = Field(default_factory=list)


class MemoryHistory:
    """What is known of the memory that replicas were observed to hold, for all models. It is kept in memory; to store
    it, pass `file_content()` to `save_history`. A controller has one, which its `MemorySampler` fills."""

    def __init__(self, kinds: Iterable[_Kind] = ()) -> None:
        self._kinds = list(kinds)
        """Ordered by last measurement, newest last."""
        self.revision = 0
        """Number of changes since the history was read, so that a caller knows when to store it again."""

    @classmethod
    def load_history(cls, folder: Path) -> MemoryHistory:
        """Read the history from the state folder. A file that is missing, damaged, unreadable or of a newer version
        yields an empty history and raises nothing; a warning is logged unless it is missing. Blocks."""
        path = folder / FILE_NAME
        try:
            content = json.loads(path.read_bytes())
            if content["schema_version"] > SCHEMA_VERSION:
                log.warning("%s is of a newer Roundhouse: what models take is observed anew", path)
                return cls()
            return cls(_File.model_validate(content).kinds)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = "not what is written here" if isinstance(error, ValidationError) else error
            log.warning("%s cannot be used (%s): what models take is observed anew", path, reason)
            return cls()

    def file_content(self) -> bytes:
        """Return the content of the file to store, as JSON."""
        return _File(kinds=self._kinds).model_dump_json().encode()

    def observed_requirement(self, model: DesiredModel, gpu_type: str | None) -> ObservedSample | None:
        """Return the memory that one replica was observed to hold on GPUs of this type; None if it never was.
        `gpu_type` is that of `gpu_type_of`; None means without GPUs. Only loads with the model's present parameters
        count; those with the present number of replicas (the declared one while none is wanted) have precedence over
        others. Of the last 3 loads (`LOADS_KEPT`), which are kept, the largest value counts."""
        replicas = model.replicas or model.declared_definition.replicas
        digest = _digest(model)
        kinds = [each for each in self._kinds if _is_same_kind(each, model.name, digest, gpu_type)]
        kind = next((each for each in kinds if each.replicas == replicas), kinds[-1] if kinds else None)
        return _largest_sample(kind) if kind is not None else None

    def largest_observed(self, model: DesiredModel, gpus: tuple[Gpu, ...] | None) -> ObservedSample | None:
        """Return the observation with the most GPU memory for one replica, over the types of GPUs among `gpus` that the
        model may use. One of a replica on GPUs of several types counts if the model may use all of these. For a model
        without GPUs, return its observation without GPUs. None if there is none with known GPU memory, or if `gpus` is
        None (unknown)."""
        if model.gpu_count == 0:
            return self.observed_requirement(model, None)
        names = {gpu.name for gpu in gpus or () if model.may_use(gpu)}
        seen_types = {each.gpu for each in self._kinds if each.model == model.name}
        gpu_types = [each for each in sorted(seen_types) if names.issuperset(each.split(_TYPE_SEPARATOR))]
        samples = [self.observed_requirement(model, each) for each in gpu_types]
        return max(
            (each for each in samples if each is not None and each.per_gpu_mib is not None),
            key=lambda each: each.per_gpu_mib or 0,
            default=None,
        )

    def observed_requirements(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Return the observed memory of one replica of each model, by name: see `largest_observed`. Models never
        observed there and remote models are absent."""
        samples = {model.name: self.largest_observed(model, gpus) for model in models if model.runs}
        return {
            name: Requirement(each.per_gpu_mib, each.host_mib, observed_per_gpu_mib=each.per_gpu_mib)
            for name, each in samples.items()
            if each is not None
        }

    def held_memory(self, replica: str) -> HeldMemory | None:
        """Return the most memory that the replica of this name was observed to hold. None if it was never observed, or
        if its record was dropped in favour of later loads."""
        held = [load.held for kind in self._kinds for load in kind.loads if load.replica == replica]
        return reduce(HeldMemory.largest_of, held) if held else None

    def last_sampled_at(self, replica: str) -> float | None:
        """Return the Unix time at which the memory of the replica of this name was last recorded; None if it never was,
        or if its record was dropped in favour of later loads."""
        return max((load.at for kind in self._kinds for load in kind.loads if load.replica == replica), default=None)

    def record_sample(
        self,
        model: DesiredModel,
        replica: str,
        gpu_type: str | None,
        *,
        per_gpu_mib: int | None,
        host_mib: int | None,
        at: float,
    ) -> None:
        """Record the memory that a replica of `model` holds now. Of all measurements of a replica, the largest counts.
        `replica` is its name, `gpu_type` that of `gpu_type_of` (None: without GPUs), `at` a Unix time in seconds. None
        for `per_gpu_mib` or `host_mib` means that it could not be measured. The oldest of more than 3 loads of a kind
        (`LOADS_KEPT`) and of more than 16 kinds of a model (`KINDS_KEPT`) are dropped. Nothing is written to disk."""
        digest, replicas = _digest(model), max(1, model.replicas)
        previous_kind = next(
            (
                each
                for each in self._kinds
                if _is_same_kind(each, model.name, digest, gpu_type) and each.replicas == replicas
            ),
            None,
        )
        loads = previous_kind.loads if previous_kind is not None else []
        previous_load = next((load for load in loads if load.replica == replica), None)
        held = HeldMemory(per_gpu_mib, host_mib)
        if previous_load is not None:
            held = held.largest_of(previous_load.held)
        load = _Load(replica=replica, per_gpu_mib=held.per_gpu_mib, host_mib=held.host_mib, at=at)
        kept_loads = [*(each for each in loads if each is not previous_load), load][-LOADS_KEPT:]
        kind = _Kind(model=model.name, digest=digest, gpu=gpu_type or CPU, replicas=replicas, loads=kept_loads)
        other_kinds = [each for each in self._kinds if each is not previous_kind]
        model_kinds = [each for each in other_kinds if each.model == model.name]
        dropped_kinds = model_kinds[: max(0, len(model_kinds) - KINDS_KEPT + 1)]
        self._kinds = [*(each for each in other_kinds if each not in dropped_kinds), kind]
        self.revision += 1

    def keep_only(self, models: Collection[str]) -> None:
        """Forget all models whose names are not in `models`. `revision` changes only if something is forgotten."""
        kept_kinds = [each for each in self._kinds if each.model in models]
        if len(kept_kinds) != len(self._kinds):
            self._kinds = kept_kinds
            self.revision += 1


def gpu_type_of(names: Iterable[str]) -> str | None:
    """Return the GPU type of a replica on GPUs of these names, which may repeat: a name, or several in alphabetical
    order; None: there are none."""
    return _TYPE_SEPARATOR.join(sorted(set(names))) or None


def save_history(folder: Path, content: bytes) -> None:
    """Replace the stored history in the state folder by `content`, which `MemoryHistory.file_content` returned. Blocks.
    Raises OSError if it cannot be written; the old file is then unchanged. A power cut may lose the file."""
    # Without fsync: what a power cut loses will be measured again.
    write_atomic(folder / FILE_NAME, content, durable=False)


def _digest(model: DesiredModel) -> str:
    # The spec hash, without the image that settings name, so that what is known survives an upgrade.
    return spec_hash(model.definition, None, model.name)


def _is_same_kind(kind: _Kind, model: str, digest: str, gpu_type: str | None) -> bool:
    return (kind.model, kind.digest, kind.gpu) == (model, digest, gpu_type or CPU)


def _largest_sample(kind: _Kind) -> ObservedSample:
    held = reduce(HeldMemory.largest_of, (load.held for load in kind.loads))
    return ObservedSample(held.per_gpu_mib, held.host_mib, kind.replicas, kind.loads[-1].at)


AGAIN_S: Final = 600.0
"""Seconds between two measurements of a replica."""
GROWN_MIB: Final = 64
"""A replica that holds this many MiB more of a GPU than last recorded is measured again at once."""


@dataclass(slots=True)
class _Growth:
    """Growth of the used memory of one replica's GPUs since its start. All figures are MiB by GPU uuid."""

    baseline_mib: dict[str, int]
    """Memory in use before the start."""
    largest_mib: dict[str, int] = field(default_factory=dict)
    """The largest growth over the baseline so far."""
    is_final: bool = False
    """Whether `largest_mib` no longer changes, because the GPUs were read after the replica was ready, or because
    another replica began to load or stop there, so that further growth may not be this one's."""
    is_disturbed: bool = False
    """Whether another replica began to load or stop on these GPUs. From then on, changes may not be this one's."""
    least_used_mib: dict[str, int] = field(default_factory=dict)
    """The least memory in use since the start. It may be below the baseline, since memory of an engine that ended
    earlier may be freed late."""
    settled_mib: dict[str, int] = field(default_factory=dict)
    """Growth once the replica had been ready for `SETTLED_S`; empty if it could not be measured undisturbed."""


class MemorySampler:
    """Measures the memory of ready replicas in the background, records it in a `MemoryHistory`, and stores that. A
    replica is measured once ready, then every `AGAIN_S` seconds (10 min), and when it holds `GROWN_MIB` (64) MiB more
    of a GPU than was recorded. Call `follow_round` after each complete round of the reconciler, in its event loop, and
    `close` at the end."""

    def __init__(self, history: MemoryHistory, folder: Path, runtime: Runtime, clock: Callable[[], float]) -> None:
        """`folder` is the state folder in which `history` is stored. `clock` returns the Unix time in seconds."""
        self._history = history
        self._folder = folder
        self._runtime = runtime
        self._clock = clock
        self._growth: dict[str, _Growth] = {}
        self._sampled_at: dict[str, float] = {}
        self._held: dict[str, HeldMemory] = {}
        """Replica name to the most memory observed since this controller started."""
        self._gpu_use: dict[str, dict[str, int]] = {}
        self._round_at = 0.0
        self._saved_revision = history.revision
        self._is_failing = False
        self._save_lock = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow_round(self, last_round: Round) -> None:
        """Note the GPU memory in a complete round, start to measure the replicas that are due, and store what was
        measured. Does not wait: failures of these tasks are logged, not raised. The history of models that are no
        longer declared is forgotten."""
        self._note_growth(last_round)
        self._gpu_use = self._measure_gpu_use(last_round.observed)
        names = {replica.name for replica in last_round.observed.replicas}
        self._sampled_at = {name: at for name, at in self._sampled_at.items() if name in names}
        self._held = {name: held for name, held in self._held.items() if name in names}
        gpus = last_round.observed.gpus or ()
        read_uuids = {gpu.uuid for gpu in gpus}
        for replica in last_round.observed.replicas:
            model = last_round.desired.models.get(replica.id.model)
            # What is held on a GPU that cannot be read is not known, which is not nothing.
            if model is None or not _is_serving(replica, model) or not _claimed_gpus(replica) <= read_uuids:
                continue
            if self._is_due(replica, last_round.observed.at) or self._has_grown(replica, gpus):
                self._spawn(replica.name, self._sample_replica(replica, model, gpus))
        self._round_at = last_round.observed.at
        self._history.keep_only(last_round.desired.models)
        if self._history.revision != self._saved_revision:
            self._spawn("save", self._save())

    def get_gpu_use(self) -> Mapping[str, Mapping[str, int]]:
        """Return the MiB that each replica held of its GPUs at the last round: replica name to GPU uuid to MiB.
        Replicas whose use is not known are absent."""
        return self._gpu_use

    def get_held_memory(self, name: str) -> HeldMemory | None:
        """Return the most memory that the replica of this name was observed to hold, also by an earlier controller;
        None: it was never observed, or its record was dropped in favour of later loads."""
        return self._held.get(name) or self._history.held_memory(name)

    @property
    def is_saved(self) -> bool:
        """Whether the last attempt to store the results succeeded; false after a write failed, until one succeeds."""
        return not self._is_failing

    async def close(self) -> None:
        """Wait for measurements under way, then store the results. A failed write is logged, not raised."""
        await asyncio.gather(*self._tasks.values())
        await self._save()

    def _note_growth(self, last_round: Round) -> None:
        used_mib = {gpu.uuid: gpu.used_mib for gpu in last_round.observed.gpus or ()}
        pending = last_round.observed.pending
        # Read after it was ready.
        ready_names = {
            replica.name
            for replica in last_round.observed.replicas
            if replica.ready_since is not None and replica.ready_since <= self._round_at
        }
        for name, growth in self._growth.items():
            if not growth.is_final:
                growth_mib = {
                    uuid: used_mib[uuid] - baseline_mib
                    for uuid, baseline_mib in growth.baseline_mib.items()
                    if uuid in used_mib
                }
                growth.largest_mib = {
                    uuid: max(mib, growth.largest_mib.get(uuid, 0)) for uuid, mib in growth_mib.items()
                }
                growth.is_final = name in ready_names and growth_mib.keys() == growth.baseline_mib.keys()
        for name, operation in pending.items():
            # Issued after the GPUs were read: what was in use then, was before the start.
            if operation.kind is OpKind.START and operation.began_at >= last_round.observed.at:
                baseline_mib = {uuid: used_mib[uuid] for uuid in operation.claims if uuid in used_mib}
                self._growth.setdefault(name, _Growth(baseline_mib))
        known_names = {replica.name for replica in last_round.observed.replicas} | pending.keys()
        self._growth = {name: growth for name, growth in self._growth.items() if name in known_names}
        for name, growth in self._growth.items():
            growth.is_disturbed |= any(
                other_name != name and operation.claims.keys() & growth.baseline_mib.keys()
                for other_name, operation in pending.items()
            )
            growth.is_final |= growth.is_disturbed
        self._note_settled_growth(last_round.observed.replicas, used_mib, last_round.observed.at)

    def _note_settled_growth(
        self, replicas: Iterable[ObservedReplica], used_mib: Mapping[str, int], now: float
    ) -> None:
        for replica in replicas:
            growth = self._growth.get(replica.name)
            if (
                growth is None
                or growth.is_disturbed
                or growth.settled_mib
                or not growth.baseline_mib.keys() <= used_mib.keys()
            ):
                continue
            growth.least_used_mib = {
                uuid: min(used_mib[uuid], growth.least_used_mib.get(uuid, baseline_mib))
                for uuid, baseline_mib in growth.baseline_mib.items()
            }
            if replica.ready_since is not None and now - replica.ready_since >= SETTLED_S:
                growth.settled_mib = {
                    uuid: max(used_mib[uuid] - least_mib, growth.largest_mib.get(uuid, 0))
                    for uuid, least_mib in growth.least_used_mib.items()
                }

    def _measure_gpu_use(self, observed: ObservedState) -> dict[str, dict[str, int]]:
        growth_by_name = {name: growth.settled_mib for name, growth in self._growth.items()}
        measured_mib = {
            replica.name: measure_gpu_use(
                replica, observed.gpus or (), growth_by_name.get(replica.name, {}), observed.at
            )
            for replica in observed.replicas
        }
        return {name: held_mib for name, held_mib in measured_mib.items() if held_mib}

    def _is_due(self, replica: ObservedReplica, now: float) -> bool:
        if replica.name in self._tasks:
            return False
        sampled_at = self._sampled_at.get(replica.name) or self._history.last_sampled_at(replica.name)
        if sampled_at is not None:
            return not sampled_at <= now < sampled_at + AGAIN_S
        growth = self._growth.get(replica.name)
        if growth is None or not growth.baseline_mib or growth.is_final:
            return True
        # The GPUs may have been read just before it was ready; before the next round they were read afterwards.
        return replica.ready_since is not None and replica.ready_since <= self._round_at

    def _has_grown(self, replica: ObservedReplica, gpus: tuple[Gpu, ...]) -> bool:
        """Return whether the replica holds at least `GROWN_MIB` more of a GPU than was last recorded."""
        if replica.name in self._tasks or replica.name not in self._sampled_at:
            return False
        held = self.get_held_memory(replica.name)
        known_mib = held.per_gpu_mib if held is not None else None
        per_gpu_mib = self._per_gpu_mib(replica, gpus)
        return per_gpu_mib is not None and per_gpu_mib >= (known_mib or 0) + GROWN_MIB

    def _per_gpu_mib(self, replica: ObservedReplica, gpus: tuple[Gpu, ...]) -> int | None:
        """Return the MiB of the GPU of which the replica holds the most; None if it has no GPU, or if the use of one of
        them is not known."""
        held_mib = [self._held_mib(gpu, replica.name) for gpu in gpus if gpu.uuid in replica.claims]
        return max((mib for mib in held_mib if mib is not None), default=None) if None not in held_mib else None

    async def _sample_replica(self, replica: ObservedReplica, model: DesiredModel, gpus: tuple[Gpu, ...]) -> None:
        claimed_gpus = [gpu for gpu in gpus if gpu.uuid in replica.claims]
        per_gpu_mib = self._per_gpu_mib(replica, gpus)
        try:
            host_mib = await self._runtime.read_host_mib(replica.name)
        except RuntimeUnavailableError as error:
            log.debug("what %s holds is not known: %s", replica.name, error)
            return
        now = self._clock()
        self._sampled_at[replica.name] = now
        if per_gpu_mib is None and host_mib is None:
            return
        claimed_mib = max((mib for uuid, mib in replica.claims.items() if not is_memory_key(uuid)), default=None)
        if per_gpu_mib is not None and claimed_mib is not None and per_gpu_mib > claimed_mib:
            log.info("%s holds %s MiB of a GPU, of which it claims %s: raised", replica.name, per_gpu_mib, claimed_mib)
        held = HeldMemory(per_gpu_mib, host_mib)
        self._held[replica.name] = held.largest_of(self.get_held_memory(replica.name) or held)
        gpu_type = gpu_type_of(gpu.name for gpu in claimed_gpus)
        if replica.sleep is not None and replica.sleep.woken_at is not None:
            host_mib = None  # with the weights of its sleep, which a load does not take
        self._history.record_sample(model, replica.name, gpu_type, per_gpu_mib=per_gpu_mib, host_mib=host_mib, at=now)
        log.debug("%s holds %s MiB on each GPU and %s MiB of main memory", replica.name, per_gpu_mib, host_mib)
        await self._save()

    def _held_mib(self, gpu: Gpu, name: str) -> int | None:
        if (held_mib := gpu.sum_held_mib(name)) is not None:
            return held_mib
        if gpu.is_unified:
            return None  # it may be any process of the host whose use of main memory grew
        growth = self._growth.get(name)
        return (growth.largest_mib.get(gpu.uuid) or None) if growth is not None else None

    async def _save(self) -> None:
        async with self._save_lock:
            if self._history.revision == self._saved_revision:
                return
            revision, content = self._history.revision, self._history.file_content()
            try:
                await asyncio.to_thread(save_history, self._folder, content)
            except OSError as error:
                # Every round tries again.
                if not self._is_failing:
                    log.warning("what models take is not stored, so a restart would not know it: %s", error)
                self._is_failing = True
            else:
                self._saved_revision, self._is_failing = revision, False

    def _spawn(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        if key in self._tasks:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(self._run_guarded(key, work))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _run_guarded(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            # What only tells must not take away what acts; nor is it tried in every round.
            log.exception("the look at the memory of %s failed", key)
            self._sampled_at[key] = self._clock()


def _claimed_gpus(replica: ObservedReplica) -> set[str]:
    return {key for key in replica.claims if not is_memory_key(key)}


def _is_serving(replica: ObservedReplica, model: DesiredModel) -> bool:
    """Return whether the replica is ready and runs the model's present definition. The parameters of an older one are
    no longer known, so its memory could not be attributed to them."""
    is_ready = replica.phase is Phase.RUNNING and replica.health is Health.READY
    return model.runs and model.replicas > 0 and is_ready and replica.id.spec_hash == model.spec_hash
