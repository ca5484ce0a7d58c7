"""The database of stored responses, against a model of it."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated sequences of writes, reads, deletions and expiries, compared with a dictionary: every answer is equal, room
limits hold, and the oldest goes first.
"""
TESTS = (
    "tests/properties/assistant/storage/test_database.py",
    "tests/integration/assistant/test_responses_process.py",
)
run = suite(TESTS)
