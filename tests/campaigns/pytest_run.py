"""A campaign that is tests with larger counts: pytest in a process of its own, and its figures by file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.campaigns.record import REPOSITORY, Outcome, Table


def run_tests(paths: Sequence[str], seed: int, *, title: str = "Tests", options: Sequence[str] = ()) -> Outcome:
    """Run these test files with full counts from a seed. A test that fails or is skipped is a failure, and so is a
    run without tests. The command line's environment already says that a campaign runs."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", *paths, f"--hypothesis-seed={seed}", f"--junitxml={report}"),
            *("-q", "-o", "timeout=3600", "-p", "no:cacheprovider", *options),
        ]
        status = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
        if not report.exists():
            return Outcome((), (f"pytest ended with {status} and left no report",))
        return read_report(report, title)


def read_report(report: Path, title: str) -> Outcome:
    """The figures of a JUnit report."""
    rows: list[tuple[str, str, str]] = []
    failures: list[str] = []
    # The report is pytest's own, written a moment ago.
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        trouble = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None)
        rows.append((name, f"{float(case.get('time', '0')):.1f} s", trouble or "passed"))
        if trouble:
            failures.append(f"{name}: {trouble}")
    if not rows:
        failures.append("no test ran")
    return Outcome((Table(title, ("test", "time", "outcome"), rows),), failures)
