"""Models that sleep in place of ending, over generated sequences and with whole programs."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated sequences of loads, sleeps, wakes, kills, edits, evictions and full main memory: never two on claimed memory,
never an answer before the canary, nobody refused who has room once others have left, always back to what is declared.
Then a whole controller and gateway over a scripted vLLM whose sleeps and wakes go right and wrong.
"""
TESTS = (
    "tests/properties/controller/planning/test_sleep.py",
    "tests/integration/controller/test_sleeping.py",
)
run = suite(TESTS)
