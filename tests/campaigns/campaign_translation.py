"""Dialects and translations between API families."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Generated conversations, answers and streams: what a dialect reads it writes again, cuts change nothing, a stream says
what the whole answer says, one that breaks off ends as documented, and garbage harms nothing.
"""
TESTS = (
    "tests/properties/test_dialects.py",
    "tests/properties/test_translation_messages.py",
    "tests/properties/test_translation_responses.py",
    "tests/properties/test_embeddings.py",
    "tests/properties/test_rerank.py",
    "tests/unit/test_dialect_thoughts.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
