"""Retrieval: both vector stores against a model of them, and kills of the embedded one."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Generated operations on both vector stores (Qdrant Edge, and a Qdrant server whose part a fake has) against a
dictionary: what is written is found, what is deleted or hidden is not, and nobody finds anything of another tenant's.
Kills of the embedded store at each step of a write and of an optimization: it opens again with all that was durable.
"""
TESTS = (
    "tests/integration/retrieval/test_vector_store_model.py",
    "tests/integration/retrieval/test_edge_durability.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
