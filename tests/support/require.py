"""Skips that cannot hide: what ROUNDHOUSE_TEST_REQUIRE names must be there."""

from __future__ import annotations

import os

import pytest


def require(feature: str, available: bool, reason: str) -> None:
    """Skip with `reason` where `feature` is not available; fail instead if ROUNDHOUSE_TEST_REQUIRE names it."""
    if available:
        return
    required = {each.strip() for each in os.environ.get("ROUNDHOUSE_TEST_REQUIRE", "").split(",")}
    if feature in required:
        pytest.fail(f"{feature} is required by ROUNDHOUSE_TEST_REQUIRE and missing: {reason}")
    pytest.skip(reason)
