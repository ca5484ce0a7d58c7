"""Downloads: generated faults of a hub, kills at random moments, and the choice of files against llama-server's."""

from __future__ import annotations

from collections import Counter

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome, Table

ABOUT = """
A fake hub (`tests/support/fake_hub`) with generated faults: dropped, stalled, slow and refused answers, wrong lengths,
ranges, sizes, hashes and commits, endless redirects. Each of 100 downloads ends with the right bytes or a clear error,
leaves no partial file under a final name, and ends with the right bytes once the hub works; faults that a retry cures
are not seen at all. After each of 30 kills at random moments, with random changes of files, a download resumes, does
not repeat finished parts, and ends with the right bytes and nothing left over. For 100 generated GGUF repositories the
real `llama-server -hf` fetches the files that we choose.
"""
TESTS = (
    "tests/integration/transfers/test_generated_faults.py",
    "tests/integration/transfers/test_hostile_answers.py",
    "tests/integration/transfers/test_killed_downloads.py",
    "tests/integration/transfers/test_other_clients.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts. The figures of a test are added up over its seeds."""
    outcome = run_tests(TESTS, seed)
    tables = [_add_up(table) if table.title == "Figures" else table for table in outcome.tables]
    return Outcome(tables, outcome.failures)


def _add_up(figures: Table) -> Table:
    sums: Counter[tuple[str, str]] = Counter()
    for test, figure, value in figures.rows:
        sums[str(test).partition("[")[0], str(figure)] += int(str(value))
    return Table(figures.title, figures.columns, [(*names, count) for names, count in sorted(sums.items())])
