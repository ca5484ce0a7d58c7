"""A whole Roundhouse on real engines under load, and one fault after the other."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.campaigns.record import Outcome

if TYPE_CHECKING:
    from tests.support.chaos.stage import Stage
    from tests.support.chaos.verdict import Record

ABOUT = """
A whole Roundhouse on real llama-servers: four models, six engines. Eight clients ask at the public address without
pause, blocking and streaming, and compare every byte of every answer with the exactly known text. Meanwhile, at moments
and in an order drawn from the seed, engines, gateway, controller and what keeps them running are killed; between the
kills processes are stopped for a while, the disk is full, files are deleted, the desired
state is broken, moved and edited, models are unloaded and loaded by the admin API. Retrieval, the process of its vector
store, transfers beside a download and an MCP server are killed, too, also on a full disk, and the wall clock jumps.

Beside the chats, one client writes, replaces and deletes documents, one stores responses, and one calls a tool of the
MCP server. After each fault, what was acknowledged to them must be there: found by a search, read by its id.

Each fault says which requests it excuses: those inside what was killed, and those refused in words while it was away.
Every other request must be answered rightly. After each fault everything declared runs again, each replica exactly
once, and engines that the fault did not touch are the same processes or containers as before; `down` leaves nothing.
The bounds of routing back are stated beside the times; they are meant for kills while nothing else is wrong, of who had
run long enough that its start is not delayed. The start of a container begins when Docker creates it.
"""
RUNTIMES = ("process", "docker", "compose")
KILLS = 200
PATIENCE_S = 30.0
"""Most seconds to wait for an engine that has run for a minute."""
TESTS = ("tests/e2e/test_chaos.py",)


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help="where engines run (default: process)")


def run(seed: int, runtime: str = "process", kills: int = KILLS) -> Outcome:
    """Faults on that runtime until there were so many kills."""
    from tests.support.chaos.verdict import make_outcome

    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        root.chmod(0o755)  # containers read models in it
        record = asyncio.run(_play(seed, root, runtime, kills))
    return make_outcome(record, kills)


async def _play(seed: int, root: Path, runtime: str, kills: int) -> Record:
    from tests.support.chaos.faults import KINDS
    from tests.support.chaos.play import Chaos, play
    from tests.support.ci_cache import add_llama_server_to_path
    from worker.clockwork import make_model

    add_llama_server_to_path()
    stage = STAGES[runtime](root)
    model = stage.models / "clockwork.gguf"
    make_model(model)
    model.chmod(0o644)
    chaos = Chaos(stage, random.Random(seed), note=lambda line: print(line, flush=True), patience_s=PATIENCE_S)
    return await play(chaos, KINDS, kills)


def _process(root: Path) -> Stage:
    from tests.support.chaos.up_stage import UpStage

    return UpStage(root)


def _docker(root: Path) -> Stage:
    from tests.conftest import open_docker_runtime
    from tests.support.chaos.container_stages import DockerStage

    return DockerStage(root, open_docker_runtime())


def _compose(root: Path) -> Stage:
    from tests.conftest import open_docker_runtime
    from tests.support.chaos.container_stages import ComposeStage

    return ComposeStage(root, open_docker_runtime())


STAGES: dict[str, Callable[[Path], Stage]] = {"process": _process, "docker": _docker, "compose": _compose}
