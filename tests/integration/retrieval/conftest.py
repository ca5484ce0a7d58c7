"""A retrieval program over fakes, whose state is in the test's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[RetrievalHarness]:
    async with retrieval_harness(tmp_path) as running:
        yield running
