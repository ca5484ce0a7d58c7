"""`make campaign ARGS=NAME`: one campaign in full, from a seed; its figures go to docs/campaigns/NAME.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules

import tests.campaigns
from tests.campaigns.record import Run, current_commit
from tests.support.campaign import CAMPAIGN_VARIABLE, SEED_VARIABLE

PREFIX = "campaign_"
"""A campaign is a module `campaign_NAME` with `ABOUT`, a text, and `run(seed)`, which gives an Outcome. One that is
tests with larger counts names their files in `TESTS`."""


def campaign_names() -> list[str]:
    """All campaigns there are, in alphabetical order."""
    found = (module.name for module in iter_modules(tests.campaigns.__path__))
    return sorted(name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX))


def describe_machine() -> str:
    """What a reader needs to judge the times: system, processors, Python."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def run_campaign(name: str, seed: int) -> Run:
    """Run one campaign. Its tests see that a campaign runs by the environment."""
    os.environ[CAMPAIGN_VARIABLE], os.environ[SEED_VARIABLE] = name, str(seed)
    campaign = import_module(f"tests.campaigns.{PREFIX}{name}")
    commit, began = current_commit(), time.monotonic()
    outcome = campaign.run(seed)
    return Run(
        name=name,
        about=campaign.ABOUT,
        command=f'make campaign ARGS="{name} --seed {seed}"',
        commit=commit,
        day=datetime.now(UTC).date().isoformat(),
        seed=seed,
        duration_s=time.monotonic() - began,
        machine=describe_machine(),
        outcome=outcome,
    )


def main() -> None:
    """Run what was asked for, write its page, and end with 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="make campaign ARGS=")
    parser.add_argument("name", metavar="NAME", choices=campaign_names(), help=f"one of {', '.join(campaign_names())}")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")
    arguments = parser.parse_args()
    made = run_campaign(arguments.name, arguments.seed)
    print(f"{made.write_page()}: {len(made.outcome.failures)} failures, {made.duration_s:.0f} s")
    sys.exit(bool(made.outcome.failures))


if __name__ == "__main__":
    main()
