"""Coverage by line and branch of the whole suite, and what it lost against an earlier commit's."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.record import REPOSITORY, Outcome, Table, current_commit
from tests.support.docker_images import cache_dir

ABOUT = """
The whole suite with coverage of `controller`, `gateway` and `worker`, by line and branch, with CI's counts, including
programs that tests start (but not in containers or vLLM's environment). The cache folder keeps the result by commit.
With ROUNDHOUSE_COVERAGE_BASE, an earlier commit whose result is there, it is a failure if a line or branch that still
exists was covered then and is not now.
"""
BASE_VARIABLE = "ROUNDHOUSE_COVERAGE_BASE"
_CONFIGURATION = """\
[run]
branch = True
source_pkgs = common,controller,gateway,retrieval,worker
parallel = True
relative_files = True
patch = subprocess, _exit
sigterm = True
concurrency = thread
data_file = {data}
"""
Branch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FileCoverage:
    """What ran of one file. Lines count from 1; a branch goes from a line to a line, negative: out of its function."""

    lines: frozenset[int]
    branches: frozenset[Branch]
    statements: int
    possible_branches: int


def run(seed: int) -> Outcome:
    """Run the suite, keep the result, compare it."""
    kept = cache_dir() / "coverage"
    kept.mkdir(parents=True, exist_ok=True)
    report = kept / f"{current_commit()}.json"
    failures = measure_suite(report)
    now = read_report(report)
    lost: list[str] = []
    if base := os.environ.get(BASE_VARIABLE):
        lost = list(find_lost(base, read_report(kept / f"{base}.json"), now))
    return Outcome((summarize(now),), (*failures, *lost))


def measure_suite(report: Path) -> list[str]:
    """Run `make test` under coverage; its result goes to `report`."""
    # The suite runs with CI's counts, though a campaign runs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_CAMPAIGN")}
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        configuration = Path(folder) / "coveragerc"
        configuration.write_text(_CONFIGURATION.format(data=Path(folder) / "data"))
        coverage = [str(Path(sys.executable).parent / "coverage")]
        tests = ["-m", "pytest", "-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile", "--no-loadscope-reorder"]
        status = _call([*coverage, "run", f"--rcfile={configuration}", *tests], environment)
        _call([*coverage, "combine", "-q", f"--rcfile={configuration}"], environment)
        _call([*coverage, "json", "-q", f"--rcfile={configuration}", "-o", str(report)], environment)
    return [f"the suite ended with {status}"] if status else []


def _call(command: list[str], environment: dict[str, str]) -> int:
    return subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode


def read_report(report: Path) -> dict[str, FileCoverage]:
    """Files by path of a JSON report of coverage.py."""
    files: dict[str, Any] = json.loads(report.read_text())["files"]
    return {
        path: FileCoverage(
            frozenset(file["executed_lines"]),
            frozenset((begin, end) for begin, end in file["executed_branches"]),
            file["summary"]["num_statements"],
            file["summary"]["num_branches"],
        )
        for path, file in files.items()
    }


def summarize(files: dict[str, FileCoverage]) -> Table:
    """Lines and branches by package."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path, file in files.items():
        figures = (len(file.lines), file.statements, len(file.branches), file.possible_branches)
        for name in (Path(path).parts[0], "all"):
            sums[name] = [before + more for before, more in zip(sums[name], figures, strict=True)]
    rows = [
        (name, f"{lines:,} of {statements:,}", f"{lines / statements:.2%}", f"{branches:,} of {possible:,}",
         f"{branches / possible:.2%}")
        for name, (lines, statements, branches, possible) in sorted(sums.items())
    ]  # fmt: skip
    return Table("Coverage", ("package", "lines", "", "branches", ""), rows)


def find_lost(base: str, before: dict[str, FileCoverage], now: dict[str, FileCoverage]) -> Iterable[str]:
    """Lines and branches that were covered at the commit `base`, are still there, and are not covered now."""
    for path, old in sorted(before.items()):
        new = now.get(path)
        if new is None or not (REPOSITORY / path).exists():
            continue
        shown = subprocess.run(
            ["git", "show", f"{base}:{path}"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        source = (REPOSITORY / path).read_text().splitlines()
        moved = map_lines(shown.stdout.splitlines(), source)
        for line in sorted(old.lines):
            if line in moved and moved[line] not in new.lines:
                yield f"{path}:{moved[line]} is not covered any more: {source[moved[line] - 1].strip()}"
        for begin, end in sorted(old.branches):
            target = -moved.get(-end, 0) if end < 0 else moved.get(end, 0)
            if begin in moved and target and (moved[begin], target) not in new.branches:
                yield f"{path}:{moved[begin]} -> {target} is not taken any more: {source[moved[begin] - 1].strip()}"


def map_lines(old: list[str], new: list[str]) -> dict[int, int]:
    """Number of each unchanged line in `old` to its number in `new`; lines count from 1."""
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return {block.a + step + 1: block.b + step + 1 for block in blocks for step in range(block.size)}
