"""axe-core finds no violation on any view, in both themes, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, expect

from tests.support.page_browser import DESK, PHONE, open_context
from tests.support.require import require
from tests.support.roundhouse_stack import REPOSITORY, SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

AXE: Path = REPOSITORY / "web/node_modules/axe-core/axe.min.js"
DOCUMENT: dict[str, Any] = {"id": "coal", "text": "# Coal\n\nCoal is stored beside the shed.", "filename": "coal.md"}


async def violations(page: Page) -> dict[str, list[str]]:
    """What axe-core finds wrong with what the page shows now, each with its rule and elements, by theme and size of the
    window. Of the dark theme, contrast alone is looked at: the elements are the same."""
    found: dict[str, list[str]] = {}
    for size, viewport in (("desk", DESK), ("phone", PHONE)):
        await page.set_viewport_size(viewport)
        for theme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type] # one of its literals
            seen = await page.evaluate("async (options) => (await axe.run(options)).violations", options)
            told = [
                f"{each['id']}: {node['html']:.300} {node['failureSummary']}" for each in seen for node in each["nodes"]
            ]
            if told:
                found[f"{size}, {theme}"] = told
    await page.set_viewport_size(DESK)
    return found


@pytest.fixture
async def conversation(whole_stack: RoundhouseStack) -> str:
    """Id of a conversation with an answer; there is a document, too."""
    headers = {"X-Client-Id": "roundhouse-page"}
    async with aiohttp.ClientSession(whole_stack.url, headers=headers) as session:
        async with session.post("/v1/documents?wait=true", json=DOCUMENT) as answer:
            assert answer.status in (200, 202), await answer.text()
        async with session.post("/v1/conversations", json={"metadata": {"title": "Greetings"}}) as answer:
            made = (await answer.json())["id"]
        asked = {"model": "clockwork", "input": "Hello", "conversation": made}
        async with session.post("/v1/responses", json=asked) as answer:
            assert answer.status == 200, await answer.text()
    return str(made)


async def test_no_view_has_a_violation(whole_stack: RoundhouseStack, conversation: str) -> None:
    require("page", AXE.exists(), "axe-core is not installed: `npm ci` in web/")
    async with open_context(whole_stack.url) as context:
        # A script of the browser's, before the page's own: the page's policy stays as it is.
        await context.add_init_script(path=AXE)
        page = await context.new_page()
        found: dict[str, dict[str, list[str]]] = {}
        for view, text in (
            ("chat", "New conversation"),
            (f"chat/{conversation}", SENTENCE),
            ("models", "clockwork.gguf"),
            ("models/clockwork", "roundhouse logs clockwork"),
            ("documents", "coal.md"),
            ("documents/coal", "Coal is stored"),
            ("activity", "the controller of"),
            ("settings", "connected"),
        ):
            await page.goto(f"/#/{view}")
            await expect(page.get_by_role("main").get_by_text(text).first).to_be_visible()
            found[view] = await violations(page)
        await page.goto("/#/models/broken")
        await page.get_by_role("button", name="What would happen").click()
        await expect(page.get_by_role("list", name="What would happen")).to_contain_text("missing.gguf")
        found["what would happen"] = await violations(page)
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        found["keys"] = await violations(page)
    assert {view: each for view, each in found.items() if each} == {}
