"""What memory a replica takes, predicted before it is loaded: by its model's files, and its backend's formulas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from controller.artifacts.facts import Artifact, ArtifactError, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import Stamp, files_below, read_artifact, stamp_of
from controller.engines import ENGINES
from controller.engines.memory import MIB, Prediction, Unpredicted
from controller.schema.admin import EstimateSource
from controller.state import DesiredModel, Gpu, Requirement

FRESH_S: Final = 30.0
"""How long a file is believed to be as it was last seen."""
MOST_TOLD: Final = 10_000
"""Estimates that are remembered."""
KEPT_S: Final = 3600.0
"""How long a file is remembered that no model names any more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one replica is thought to take, in MiB."""

    per_gpu_mib: int
    """On each of its GPUs; 0: it has none."""
    host_mib: int
    """Of main memory."""
    source: EstimateSource
    gpus: int = 0
    gpu_share: float | None = None
    """Set: it takes this share of each of its GPUs, and `per_gpu_mib` at least."""
    reason: str | None = None
    """Why it is not `predicted`."""
    host_grows: bool = False
    """See `Prediction`."""

    def mib_on_gpu(self, gpu_mib: int) -> int:
        """What it takes of a GPU of this size."""
        return self.per_gpu_mib if self.gpu_share is None else max(self.per_gpu_mib, ceil(self.gpu_share * gpu_mib))

    def replica_mib(self, gpu_mib: int | None) -> int | None:
        """On all its GPUs, each of this size, or in main memory where it has none; None: `gpu_mib` is not known, and
        it takes a share of that."""
        if not self.gpus:
            return self.host_mib
        if self.gpu_share is not None and gpu_mib is None:
            return None
        return self.mib_on_gpu(gpu_mib or 0) * self.gpus


def estimate_replicas(
    file_estimate: Estimate | None,
    replicas: int,
    *,
    declared_mib: int | None = None,
    observed_mib: int | None = None,
    gpu_mib: int | None = None,
) -> tuple[int | None, int, EstimateSource]:
    """Of so many replicas on GPUs of this size: MiB of all, how many they are, and where that is known from.

    What is declared of one beats what was observed, and that beats what is predicted (DESIGN.md §3).
    """
    if declared_mib is not None:
        return declared_mib * replicas, replicas, "declared"
    if observed_mib is not None:
        return observed_mib * replicas, replicas, "observed_load_delta"
    mib = file_estimate.replica_mib(gpu_mib) if file_estimate is not None else None
    if file_estimate is None or mib is None:
        return None, replicas, "unavailable"
    return mib * replicas, replicas, file_estimate.source


def largest_mib(model: DesiredModel, gpus: Iterable[Gpu] | None) -> int | None:
    """Size of the largest GPU that the model may use; None: none is known."""
    allowed_gpus = [gpu for gpu in gpus or () if not model.gpu_choice or {gpu.uuid, gpu.label} & set(model.gpu_choice)]
    return max((gpu.total_mib for gpu in allowed_gpus), default=None)


@dataclass(frozen=True, slots=True)
class _ReadArtifact:
    artifact: Artifact
    stamp: Stamp | None
    """None: its files cannot even be looked at."""
    seen_at: float


class Estimator:
    """What is known of the files in the models folders.

    Reads in a thread, each path once for all who ask meanwhile, and a file's head again only when its size or time of
    change is another.
    """

    def __init__(self, roots: ModelRoots, clock: Callable[[], float]) -> None:
        self._roots = roots
        self._clock = clock
        self._read_artifacts: dict[str, _ReadArtifact] = {}
        self._read_tasks: dict[str, asyncio.Task[bool]] = {}
        self._cached_estimates: dict[str, _CachedEstimate] = {}

    def known_estimates(self, models: Iterable[DesiredModel]) -> Mapping[str, Estimate]:
        """Model to what a replica takes, by what was read so far. Never waits."""
        estimates = {model.name: self._estimate(model) for model in models}
        return {name: each for name, each in estimates.items() if each is not None}

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        """Model to what is to be set aside for a replica, of what was read so far. Never waits.

        Only what is predicted: a file's size alone promises too much room.
        """
        return {
            name: Requirement(
                estimate.per_gpu_mib if estimate.gpus else None,
                estimate.host_mib,
                estimate.gpu_share,
                estimate.host_grows,
            )
            for name, estimate in self.known_estimates(models).items()
            if estimate.source == "predicted"
        }

    def longest_tokens(self, models: Iterable[DesiredModel]) -> Mapping[str, int]:
        """Model to the bytes that a token of its vocabulary stands for at most, by what was read so far."""
        longest_tokens = {
            model.name: ENGINES[model.backend].longest_token(model.definition, self._known_artifacts(model))
            for model in models
        }
        return {name: each for name, each in longest_tokens.items() if each is not None}

    def has_seen(self, model: DesiredModel) -> bool:
        """Whether its files were looked at, ever."""
        return all(path in self._read_artifacts for path in ENGINES[model.backend].list_artifacts(model.definition))

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        """Look at these models' files that were not looked at lately. Whether one is not as it was before."""
        now = self._clock()
        paths = {path for model in models for path in ENGINES[model.backend].list_artifacts(model.definition)}
        stale_paths = [path for path in paths if not self._is_fresh(path, now)]
        new_paths = [path for path in stale_paths if path not in self._read_tasks]
        if new_paths:
            task = asyncio.create_task(self._read_all(new_paths), name="heads of model files")
            self._read_tasks.update(dict.fromkeys(new_paths, task))
        # Shielded: who no longer waits must not take the answer from the others.
        changes = await asyncio.gather(
            *(asyncio.shield(task) for task in {self._read_tasks[path] for path in stale_paths})
        )
        return any(changes)

    async def estimate_models(self, models: Iterable[DesiredModel]) -> Mapping[str, Estimate]:
        """As `known`, after a refresh."""
        model_list = list(models)
        await self.refresh_artifacts(model_list)
        return self.known_estimates(model_list)

    def _is_fresh(self, path: str, now: float) -> bool:
        entry = self._read_artifacts.get(path)
        # Before `seen_at`: the clock was set back.
        return entry is not None and entry.seen_at <= now < entry.seen_at + FRESH_S

    async def _read_all(self, paths: list[str]) -> bool:
        try:
            previous_entries = {path: self._read_artifacts.get(path) for path in paths}
            now = self._clock()
            entries = await asyncio.to_thread(
                lambda: {path: _look_at_files(self._roots, path, previous_entries[path], now) for path in paths}
            )
            self._read_artifacts = {
                path: entry for path, entry in self._read_artifacts.items() if entry.seen_at > now - KEPT_S
            }
            self._read_artifacts.update(entries)
            return any(_artifact_of(previous_entries[path]) != entries[path].artifact for path in paths)
        finally:
            for path in paths:
                del self._read_tasks[path]

    def _known_artifacts(self, model: DesiredModel) -> Mapping[str, Artifact]:
        paths = ENGINES[model.backend].list_artifacts(model.definition)
        return {path: self._read_artifacts[path].artifact for path in paths if path in self._read_artifacts}

    def _estimate(self, model: DesiredModel) -> Estimate | None:
        artifacts = self._known_artifacts(model)
        cached_estimate = self._cached_estimates.get(model.name)
        if cached_estimate is None or not cached_estimate.is_current(model, artifacts):
            if len(self._cached_estimates) >= MOST_TOLD:
                self._cached_estimates.clear()
            cached_estimate = _CachedEstimate(model, artifacts, _estimate(model, artifacts))
            self._cached_estimates[model.name] = cached_estimate
        return cached_estimate.estimate


