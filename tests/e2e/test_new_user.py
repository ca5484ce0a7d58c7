"""The steps of the campaign `first_hour`, with this environment in place of an installation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.campaigns.campaign_first_hour import BOUNDS_S, failures_of
from tests.support.first_hour import FirstHour, Step, find_missing, lend_environment
from tests.support.require import require

pytestmark = pytest.mark.engines


async def test_each_step_of_a_new_user_ends_with_an_answer_and_nothing_is_refused(folder: Path) -> None:
    reason = find_missing()
    require("systemd", reason is None, reason or "")
    hour = FirstHour(folder, lend_environment(Path(sys.executable)))
    await hour.walk()
    assert [step.refusals for step in hour.steps] == [[]] * 5
    assert all(step.commands for step in hour.steps)
    assert set(BOUNDS_S) < {step.title for step in hour.steps}


def test_what_was_refused_and_what_took_longer_than_its_bound_are_failures() -> None:
    title = next(iter(BOUNDS_S))
    assert failures_of([Step("Another", seconds=1e6), Step(title, seconds=BOUNDS_S[title])]) == []
    found = failures_of([Step("Another", refusals=["no such file"]), Step(title, seconds=BOUNDS_S[title] + 1)])
    assert found == ["Another: no such file", f"{title}: 61 s, bound 60 s"]
