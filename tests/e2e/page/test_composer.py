"""The composer: models with their states, settings of a conversation, presets, tools, drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from contract.status import ModelState
from tests.support.page_browser import Look, open_page, send_message
from tests.support.page_stacks import CLOCKWORK, clockwork_stack
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

LLAMA = {**CLOCKWORK, "llama_server_threads": 1}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path) -> Iterator[RoundhouseStack]:
    """Real llama-servers: `clockwork` is loaded, `second` is not; and one built-in tool."""
    models = {"clockwork": LLAMA, "second": {**LLAMA, "enabled": False}}
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
        await page.get_by_role("checkbox", name="Built-in tools").check()
        await close_dialog(page)
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


@pytest.mark.looks(Look.PHONE)
async def test_a_model_is_loaded_on_selection_and_kept(stack: RoundhouseStack, look: Look) -> None:
    async with open_page(stack.url, look) as page:
        await page.get_by_role("textbox", name="Message", exact=True).fill("A draft that a reload keeps")
        await page.reload()
        await expect(page.get_by_role("textbox", name="Message", exact=True)).to_have_value(
            "A draft that a reload keeps"
        )
        assert (await ask(page, "With the first"))["model"] == "clockwork"
        await page.get_by_role("button", name="Model: clockwork").click()
        models = page.get_by_role("dialog", name="Models")
        await expect(models.get_by_role("button", name="clockwork")).to_contain_text("4,096 tokens of context")
        await expect(models.get_by_role("button", name="second")).to_contain_text("unloaded")
        await models.get_by_role("button", name="second").click()
        await page.get_by_role("button", name="Load it").click()
        # The message is sent while the model loads, and waits for it.
        assert (await ask(page, "With the second"))["model"] == "second"
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
        await page.reload()
        await expect(page.get_by_role("button", name="Model: second")).to_be_visible()
    assert (await stack.request("POST", "/v1/admin/models/second/unload")).success
    await stack.model_where("second", lambda model: model.state is ModelState.UNLOADED, "unloaded")
