"""A whole Roundhouse on real engines under load, and one fault after the other."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Two models on real llama-servers, one of them with two replicas; clients ask without pause, blocking and streaming,
and compare every byte of every answer with the exactly known text. Meanwhile, in an order drawn from the seed:
engines, controller and gateway are killed, stopped for a while or restarted, a model is edited, a file is broken and
mended, reconciling is paused. No answer is wrong or cut in silence; after each fault everything declared runs again,
no engine is orphaned or doubled, and those of which nothing was changed are the same processes as before.
"""
TESTS = ("tests/e2e/test_chaos.py",)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
