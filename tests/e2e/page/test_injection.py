"""What others write never runs: attacks, wherever a text of a model, a tool, a document or an import is shown.

`open_context` fails for each report of the Content-Security-Policy and each request to another origin.
"""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Error, Page, Route, expect

from tests.fakes.fake_tool_model import Call, Fields, Move
from tests.support.page_browser import Look, open_context, open_page, send_message
from tests.support.page_stacks import SERVER, SpokenStack, message
from tests.support.page_texts import ATTACKING_NAMES, CORPUS, IMAGE, SVG

pytestmark = [pytest.mark.engines, pytest.mark.slow]


async def expect_unharmed(page: Page) -> None:
    """Nothing ran, in the page or a frame of it, and nothing that can be clicked would."""
    for frame in page.frames:
        try:
            assert await frame.evaluate("window.__owned") is None, frame.url
        except Error:
            assert frame.is_detached(), "a diagram that cannot be drawn gives way to its source"
    addresses = await page.eval_on_selector_all(
        "a[href], area[href], form, iframe, object, embed, base, link, img, video, source",
        "all => all.map(each => each.href ?? each.action ?? each.src ?? each.data)",
    )
    for address in map(str, addresses):
        assert address.startswith((f"{page.url.partition('#')[0]}", "https://", "http://", "mailto:", "data:image/")), (
            address
        )
    handlers = "all => all.flatMap(each => each.getAttributeNames()).filter(name => name.startsWith('on'))"
    assert await page.eval_on_selector_all("*", handlers) == []
    assert await page.locator("#main script, #main style, #main svg foreignObject, #main base").count() == 0


async def test_stored_items_of_others_do_not_run(spoken: SpokenStack, look: Look) -> None:
    items = [message(role, text) for text in CORPUS for role in ("user", "assistant")]
    name = await spoken.add_conversation(f"Title {IMAGE}", items)
    async with open_page(spoken.url, look, f"/#/chat/{name}") as page:
        answers = page.get_by_role("article", name="Answer")
        await expect(answers).to_have_count(len(CORPUS))
        for number in range(len(CORPUS)):
            await answers.nth(number).scroll_into_view_if_needed()
        drawn = page.frame_locator("iframe[title=Diagram]")
        await expect(drawn.first.locator("svg")).to_be_visible()
        await expect(drawn.last.locator("svg")).to_be_visible()
        await drawn.first.get_by_text("B", exact=True).click()
        await expect(page.locator(".katex").first).to_be_visible()
        await expect(page.get_by_role("link", name="Image from evil.example").first).to_be_visible()
        await expect(page.get_by_role("link", name="click")).to_have_count(0)
        await expect_unharmed(page)


@pytest.mark.looks(Look.PHONE)
async def test_streams_tools_citations_and_names_do_not_run(spoken: SpokenStack, look: Look) -> None:
    text = "\n\n".join(CORPUS)
    spoken.scripts["Attack"] = [
        Move(calls=[Call(f"{SERVER}__attack", {IMAGE: text})], thought=text),
        Move(text, thought=text),
    ]
    settings = {"toolServers": [SERVER], "approvedTools": [f"{SERVER}/attack"]}
    found = {"file_id": "file-1", "filename": IMAGE, "score": 0.9, "text": text}
    cited = {"type": "file_citation", "file_id": "file-1", "filename": IMAGE, "number": 1, "index": 0}
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": IMAGE, "name": IMAGE, "arguments": text, "error": text}
    planted: list[Fields] = [
        {"type": "message", "role": "user", "content": [{"type": "input_file", "filename": IMAGE, "file_data": SVG}]},
        {"type": "file_search_call", "id": "fs_1", "queries": [text], "results": [found], "status": "completed"},
        call,
        message("assistant", "See [1].", [cited]),
    ]
    name = await spoken.add_conversation(IMAGE, planted, settings)

    async def attack_names(route: Route) -> None:
        answer = await route.fetch()
        models = await answer.json()
        models["data"] += [{**models["data"][0], "id": IMAGE}]
        await route.fulfill(response=answer, body=json.dumps(models))

    async with open_context(spoken.url, look) as context:
        page = await context.new_page()
        await page.route("**/v1/models*", attack_names)
        await page.goto(f"/#/chat/{name}")
        answers = page.get_by_role("article", name="Answer")
        await answers.first.get_by_role("button", name="Source 1").click()
        await expect(page.get_by_role("dialog")).to_contain_text("<script>")
        await expect_unharmed(page)
        await page.keyboard.press("Escape")
        await send_message(page, "Attack")
        await expect(answers.last.get_by_text("20 tokens in")).to_be_visible()
        for each in await answers.last.locator("summary").all():
            await each.click()
        await expect(answers.last.get_by_role("figure", name="Result").first).to_contain_text("<script>")
        await expect_unharmed(page)


async def test_prompts_and_resources_of_servers_do_not_run(spoken: SpokenStack, look: Look) -> None:
    text, names = "\n\n".join(ATTACKING_NAMES), len(ATTACKING_NAMES)
    async with open_page(spoken.url, look, "/#/chat") as page:
        button = page.get_by_role("button", name="Prompts and resources of servers")
        dialog = page.get_by_role("dialog", name="Prompts and resources")
        prompts = dialog.get_by_role("list", name=f"Prompts of {SERVER}").get_by_role("button")
        resources = dialog.get_by_role("list", name=f"Resources of {SERVER}").get_by_role("button")
        await button.click()
        await expect(prompts).to_have_count(names + 1)
        await expect(resources).to_have_count(names)
        await expect_unharmed(page)
        await prompts.first.click()
        await expect(page.get_by_role("textbox", name="Message", exact=True)).to_have_value(text)
        await button.click()
        await resources.nth(1).click()
        await expect(page.get_by_role("list", name="Attachments")).to_contain_text(ATTACKING_NAMES[1])
        await button.click()
        await prompts.last.click()
        await expect(dialog.get_by_role("textbox", name=ATTACKING_NAMES[0])).to_be_focused()
        await expect_unharmed(page)
