"""What an operator's statements, edits and restarts come to."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated sequences of loads, unloads, edits, failures and restarts of the controller. The latest valid statement
decides what is wanted of a model, survives a restart, and published states follow one another as documented.
"""
TESTS = ("tests/properties/controller/desired/test_statements.py",)
run = suite(TESTS)
