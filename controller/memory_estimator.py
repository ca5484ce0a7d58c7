"""The memory of a replica: as observed, else predicted.

It is predicted from the heads of its model files and its backend's formulas, and the plan sets it aside. A declared
figure has precedence over both; the plan itself sees to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final, Protocol

from contract.admin import EstimateSource
from contract.desired import Definition
from controller.artifacts.heads import Artifact, ArtifactError, UnreadArtifact
from controller.artifacts.model_roots import ModelRoots
from controller.artifacts.read import Stamp, files_below, read_artifact, stamp_of
from controller.desired.resolve import DeclaredModel, Defaults, resolve_desired
from controller.engines import REPLICA_ENGINES
from controller.engines.memory import MIB, Prediction, Unpredicted
from controller.hosts import Gpu
from controller.state import DesiredModel, Requirement
from controller.state_dir import StoredState

log = logging.getLogger(__name__)


FRESH_S: Final = 30.0
"""Seconds after which a file is checked for changes again."""
MOST_TOLD: Final = 10_000
"""Estimates in the cache at most."""
KEPT_S: Final = 3600.0
"""Seconds after which the facts of a file that no model uses any more are forgotten."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of one replica, in MiB, as an `Estimator` estimates it before a load. `per_gpu_mib` is for each of its
    `gpus` GPUs; with a `gpu_share`, the replica takes that share of each, and `per_gpu_mib` at least."""

    per_gpu_mib: int
    """Memory of each of the replica's GPUs; 0 if it has none."""
    host_mib: int
    source: EstimateSource
    """`predicted`, or `model_artifact_size` where only the size of the files is known."""
    gpus: int = 0
    gpu_share: float | None = None
    """Share of each GPU's memory, 0 to 1, that the replica takes, but no less than `per_gpu_mib`. None: no share."""
    reason: str | None = None
    """Why the backend could not predict the memory; None if it did, or if it has no formula."""
    host_grows: bool = False
    """Whether part of `host_mib` is filled only while the replica serves, so that one just loaded holds less."""
    asleep_host_mib: int | None = None
    """Main memory of a sleeping replica; None: it cannot sleep, or the size of its weights is not known."""

    def mib_on_gpu(self, gpu_mib: int) -> int:
        """Return the MiB that the replica takes of one GPU that has `gpu_mib` MiB; 0 for a replica without GPUs."""
        return self.per_gpu_mib if self.gpu_share is None else max(self.per_gpu_mib, ceil(self.gpu_share * gpu_mib))

    def as_requirement(self) -> Requirement:
        """Return the memory to set aside for the replica. Without GPUs, the GPU memory is None."""
        return Requirement(
            self.per_gpu_mib if self.gpus else None,
            self.host_mib,
            self.gpu_share,
            host_grows=self.host_grows,
            asleep_host_mib=self.asleep_host_mib,
        )

    def replica_mib(self, gpu_mib: int | None) -> int | None:
        """Return the MiB that the replica takes of all its GPUs together, each with `gpu_mib` of memory, or of main
        memory without GPUs. None if it takes a share of its GPUs and `gpu_mib` is None (unknown)."""
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
    """Return the MiB of `replicas` replicas together, their number, and the source of the estimate.

    `declared_mib` and `observed_mib` are for one replica, all its GPUs together. A declared value has precedence over
    an observed one, and that over `file_estimate`, which is for one replica; None: there is none. `gpu_mib` is the
    memory of one GPU; None: unknown. The MiB are None, and the source is `unavailable`, if there is no estimate, or if
    it is a share of GPUs whose memory is unknown.
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
    """Return the memory, in MiB, of the largest GPU among `gpus` that the model may use by its `gpu_choice`; None if
    there is no such GPU, or if `gpus` is None (unknown)."""
    return max((gpu.total_mib for gpu in gpus or () if model.may_use(gpu)), default=None)


@dataclass(frozen=True, slots=True)
class _ReadArtifact:
    artifact: Artifact
    stamp: Stamp | None
    """None: the files cannot be found or listed."""
    seen_at: float


class Estimator:
    """Reads model files, and estimates the memory of models from them. Files are read in a thread. Concurrent callers
    share one reading of a path, and a file's head is read again only if its size or modification time has changed.
    Files that are missing or damaged raise nothing: the models that need them have no prediction. A controller has one
    estimator, on its event loop."""

    def __init__(self, roots: ModelRoots, clock: Callable[[], float]) -> None:
        """`roots` are the models folders. `clock` returns a time in seconds."""
        self._roots = roots
        self._clock = clock
        self._read_artifacts: dict[str, _ReadArtifact] = {}
        self._read_tasks: dict[str, asyncio.Task[bool]] = {}
        self._cached_estimates: dict[str, _CachedEstimate] = {}

    def known_estimates(self, models: Iterable[DesiredModel]) -> Mapping[str, Estimate]:
        """Return the estimate for one replica of each model, by name, from the files read so far. Never waits, and
        reads nothing. A model is absent if its backend could not predict and the sizes of its files are not all
        known."""
        estimates = {model.name: self._estimate(model) for model in models}
        return {name: each for name, each in estimates.items() if each is not None}

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        """Return the memory to set aside for one replica of each model, by name, from the files read so far. Models
        whose backend could not predict are absent: the size of the files alone is too low an estimate. Never waits."""
        return {
            name: estimate.as_requirement()
            for name, estimate in self.known_estimates(models).items()
            if estimate.source == "predicted"
        }

    def longest_tokens(self, models: Iterable[DesiredModel]) -> Mapping[str, int]:
        """Return the length in bytes of the longest token in each model's vocabulary, by name, from the files read so
        far. Models of which it is not known are absent. Never waits."""
        longest_tokens = {
            model.name: REPLICA_ENGINES[model.backend].longest_token(model.definition, self._known_artifacts(model))
            for model in models
        }
        return {name: each for name, each in longest_tokens.items() if each is not None}

    def has_seen(self, model: DesiredModel) -> bool:
        """Return whether all files of the model were looked at at least once, even if they were missing. True for a
        model whose backend needs none. May be false again once an hour (`KEPT_S`) passed without a look."""
        return all(
            path in self._read_artifacts for path in REPLICA_ENGINES[model.backend].list_artifacts(model.definition)
        )

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        """Look again at those files of the models that were not checked for 30 s (`FRESH_S`), and wait until that is
        done, also for looks that another caller began. A caller that is cancelled does not end the look. Return whether
        what is known of one of them has changed, as on the first look at it."""
        paths = {path for model in models for path in REPLICA_ENGINES[model.backend].list_artifacts(model.definition)}
        return await self._refresh_paths(paths, FRESH_S)

    async def read_artifacts(self, paths: Iterable[str], fresh_s: float = FRESH_S) -> Mapping[str, Artifact]:
        """Return what the files at these model paths say, as `read_artifact` does. Those that were not checked for
        `fresh_s` seconds are looked at again first, in a thread."""
        wanted = set(paths)
        await self._refresh_paths(wanted, fresh_s)
        return {path: self._read_artifacts[path].artifact for path in wanted if path in self._read_artifacts}

    async def _refresh_paths(self, paths: Iterable[str], fresh_s: float) -> bool:
        now = self._clock()
        stale_paths = [path for path in paths if not self._is_fresh(path, now, fresh_s)]
        new_paths = [path for path in stale_paths if path not in self._read_tasks]
        if new_paths:
            task = asyncio.create_task(self._read_all(new_paths), name="heads of model files")
            self._read_tasks.update(dict.fromkeys(new_paths, task))
        # Shielded: a caller that is cancelled must not cancel the reading for the others.
        changes = await asyncio.gather(
            *(asyncio.shield(task) for task in {self._read_tasks[path] for path in stale_paths})
        )
        return any(changes)

    async def estimate_models(self, models: Iterable[DesiredModel]) -> Mapping[str, Estimate]:
        """Read the models' files where they were not checked for 30 s (`FRESH_S`), wait for that, and return the
        estimate for one replica of each model, by name. Models without an estimate are absent, as in
        `known_estimates`."""
        model_list = list(models)
        await self.refresh_artifacts(model_list)
        return self.known_estimates(model_list)

    def _is_fresh(self, path: str, now: float, fresh_s: float) -> bool:
        entry = self._read_artifacts.get(path)
        # If `now` is before `seen_at`, the clock was set back.
        return entry is not None and entry.seen_at <= now < entry.seen_at + fresh_s

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
            return any(
                (previous := previous_entries[path]) is None or previous.artifact != entries[path].artifact
                for path in paths
            )
        finally:
            for path in paths:
                del self._read_tasks[path]

    def _known_artifacts(self, model: DesiredModel) -> Mapping[str, Artifact]:
        paths = REPLICA_ENGINES[model.backend].list_artifacts(model.definition)
        return {path: self._read_artifacts[path].artifact for path in paths if path in self._read_artifacts}

    def _estimate(self, model: DesiredModel) -> Estimate | None:
        artifacts = self._known_artifacts(model)
        cached_estimate = self._cached_estimates.get(model.name)
        if cached_estimate is None or not cached_estimate.is_current(model, artifacts):
            if len(self._cached_estimates) >= MOST_TOLD:
                self._cached_estimates.clear()
            cached_estimate = _CachedEstimate(model, artifacts, estimate_model(model, artifacts))
            self._cached_estimates[model.name] = cached_estimate
        return cached_estimate.estimate


@dataclass(frozen=True, slots=True)
class _CachedEstimate:
    """An estimate with its inputs. Cached because one estimate takes 0.4 ms and every round needs all of them."""

    model: DesiredModel
    artifacts: Mapping[str, Artifact]
    estimate: Estimate | None

    def is_current(self, model: DesiredModel, artifacts: Mapping[str, Artifact]) -> bool:
        """Return whether the estimate still holds: the model's definition, its number of GPUs and what was read of its
        files are the same."""
        return (
            self.model.definition == model.definition
            and self.model.gpu_count == model.gpu_count
            and self.artifacts.keys() == artifacts.keys()
            and all(self.artifacts[path] is artifact for path, artifact in artifacts.items())
        )


def estimate_model(model: DesiredModel, artifacts: Mapping[str, Artifact]) -> Estimate | None:
    """Return the estimate for one replica of a model. `artifacts`: what was read of its files, by model path. None: the
    backend cannot predict, and the sizes of the files are not all known. Never raises: a formula that fails is
    logged."""
    engine, gpus = REPLICA_ENGINES[model.backend], model.gpu_count
    paths = engine.list_artifacts(model.definition)
    try:
        forecast = engine.predict_memory(model.definition, artifacts)
        if isinstance(forecast, Prediction):
            on_gpu, on_host = (ceil(each.total / MIB) for each in (forecast.gpu, forecast.host))
            gpu_share = forecast.gpu_share if gpus else None
            calls = engine.describe_sleep(model.definition)
            kept = forecast.gpu.weights * gpus if calls is not None and calls.keeps_weights else 0
            return Estimate(
                on_gpu if gpus else 0,
                on_host,
                "predicted",
                gpus,
                gpu_share,
                host_grows=forecast.host_grows,
                asleep_host_mib=on_host + ceil(kept / MIB) if kept else None,
            )
    except Exception as error:
        # Model files are untrusted: absurd numbers in one must not stop the rounds.
        log.exception("what %s takes cannot be predicted", model.name)
        forecast = Unpredicted(f"the sums over what its files say fail: {type(error).__name__}: {error}")
    sizes = [artifact.size for artifact in artifacts.values() if artifact.size is not None]
    if not paths or len(sizes) < len(paths):
        return None
    mib = ceil(sum(sizes) / MIB)
    per_gpu, on_host = (ceil(mib / gpus), 0) if gpus else (0, mib)
    reason = forecast.reason if forecast is not None else None
    return Estimate(per_gpu, on_host, "model_artifact_size", gpus, reason=reason)


def predict_declared(
    definitions: Mapping[str, Definition], declared: Mapping[str, Mapping[str, Any]], roots: ModelRoots
) -> tuple[dict[str, DesiredModel], dict[str, Requirement]]:
    """Return declared models by name, and the memory to set aside for one replica of those whose backend can predict
    it. `definitions` and `declared`: what the files make of each model, and what they say of it. Reads the heads of the
    models' files, and blocks on the disk; files that are missing or damaged raise nothing."""
    stated = {name: DeclaredModel(each, declared[name], 0.0) for name, each in definitions.items()}
    models = dict(resolve_desired(stated, StoredState(), Defaults(), generation=0).models)
    requirements = {}
    for model in models.values():
        if model.runs:
            paths = REPLICA_ENGINES[model.backend].list_artifacts(model.definition)
            estimate = estimate_model(model, {path: _look_at_files(roots, path, None, 0.0).artifact for path in paths})
            if estimate is not None and estimate.source == "predicted":
                requirements[model.name] = estimate.as_requirement()
    return models, requirements


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
        # One broken file must not prevent the reading of the others.
        log.exception("%s cannot be read", path)
        artifact = UnreadArtifact(
            f"{path} cannot be read: {type(error).__name__}: {error}", sum(size for _, size, _ in stamp)
        )
    return _ReadArtifact(artifact, stamp, now)


