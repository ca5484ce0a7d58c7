"""Who stays loaded and who makes room, over generated traffic."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Generated traffic for models that do not fit into memory together: everybody is served in the end; what is busy, young
or pinned is not evicted; models that are asked for without end take turns; requests for one model gather while
another is in its place; one that needs the room of several gets it; who waits for engines that end slowly, or whose
memory is free late, has not failed. What a lost gateway may hold is bounded by the engine's word. Then real engines,
with room for one of two.
"""
TESTS = (
    "tests/properties/controller/planning/test_eviction.py",
    "tests/properties/controller/planning/test_slow_ends.py",
    "tests/properties/controller/planning/test_draining.py",
    "tests/e2e/test_swapping.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
