"""A campaign that is tests with larger counts: pytest in a process of its own, and its figures by test."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.campaigns.record import REPOSITORY, Outcome, Table
from tests.support.campaign import FIGURE_PREFIX

TEST_TIMEOUT_S = 3600
MOST_LINES = 40
"""Of a failure's message, on the page."""
STATISTICS_PREFIX = "hypothesis-statistics-"
"""Hypothesis's pytest plugin keeps a property of this name for each test in the JUnit report: base64 of a text."""
EXAMPLES = re.compile(r"^ +- (\d+) passing, (\d+) failing\b", re.MULTILINE)
"""In that text, once for each phase."""


@dataclass
class TestFigures:
    """One test function, summed over its parameters."""

    __test__ = False  # pytest takes classes of this name for tests

    outcomes: Counter[str] = field(default_factory=Counter)
    examples: int = 0
    """That Hypothesis ran."""
    time_s: float = 0.0

    def to_row(self, name: str) -> tuple[object, ...]:
        """A row of the page's table."""
        outcome = ", ".join(f"{count} {what}" for what, count in sorted(self.outcomes.items()))
        return (name, self.outcomes.total(), self.examples or "", f"{self.time_s:.1f} s", outcome)


def suite(paths: Sequence[str]) -> Callable[[int], Outcome]:
    """A campaign's `run`: these test files with full counts."""
    return partial(run_tests, paths)


def run_tests(paths: Sequence[str], seed: int, *, options: Sequence[str] = ()) -> Outcome:
    """Run these test files with full counts from a seed. A test that fails or is skipped is a failure, and so is a
    run without tests. The command line's environment already says that a campaign runs."""
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", *paths, f"--hypothesis-seed={seed}", f"--junitxml={report}"),
            *("-q", "-o", f"timeout={TEST_TIMEOUT_S}", "-o", "junit_family=xunit1", "-p", "no:cacheprovider", *options),
        ]
        status = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
        if not report.exists():
            return Outcome((), (f"pytest ended with {status} and left no report",))
        outcome = read_report(report, "Tests")
    if status and not outcome.failures:
        return Outcome(outcome.tables, (f"pytest ended with {status}, and no test failed",))
    return outcome


def read_report(report: Path, title: str) -> Outcome:
    """The figures of a JUnit report: a row for each test function, then what tests recorded by `record_figure`."""
    tests: dict[str, TestFigures] = {}
    recorded: list[tuple[str, str, str]] = []
    failures: list[str] = []
    root = ET.parse(report).getroot()  # pytest's own, written a moment ago
    for case in root.iter("testcase"):
        name = f"{_module_of(case.get('classname', ''))}::{case.get('name')}"
        figures = tests.setdefault(_without_parameters(name), TestFigures())
        outcome, message = _outcome_of(case)
        figures.outcomes[outcome] += 1
        figures.time_s += float(case.get("time", "0"))
        recorded += [(name, of, value) for of, value in _figures_of(case)]
        if outcome != "passed":
            failures.append(f"{name}: {outcome}\n{message}")
    for name, examples in _examples(root):
        tests.setdefault(name, TestFigures()).examples += examples
    if not tests:
        failures.append("no test ran")
    columns = ("test", "cases", "examples", "time", "outcome")
    tables = [Table(title, columns, [figures.to_row(name) for name, figures in tests.items()])]
    if recorded:
        tables.append(Table("Figures", ("test", "figure", "value"), recorded))
    return Outcome(tables, failures)


def _module_of(class_name: str) -> str:
    """The test file's name, and the class's in it: without the packages."""
    parts = class_name.split(".")
    files = [number for number, part in enumerate(parts) if part.startswith("test_")]
    return ".".join(parts[files[-1] if files else 0 :])


def _without_parameters(name: str) -> str:
    return name.partition("[")[0]


def _outcome_of(case: ET.Element) -> tuple[str, str]:
    """What came of a test, and the end of what was said about it."""
    for kind, word in (("error", "error"), ("failure", "failed"), ("skipped", "skipped")):
        if (found := case.find(kind)) is not None:
            lines = [found.get("message", ""), *(found.text or "").splitlines()]
            return word, "\n".join(lines[-MOST_LINES:])
    return "passed", ""


def _figures_of(case: ET.Element) -> Iterator[tuple[str, str]]:
    for each in case.iterfind("properties/property"):
        name = each.get("name", "")
        if name.startswith(FIGURE_PREFIX):
            yield name.removeprefix(FIGURE_PREFIX), each.get("value", "")


def _examples(root: ET.Element) -> Iterator[tuple[str, int]]:
    """For each test that Hypothesis ran: its name as in the table, and how many examples."""
    for each in root.iterfind("testsuite/properties/property"):
        node = each.get("name", "")
        if not node.startswith(STATISTICS_PREFIX):
            continue
        file, _, rest = node.removeprefix(STATISTICS_PREFIX).partition("::")
        *classes, test = _without_parameters(rest).split("::")
        text = base64.b64decode(each.get("value", "")).decode()
        examples = sum(int(passed) + int(failed) for passed, failed in EXAMPLES.findall(text))
        yield f"{'.'.join([Path(file).stem, *classes])}::{test}", examples
