"""Clients whose conversation outgrows their model's context: what packages raise, and what coding agents do."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.campaigns.record import Outcome, Table
from tests.support.agent_programs import AGENTS, CodingAgent
from tests.support.ci_cache import add_llama_server_to_path
from tests.support.compaction import EXPECTED, CompactionRun, count_first_request, play_compaction, probe_packages
from tests.support.foreign_clients import NODE_PACKAGES, PYTHON_PACKAGES, ForeignClients, install_clients

ABOUT = """
Prompts with more tokens than the context, on a real llama-server behind a gateway. Packages from PyPI must raise the
same errors as for OpenAI's and Anthropic's own refusals. Coding agents from npm work with a scripted model
(`tests/support/agent_programs.py`) that calls their command tool until the results fill the context, which is twice the
first request by the engine's `/apply-template` and `/tokenize`. Each agent runs once with the context in its own
setting, when it must compact and end its task, and once without. The tokens are about letters: no real vocabulary has
so many.
"""
AGENT_S = 2400.0
UNTOLD_MUST_GO_ON = ("Claude Code", "opencode")
"""Agents that compact because of the refusal. Codex ends its turn."""


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument("--clients", type=Path, help="folder of the clients, where they are installed if they are not")
    parser.add_argument("--agent", choices=[agent.program for agent in AGENTS], help="this agent alone")
    parser.add_argument("--seconds", type=float, help=f"that an agent may take (default: {AGENT_S:g})")


def run(seed: int, *, clients: Path | None = None, agent: str | None = None, seconds: float = AGENT_S) -> Outcome:
    """Try all of them. Nothing is random. `clients` None: they are installed for this run alone; `agent` None: all."""
    add_llama_server_to_path()
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        installed = install_clients(clients or Path(folder) / "clients")
        raised = asyncio.run(probe_packages(installed, Path(folder) / "packages"))
        chosen = [each for each in AGENTS if agent in (None, each.program)]
        runs = [
            made
            for each in chosen
            for made in asyncio.run(_play(each, installed, Path(folder) / each.program, seconds))
        ]
    return Outcome(tables_of(raised, runs), failures_of(raised, runs))


async def _play(agent: CodingAgent, clients: ForeignClients, folder: Path, seconds: float) -> list[CompactionRun]:
    folder.mkdir()
    first_tokens = await count_first_request(agent, clients, folder / "first")
    return [
        await play_compaction(
            agent, clients, folder / ("told" if is_told else "untold"), first_tokens, is_told=is_told, seconds=seconds
        )
        for is_told in (True, False)
    ]


def tables_of(raised: Mapping[str, Mapping[str, str]], runs: Sequence[CompactionRun]) -> list[Table]:
    names = list(next(iter(raised.values())))
    return [
        Table(
            "Packages",
            ("asked by", *(f"refused by {who}" for who in raised)),
            [_package_row(name, raised) for name in names],
        ),
        Table(
            "Coding agents",
            ("agent", "told its context", "first request", "context", "requests", "refused", "summaries", "end"),
            [_agent_row(made) for made in runs],
        ),
        Table(
            "Tokens of each prompt that was answered",
            ("agent", "told its context", "tokens"),
            [(made.agent.name, _told_of(made), ", ".join(map(str, made.tokens))) for made in runs],
        ),
        Table("Versions", ("package",), [(package,) for package in (*PYTHON_PACKAGES, *NODE_PACKAGES)]),
    ]


def _package_row(name: str, raised: Mapping[str, Mapping[str, str]]) -> Sequence[object]:
    return name, *(f"`{by_name[name].split()[0]}`" for by_name in raised.values())


def _agent_row(made: CompactionRun) -> Sequence[object]:
    return (
        made.agent.name,
        _told_of(made),
        made.first_tokens,
        made.context,
        len(made.tokens),
        made.overflows,
        made.summaries,
        made.end,
    )


def _told_of(made: CompactionRun) -> str:
    return f"by {made.agent.told_by}" if made.is_told else "no"


def failures_of(raised: Mapping[str, Mapping[str, str]], runs: Sequence[CompactionRun]) -> list[str]:
    failures = [
        f"{name}, refused by {who}: raises {classes}"
        for who, by_name in raised.items()
        for name, classes in by_name.items()
        if EXPECTED[name.split(",")[0]] not in classes.split()
    ]
    for made in runs:
        name = f"{made.agent.name}, {'told' if made.is_told else 'not told'}"
        if (made.is_told or made.agent.name in UNTOLD_MUST_GO_ON) and not made.has_gone_on:
            failures.append(f"{name}: {made.end}")
        if not made.is_told and not made.overflows:
            failures.append(f"{name}: its context was never full")
        if made.run.code is None:
            failures.append(f"{name}: it had to be killed")
    return failures
