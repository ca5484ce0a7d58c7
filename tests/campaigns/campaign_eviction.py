"""Who stays loaded and who makes room, over generated traffic."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Generated traffic for models that do not fit into memory together. Every request is served in the end; models that are
busy, young or pinned are not evicted; models in constant demand take turns; requests gather while another model is in
memory; a model that needs the room of several gets it; waiting for engines that end slowly, or whose memory is freed
late, is no failure. An engine's word bounds what a lost gateway may hold. Then real engines, with room for one of two.
"""
TESTS = (
    "tests/properties/controller/planning/test_eviction.py",
    "tests/properties/controller/planning/test_slow_ends.py",
    "tests/properties/controller/planning/test_draining.py",
    "tests/e2e/test_swapping.py",
)
run = suite(TESTS)
