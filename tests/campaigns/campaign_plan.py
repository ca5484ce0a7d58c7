"""The plan's invariants, over generated worlds."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
The plan's invariants hold from any observed state: 12,850 generated worlds of models, replicas, GPUs, running
operations and failures. Repeated plans end in an empty plan and the declared state, also when each is cut short after
any prefix and the controller forgets what it did not store.
"""
TESTS = ("tests/properties/controller/planning/test_plan.py",)
run = suite(TESTS)
