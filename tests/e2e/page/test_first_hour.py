"""What a new user does first, in one go. `make pictures` draws it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page

from tests.support.page_browser import Look, open_context
from tests.support.page_tour import take_tour, tour_stack

pytestmark = [pytest.mark.engines, pytest.mark.slow]


def test_the_first_hour_of_a_new_user(tmp_path: Path, clockwork: Path, look: Look) -> None:
    seen: list[str] = []

    async def note(_: Page, name: str) -> None:
        seen.append(name)

    async def walk(url: str) -> None:
        async with open_context(url, look) as context:
            await take_tour(await context.new_page(), note)

    with tour_stack(tmp_path, clockwork) as stack:
        asyncio.run(walk(stack.url))
    assert seen == ["pull", "image", "load", "grounded", "tool"]