@dataclass(frozen=True, slots=True)
class _CachedEstimate:
    """An estimate with all that it follows from: the sums take 0.4 ms, and are asked for in every round."""

    model: DesiredModel
    artifacts: Mapping[str, Artifact]
    estimate: Estimate | None

    def is_current(self, model: DesiredModel, artifacts: Mapping[str, Artifact]) -> bool:
        """Whether nothing of that changed."""
        return (
            self.model.definition == model.definition
            and self.model.gpu_count == model.gpu_count
            and self.artifacts.keys() == artifacts.keys()
            and all(self.artifacts[path] is artifact for path, artifact in artifacts.items())
        )


def _estimate(model: DesiredModel, artifacts: Mapping[str, Artifact]) -> Estimate | None:
    engine, gpus = ENGINES[model.backend], model.gpu_count
    paths = engine.list_artifacts(model.definition)
    try:
        forecast = engine.predict_memory(model.definition, artifacts)
        if isinstance(forecast, Prediction):
            on_gpu, on_host = (ceil(each.total / MIB) for each in (forecast.gpu, forecast.host))
            gpu_share = forecast.gpu_share if gpus else None
            return Estimate(
                on_gpu if gpus else 0, on_host, "predicted", gpus, gpu_share, host_grows=forecast.host_grows
            )
    except Exception as error:
        # Files are anybody's: absurd numbers in one must not stop the rounds.
        log.exception("what %s takes cannot be predicted", model.name)
        forecast = Unpredicted(f"the sums over what its files say fail: {type(error).__name__}: {error}")
    sizes = [artifact.size for artifact in artifacts.values() if artifact.size is not None]
    if not paths or len(sizes) < len(paths):
        return None
    mib = ceil(sum(sizes) / MIB)
    per_gpu, on_host = (ceil(mib / gpus), 0) if gpus else (0, mib)
    reason = forecast.reason if forecast is not None else None
    return Estimate(per_gpu, on_host, "model_artifact_size", gpus, reason=reason)


def _artifact_of(entry: _ReadArtifact | None) -> Artifact | None:
    return entry.artifact if entry is not None else None


def _look_at_files(roots: ModelRoots, path: str, previous_entry: _ReadArtifact | None, now: float) -> _ReadArtifact:
    try:
        files = files_below(roots, path)
        stamp = stamp_of(files)
    except ArtifactError as error:
        return _ReadArtifact(UnreadArtifact(f"{path} {error}"), None, now)
    if previous_entry is not None and previous_entry.stamp == stamp:
        return _ReadArtifact(previous_entry.artifact, stamp, now)
    try:
        artifact = read_artifact(path, files)
    except Exception as error:
        # One file must not hide what the others say.
        log.exception("%s cannot be read", path)
        artifact = UnreadArtifact(
            f"{path} cannot be read: {type(error).__name__}: {error}", sum(size for _, size, _ in stamp)
        )
    return _ReadArtifact(artifact, stamp, now)
