"""A Roundhouse with a page, for all tests of a file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.page_browser import DEADLINE_MS, require_page
from tests.support.roundhouse_stack import RoundhouseStack


@pytest.fixture(scope="session", autouse=True)
def patient_expectations() -> None:
    """Give what is expected of a page as long as a step may take, in place of Playwright's 5 s."""
    expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def page_stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path) -> Iterator[RoundhouseStack]:
    """Controller and gateway as processes, with the model `clockwork` on a real llama-server. Kept for a file's tests,
    which therefore leave its conversations alone."""
    require_page()
    stack = RoundhouseStack(tmp_path_factory.mktemp("page"), "process", {"ROUNDHOUSE_MDNS": "off"})
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    stack.declare({"clockwork": {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096}})

    async def start() -> None:
        await stack.open()
        await stack.loaded("clockwork")

    asyncio.run(start())
    yield stack
    asyncio.run(stack.close())
