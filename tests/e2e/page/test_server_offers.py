"""Prompts and resources of MCP servers in the message: of a real server, by a user, up to what the model gets."""

from __future__ import annotations

import base64

import pytest
from playwright.async_api import Locator, Page, expect

from tests.fakes.fake_tool_model import Move
from tests.support.mcp_server_program import PIXEL
from tests.support.page_browser import AXE, PHONE, Look, open_context, open_page, require_axe, violations
from tests.support.page_stacks import SpokenStack
from tests.support.roundhouse_stack import RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

BUTTON = "Prompts and resources of servers"
TALK = "User: Let us talk about steam.\n\nAssistant: With pleasure."
NOTE = (
    "The prompt has 4 messages; one of them is an answer of the assistant. The draft is one message, and says whose "
    "each text is."
)


async def open_offers(page: Page) -> Locator:
    """Open the list of what servers offer, of one server alone."""
    await page.get_by_role("button", name=BUTTON).click()
    dialog = page.get_by_role("dialog", name="Prompts and resources")
    return dialog.get_by_role("region", name="Server demo")


def message_of(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Message", exact=True)


async def test_a_prompt_and_resources_reach_the_model(spoken: SpokenStack, look: Look) -> None:
    spoken.scripts[f"Before.\n\n{TALK}Fetch coal.Fetch coal.a/b"] = [Move("With coal.")]
    async with open_page(spoken.url, look, "/#/chat") as page:
        await message_of(page).fill("Before.")
        offers = await open_offers(page)
        await offers.get_by_role("button", name="Insert prompt talk").click()
        form = page.get_by_role("form", name="talk")
        await expect(form.get_by_role("textbox", name="subject")).to_be_focused()
        await page.keyboard.type("steam")
        await form.get_by_role("button", name="Insert prompt").click()
        await expect(message_of(page)).to_have_value(f"Before.\n\n{TALK}")
        await expect(message_of(page)).to_be_focused()
        await expect(page.get_by_role("status").filter(has_text=NOTE)).to_be_visible()
        attached = page.get_by_role("list", name="Attachments").get_by_role("listitem")
        await expect(attached).to_have_count(2)

        offers = await open_offers(page)
        await offers.get_by_role("button", name="Attach resource today").press("Enter")
        await expect(attached).to_have_count(3)
        offers = await open_offers(page)
        await offers.get_by_role("button", name="Attach resource note").click()
        await page.get_by_role("textbox", name="day").fill("a/b")
        await page.keyboard.press("Enter")
        await expect(attached.filter(has_text="notes://a%2Fb")).to_be_visible()
        offers = await open_offers(page)
        await offers.get_by_role("button", name="Attach resource dot").click()
        await expect(attached.get_by_role("img", name="Preview of dot")).to_be_visible()
        await expect(message_of(page)).to_have_value(f"Before.\n\n{TALK}")
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect(page.get_by_role("article", name="Answer")).to_contain_text("With coal.")
        await expect(page.get_by_role("status").filter(has_text=NOTE)).to_have_count(0)
    pixel = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"}}
    texts = [f"Before.\n\n{TALK}", "Fetch coal.", "Fetch coal.", "a/b"]
    first, embedded, today, note = ({"type": "text", "text": text} for text in texts)
    content = [first, embedded, pixel, today, note, pixel]
    assert spoken.model.requests[-1]["messages"] == [{"role": "user", "content": content}]


@pytest.mark.looks(Look.PHONE)
async def test_what_fails_is_said_and_changes_nothing(spoken: SpokenStack, look: Look) -> None:
    require_axe()
    async with open_context(spoken.url, look) as context:
        await context.add_init_script(path=AXE)
        page = await context.new_page()
        await page.goto("/#/chat")
        await message_of(page).fill("Before.")
        offers = await open_offers(page)
        dialog = page.get_by_role("dialog", name="Prompts and resources")
        await expect(offers).to_be_visible()
        assert await violations(page) == {}
        await page.set_viewport_size(PHONE)
        await dialog.get_by_role("searchbox", name="Search prompts and resources").fill("nothing of the kind")
        await expect(dialog).to_contain_text("No prompt and no resource has these words.")
        await dialog.get_by_role("searchbox").fill("demo broken")
        await expect(dialog.get_by_role("listitem")).to_have_count(1)
        await offers.get_by_role("button", name="Insert prompt broken").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("The MCP server demo failed: ")
        await dialog.get_by_role("searchbox").fill("demo talk")
        await offers.get_by_role("button", name="Insert prompt talk").click()
        await dialog.get_by_role("button", name="Insert prompt").click()
        await expect(dialog.get_by_role("textbox", name="subject")).to_be_focused()
        assert await violations(page) == {}
        await page.set_viewport_size(PHONE)
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("button", name=BUTTON)).to_be_focused()
        await expect(message_of(page)).to_have_value("Before.")

        offers = await open_offers(page)
        await offers.get_by_role("button", name="Attach resource bundle").click()
        await expect(page.get_by_role("alert")).to_contain_text("bundle is no text, image, sound or PDF.")
        await expect(page.get_by_role("list", name="Attachments")).to_have_count(0)


async def test_without_offers_there_is_no_button(page_stack: RoundhouseStack, look: Look) -> None:
    async with open_context(page_stack.url, look) as context:
        page = await context.new_page()
        async with page.expect_response("**/tools/servers") as asked:
            await page.goto("/#/chat")
        assert await (await asked.value).json() == []
        await expect(page.get_by_role("button", name="Attach files")).to_be_visible()
        await expect(page.get_by_role("button", name=BUTTON)).to_have_count(0)
