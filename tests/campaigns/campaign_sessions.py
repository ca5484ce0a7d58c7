"""Sessions: by generated interleavings, and by the time of answers about another tenant's."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated interleavings of turns, requests without a session, retries, failures, unloads and changed tables, on replicas
with and without named slots. No slot has two requests, a turn told `reused` finds its own cache, and no request waits
while a replica has room, unless for a full home. 1,000 tries at another tenant's session and at an unknown one take
times that cannot be told apart.
"""
TESTS = (
    "tests/properties/gateway/admission/test_sessions.py",
    "tests/integration/gateway/test_session_tenants.py",
)
run = suite(TESTS)
