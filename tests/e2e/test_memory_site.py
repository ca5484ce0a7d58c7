"""The campaign `memory_site` for a moment: every program under hostile clients, and good answers beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.campaign_memory_site import find_failures, memory_rows, take_readings
from tests.support.campaign import campaign_count
from tests.support.tormented_site import PROGRAMS


@pytest.mark.slow
async def test_every_program_is_tormented_and_good_answers_stay_right(folder: Path) -> None:
    seconds = campaign_count(4, 1200)
    readings, here = await take_readings(folder, 1, 40.0, seconds, seconds / 4)
    assert here.wrong == []
    assert here.good > 0
    assert len(here.begun) > 10
    assert [row[0] for row in memory_rows(readings)] == list(PROGRAMS)


def test_growth_is_judged_in_the_second_half() -> None:
    def readings(*values: float) -> list[dict[str, float]]:
        return [dict.fromkeys(PROGRAMS, 50.0) | {"gateway": value} for value in values]

    warming = [10.0, 20, 40, 60, 80, 100, 100, 100, 101, 100, 104]
    assert find_failures(readings(*warming), []) == []
    assert find_failures(readings(*warming[:-1], 106.0), ["no"]) == [
        "wrong answer: no",
        "gateway grows: 100.0 MiB, and 106.0 MiB at the end",
    ]
