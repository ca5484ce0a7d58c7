"""What a new user does first: in one go with all that there is, and the short way to a model of their own.
`make pictures` draws both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.page_browser import Look, open_context, open_page
from tests.support.page_tour import serve_own_file, take_tour, tour_stack
from tests.support.roundhouse_stack import RoundhouseStack

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


@pytest.mark.looks(Look.DESK, Look.PHONE_DARK)
async def test_a_file_in_the_models_folder_answers_after_two_clicks(
    whole_stack: RoundhouseStack, clockwork: Path, look: Look, record_property: Callable[[str, object], None]
) -> None:
    name = f"own-{look}"

    async def skip(_: Page, __: str) -> None: ...

    async with open_page(whole_stack.url, look, "/#/models") as page:
        await expect(page.get_by_role("list", name="Models folder").get_by_role("listitem").first).to_be_visible()
        began_at = time.monotonic()
        clicks = await serve_own_file(page, whole_stack.models, clockwork, name, skip)
        record_property("seconds_to_answer", round(time.monotonic() - began_at, 1))
    assert clicks == 2
    assert (await whole_stack.request("DELETE", f"/v1/admin/declarations/models/{name}")).status == 200
    (whole_stack.models / f"{name}.gguf").unlink()
