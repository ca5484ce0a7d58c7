"""A conversation: asked, answered, kept over a reload."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Route, expect

from tests.support.page_browser import Look, open_context, open_page, send_message, show_conversations
from tests.support.page_stacks import PATH_PREFIX
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]


async def test_a_first_message_is_answered_and_stays(page_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(page_stack.url, look) as page:
        await send_message(page, f"Hello there, {look}")
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.last).to_contain_text(SENTENCE)
        await show_conversations(page)
        await expect(page.get_by_role("link", name=f"Hello there, {look}")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("article", name="Your message")).to_contain_text("Hello there")
        await expect(answer.last).to_contain_text(SENTENCE)
        await expect(answer).to_have_count(1)


async def test_items_that_were_read_a_moment_too_early_are_read_again(page_stack: RoundhouseStack, look: Look) -> None:
    late = 0

    async def answer_late(route: Route) -> None:
        nonlocal late
        fetched = await route.fetch()
        body = await fetched.json()
        if len(body["data"]) == 2 and late < 2:
            late += 1
            del body["data"][1]
        await route.fulfill(response=fetched, json=body)

    async with open_context(page_stack.url, look) as context:
        page = await context.new_page()
        await page.route("**/items?*", answer_late)
        await page.goto("/")
        await send_message(page, "Read again")
        await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
        assert late == 2
        await page.unroute_all(behavior="wait")


async def test_a_message_that_is_written_before_its_conversation_is_read_is_kept(
    page_stack: RoundhouseStack, look: Look
) -> None:
    is_read = asyncio.Event()

    async def hold(route: Route) -> None:
        await is_read.wait()
        await route.continue_()

    async with open_page(page_stack.url, look) as page:
        await send_message(page, "Once")
        answers = page.get_by_role("article", name="Answer")
        regenerate = page.get_by_role("button", name="Regenerate answer")
        await expect(regenerate).to_be_visible()
        await page.route("**/v1/conversations/conv_*", hold)
        await page.reload()
        written = page.get_by_role("textbox", name="Message", exact=True)
        send = page.get_by_role("button", name="Send", exact=True)
        await written.fill("Too early")
        await written.press("Enter")
        await expect(send).to_be_disabled()
        await page.reload()
        await expect(written).to_have_value("Too early")
        is_read.set()
        await send.click()
        await expect(regenerate).to_have_count(2)
        await expect(answers.last).to_contain_text(SENTENCE)
        await expect(page.get_by_role("article", name="Your message")).to_contain_text(["Once", "Too early"])
        await expect(written).to_have_value("")
        await page.unroute_all(behavior="wait")


async def test_the_page_works_below_a_path_of_a_proxy(page_stack: RoundhouseStack) -> None:
    asked: list[str] = []
    async with open_page(page_stack.url, path=PATH_PREFIX) as page:
        page.on("request", lambda request: asked.append(request.url))
        assert page.url.endswith(f"{PATH_PREFIX}/"), "relative addresses need the slash"
        await page.reload()
        await send_message(page, "Hello")
        await expect(page.get_by_role("article", name="Answer")).to_contain_text(SENTENCE)
        await page.goto(f"{page_stack.url}{PATH_PREFIX}/#/models")
        await expect(page.get_by_role("heading", name="clockwork loaded")).to_be_visible()
        assert {urlsplit(url).path.split("/")[1] for url in asked} == {PATH_PREFIX.strip("/")}, asked
