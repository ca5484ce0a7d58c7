"""Calls of tools: asked for, allowed once or always, refused, failed; and citations that open their passage."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from tests.fakes.fake_tool_model import Call, Move
from tests.support.page_browser import Look, open_page, send_message, show_conversations
from tests.support.page_stacks import SERVER, SpokenStack, message

pytestmark = [pytest.mark.engines, pytest.mark.slow]

LONG = "It rains. " * 300
TOOLS = {"toolServers": [SERVER]}
ASKS = Call(f"{SERVER}__look", {"city": "Bonn"})


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


async def test_a_call_waits_for_its_user_and_always_holds_for_the_conversation(spoken: SpokenStack, look: Look) -> None:
    spoken.scripts |= {each: [Move(calls=[ASKS]), Move(f"{each}, wet.")] for each in ("First", "Second", "Third")}
    name = await spoken.add_conversation("Allowed", [], TOOLS)
    async with open_page(spoken.url, look, f"/#/chat/{name}") as page:
        await send_message(page, "First")
        asked = answers(page).get_by_role("group", name="Call of desk/look")
        await expect(asked.get_by_role("figure", name="Arguments")).to_contain_text('"city": "Bonn"')
        await asked.get_by_role("button", name="Allow once").click()
        await expect(answers(page).last).to_contain_text("First, wet.")
        await expect(asked).to_contain_text("You allowed this call.")
        await expect(answers(page)).to_have_count(1)  # The stored one has taken the place of the one that came.
        call = answers(page).get_by_text("Tool desk/look", exact=True)
        await call.click()
        result = answers(page).get_by_role("figure", name="Result")
        await expect(result).not_to_contain_text(LONG.strip())
        await result.get_by_role("button", name="Show all 3,000 characters").click()
        await expect(result).to_contain_text(LONG.strip())
        await expect(answers(page).get_by_text("Tools of desk: 3")).to_be_visible()

        await send_message(page, "Second")
        again = answers(page).last.get_by_role("group", name="Call of desk/look")
        await again.get_by_role("button", name="Always allow this tool here").click()
        await expect(answers(page).last).to_contain_text("Second, wet.")
        await send_message(page, "Third")
        await expect(answers(page).last).to_contain_text("Third, wet.")
        await expect(answers(page).last.get_by_role("group", name="Call of desk/look")).to_have_count(0)
    stored = await spoken.stack.request("GET", f"/v1/conversations/{name}")
    assert stored.body["settings"]["approvedTools"] == ["desk/look"]


@pytest.mark.looks(Look.PHONE)
async def test_refused_and_failed_calls_are_told(spoken: SpokenStack, look: Look) -> None:
    both = [Move(calls=[ASKS, Call(f"{SERVER}__break")]), Move("One failed, one was refused.")]
    spoken.scripts["Both"] = both
    name = await spoken.add_conversation("Refused", [], TOOLS)
    async with open_page(spoken.url, look, f"/#/chat/{name}") as page:
        await send_message(page, "Both")
        asked = answers(page).get_by_role("group", name="Call of desk/look")
        await asked.get_by_role("button", name="Refuse").click()
        await expect(asked).to_contain_text("You refused this call.")
        await (
            answers(page)
            .get_by_role("group", name="Call of desk/break")
            .get_by_role("button", name="Allow once")
            .click()
        )
        await expect(answers(page).last).to_contain_text("One failed, one was refused.")
        await expect(answers(page)).to_have_count(1)  # The stored one has taken the place of the one that came.
        failed = answers(page).get_by_text("Tool desk/break failed")
        await failed.click()
        await expect(answers(page).get_by_role("figure", name="Error")).to_contain_text("no such city")
        await page.reload()
        await expect(failed).to_be_visible()
        await expect(asked).to_contain_text("You refused this call.")


async def test_a_conversation_in_the_browser_alone_asks_too(spoken: SpokenStack, look: Look) -> None:
    spoken.scripts["Between us"] = [Move(calls=[ASKS]), Move("Wet, in secret.")]
    spoken.scripts["And again"] = [Move(calls=[ASKS]), Move("Still wet.")]
    async with open_page(spoken.url, look) as page:
        await show_conversations(page)
        await page.get_by_role("button", name="Import and options").click()
        await page.get_by_role("checkbox", name="Keep them in this browser alone").check()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="New conversation").click()
        await page.get_by_role("button", name="Settings of this conversation").click()
        await page.get_by_role("checkbox", name=SERVER).check()
        await page.get_by_role("dialog").get_by_role("button", name="Close").click()
        await send_message(page, "Between us")
        asked = answers(page).get_by_role("group", name="Call of desk/look")
        await asked.get_by_role("button", name="Always allow this tool here").click()
        await expect(answers(page).last).to_contain_text("Wet, in secret.")
        # What was allowed and called is in the browser, and goes along with the next question.
        await page.reload()
        await expect(asked).to_contain_text("You allowed this call.")
        await expect(answers(page).last).to_contain_text("Wet, in secret.")
        await send_message(page, "And again")
        await expect(answers(page).last).to_contain_text("Still wet.")
        await expect(asked).to_have_count(1)
    calls = [
        each["function"]["name"]
        for each in spoken.model.requests[-1]["messages"]
        for each in each.get("tool_calls", ())
    ]
    assert calls == [f"{SERVER}__look"] * 2
    assert "Between us" not in (await spoken.stack.request("GET", "/v1/conversations?limit=100")).text


async def test_a_citation_opens_its_passage(spoken: SpokenStack, look: Look) -> None:
    text = "Coal is in the tender [1], water too `[1]` [2]."
    cited = {"type": "file_citation", "file_id": "file-1", "filename": "manual.txt", "chunk": 3, "page": 7}
    annotations = [{**cited, "number": 1, "index": 23, "start_index": 23, "end_index": 26}]
    found = {"file_id": "file-1", "filename": "manual.txt", "score": 0.9, "text": "The tender holds the coal."}
    search = {"type": "file_search_call", "id": "fs_1", "queries": ["coal"], "results": [found], "status": "completed"}
    items = [message("user", "Where?"), search, message("assistant", text, annotations)]
    name = await spoken.add_conversation("Cited", items)
    async with open_page(spoken.url, look, f"/#/chat/{name}") as page:
        mark = answers(page).get_by_role("button", name="Source 1: manual.txt")
        await expect(mark).to_have_count(1)
        await mark.click()
        passage = page.get_by_role("dialog", name="manual.txt")
        await expect(passage).to_contain_text("The tender holds the coal.")
        await expect(passage).to_contain_text("page 7")
        await page.keyboard.press("Escape")
        await expect(passage).to_have_count(0)
        await expect(mark).to_be_focused()
        await expect(answers(page).get_by_text("Searched the documents: 1 passage")).to_be_visible()
