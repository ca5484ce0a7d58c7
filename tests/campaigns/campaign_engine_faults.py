"""What a client gets when its engine misbehaves."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Engines that answer with generated garbage, break off, reset, stall or fall silent at any point, in every API family.
Each client gets a complete answer or an error in its family's form, nothing leaks, and the next request is served.
Engine errors are any JSON, any bytes and any depth of nesting.
"""
TESTS = (
    "tests/integration/gateway/test_engine_faults.py",
    "tests/integration/gateway/upstream/test_engine_http_faults.py",
    "tests/integration/gateway/test_engine_failures.py",
    "tests/properties/gateway/protocols/test_engine_errors.py",
)
run = suite(TESTS)
