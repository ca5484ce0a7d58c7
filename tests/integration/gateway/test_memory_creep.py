"""`make campaign ARGS=memory_creep` for some seconds: hostile clients of many kinds, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hostile_clients import KINDS
from tests.support.tormented_gateway import Torment, tormented_gateway

SECONDS = 3.0


@pytest.mark.slow
async def test_good_clients_beside_hostile_ones_get_their_answers(folder: Path) -> None:
    taken = []
    async with tormented_gateway(folder, Torment(1, rate=120, good_rate=5, churn_s=1)) as here:

        async def look() -> None:
            taken.append(await here.figures())

        await here.run(look, every_s=1, ends_s=SECONDS)
        text = await here.metrics()
    assert here.wrong == []
    assert len(KINDS) / 2 < len(here.begun) <= len(KINDS)
    assert here.good
    assert 'code="internal_error"' not in text
    assert len(taken) == SECONDS + 1
    first, last = taken[0], taken[-1]
    assert first["tables"] < last["tables"]
    assert first["hostile"] < last["hostile"]
    assert 10 < last["anonymous"] <= last["rss"]
    assert last["blocks"]
