"""The composer: models with their states, settings of a conversation, presets, tools, drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import FilePayload, Page, Route, expect

from contract.status import ModelState
from tests.support.page_browser import Look, choose_model, open_page, post_as_page, send_message
from tests.support.page_stacks import CLOCKWORK, clockwork_stack
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

LLAMA = {**CLOCKWORK, "llama_server_threads": 1}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path) -> Iterator[RoundhouseStack]:
    """Real llama-servers: `clockwork` is loaded, `second` is not, `broken` has no file; and one built-in tool."""
    models = {"broken": {"model_path": "missing.gguf"}, "clockwork": LLAMA, "second": {**LLAMA, "enabled": False}}
    tools = "tools:\n  current_time: {}\n"
    with clockwork_stack(tmp_path_factory.mktemp("composer"), clockwork, models, tools) as stack:
        yield stack


async def open_settings(page: Page) -> None:
    """Open the dialog of the conversation that is shown."""
    await page.get_by_role("button", name="Settings of this conversation").click()


async def close_dialog(page: Page) -> None:
    await page.get_by_role("dialog").get_by_role("button", name="Close").click()


async def ask(page: Page, text: str) -> dict[str, Any]:
    """Send a message. Returns the fields of the request for its answer, once that is complete."""
    answers = page.get_by_role("article", name="Answer")
    before = await answers.count()
    async with page.expect_request(lambda request: request.url.endswith("/v1/responses")) as sent:
        await send_message(page, text)
    await expect(answers).to_have_count(before + 1)
    await expect(answers.last).to_contain_text("quick")
    fields: dict[str, Any] = json.loads((await sent.value).post_data or "")
    return fields


async def test_parameters_presets_and_tools_of_a_conversation(
    stack: RoundhouseStack, tmp_path: Path, look: Look
) -> None:
    async with open_page(stack.url, look) as page:
        await open_settings(page)
        await expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8 (the model's own)")
        await page.get_by_label("Instructions (system prompt)").fill("Be brief.")
        for label, value in (("Temperature", "0.25"), ("Top k", "7"), ("Min p", "0.1"), ("Seed", "42")):
            await page.get_by_label(label, exact=True).fill(value)
        await page.get_by_label("Reasoning effort").select_option("low")
        await page.get_by_label("Name of the preset").fill("Brief")
        await page.get_by_role("button", name="Save as preset").click()
        async with page.expect_download() as download:
            await page.get_by_role("button", name="Export").click()
        await (await download.value).save_as(tmp_path / "presets.json")
        await page.get_by_role("button", name="Delete preset Brief").click()
        used = page.get_by_role("button", name="Answers use")
        await expect(used).to_have_count(0)
        await page.get_by_role("checkbox", name="Built-in tools").check()
        await close_dialog(page)
        await expect(used).to_have_text("Answers use tools")
        fields = await ask(page, "First")
        expected = {"temperature": 0.25, "top_k": 7, "min_p": 0.1, "seed": 42, "reasoning": {"effort": "low"}}
        assert {name: fields.get(name) for name in expected} == expected
        assert fields["instructions"] == "Be brief."
        assert fields["tools"] == [{"type": "mcp", "server_label": "roundhouse", "require_approval": "always"}]

        await page.reload()
        await open_settings(page)
        await expect(page.get_by_label("Seed", exact=True)).to_have_value("42")
        await page.get_by_label("Seed", exact=True).fill("")
        await page.get_by_label("Temperature").fill("9")
        await close_dialog(page)
        fields = await ask(page, "Second")
        assert "seed" not in fields
        assert fields["temperature"] == 0.25, "a value beyond the bounds changes nothing"

        await page.goto("/#/chat")
        await open_settings(page)
        await page.get_by_label("Import presets").set_input_files(tmp_path / "presets.json")
        await page.get_by_role("list", name="Presets").get_by_role("button", name="Brief", exact=True).click()
        await close_dialog(page)
        fields = await ask(page, "Third")
        assert {name: fields.get(name) for name in expected} == expected


async def unload_second(stack: RoundhouseStack) -> None:
    """Leave the model `second` as the fixture has it."""
    assert (await stack.request("POST", "/v1/admin/models/second/unload")).success
    await stack.model_where("second", lambda model: model.state is ModelState.UNLOADED, "unloaded")


@pytest.mark.looks(Look.PHONE)
async def test_a_model_is_loaded_on_selection_and_kept(stack: RoundhouseStack, look: Look) -> None:
    async with open_page(stack.url, look) as page:
        message = page.get_by_role("textbox", name="Message", exact=True)
        await message.fill("A draft that a reload keeps")
        await page.reload()
        await expect(message).to_have_value("A draft that a reload keeps")
        assert (await ask(page, "With the first"))["model"] == "clockwork"
        await page.get_by_role("button", name="Model: clockwork").click()
        models = page.get_by_role("dialog", name="Models")
        await expect(models.get_by_role("button", name="clockwork")).to_contain_text("4,096 tokens of context")
        await expect(models.get_by_role("button", name="second")).to_contain_text("unloaded")
        await models.get_by_role("button", name="second").click()
        # What is written is sent by the load itself, and waits for it.
        await message.fill("With the second")
        async with page.expect_request(lambda request: "/models/second/load?" in request.url) as load:
            await page.get_by_role("button", name="Load it and send").click()
        assert (await load.value).url.endswith("?wait=false")
        await expect(page.get_by_role("article", name="Your message")).to_have_count(2)
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
        await expect(message).to_have_value("")
        await page.reload()
        await expect(page.get_by_role("button", name="Model: second")).to_be_visible()
        # A load alone sends nothing, whatever is written meanwhile.
        await unload_second(stack)
        await page.get_by_role("button", name="Load it", exact=True).click()
        await message.fill("Not yet")
        await stack.model_where("second", lambda model: model.state is ModelState.LOADED, "loaded")
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_enabled()
        await expect(message).to_have_value("Not yet")
        await expect(page.get_by_role("article", name="Your message")).to_have_count(2)
    await unload_second(stack)


async def test_a_message_that_was_refused_is_answered_when_its_model_is_loaded(
    stack: RoundhouseStack, look: Look
) -> None:
    async with open_page(stack.url, look) as page:
        await choose_model(page, "second")
        await send_message(page, "Too early")
        await expect(page.get_by_role("alert").filter(has_text="'second' is not loaded")).to_be_visible()
        await page.get_by_role("button", name="Load it and send").click()
        await expect(page.get_by_role("article", name="Answer")).to_contain_text(SENTENCE)
        await expect(page.get_by_role("article", name="Your message")).to_have_count(1)
    await unload_second(stack)


async def test_models_are_chosen_by_state_or_by_search(stack: RoundhouseStack, look: Look) -> None:
    async def add_models(route: Route) -> None:
        fetched = await route.fetch()
        body = await fetched.json()
        second = next(each for each in body["data"] if each["id"] == "second")
        body["data"] += [{**second, "id": f"extra-{number}"} for number in range(8)]
        await route.fulfill(response=fetched, json=body)

    await stack.model_where("broken", lambda model: model.state is ModelState.FAILED, "failed")
    async with open_page(stack.url, look) as page:
        # The first by name has failed.
        await page.get_by_role("button", name="Model: clockwork").click()
        models = page.get_by_role("dialog", name="Models")
        await expect(models.get_by_role("heading")).to_have_text(["Loaded", "Not loaded", "Failed"])
        await expect(models.get_by_role("button").last).to_contain_text("broken")
        await expect(models.get_by_role("button").last).to_contain_text("missing.gguf is missing")
        await expect(models.get_by_role("searchbox")).to_have_count(0)

        await page.route("**/v1/models", add_models)
        search = models.get_by_role("searchbox", name="Search models")
        await search.fill("extra 7")
        await expect(models.get_by_role("button")).to_have_count(1)
        await search.press("Enter")
        await expect(page.get_by_role("button", name="Model: extra-7")).to_be_visible()
        await expect(models).to_be_hidden()
        # The next conversation begins with it, and with another one as soon as it is gone.
        await page.reload()
        await expect(page.get_by_role("button", name="Model: extra-7")).to_be_visible()
        await page.unroute_all(behavior="wait")
        await page.reload()
        await expect(page.get_by_role("button", name="Model: clockwork")).to_be_visible()


@pytest.mark.looks(Look.DESK, Look.PHONE)
async def test_each_conversation_has_a_draft_of_its_own_with_text_and_files(stack: RoundhouseStack, look: Look) -> None:
    async def shows(text: str, *names: str) -> None:
        await expect(page.get_by_role("textbox", name="Message", exact=True)).to_have_value(text)
        files = page.get_by_role("list", name="Attachments").get_by_role("listitem")
        await expect(files).to_have_count(len(names))
        for name in names:
            await expect(files.filter(has_text=name)).to_be_visible()

    async def write(text: str, name: str) -> None:
        await page.get_by_role("textbox", name="Message", exact=True).fill(text)
        file: FilePayload = {"name": name, "mimeType": "text/plain", "buffer": b"text"}
        await page.get_by_label("Attach files from this device").set_input_files(file)
        await shows(text, name)

    async with open_page(stack.url, look) as page:
        await ask(page, "Begin")
        begun = page.url
        await write("More of it", "more.txt")
        await page.goto("/#/chat")
        await shows("")
        await write("Something new", "new.txt")
        await page.goto(begun)
        await shows("More of it", "more.txt")
        await page.reload()
        await shows("More of it", "more.txt")
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect(page.get_by_role("article", name="Your message").last).to_contain_text("more.txt")
        await shows("")
        await page.goto("/#/chat")
        await shows("Something new", "new.txt")


async def test_an_empty_chat_offers_starters_of_what_is_there(whole_stack: RoundhouseStack, look: Look) -> None:
    document = {"id": "timetable", "text": "# Timetable\n\nThe first train leaves at six.", "filename": "timetable.md"}
    await post_as_page(whole_stack, "/v1/documents?wait=true", document)
    async with open_page(whole_stack.url, look) as page:
        starters = page.get_by_role("list", name="Starters").get_by_role("listitem")
        await expect(starters).to_have_count(3)
        await expect(starters.filter(has_text="Meet clockwork")).to_be_visible()
        await starters.filter(has_text="Ask about timetable.md").get_by_role("button").click()
        message = page.get_by_role("textbox", name="Message", exact=True)
        await expect(message).to_be_focused()
        await expect(message).to_have_value(re.compile("timetable.md"))
        await expect(starters).to_have_count(0)
        await expect(page.get_by_role("button", name="Answers use documents")).to_be_visible()
        async with page.expect_request(lambda request: request.url.endswith("/v1/responses")) as sent:
            await page.get_by_role("button", name="Send", exact=True).click()
        fields = json.loads((await sent.value).post_data or "")
        assert fields["tools"] == [{"type": "file_search", "vector_store_ids": ["documents"]}]
