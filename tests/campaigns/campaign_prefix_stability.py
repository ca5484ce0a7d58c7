"""Coding agents' sessions: how much of each prompt an engine has in its cache."""

from __future__ import annotations

from tests.campaigns.pytest_run import suite

ABOUT = """
Sessions of sixteen turns in the shapes of Claude Code (2.1.197) and Codex (0.169), by /v1/messages and /v1/responses:
moving `cache_control`, system and developer messages in between, tool results, changing metadata and billing headers.
The chat template takes system messages only at the beginning, and has tools, thoughts and calls. What an engine was
sent stays unchanged, and from the second turn on at least 0.9 of each prompt is in its cache, by its own count
(`cached_tokens`; of vLLM with `--enable-prompt-tokens-details`).
"""
TESTS = (
    "tests/unit/gateway/protocols/test_prefix_stability.py",
    "tests/properties/gateway/protocols/test_system_messages.py",
    "tests/integration/gateway/test_prefix_stability.py",
)
run = suite(TESTS)
