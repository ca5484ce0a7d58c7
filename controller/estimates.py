"""What memory a replica may take, by the sizes of its model's files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.engines import ENGINES
from controller.runtimes.artifacts import artifact_mib
from controller.schema.admin import EstimateSource
from controller.state import DesiredModel

FRESH_S: Final = 30.0
"""How long a size is believed."""


def estimate(mib: int | None, replicas: int, declared_mib: int | None = None) -> tuple[int | None, int, EstimateSource]:
    """Of so many replicas of so many MiB each: MiB of all, how many they are, and where that is known from.

    What is declared beats every estimate (DESIGN.md §3).
    """
    if declared_mib is not None:
        return declared_mib * replicas, replicas, "declared"
    if mib is None:
        return None, replicas, "unavailable"
    return mib * replicas, replicas, "model_artifact_size"


@dataclass(frozen=True, slots=True)
class _Size:
    mib: int | None
    read_at: float


class ArtifactSizes:
    """Sizes of model files in `models_root`. Reads in a thread, each path once for all who ask meanwhile."""

    def __init__(self, models_root: Path, clock: Callable[[], float]) -> None:
        self._root = models_root
        self._clock = clock
        self._sizes: dict[str, _Size] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def of(self, models: Iterable[DesiredModel]) -> Mapping[str, int | None]:
        """Model to MiB of one replica; None: it has no files here, or one of them cannot be read."""
        now = self._clock()
        paths = {want.name: ENGINES[want.backend].artifacts(want.definition) for want in models}
        stale = {path for each in paths.values() for path in each if not self._fresh(path, now)}
        if stale:
            await self._read(stale)
        return {name: self._sum(each) for name, each in paths.items()}

    def _fresh(self, path: str, now: float) -> bool:
        size = self._sizes.get(path)
        # Before `read_at`: the clock was set back.
        return size is not None and size.read_at <= now < size.read_at + FRESH_S

    async def _read(self, paths: Iterable[str]) -> None:
        new = [path for path in paths if path not in self._reading]
        if new:
            task = asyncio.create_task(self._read_all(new), name="sizes of artifacts")
            self._reading.update(dict.fromkeys(new, task))
        # Shielded: who no longer waits must not take the answer from the others.
        await asyncio.gather(*(asyncio.shield(task) for task in {self._reading[path] for path in paths}))

    async def _read_all(self, paths: list[str]) -> None:
        try:
            sizes = await asyncio.to_thread(lambda: {path: artifact_mib(self._root, path) for path in paths})
            now = self._clock()
            self._sizes = {path: size for path, size in self._sizes.items() if self._fresh(path, now)}
            self._sizes.update({path: _Size(mib, now) for path, mib in sizes.items()})
        finally:
            for path in paths:
                del self._reading[path]

    def _sum(self, paths: tuple[str, ...]) -> int | None:
        sizes = [self._sizes[path].mib if path in self._sizes else None for path in paths]
        known = [mib for mib in sizes if mib is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None
