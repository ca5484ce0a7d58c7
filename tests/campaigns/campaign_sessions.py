"""Sessions: by generated interleavings, and by the time of answers about another tenant's."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Generated interleavings of turns, requests without a session, retries, failures, unloads and changed tables, on replicas
whose requests name slots and on others: no slot has two requests, a turn that is told `reused` finds its own cache, and
no request waits while a replica has room, unless for a home that is full. 1,000 tries at another tenant's session and
at one that nobody has, whose times are not to be told apart.
"""
TESTS = (
    "tests/properties/gateway/admission/test_sessions.py",
    "tests/integration/gateway/test_session_tenants.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
