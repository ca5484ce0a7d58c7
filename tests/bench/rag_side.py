"""One store of the benchmark of retrieval, measured in a process of its own: `python -m tests.bench.rag_side NAME
FOLDER CHUNKS SEARCHES`. Prints one JSON object, figure to value; see `tests.bench.bench_rag`."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.rag_sides import LOCAL, SIDES, Corpus, Place, Query, Side, measure_disk, measure_memory
from tests.bench.report import percentile

BATCH: Final = 256
"""Points per call."""
LIMIT: Final = 10
"""Points that a search wants."""
RECALLS: Final = 50
"""Searches whose hits are compared with the best ones."""
_WARM_UP: Final = 20
Search = Callable[[Query, int], Coroutine[Any, Any, Sequence[Place]]]


class Measurement:
    def __init__(self, name: str, folder: Path, chunks: int, searches: int) -> None:
        """Make the corpus. `folder`: of the store, which must not exist yet."""
        self._name = name
        self._folder = folder
        self._corpus = Corpus(chunks)
        self._queries = self._corpus.make_queries(searches)
        self.figures: dict[str, float] = {}

    async def run(self) -> None:
        before = measure_memory()["own"]
        side = await SIDES[self._name](self._folder)
        try:
            await self._insert(side)
            await self._search_all(side, "unindexed")
            if self._name != LOCAL:
                await self._optimize(side)
                await self._search_all(side, "indexed")
                self.figures["found of the best ten, indexed"] = await self._find_recall(side)
            memory = measure_memory()
        finally:
            await side.close()
        self.figures["memory, this process"] = memory["own"] - before
        self.figures["memory, the shard's process"] = memory["shard"]
        self.figures["memory, both"] = memory["own"] - before + memory["shard"]
        self.figures["disk"] = measure_disk(self._folder)

    async def _insert(self, side: Side) -> None:
        taken = 0.0
        for points in self._corpus.make_points(BATCH):
            start = time.perf_counter()
            await side.insert(points)
            taken += time.perf_counter() - start
        start = time.perf_counter()
        await side.flush()
        self.figures["insert"] = taken + time.perf_counter() - start

    async def _search_all(self, side: Side, stage: str) -> None:
        for kind, search in (("dense", side.search_dense), ("sparse", side.search_sparse)):
            await _time_searches(search, self._queries[:_WARM_UP])
            self._note(f"{kind}, {stage}", await _time_searches(search, self._queries))

    async def _optimize(self, side: Side) -> None:
        """Search again and again while the indexes are built. A search counts from the end of the one before, so that
        one counts, too, that could not even be asked."""
        start = asked = time.perf_counter()
        building = asyncio.create_task(side.optimize())
        await asyncio.sleep(0)
        times: dict[str, list[float]] = {"dense": [], "sparse": []}
        searches = itertools.cycle((("dense", side.search_dense), ("sparse", side.search_sparse)))
        queries = itertools.cycle(self._queries)
        while not building.done():
            kind, search = next(searches)
            await search(next(queries), LIMIT)
            await asyncio.sleep(0)  # a search of the bare library never lets the loop go on
            asked, before = time.perf_counter(), asked
            times[kind].append(asked - before)
        await building
        self.figures["optimize()"] = time.perf_counter() - start
        self.figures["searches during optimize()"] = sum(map(len, times.values()))
        for kind, taken in times.items():
            self._note(f"{kind}, during optimize()", taken)
        self.figures["longest search during optimize()"] = max(map(max, filter(None, times.values()))) * 1000

    async def _find_recall(self, side: Side) -> float:
        found = 0
        for query in self._queries[:RECALLS]:
            best = self._corpus.find_best(query, LIMIT)
            found += len(best & set(await side.search_dense(query, LIMIT)))
        return found / (LIMIT * len(self._queries[:RECALLS]))

    def _note(self, name: str, seconds: Sequence[float]) -> None:
        if seconds:
            self.figures[f"{name} p50"] = percentile(seconds, 0.5) * 1000
            self.figures[f"{name} p95"] = percentile(seconds, 0.95) * 1000


async def _time_searches(search: Search, queries: Sequence[Query]) -> list[float]:
    """Seconds of each search, one after the other."""
    times = []
    for query in queries:
        start = time.perf_counter()
        await search(query, LIMIT)
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    name, folder, chunks, searches = sys.argv[1:]
    measurement = Measurement(name, Path(folder), int(chunks), int(searches))
    asyncio.run(measurement.run())
    print(json.dumps(measurement.figures))


if __name__ == "__main__":
    main()
