"""What a replica of each model takes, for the plan: as observed, else as predicted. What is declared beats both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from controller.engines import ENGINES
from controller.state import DesiredModel, Gpu, Requirement

FIRST_LOOK_S: Final = 5.0
"""How long one round waits for a look at files of models that nobody has looked at yet; it delays no other round."""

log = logging.getLogger(__name__)


class PredictionSource(Protocol):
    """What model files tell."""

    def has_seen(self, model: DesiredModel) -> bool:
        """Whether its files were looked at."""

    async def refresh_artifacts(self, models: Iterable[DesiredModel]) -> bool:
        """Look at files. Whether one is not as it was."""

    def predict_requirements(self, models: Iterable[DesiredModel]) -> Mapping[str, Requirement]:
        """By what was seen so far."""


class ObservationSource(Protocol):
    """What replicas were seen to take."""

    def observed_requirements(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Of those that were seen at all."""


def combine_requirements(
    observation: Requirement, prediction: Requirement | None, *, is_held_to_claim: bool
) -> Requirement:
    """What to set aside for a replica whose like was observed. `prediction` None: nothing is predicted.

    `is_held_to_claim`: the engine took what an earlier claim let it take. Were the next claim made of that, each load
    would get less than the one before, until it failed.
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
    # A share has to be free when it starts, however little it was seen to take then.
    return replace(observation, gpu_share=prediction.gpu_share)


class Requirements:
    """Both, and a look at the files that goes on beside the rounds."""

    def __init__(
        self, predictions: PredictionSource, observations: ObservationSource, wake: Callable[[], None]
    ) -> None:
        self._predicted = predictions
        self._observed = observations
        self._wake = wake
        self._look_task: asyncio.Task[None] | None = None
        self._awaited_look: asyncio.Task[None] | None = None
        """The look that a round has waited for."""

    async def requirements_of(
        self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None
    ) -> Mapping[str, Requirement]:
        """Model to what a replica takes on these GPUs, as far as it is known."""
        engine_models = [model for model in models if model.runs]
        if self._look_task is None or self._look_task.done():
            self._look_task = asyncio.create_task(self._refresh_predictions(engine_models), name="heads of model files")
        if self._awaited_look is not self._look_task and not all(map(self._predicted.has_seen, engine_models)):
            self._awaited_look = self._look_task
            await asyncio.wait({self._look_task}, timeout=FIRST_LOOK_S)
        requirements = dict(self._predicted.predict_requirements(engine_models))
        held_names = {
            model.name for model in engine_models if ENGINES[model.backend].is_held_to_claim(model.definition)
        }
        for name, observation in self._observed.observed_requirements(engine_models, gpus).items():
            requirements[name] = combine_requirements(
                observation, requirements.get(name), is_held_to_claim=name in held_names
            )
        return requirements

    async def close(self) -> None:
        """Look no more."""
        if self._look_task is not None:
            self._look_task.cancel()
            await asyncio.wait({self._look_task})

    async def _refresh_predictions(self, models: Iterable[DesiredModel]) -> None:
        try:
            if await self._predicted.refresh_artifacts(models):
                self._wake()
        except Exception:
            log.exception("the model files could not be looked at")
