"""The reference MCP servers of PyPI and npm, unmodified, as processes and in containers."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.campaigns.record import Outcome, Table
from tests.support.ci_cache import add_llama_server_to_path
from tests.support.foreign_clients import ForeignClients, install_clients
from tests.support.reference_servers import (
    HELD,
    NODE_PACKAGES,
    PYTHON_PACKAGES,
    ReferenceServers,
    check_containers,
    run_checks,
)

ABOUT = """
The reference servers `time`, `fetch` (PyPI), `filesystem` and `everything` (npm), unmodified, declared by command to a
real Roundhouse, `everything` also by URL. Their tools are called through `/tools` and by a model through
`/v1/responses`; a server is killed, edited, and used with a key. On a Docker Engine, `time` and `fetch` run in
containers of an image made from the worker's, which try to reach what they may not.
"""
PROCESSES, CONTAINERS = "processes", "containers"


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument("--clients", type=Path, help="folder of the servers, where they are installed if they are not")


def run(seed: int, *, clients: Path | None = None) -> Outcome:
    """Try all of them. Nothing is random. `clients` None: the servers are installed for this run alone."""
    add_llama_server_to_path()
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        installed = install_clients(clients or folder / "clients", PYTHON_PACKAGES, NODE_PACKAGES)
        results = asyncio.run(_check_all(folder, installed))
    return Outcome(tables_of(results), failures_of(results))


async def _check_all(folder: Path, installed: ForeignClients) -> Mapping[str, Mapping[str, str]]:
    here = ReferenceServers(folder, installed)
    async with here.started():
        processes = await run_checks(here.checks())
    return {PROCESSES: processes, CONTAINERS: await check_containers(folder / "contained", installed)}


def tables_of(results: Mapping[str, Mapping[str, str]]) -> list[Table]:
    tried = [(where, title, result.splitlines()[0]) for where, by in results.items() for title, result in by.items()]
    return [
        Table("What was tried", ("servers as", "what", "result"), tried),
        Table("Versions", ("package",), [(package,) for package in (*PYTHON_PACKAGES, *NODE_PACKAGES)]),
    ]


def failures_of(results: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        f"{where}, {title}: {result}" for where, by in results.items() for title, result in by.items() if result != HELD
    ]
