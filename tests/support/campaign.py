"""How many times a test tries: few in CI, many in a campaign.

`make campaign ARGS=NAME` sets ROUNDHOUSE_CAMPAIGN to the campaign's name and ROUNDHOUSE_SEED to its seed, and runs the
same tests with their full counts. See docs/testing.md.
"""

from __future__ import annotations

import os
from typing import Protocol

CAMPAIGN_VARIABLE = "ROUNDHOUSE_CAMPAIGN"
SEED_VARIABLE = "ROUNDHOUSE_SEED"
QUICK_VARIABLE = "ROUNDHOUSE_TEST_QUICK"
"""Set by `make quick`: a test tries at most `MOST_QUICK_TRIES` times."""
MOST_QUICK_TRIES = 5
FIGURE_PREFIX = "figure: "
"""How the name of a JUnit property begins whose value goes to the campaign's page."""


class RecordProperty(Protocol):
    """pytest's fixture `record_property`, which keeps a value in the JUnit report."""

    def __call__(self, name: str, value: object) -> None: ...


def campaign_name() -> str:
    """The campaign that runs; empty: none does."""
    return os.environ.get(CAMPAIGN_VARIABLE, "")


def campaign_count(ci: int, full: int) -> int:
    """How many tries: `full` while a campaign runs, else `ci`, and few in `make quick`."""
    if campaign_name():
        return full
    return min(ci, MOST_QUICK_TRIES) if ci < full and os.environ.get(QUICK_VARIABLE) else ci


def campaign_seed() -> int:
    """The seed of a test's own random choices: the campaign's, or 0. Hypothesis gets the seed by itself."""
    return int(os.environ.get(SEED_VARIABLE, "0"))


def campaign_seeds(ci: int, full: int) -> list[int]:
    """A seed for each of so many tries. Campaigns of different seeds have no try in common."""
    first = campaign_seed() * 1_000_000
    return list(range(first, first + campaign_count(ci, full)))


def record_figure(record_property: RecordProperty, name: str, value: object) -> None:
    """Give a figure of this test to the campaign's page. `name` says what is counted."""
    record_property(FIGURE_PREFIX + name, value)
