"""Both runtimes under concurrency, and many starts and ends."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
The contract of runtimes, on processes and on containers of a Docker Engine, with its races tried twenty times: four
removals of one replica at once, four controllers that make one network at once. And fifty starts and ends of a process
that leave no zombie, no open file and no record.
"""


def run(seed: int) -> Outcome:
    """The contract, and the tests of one runtime that try something often."""
    names = ("contract_lifecycle", "contract_exits", "contract_ownership", "contract_logs")
    contract = [f"tests/integration/test_runtime_{name}.py" for name in names]
    alone = ["tests/integration/test_docker_runtime_daemon.py", "tests/integration/test_process_runtime_endings.py"]
    return run_tests([*contract, *alone], seed)
