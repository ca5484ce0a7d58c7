"""What a replica of each model takes, for the plan: as observed, else as predicted. What is declared beats both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from controller.state import DesiredModel, Gpu, Need

FIRST_LOOK_S: Final = 5.0
"""How long a round waits for the files of models that nobody has looked at yet; a slow disk delays no other round."""

log = logging.getLogger(__name__)


class Predicted(Protocol):
    """What model files tell."""

    def has_seen(self, want: DesiredModel) -> bool:
        """Whether its files were looked at."""

    async def refresh(self, models: Iterable[DesiredModel]) -> bool:
        """Look at files. Whether one is not as it was."""

    def needs(self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None) -> Mapping[str, Need]:
        """By what was seen so far."""


class Observed(Protocol):
    """What replicas were seen to take."""

    def needs(self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None) -> Mapping[str, Need]:
        """Of those that were seen at all."""


class Needs:
    """Both, and a look at the files that goes on beside the rounds."""

    def __init__(self, predicted: Predicted, observed: Observed, wake: Callable[[], None]) -> None:
        self._predicted = predicted
        self._observed = observed
        self._wake = wake
        self._looking: asyncio.Task[None] | None = None

    async def of(self, models: Iterable[DesiredModel], gpus: tuple[Gpu, ...] | None) -> Mapping[str, Need]:
        """Model to what a replica takes on these GPUs, as far as it is known."""
        wanted = [want for want in models if want.runs]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(wanted), name="heads of model files")
        if not all(map(self._predicted.has_seen, wanted)):
            await asyncio.wait({self._looking}, timeout=FIRST_LOOK_S)
        return {**self._predicted.needs(wanted, gpus), **self._observed.needs(wanted, gpus)}

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look(self, wanted: Iterable[DesiredModel]) -> None:
        try:
            if await self._predicted.refresh(wanted):
                self._wake()
        except Exception:
            log.exception("the model files could not be looked at")
