"""Coding agents' sessions: how much of each prompt an engine has in its cache."""

from __future__ import annotations

from tests.campaigns.pytest_run import run_tests
from tests.campaigns.record import Outcome

ABOUT = """
Sessions of sixteen turns in the shapes in which Claude Code (2.1.197) and Codex (0.169) send them, by /v1/messages and
/v1/responses: `cache_control` that moves, system and developer messages among the others, results of tools, metadata
and a billing header that change. The chat template takes system messages at the beginning alone, and has tools,
thoughts and calls. Nothing is changed of what an engine was sent before, and from the second turn on at least 0.9 of
each prompt is in its cache, by its own count (`cached_tokens`; of vLLM with `--enable-prompt-tokens-details`).
"""
TESTS = (
    "tests/unit/gateway/protocols/test_prefix_stability.py",
    "tests/properties/gateway/protocols/test_system_messages.py",
    "tests/integration/gateway/test_prefix_stability.py",
)


def run(seed: int) -> Outcome:
    """The tests with full counts."""
    return run_tests(TESTS, seed)
