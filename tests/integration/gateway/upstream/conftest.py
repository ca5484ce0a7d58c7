"""The engine client is tested on both event loops: uvloop's transports are not asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from tests.support.engine_calls import LOOPS


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture(autouse=True)
async def nothing_is_only_logged() -> AsyncIterator[None]:
    """What the loop would only log fails the test."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    yield
    assert errors == []
