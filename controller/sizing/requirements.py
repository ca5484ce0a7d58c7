"""What a replica of each model takes, for the plan: as observed, else as predicted. What is declared beats both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from controller.state import DesiredModel, Gpu, Need

FIRST_LOOK_S: Final = 5.0
"""How long one round waits for a look at files of models that nobody has looked at yet; it delays no other round."""

log = logging.getLogger(__name__)


class Predicted(Protocol):
    """What model files tell."""

    def has_seen(self, model: DesiredModel) -> bool:
        """Whether its files were looked at."""

    async def refresh(self, models: Iterable[DesiredModel]) -> bool:
        """Look at files. Whether one is not as it was."""

    def needs(self, models: Iterable[DesiredModel]) -> Mapping[str, Need]:
        """By what was seen so far."""


class Observed(Protocol):
    """What replicas were seen to take."""

    def needs(self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None) -> Mapping[str, Need]:
        """Of those that were seen at all."""


class Needs:
    """Both, and a look at the files that goes on beside the rounds."""

    def __init__(self, predictions: Predicted, observations: Observed, wake: Callable[[], None]) -> None:
        self._predicted = predictions
        self._observed = observations
        self._wake = wake
        self._looking: asyncio.Task[None] | None = None
        self._waited: asyncio.Task[None] | None = None
        """The look that a round has waited for."""

    async def of(self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None) -> Mapping[str, Need]:
        """Model to what a replica takes on these GPUs, as far as it is known."""
        engine_models = [model for model in models if model.runs]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(engine_models), name="heads of model files")
        if self._waited is not self._looking and not all(map(self._predicted.has_seen, engine_models)):
            self._waited = self._looking
            await asyncio.wait({self._looking}, timeout=FIRST_LOOK_S)
        requirements = dict(self._predicted.needs(engine_models))
        for name, observation in self._observed.needs(engine_models, gpus).items():
            # A share has to be free when it starts, however little it was seen to take then.
            requirements[name] = (
                replace(observation, gpu_share=requirements[name].gpu_share) if name in requirements else observation
            )
        return requirements

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look(self, models: Iterable[DesiredModel]) -> None:
        try:
            if await self._predicted.refresh(models):
                self._wake()
        except Exception:
            log.exception("the model files could not be looked at")
