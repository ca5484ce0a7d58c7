"""axe-core finds no violation on any view, in both themes, on a desk and on a phone."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from playwright.async_api import expect

from tests.support.axe import AXE, require_axe, violations
from tests.support.page_browser import open_context
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

DOCUMENT: dict[str, Any] = {"id": "coal", "text": "# Coal\n\nCoal is stored beside the shed.", "filename": "coal.md"}


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
    require_axe()
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
