"""Both runtimes under concurrency, and many starts and ends."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
The contract of runtimes, on processes and on containers of a Docker Engine, with its races tried twenty times: four
removals of one replica at once, four controllers that create one network at once. Fifty starts and ends of a process
leave no zombie, no open file and no record.
"""
TESTS = (
    "tests/integration/controller/runtimes/test_contract_lifecycle.py",
    "tests/integration/controller/runtimes/docker/test_daemon.py",
    "tests/integration/controller/runtimes/process/test_endings.py",
)
run = suite(TESTS)
