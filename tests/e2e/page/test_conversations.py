"""The conversations: found, named, branched, exported, imported, shared, and kept in the browser alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Download, Page, expect

from tests.support.page_browser import (
    Look,
    hide_conversations,
    open_context,
    open_menu,
    open_page,
    send_message,
    show_conversations,
)
from tests.support.page_stacks import message
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
TITLE = "From Open WebUI"
OPEN_WEBUI = [
    {
        "title": f"{TITLE} {HOSTILE}",
        "created_at": 1_790_000_000,
        "chat": {
            "models": ["clockwork"],
            "history": {
                "messages": {
                    "q": {"id": "q", "parentId": None, "childrenIds": ["a", "b"], "role": "user", "content": "Which?"},
                    "a": {"id": "a", "parentId": "q", "childrenIds": [], "role": "assistant", "content": "Left."},
                    "b": {"id": "b", "parentId": "q", "childrenIds": [], "role": "assistant", "content": HOSTILE},
                },
                "currentId": "b",
            },
        },
    }
]


NOTE_FIRST_SIGHT = """
    new MutationObserver((_, observer) => {
        const messages = document.querySelectorAll("[role=log] article");
        if (messages.length === 0 || !messages[messages.length - 1].textContent.includes("Answer 499.")) return;
        window.messagesAtFirstSight = messages.length;
        observer.disconnect();
    }).observe(document, { childList: true, subtree: true });
