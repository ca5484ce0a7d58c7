"""Observed memory of replicas, kept over restarts: by model, parameters, replica count and GPU type.

It is stored in `<state>/observed-memory.json`. It only improves estimates, so a file that is damaged, or that a newer
Roundhouse wrote, is replaced by an empty one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_write import write_atomic
from controller.engines import spec_hash
from controller.gpus import Gpu
from controller.sizing.claims import HeldMemory
from controller.state import DesiredModel, Requirement
from controller.storage.state_dir import OBSERVED_MEMORY_NAME

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

log = logging.getLogger(__name__)


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
        others. Of the last 3 loads (`LOADS_KEPT`), which are kept, the largest value counts.
        """
        replicas = model.replicas or model.declared_definition.replicas
        digest = _digest(model)
        kinds = [each for each in self._kinds if _is_same_kind(each, model.name, digest, gpu_type)]
        kind = next((each for each in kinds if each.replicas == replicas), kinds[-1] if kinds else None)
        return _largest_sample(kind) if kind is not None else None

    def largest_observed(self, model: DesiredModel, gpus: tuple[Gpu, ...] | None) -> ObservedSample | None:
        """Return the observation with the most GPU memory for one replica, over the types of GPUs among `gpus` that the
        model may use. One of a replica on GPUs of several types counts if the model may use all of these.

        For a model without GPUs, return its observation without GPUs. None if there is none with known GPU memory, or
        if `gpus` is None (unknown).
        """
        if model.gpu_count == 0:
            return self.observed_requirement(model, None)
        allowed_gpus = [
            gpu for gpu in gpus or () if not model.gpu_choice or {gpu.uuid, gpu.label} & set(model.gpu_choice)
        ]
        names = {gpu.name for gpu in allowed_gpus}
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
        """Return the observed memory of one replica of each model, by name: the observation with the most GPU memory
        over the types of GPUs that it may use (`largest_observed`). Models never observed there and remote models are
        absent. `gpus` None: unknown; models with GPUs are absent then."""
        samples = {model.name: self.largest_observed(model, gpus) for model in models if model.runs}
        return {
            name: Requirement(each.per_gpu_mib, each.host_mib, observed_per_gpu_mib=each.per_gpu_mib)
            for name, each in samples.items()
            if each is not None
        }

    def held_memory(self, replica: str) -> HeldMemory | None:
        """Return the most memory that the replica of this name was observed to hold.

        None if it was never observed, or if its record was dropped in favour of later loads. A value in the result is
        None if it could not be measured.
        """
        loads = [load for kind in self._kinds for load in kind.loads if load.replica == replica]
        held = HeldMemory()
        for load in loads:
            held = held.largest_of(HeldMemory(load.per_gpu_mib, load.host_mib))
        return held if loads else None

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
        (`LOADS_KEPT`) and of more than 16 kinds of a model (`KINDS_KEPT`) are dropped. Nothing is written to disk.
        """
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
        if previous_load is not None:
            per_gpu_mib, host_mib = (
                _larger_mib(previous_load.per_gpu_mib, per_gpu_mib),
                _larger_mib(previous_load.host_mib, host_mib),
            )
        load = _Load(replica=replica, per_gpu_mib=per_gpu_mib, host_mib=host_mib, at=at)
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
    per_gpu_mib = host_mib = None
    for load in kind.loads:
        per_gpu_mib, host_mib = _larger_mib(per_gpu_mib, load.per_gpu_mib), _larger_mib(host_mib, load.host_mib)
    return ObservedSample(per_gpu_mib, host_mib, kind.replicas, kind.loads[-1].at)


def _larger_mib(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
