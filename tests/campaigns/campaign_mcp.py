"""Roundhouse as an MCP server, and its loop of tools, for clients of others: `mcp`, OpenAI's SDK, Claude Code."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.campaigns.record import Outcome, Table
from tests.support.ci_cache import add_llama_server_to_path
from tests.support.foreign_clients import ForeignClients, install_clients
from tests.support.mcp_operators import NODE_PACKAGES, PYTHON_PACKAGES, ClaudeOperator, OperatedSite
from tests.support.reference_servers import HELD, run_checks

ABOUT = """
A real Roundhouse (controller, gateway, engines as processes, an MCP server with a command) with two keys: one may
operate, the other has the scope `inference` alone. The client of the package `mcp` makes random calls in both versions
of the protocol and checks each answer: loads, unloads, lists, plans, logs, events, refusals. OpenAI's SDK has a model
call tools through `/v1/responses`, streamed or not, with or without approvals, right and wrong; transcripts are
compared. Claude Code from npm, unmodified, lists, loads, unloads and reads through `/mcp` with both keys. The calling
models are scripted; what they call is real.
"""
STEPS: Final = 300
RESPONSES: Final = 200
APPROVALS: Final = 30


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument("--clients", type=Path, help="folder of Claude Code, where it is installed if it is not")


def run(seed: int, *, clients: Path | None = None) -> Outcome:
    """Try all of them. `clients` None: Claude Code is installed for this run alone."""
    add_llama_server_to_path()
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        installed = install_clients(clients or folder / "clients", PYTHON_PACKAGES, NODE_PACKAGES)
        results, counts = asyncio.run(_check_all(folder, installed, random.Random(seed)))
    return Outcome(tables_of(results, counts), failures_of(results))


async def _check_all(
    folder: Path, clients: ForeignClients, chance: random.Random
) -> tuple[dict[str, str], dict[str, int]]:
    site, counts = OperatedSite(folder / "site"), dict[str, int]()

    async def walk() -> None:
        counts.update(await site.walk(chance, STEPS))

    async def respond() -> None:
        counts["calls of the model"] = sum([await site.respond(chance) for _ in range(RESPONSES)])

    async def approve() -> None:
        for _ in range(APPROVALS):
            await site.approve(chance)

    async with site.started():
        claude = ClaudeOperator(site, clients, folder / "claude")
        checks = {
            "Claude Code: `claude mcp add`, `claude mcp list`": claude.check_connection,
            "Claude Code with an operator's key: lists, loads, reads and unloads": claude.check_operator,
            "Claude Code with the other key: two tools, its own models, no others": claude.check_reader,
            "`mcp`: the tools that each key is shown, and what it is refused": site.check_scopes,
            f"`mcp`: {STEPS} things at random": walk,
            f"OpenAI's SDK: {RESPONSES} responses with tools": respond,
            f"OpenAI's SDK: {APPROVALS} calls that wait for an approval": approve,
        }
        return await run_checks(checks), counts


def tables_of(results: Mapping[str, str], counts: Mapping[str, int]) -> list[Table]:
    """The page's figures. `counts`: what was done to how often."""
    tried = [(title, result.splitlines()[0]) for title, result in results.items()]
    packages = [f"{name}=={version(name)}" for name in ("mcp", "openai")]
    return [
        Table("What was tried", ("what", "result"), tried),
        Table("How often", ("what", "times"), sorted(counts.items())),
        Table("Versions", ("package",), [(package,) for package in (*packages, *NODE_PACKAGES)]),
    ]


def failures_of(results: Mapping[str, str]) -> list[str]:
    return [f"{title}: {result}" for title, result in results.items() if result != HELD]
