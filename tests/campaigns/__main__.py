"""`make campaign ARGS=NAME`: one campaign in full, from a seed; its figures go to docs/campaigns/NAME.md."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import tests.campaigns
from tests.campaigns.record import Run, current_commit
from tests.support.campaign import CAMPAIGN_VARIABLE, SEED_VARIABLE

PREFIX = "campaign_"
"""A campaign is a module `campaign_NAME` with `ABOUT`, a text, and `run(seed)`, which gives an Outcome. One that is
tests with larger counts names their files in `TESTS`, and its `run` is `suite(TESTS)`. One with options has
`declare_options(parser)`, whose defaults are those of `run`. One that can be run on several runtimes names them in
`RUNTIMES` and has an option `--runtime`; each run has a page of its own, NAME_RUNTIME. One whose page has another
name has it in `PAGE`. One that goes on where the last run stopped names in `WAYS_TO_GO_ON` the options that its page
leaves out: they say when, and not what. In a command, `-` stands for `_` too."""


def campaign_names() -> list[str]:
    found = (module.name for module in iter_modules(tests.campaigns.__path__))
    return sorted(name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX))


def page_names() -> dict[str, str]:
    pages: dict[str, str] = {}
    for name in campaign_names():
        runtimes = getattr(import_module(f"tests.campaigns.{PREFIX}{name}"), "RUNTIMES", (None,))
        pages |= {_page_name(name, runtime): name for runtime in runtimes}
    return pages


def _page_name(name: str, runtime: str | None) -> str:
    page: str = getattr(import_module(f"tests.campaigns.{PREFIX}{name}"), "PAGE", name)
    return page if runtime is None else f"{page}_{runtime}"


def describe_machine() -> str:
    """What a reader needs to judge the times: system, processors, Python."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def run_campaign(name: str, seed: int, options: Mapping[str, Any] | None = None) -> Run:
    """Run one campaign. Its tests see that a campaign runs by the environment. `options`: those of its own; None, or
    one that is left out: as it is by default."""
    _set_environment(name, seed)
    campaign = import_module(f"tests.campaigns.{PREFIX}{name}")
    commit, began = current_commit(), time.monotonic()
    outcome = campaign.run(seed, **(options or {}))
    left_out = getattr(campaign, "WAYS_TO_GO_ON", ())
    told = {name: value for name, value in (options or {}).items() if name not in left_out}
    return Run(
        name=_page_name(name, (options or {}).get("runtime")),
        about=campaign.ABOUT,
        command=f'make campaign ARGS="{" ".join([name, f"--seed {seed}", *_words(told)])}"',
        commit=commit,
        day=datetime.now(UTC).date().isoformat(),
        seed=seed,
        duration_s=time.monotonic() - began if outcome.duration_s is None else outcome.duration_s,
        machine=describe_machine(),
        outcome=outcome,
    )


def _set_environment(name: str, seed: int) -> None:
    """Before a test's module is imported: that decides its counts."""
    os.environ[CAMPAIGN_VARIABLE], os.environ[SEED_VARIABLE] = name, str(seed)


def read_command(words: Sequence[str]) -> tuple[str, int, dict[str, Any]]:
    """A campaign's name, its seed, and those of its own options that were said."""
    parser = argparse.ArgumentParser(prog="make campaign ARGS=")
    names = campaign_names()
    parser.add_argument("name", metavar="NAME", type=_module_name, choices=names, help=f"one of {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")
    arguments, rest = parser.parse_known_args(words)
    _set_environment(arguments.name, arguments.seed)
    return arguments.name, arguments.seed, _read_options(arguments.name, rest)


def _module_name(said: str) -> str:
    return said.replace("-", "_")


def _read_options(name: str, words: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog=f"make campaign ARGS={name}", argument_default=argparse.SUPPRESS)
    declare = getattr(import_module(f"tests.campaigns.{PREFIX}{name}"), "declare_options", None)
    if declare is not None:
        declare(parser)
    return vars(parser.parse_args(words))


def _words(options: Mapping[str, Any]) -> list[str]:
    """As they were said. What is no number and no word is a file of this machine and changes nothing that is tried."""
    values = ((name, f"{value:g}" if isinstance(value, float) else value) for name, value in options.items())
    return [f"--{name} {value}" for name, value in values if isinstance(value, int | str)]


def main() -> None:
    """Run what was asked for, write its page, and end with 1 where something did not hold."""
    made = run_campaign(*read_command(sys.argv[1:]))
    print(f"{made.write_page()}: {len(made.outcome.failures)} failures, {made.duration_s:.0f} s")
    sys.exit(bool(made.outcome.failures))


if __name__ == "__main__":
    main()
