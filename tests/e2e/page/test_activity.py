"""The view of activity: what happens, as it happens; and the keys and settings of the page."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.support.page_browser import Look, open_page, post_as_page
from tests.support.roundhouse_stack import RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]


async def count_statements(stack: RoundhouseStack) -> int:
    """Loads, unloads and resets of the model `resting` that the history has."""
    reply = await stack.request("GET", "/v1/admin/history?model=resting&kind=statement&limit=500")
    return len(reply.success["entries"])


async def test_events_come_live_can_be_filtered_and_paused(whole_stack: RoundhouseStack, look: Look) -> None:
    await post_as_page(whole_stack, "/v1/admin/models/clockwork/load", {})
    async with open_page(whole_stack.url, look, "/#/activity") as page:
        log = page.get_by_role("log", name="Events")
        # What was before the page was opened is there, too.
        await expect(log).to_contain_text("clockwork")
        await page.get_by_label("Model").fill("resting")
        await page.get_by_label("Kind").select_option("statement")
        await expect(log).not_to_contain_text("clockwork")
        entries = log.get_by_role("listitem")
        before = await count_statements(whole_stack)
        await expect(entries).to_have_count(before)
        other = await page.context.new_page()
        await other.goto("/#/models")
        await other.get_by_role("button", name="Load resting", exact=True).click()
        await expect(entries).to_have_count(before + 1)

        await page.get_by_role("button", name="Pause").click()
        await other.get_by_role("button", name="Unload resting", exact=True).click()
        await other.get_by_role("button", name="Reset resting to the files", exact=True).click()
        await expect(other.get_by_role("button", name="Reset resting to the files", exact=True)).to_have_count(0)
        assert await count_statements(whole_stack) == before + 3
        await expect(entries).to_have_count(before + 1)
        # What came meanwhile is caught up.
        await page.get_by_role("button", name="Follow again").click()
        await expect(entries).to_have_count(before + 3)
        await expect(page.get_by_text("roundhouse events --model resting --kind statement --follow")).to_be_visible()


async def test_keys_and_settings(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/settings") as page:
        about = page.get_by_role("region", name="About", exact=True)
        await expect(about).to_contain_text("connected")
        await expect(page.get_by_text("for 36 hours after their last use")).to_be_visible()
        await page.get_by_role("radio", name="Dark").check()
        await page.reload()
        await expect(page.get_by_role("radio", name="Dark")).to_be_checked()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"

        await page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        await expect(keys).to_contain_text("Begin a new conversation")
        await page.keyboard.press("Escape")
        await expect(keys).to_be_hidden()
        await page.keyboard.press("Control+Shift+O")
        message = page.get_by_role("textbox", name="Message", exact=True)
        await expect(message).to_be_focused()
        # A character that is written is no key.
        await page.keyboard.press("?")
        await expect(message).to_have_value("?")
        # On a phone the search is behind a button.
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("searchbox", name="Search conversations")).to_be_focused()

        await page.goto("/#/settings")
        await page.get_by_role("checkbox", name="Keys of a single character").uncheck()
        await page.keyboard.press("?")
        await page.get_by_role("radio", name="As the system says").check()
        await expect(keys).to_be_hidden()