FIRST_LOOK_S: Final = 5.0
"""Seconds that one round waits for the first look at the files of new models. Later rounds do not wait for it."""


class PredictionSource(Protocol):
    """Predicts the memory of replicas from model files. `controller.memory_estimator.Estimator` does."""

    def has_seen(self, model: DesiredModel) -> bool:
        """Return whether all files of the model were looked at at least once, even if they were missing."""

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        """Look again at those files of the models that were not looked at recently, and wait until that is done. Return
        whether what is known of one of them has changed. Missing or damaged files raise nothing."""

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        """Return the predicted memory of one replica of each model, by name, from the files read so far. Models without
        a prediction are absent."""


class ObservationSource(Protocol):
    """Knows the memory that replicas were observed to hold. `controller.memory_history.MemoryHistory` does."""

    def observed_requirements(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Return the observed memory of one replica of each model, by name, on the types of GPUs among `gpus` that it
        may use (None: unknown). Models never observed are absent."""


def combine_requirements(
    observation: Requirement, prediction: Requirement | None, *, is_held_to_claim: bool
) -> Requirement:
    """Return the memory to set aside for a replica, from an observation of its model and the prediction (None: there is
    none). An observed value has precedence over a predicted one, with these exceptions:

    - `is_held_to_claim` says that the engine takes no more GPU memory than its claim allows. A claim taken from such an
      observation would shrink with each load until a load failed, so then the GPU memory is at least the predicted one,
      and unknown (None) without a prediction.
    - Of main memory that grows while the replica serves (`host_grows`), the larger value counts.
    - The share of a GPU (`gpu_share`) is always the predicted one.
    """
    if is_held_to_claim:
        predicted_mib = prediction.per_gpu_mib if prediction is not None else None
        per_gpu_mib = None if predicted_mib is None else max(predicted_mib, observation.per_gpu_mib or 0)
        observation = replace(observation, per_gpu_mib=per_gpu_mib)
    if prediction is None:
        return observation
    if prediction.host_grows:
        host_mib = max(prediction.host_mib or 0, observation.host_mib or 0)
        observation = replace(observation, host_mib=host_mib, host_grows=True)
    # The engine needs its share of the GPU free at its start, however little it was observed to hold then.
    return replace(observation, gpu_share=prediction.gpu_share, asleep_host_mib=prediction.asleep_host_mib)


class Requirements:
    """Returns to each round the memory that replicas need, as observed or predicted, and has the model files checked in
    the background. A controller has one; call `close` at the end. `wake` is called if a check changed a prediction."""

    def __init__(
        self, predictions: PredictionSource, observations: ObservationSource, wake: Callable[[], None]
    ) -> None:
        self._predicted = predictions
        self._observed = observations
        self._wake = wake
        self._look_task: asyncio.Task[None] | None = None
        self._awaited_look: asyncio.Task[None] | None = None
        """The look at the files that a round has already waited for. No round waits for it again."""

    async def requirements_of(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Return the memory to set aside for one replica of each model on these GPUs, by name. Models of which nothing
        is known and remote models are absent. `gpus` None: unknown. Starts a look at the models' files in the
        background, unless one is under way. Waits for it, up to 5 s (`FIRST_LOOK_S`) and once per look, only if the
        files of a model were never looked at."""
        engine_models = [model for model in models if model.runs]
        if self._look_task is None or self._look_task.done():
            self._look_task = asyncio.create_task(self._refresh_predictions(engine_models), name="heads of model files")
        if self._awaited_look is not self._look_task and not all(map(self._predicted.has_seen, engine_models)):
            self._awaited_look = self._look_task
            await asyncio.wait({self._look_task}, timeout=FIRST_LOOK_S)
        requirements = dict(self._predicted.predict_requirements(engine_models))
        held_names = {
            model.name for model in engine_models if REPLICA_ENGINES[model.backend].is_held_to_claim(model.definition)
        }
        for name, observation in self._observed.observed_requirements(engine_models, gpus).items():
            requirements[name] = combine_requirements(
                observation, requirements.get(name), is_held_to_claim=name in held_names
            )
        return requirements

    async def close(self) -> None:
        """Cancel the look at the files that is under way, and wait for its end. A later `requirements_of` starts a new
        one."""
        if self._look_task is not None:
            self._look_task.cancel()
            await asyncio.wait({self._look_task})

    async def _refresh_predictions(self, models: Iterable[DesiredModel]) -> None:
        try:
            if await self._predicted.refresh_artifacts(models):
                self._wake()
        except Exception:
            log.exception("the model files could not be looked at")
