"""How many times a test tries: few in CI, many in a campaign.

`make campaign ARGS=NAME` sets ROUNDHOUSE_CAMPAIGN to the campaign's name and ROUNDHOUSE_SEED to its seed, and runs the
same tests with their full counts. See docs/testing.md.
"""

from __future__ import annotations

import os

CAMPAIGN_VARIABLE = "ROUNDHOUSE_CAMPAIGN"
SEED_VARIABLE = "ROUNDHOUSE_SEED"


def campaign_count(ci: int, full: int) -> int:
    """How many tries: `full` while a campaign runs, else `ci`."""
    return full if os.environ.get(CAMPAIGN_VARIABLE) else ci


def campaign_seed() -> int:
    """The seed of a test's own random choices: the campaign's, or 0. Hypothesis gets the seed by itself."""
    return int(os.environ.get(SEED_VARIABLE, "0"))
