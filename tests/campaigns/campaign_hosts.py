"""Several hosts in one controller, over generated sequences and with real engines."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated sequences of silence, loss, return, drains, edits, kills, failing starts and slow ends on two to four hosts:
never claims above a GPU's or a host's memory, never two that serve one index, nothing done on a silent host, one host
lost at a time and none while the controller is cut off, always back to what is declared. Then two hosts with real
engines under requests.
"""
TESTS = (
    "tests/properties/controller/planning/test_files.py",
    "tests/properties/controller/planning/test_hosts.py",
    "tests/integration/controller/test_hosts.py",
)
run = suite(TESTS)
