"""The memory that the plan sets aside for a replica of each model: as observed, else as predicted.

A declared figure has precedence over both; the plan itself sees to that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from controller.engines import REPLICA_ENGINES
from controller.gpus import Gpu
from controller.state import DesiredModel, Requirement

FIRST_LOOK_S: Final = 5.0
"""Seconds that one round waits for the first look at the files of new models. Later rounds do not wait for it."""

log = logging.getLogger(__name__)


class PredictionSource(Protocol):
    """Predicts the memory of replicas from model files. `controller.sizing.estimator.Estimator` does."""

    def has_seen(self, model: DesiredModel) -> bool:
        """Return whether all files of the model were looked at at least once, even if they were missing."""

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        """Look again at those files of the models that were not looked at recently, and wait until that is done. Return
        whether what is known of one of them has changed. Missing or damaged files raise nothing."""

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        """Return the predicted memory of one replica of each model, by name, from the files read so far. Models without
        a prediction are absent."""


class ObservationSource(Protocol):
    """Knows the memory that replicas were observed to hold. `controller.sizing.history.MemoryHistory` does."""

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
    return replace(observation, gpu_share=prediction.gpu_share)


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
        is known and remote models are absent. `gpus` None: unknown.

        Starts a look at the models' files in the background, unless one is under way. Waits for it, up to 5 s
        (`FIRST_LOOK_S`) and once per look, only if the files of a model were never looked at.
        """
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
