"""A Roundhouse of processes for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.roundhouse_stack import RoundhouseStack
from tests.support.runtime_fixtures import ProcessRuntimeFixture


@pytest.fixture
async def process_stack(folder: Path) -> AsyncIterator[RoundhouseStack]:
    """It is not started yet, and its models folder is empty. Nothing of it may be left."""
    created = RoundhouseStack(folder, "process")
    try:
        yield created
    finally:
        await created.close()
    assert ProcessRuntimeFixture().left(created) == []
