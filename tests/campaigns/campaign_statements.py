"""What an operator's statements, edits and restarts come to."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Generated sequences of loads, unloads, edits of the files, failures and restarts of the controller: what is wanted of
a model is what the last word that holds says, it survives a restart, and the states that are published follow one
another as documented.
"""
TESTS = ("tests/properties/controller/desired/test_statements.py",)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