"""
"""Has a page note how many messages are there as soon as the newest one is."""


async def answered(page: Page, text: str) -> None:
    """Ask, and wait until the answer is stored."""
    await send_message(page, text)
    await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
    await expect(page.get_by_role("button", name="Regenerate answer").last).to_be_visible()


async def saved(page: Page, button: str) -> Download:
    """Export the conversation that is shown."""
    await open_menu(page, "More actions")
    await page.get_by_role("button", name="Export", exact=True).click()
    async with page.expect_download() as download:
        await page.get_by_role("button", name=button, exact=True).click()
    return await download.value


async def test_branches_are_kept_and_moved_between(page_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(page_stack.url, look) as page:
        await answered(page, "First wording")
        await page.get_by_role("button", name="Edit message").click()
        await page.get_by_role("textbox", name="Edit message").fill("Second wording")
        await page.get_by_role("article", name="Your message").get_by_role("button", name="Send").click()
        mine = page.get_by_role("article", name="Your message")
        await expect(mine).to_contain_text("Second wording")
        await expect(mine).to_contain_text("2 / 2")
        await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
        await page.get_by_role("button", name="Regenerate answer").click()
        # For a moment the old answer is still there beside the new one.
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.last).to_contain_text("2 / 2")
        await open_menu(page, "More actions")
        await page.get_by_role("button", name="Branches").click()
        outline = page.get_by_role("dialog", name="Branches").get_by_role("button", name="You:")
        await expect(outline).to_have_text(["You: First wording", "You: Second wording"])
        await outline.first.click()
        await expect(mine).to_contain_text("First wording")
        await expect(answer).to_have_count(1)
        await page.reload()
        await expect(mine).to_contain_text("1 / 2")
        # The keys move between the branches of the last message that has some.
        await page.keyboard.press("]")
        await expect(mine).to_contain_text("Second wording")
        await expect(answer).to_contain_text("2 / 2")
        await page.keyboard.press("[")
        await expect(answer).to_contain_text("1 / 2")
        await expect(mine).to_contain_text("2 / 2")


@pytest.mark.looks(Look.PHONE, Look.DESK)
async def test_one_bar_holds_the_views_and_the_conversation(page_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(page_stack.url, look) as page:
        await answered(page, "Under one bar")
        bar = page.get_by_role("banner")
        await expect(bar.get_by_role("heading", level=1, name="Under one bar")).to_be_visible()
        box, log = await bar.bounding_box(), await page.get_by_role("log").bounding_box()
        assert box is not None
        assert log is not None
        assert (box["y"], box["y"] + box["height"]) == (0, log["y"]), "nothing lies between the bar and the messages"
        assert box["height"] <= 56
        if look.is_phone:
            await expect(page.get_by_role("link", name="Models")).to_be_hidden()
            # Escape closes a menu, and gives the focus back.
            menu = page.get_by_role("button", name="More actions")
            await menu.click()
            await expect(page.get_by_role("button", name="Export", exact=True)).to_be_visible()
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("button", name="Export", exact=True)).to_be_hidden()
            await expect(menu).to_be_focused()
        # Also while the list has the conversation's place, as on a phone.
        await show_conversations(page)
        await open_menu(page, "More actions")
        await page.get_by_role("button", name="Rename", exact=True).click()
        await expect(page.get_by_role("dialog").get_by_role("textbox", name="Title")).to_have_value("Under one bar")
        await page.keyboard.press("Escape")
        await hide_conversations(page)
        await open_menu(page, "Views")
        await page.get_by_role("link", name="Models", exact=True).click()
        await expect(page.get_by_role("heading", name="clockwork loaded")).to_be_visible()
        await expect(bar.get_by_role("heading", level=1)).to_have_count(0)


async def test_a_conversation_is_found_named_and_deleted(page_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(page_stack.url, look) as page:
        await answered(page, "Do wolpertingers sing?")
        title = page.get_by_role("heading", level=1, name="Do wolpertingers sing?")
        await expect(title).to_be_visible()
        await open_menu(page, "More actions")
        await page.get_by_role("button", name="Rename", exact=True).click()
        await page.get_by_role("textbox", name="Title").fill("Alpine songs")
        await page.get_by_role("dialog").get_by_role("button", name="Rename").click()
        await expect(page.get_by_role("heading", level=1, name="Alpine songs")).to_be_visible()
        await show_conversations(page)
        await page.get_by_role("searchbox", name="Search conversations").fill("WOLPERT sing")
        entry = page.get_by_role("link", name="Alpine songs")
        await expect(entry).to_contain_text("wolpert")
        await page.get_by_role("searchbox", name="Search conversations").fill("nothing has these words")
        await expect(page.get_by_text("Nothing found.")).to_be_visible()
        await page.get_by_role("searchbox", name="Search conversations").fill("")
        await entry.hover()
        await page.get_by_role("button", name="Delete Alpine songs").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(entry).to_have_count(0)
        await hide_conversations(page)
        await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()


async def test_a_model_of_the_users_choice_writes_titles(page_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(page_stack.url, look) as page:
        await show_conversations(page)
        await page.get_by_role("button", name="Import and options").click()
        await page.get_by_label("Written by").select_option("clockwork")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="New conversation").click()
        await answered(page, "Name this one")
        written = page.get_by_role("heading", level=1, name=SENTENCE.rstrip("."))
        await expect(written).to_be_visible()
        await answered(page, "A second question leaves the title alone")
        await expect(written).to_be_visible()


async def test_export_import_and_sharing_keep_every_word(
    page_stack: RoundhouseStack, tmp_path: Path, look: Look
) -> None:
    foreign = tmp_path / "open-webui.json"
    foreign.write_text(json.dumps(OPEN_WEBUI).replace(TITLE, f"{TITLE} {look}"))
    async with open_page(page_stack.url, look) as page:
        await show_conversations(page)
        await page.get_by_role("button", name="Import and options").click()
        await page.get_by_label("File of conversations").set_input_files(foreign)
        answer = page.get_by_role("article", name="Answer")
        await expect(answer).to_contain_text(HOSTILE)
        await expect(answer).to_contain_text("2 / 2")
        for button in ("Roundhouse", "llama.cpp", "Open WebUI", "OpenAI"):
            path = tmp_path / f"{button}.json"
            await (await saved(page, button)).save_as(path)
            assert contains(json.loads(path.read_text()), "Left.")
        await (await saved(page, "HTML file")).save_as(tmp_path / "shared.html")
        shared = await page.context.new_page()
        await shared.set_content((tmp_path / "shared.html").read_text())
        await expect(shared.get_by_text("Which?")).to_be_visible()
        await expect(shared.get_by_text(HOSTILE).last).to_be_visible()
        await shared.close()
        await show_conversations(page)
        await page.get_by_role("button", name="Import and options").click()
        exported = page.url
        await page.get_by_label("File of conversations").set_input_files(tmp_path / "Roundhouse.json")
        # What is imported is shown; on a phone in the place of the list.
        await page.wait_for_url(lambda url: url != exported)
        await show_conversations(page)
        await expect(page.get_by_role("link", name=f"{TITLE} {look}")).to_have_count(2)
        await hide_conversations(page)
        await expect(answer).to_contain_text(HOSTILE)
        await page.get_by_role("button", name="Previous branch").click()
        await expect(answer).to_contain_text("Left.")
        assert await page.title() == "Roundhouse"


@pytest.mark.looks(Look.PHONE)
async def test_a_conversation_in_the_browser_alone_and_a_lost_connection(
    page_stack: RoundhouseStack, look: Look
) -> None:
    async with open_page(page_stack.url, look) as page:
        await answered(page, "Known to the gateway")
        await show_conversations(page)
        await page.get_by_role("button", name="Import and options").click()
        await page.get_by_role("checkbox", name="Keep them in this browser alone").check()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="New conversation").click()
        await answered(page, "Between us")
        listed = (await page_stack.request("GET", "/v1/conversations?limit=100")).text
        assert ("Known to the gateway" in listed, "Between us" in listed) == (True, False)
        await page.reload()
        await expect(page.get_by_role("article", name="Your message")).to_contain_text("Between us")
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
        await show_conversations(page)
        await page.context.set_offline(True)
        await page.get_by_role("link", name="Known to the gateway").first.click()
        await expect(page.get_by_role("article", name="Your message")).to_contain_text("Known to the gateway")
        await show_conversations(page)
        await expect(page.get_by_text("Shown is this browser's copy")).to_be_visible()
        await page.context.set_offline(False)


def contains(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return text in value
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(contains(each, text) for each in values)


async def test_the_newest_messages_of_a_long_conversation_are_there_before_the_older_ones(
    page_stack: RoundhouseStack,
) -> None:
    items = [
        item
        for number in range(500)
        for item in (
            message("user", f"Question {number}. " * 5),
            message("assistant", f"**Answer {number}.** " + "It depends. " * 40),
        )
    ]
    conversation = (await page_stack.request("POST", "/v1/conversations", {"items": items})).success["id"]
    async with open_context(page_stack.url) as context:
        page = await context.new_page()
        await page.add_init_script(NOTE_FIRST_SIGHT)
        await page.goto(f"/#/chat/{conversation}")
        messages = page.locator("[role=log] article")
        await expect(messages.last).to_be_in_viewport()
        # Parsed as Markdown, and no older one kept the end out of sight.
        await expect(messages.last.locator("strong")).to_have_text("Answer 499.")
        assert 0 < await page.evaluate("window.messagesAtFirstSight") < len(items)
        await expect(messages).to_have_count(len(items))
        await expect(messages.last).to_be_in_viewport()
        await expect(messages.first).not_to_be_in_viewport()
        # Of those, a screen reader reads nothing out.
        quiet = page.locator("[role=log] [aria-live=off]")
        await expect(quiet.filter(has_text="Question 0.")).to_have_count(1)
        await expect(quiet.filter(has_text="Question 499.")).to_have_count(0)
        # The browser's own search finds what is far away, and what comes near is parsed.
        assert await page.evaluate("window.find('Question 0.')")
        await page.get_by_role("log", name="Messages").press("Home")
        await expect(messages.first).to_be_in_viewport()
        await expect(messages.nth(1).locator("strong")).to_have_text("Answer 0.")
