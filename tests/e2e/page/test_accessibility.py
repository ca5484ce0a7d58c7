"""axe-core finds no violation on any view, in both themes, on a desk and on a phone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from tests.support.page_browser import AXE, PHONE, open_context, open_menu, post_as_page, require_axe, violations
from tests.support.page_stacks import message
from tests.support.page_texts import RICH
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

TABLE = "| second | table |\n| --- | --- |\n| 1 | 2 |"
DOCUMENT: dict[str, Any] = {"id": "coal", "text": "# Coal\n\nCoal is stored beside the shed.", "filename": "coal.md"}


@pytest.fixture
async def conversation(whole_stack: RoundhouseStack) -> str:
    """Id of a conversation with an answer; there is a document, too."""
    await post_as_page(whole_stack, "/v1/documents?wait=true", DOCUMENT)
    made = await post_as_page(whole_stack, "/v1/conversations", {"metadata": {"title": "Greetings"}})
    asked = {"model": "clockwork", "input": "Hello", "conversation": made["id"]}
    await post_as_page(whole_stack, "/v1/responses", asked)
    return str(made["id"])


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
        await page.get_by_role("button", name="What would happen").press("Enter")
        await expect(page.get_by_role("list", name="What would happen")).to_contain_text("missing.gguf")
        found["what would happen"] = await violations(page)
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        found["keys"] = await violations(page)
    assert not any(found.values()), json.dumps(found, indent=1)


@pytest.fixture
async def rich_conversation(whole_stack: RoundhouseStack) -> str:
    """Id of a conversation with two branches, whose shown one has every kind of item, and ends with a call that waits
    for its user."""
    tool = {"server_label": "desk", "name": "look", "arguments": '{"city": "Bonn"}'}
    found = {"file_id": "coal", "filename": "coal.md", "score": 0.9, "text": "Coal is stored beside the shed."}
    cited = {"type": "file_citation", "file_id": "coal", "filename": "coal.md", "number": 1, "chunk": 0}
    items = [
        {"id": "msg_first", **message("user", "Show all")},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Let me see."}]},
        {"type": "mcp_list_tools", "server_label": "desk", "tools": [{"name": "look", "input_schema": {}}]},
        {"type": "mcp_call", "id": "mcp_1", **tool, "output": "It rains. " * 300},
        {"type": "mcp_call", "id": "mcp_2", **tool, "error": "no such city"},
        {"type": "file_search_call", "id": "fs_1", "queries": ["coal"], "results": [found], "status": "completed"},
        message("assistant", f"{RICH}\n\n{TABLE}\n\nCoal is beside the shed [1].", [cited]),
        {"type": "mcp_approval_request", "id": "mcpr_1", **tool},
        {"type": "mcp_approval_request", "id": "mcpr_2", **tool},
    ]
    made = await post_as_page(whole_stack, "/v1/conversations", {"metadata": {"title": "Rich"}, "items": items[:1]})
    path = f"/v1/conversations/{made['id']}/items"
    await post_as_page(
        whole_stack, path, {"items": [message("assistant", "Another answer.")], "parent_id": "msg_first"}
    )
    await post_as_page(whole_stack, path, {"items": items[1:], "parent_id": "msg_first"})
    return str(made["id"])


async def test_no_dialog_and_no_rich_answer_has_a_violation(
    whole_stack: RoundhouseStack, rich_conversation: str
) -> None:
    require_axe()
    async with open_context(whole_stack.url) as context:
        await context.add_init_script(path=AXE)
        page = await context.new_page()
        await page.goto(f"/#/chat/{rich_conversation}")
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.get_by_role("button", name="Allow once").last).to_be_visible()
        await expect(page.frame_locator("iframe[title=Diagram]").first.get_by_text("Start", exact=True)).to_be_visible()
        await answer.get_by_role("button", name="Preview").click()
        await expect(page.frame_locator("iframe[title=Preview]").locator("#told")).to_be_visible()
        for each in await answer.locator("summary").all():
            await each.click()
        found = {"answer": await violations(page)}
        for name, button, text in (
            ("settings", page.get_by_role("button", name="Settings of this conversation"), "Temperature"),
            ("rename", page.get_by_role("button", name="Rename", exact=True), "Title"),
            ("tree", page.get_by_role("button", name="Branches", exact=True), "Another answer."),
            ("export", page.get_by_role("button", name="Export", exact=True), "HTML file"),
            ("options", page.get_by_role("button", name="Import and options"), "Written by"),
            ("delete", page.get_by_role("button", name="Delete Rich"), "Delete"),
            ("passage", answer.get_by_role("button", name="Source 1: coal.md"), "Coal is stored"),
        ):
            await button.click()
            await expect(page.get_by_role("dialog").get_by_text(text).first).to_be_visible()
            if name == "settings":
                await page.get_by_label("Name of the preset").fill("Brief")
                await page.get_by_role("button", name="Save as preset").click()
                await expect(page.get_by_role("button", name="Delete preset Brief")).to_be_visible()
            found[name] = await violations(page, "dialog[open]")
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.get_by_role("button", name="Model:").click()
        await expect(page.get_by_role("dialog", name="Models")).to_be_visible()
        found["models"] = await violations(page, "[popover]:popover-open")
        await page.keyboard.press("Escape")
        await page.set_viewport_size(PHONE)
        for menu in ("Views", "More actions"):
            await open_menu(page, menu)
            found[menu] = await violations(page, "header")
            await page.set_viewport_size(PHONE)
            await page.keyboard.press("Escape")
    assert not any(found.values()), json.dumps(found, indent=1)
