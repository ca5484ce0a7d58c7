"""What replicas were seen to take, remembered over restarts: by model, parameters, replica count and kind of GPU.

`<state>/observed-memory.json` holds it. It is no more than a better guess, so a file that is damaged, or of a newer
Roundhouse, is begun anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.engines import spec_hash
from controller.sizing.claims import HeldMemory
from controller.state import DesiredModel, Gpu, Requirement
from controller.storage.atomic_write import write_atomic
from controller.storage.state_dir import OBSERVED_MEMORY_NAME

FILE_NAME: Final = OBSERVED_MEMORY_NAME
SCHEMA_VERSION: Final = 1
LOADS_KEPT: Final = 3
"""Of each kind. What the largest of them took is believed: one took less perhaps because it served less."""
KINDS_KEPT: Final = 16
"""Of each model."""
CPU: Final = "cpu"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservedSample:
    """What one replica takes."""

    per_gpu_mib: int | None
    """On each of its GPUs at most; None: it has none, or nobody could tell."""
    host_mib: int | None
    """Of main memory, mapped model files included."""
    replicas: int
    """How many the model had then."""
    at: float
    """Unix time of the last look."""

    def of_replica(self, gpus: int) -> int | None:
        """MiB on so many GPUs together; of none: of main memory."""
        if gpus == 0:
            return self.host_mib
        return None if self.per_gpu_mib is None else self.per_gpu_mib * gpus


class _Load(BaseModel):
    """The most that one replica was seen to take."""

    model_config = ConfigDict(extra="ignore")

    replica: str
    per_gpu_mib: int | None = Field(default=None, ge=0)
    host_mib: int | None = Field(default=None, ge=0)
    at: float


class _Kind(BaseModel):
    """The last loads of a model with the same parameters, replica count and kind of GPU, the oldest first."""

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
    """What is known of all models. Looking up is pure; nothing is written before `saved` is asked for."""

    def __init__(self, kinds: Iterable[_Kind] = ()) -> None:
        self._kinds = list(kinds)
        """The one that was seen last comes last."""
        self.revision = 0
        """Counts changes."""

    @classmethod
    def load_history(cls, folder: Path) -> MemoryHistory:
        """What an earlier controller left in its state folder."""
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
        """The file, as it is to be."""
        return _File(kinds=self._kinds).model_dump_json().encode()

    def observed_requirement(self, model: DesiredModel, gpu_type: str | None) -> ObservedSample | None:
        """What one replica took on such a GPU (its name; None: without one). None: that was never seen.

        Seen with as many replicas as now, else with another number.
        """
        replicas = model.replicas or model.declared_definition.replicas
        digest = _digest(model)
        kinds = [each for each in self._kinds if _is_same_kind(each, model.name, digest, gpu_type)]
        kind = next((each for each in kinds if each.replicas == replicas), kinds[-1] if kinds else None)
        return _largest_sample(kind) if kind is not None else None

    def largest_observed(self, model: DesiredModel, gpus: tuple[Gpu, ...] | None) -> ObservedSample | None:
        """What one replica took on that of the GPUs that it may use on which it took the most."""
        if model.gpu_count == 0:
            return self.observed_requirement(model, None)
        allowed_gpus = [
            gpu for gpu in gpus or () if not model.gpu_choice or {gpu.uuid, gpu.label} & set(model.gpu_choice)
        ]
        samples = [self.observed_requirement(model, name) for name in sorted({gpu.name for gpu in allowed_gpus})]
        return max(
            (each for each in samples if each is not None and each.per_gpu_mib is not None),
            key=lambda each: each.per_gpu_mib or 0,
            default=None,
        )

    def observed_requirements(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Model to what a replica of it was seen to take, of those that were seen at all."""
        samples = {model.name: self.largest_observed(model, gpus) for model in models if model.runs}
        return {
            name: Requirement(each.per_gpu_mib, each.host_mib, observed_per_gpu_mib=each.per_gpu_mib)
            for name, each in samples.items()
            if each is not None
        }

    def held_memory(self, replica: str) -> HeldMemory | None:
        """The most that the replica was seen to hold; None: it was never seen, or later loads have taken its place."""
        loads = [load for kind in self._kinds for load in kind.loads if load.replica == replica]
        held = HeldMemory()
        for load in loads:
            held = held.largest_of(HeldMemory(load.per_gpu_mib, load.host_mib))
        return held if loads else None

    def last_sampled_at(self, replica: str) -> float | None:
        """Unix time at which the replica was last looked at; None: it was not."""
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
        """Remember what a replica of such a definition holds now; the most of its looks counts."""
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
        """Forget models that are declared no longer."""
        kept_kinds = [each for each in self._kinds if each.model in models]
        if len(kept_kinds) != len(self._kinds):
            self._kinds = kept_kinds
            self.revision += 1


def save_history(folder: Path, content: bytes) -> None:
    """Replace the file. Raises OSError."""
    # Not worth a wait for the disk: what is lost by a power cut is seen again.
    write_atomic(folder / FILE_NAME, content, durable=False)


def _digest(model: DesiredModel) -> str:
    # As for engines, without the image that settings name: an upgrade does not make what is known worthless.
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
