"""A commit of long ago, which every later one is compared with: `measure` runs a bench of its own there; its gateway
runs by `checkout` and then, as a program,

    python tests/bench/baseline.py SECRET     in that checkout: prints port and process id as JSON, ends with its input

As a program it imports nothing of today's tree.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

COMMIT = "a748434"
"""Of 2026-11-22: before tokens in admission, sessions, streams that resume, progress, tools and documents."""
_REPOSITORY = Path(__file__).parents[2]


class NoBaselineError(Exception):
    """The history does not have the commit, as in a shallow clone."""


def checkout(cache: Path) -> Path:
    """Return a folder with the files of `COMMIT`, made once in `cache`. Raises NoBaselineError."""
    folder = cache / f"baseline-{COMMIT}"
    if not folder.exists():
        archive = subprocess.run(["git", "archive", COMMIT], cwd=_REPOSITORY, capture_output=True, check=False)
        if archive.returncode:
            raise NoBaselineError(archive.stderr.decode().strip())
        part = folder.with_suffix(f".part{os.getpid()}")
        part.mkdir(parents=True)
        subprocess.run(["tar", "-x"], input=archive.stdout, cwd=part, check=True)
        part.rename(folder)
    return folder


def measure(bench: str, cache: Path) -> dict[str, float]:
    """Run a bench of that commit by itself, without options, and return its figures by their names, and whose they are.

    Raises NoBaselineError, also where it does not run with today's packages."""
    command = [sys.executable, "-m", "tests.bench", bench, "--json"]
    ended = subprocess.run(command, cwd=checkout(cache), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NoBaselineError(ended.stderr.strip())
    figures = map(json.loads, ended.stdout.splitlines())
    return {f"{figure['of']}: {figure['name']}".removeprefix(": "): figure["value"] for figure in figures}


async def _serve(secret: str) -> None:
    from tests.bench import targets

    async with targets.targets(secret, [targets.GATEWAY]) as found:
        print(json.dumps({"port": found[-1].port, "pid": found[-1].pid}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    asyncio.run(_serve(sys.argv[1]))
