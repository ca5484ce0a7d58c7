"""Skips that cannot hide: what ROUNDHOUSE_TEST_REQUIRE names must be there, and a run says what it left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import pytest

COMMAND = "sudo make engines test"
"""Installs and builds all that tests need, and runs them."""
_LONGEST = 90
_SUMMED_UP = (
    "cluster",
    "docker",
    "embedded",
    "ipv6",
    "litertlm",
    "llama_cpp",
    "mount",
    "netns",
    "page",
    "prometheus",
    "systemd",
    "vllm",
)


def require(feature: str, available: bool, reason: str) -> None:
    """Skip with `reason` where `feature` is not available; fail instead if ROUNDHOUSE_TEST_REQUIRE names it."""
    if available:
        return
    required = {each.strip() for each in os.environ.get("ROUNDHOUSE_TEST_REQUIRE", "").split(",")}
    if feature in required:
        pytest.fail(f"{feature} is required by ROUNDHOUSE_TEST_REQUIRE and missing: {reason}")
    pytest.skip(f"{feature}: {reason}")


def summarize_skips(reasons: Iterable[str]) -> list[str]:
    """The last lines of a run: what was skipped, why, and the one command that would let it run.

    `reasons` holds one per skipped test, as `require` gives them. Empty: one line says that nothing was skipped.
    """
    counts: Counter[str] = Counter()
    shown: dict[str, str] = {}
    for reason in reasons:
        text = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
        feature = text.partition(":")[0]
        key = feature if feature in _SUMMED_UP else text
        counts[key] += 1
        # The error of a client may be long, and another one each time: the first one's beginning says enough.
        shown.setdefault(key, text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
    if not counts:
        return ["skipped: nothing"]
    ranked = [(key, count) for key, count in counts.most_common()]
    return [
        f"skipped: {sum(counts.values()):,} tests ({', '.join(f'{count:,} for {key}' for key, count in ranked)})",
        f"why: {'; '.join(shown[key] for key, _ in ranked)}",
        f"to run them: {COMMAND}",
    ]
