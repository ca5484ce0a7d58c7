"""Answers that outlive what happens to their connection: cuts, an offline browser, reloads, another tab, a killed
gateway. The text is the engine's, to the byte; or a true prefix that says so."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Locator, Page, expect

from tests.support.campaign import RecordProperty, campaign_count, campaign_seed, record_figure
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.page_browser import PHONE, open_context, require_page, send_message
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

WORDS = [f"w{number}é" for number in range(240)]
TEXT = " ".join(WORDS)
"""What the model `slow` says, word for word, in about 5 s; what is 1 character is often 2 bytes."""
MANY_CUTS = campaign_count(5, 50)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path) -> Iterator[RoundhouseStack]:
    """A real llama-server with `clockwork`, an engine that takes its time, one that is full, and one that is off."""
    require_page()
    stack = RoundhouseStack(tmp_path_factory.mktemp("streams"), "process", {"ROUNDHOUSE_MDNS": "off"})
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    slow = {"backend": "stub", "stub_text": TEXT, "stub_token_delay_ms": 20}
    stack.declare(
        {
            "clockwork": {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096},
            "slow": slow,
            "off": {"backend": "stub", "enabled": False},
        }
    )

    async def start() -> None:
        await stack.open()
        await stack.loaded("clockwork", "slow")

    asyncio.run(start())
    yield stack
    asyncio.run(stack.close())


async def ask(page: Page, text: str, model: str = "slow") -> Locator:
    """Begin a conversation with a model. Returns its answer."""
    await page.goto("/#/chat")
    await choose_model(page, model)
    await send_message(page, text)
    return page.get_by_role("article", name="Answer")


async def choose_model(page: Page, model: str) -> None:
    """Choose the model of the conversation that is shown."""
    await page.get_by_role("button", name="Model:").click()
    await page.get_by_role("dialog", name="Models").get_by_role("button", name=model).click()


def text_of(answer: Locator) -> Locator:
    """The paragraph of an answer, without the buttons below it."""
    return answer.locator("p").first


async def reaches(answer: Locator, word: int) -> None:
    """Wait until the answer has a word."""
    await expect(answer).to_contain_text(WORDS[word])


async def test_no_break_of_the_connection_changes_the_text(
    stack: RoundhouseStack, record_property: RecordProperty
) -> None:
    chance = random.Random(campaign_seed())
    done = 0
    async with cutting_proxy(stack.port) as proxy, open_context(proxy.url) as context:
        page = await context.new_page()
        while done < MANY_CUTS:
            answer = await ask(page, f"Break {done}")
            for word in sorted(chance.sample(range(5, 200), 5)):
                await reaches(answer, word)
                await _break(page, proxy, chance.choice(("cut", "offline", "reload", "down", "away")))
                done += 1
            await expect(text_of(answer)).to_have_text(TEXT)
            await expect(answer).to_have_count(1)
        assert proxy.cuts > 0
    record_figure(
        record_property, "breaks of the connection in the middle of a stream, after which the text is exact", done
    )


async def _break(page: Page, proxy: CuttingProxy, how: str) -> None:
    """Break the connection in the middle of an answer, and mend it."""
    match how:
        case "cut":
            proxy.cut()
        case "down":
            proxy.is_down = True
            proxy.cut()
            await expect(page.get_by_text("Trying to go on")).to_be_visible()
            proxy.is_down = False
        case "offline":
            await page.context.set_offline(True)
            proxy.cut()
            await expect(page.get_by_text("Trying to go on")).to_be_visible()
            await page.context.set_offline(False)
        case "reload":
            await page.reload()
        case "away":
            address = page.url
            await page.goto("about:blank")
            await page.goto(address)


async def test_a_second_tab_follows_and_either_may_stop(stack: RoundhouseStack) -> None:
    async with open_context(stack.url) as context:
        first, second = await context.new_page(), await context.new_page()
        answer = await ask(first, "Follow me")
        await reaches(answer, 3)
        await second.goto(first.url)
        copy = second.get_by_role("article", name="Answer")
        await reaches(copy, 20)
        await expect(second.get_by_role("article", name="Your message")).to_contain_text("Follow me")
        await second.get_by_role("button", name="Stop", exact=True).click()
        for page in (first, second):
            await expect(page.get_by_text("You stopped this answer.")).to_be_visible()
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        kept = await text_of(answer).inner_text()
        assert TEXT.startswith(kept)
        assert len(kept) > len(" ".join(WORDS[:20]))
        await expect(text_of(copy)).to_have_text(kept)
        await first.reload()
        await expect(text_of(answer)).to_have_text(kept)
        await expect(answer).to_have_count(1)


async def test_what_a_killed_gateway_cut_is_marked_and_can_be_continued(stack: RoundhouseStack) -> None:
    async with open_context(stack.url, viewport=PHONE) as context:
        page = await context.new_page()
        answer = await ask(page, "Cut me")
        await reaches(answer, 15)
        stack.kill("gateway")
        await expect(page.get_by_text("Trying to go on")).to_be_visible()
        stack.start("gateway")
        await stack.gateway_connected()
        await expect(page.locator("[data-unfinished=cut]")).to_contain_text("This answer was cut short.")
        kept = await text_of(answer).inner_text()
        assert TEXT.startswith(kept)
        assert WORDS[15] in kept
        await page.reload()
        await expect(text_of(answer)).to_have_text(kept)
        await page.get_by_role("button", name="Continue").click()
        # This engine knows nothing of the text that it continues, and says all of its own.
        await expect(text_of(answer)).to_have_text(kept + TEXT)


async def test_a_real_engine_continues_the_text(stack: RoundhouseStack) -> None:
    async with open_context(stack.url) as context:
        page = await context.new_page()
        await page.goto("/#/chat")
        await choose_model(page, "clockwork")
        await page.get_by_role("button", name="Settings of this conversation").click()
        await page.get_by_label("Most tokens of an answer").fill("5")
        await page.get_by_role("button", name="Close").click()
        await send_message(page, "Begin")
        answer = page.get_by_role("article", name="Answer").locator("p").first
        await expect(page.get_by_role("button", name="Continue")).to_be_visible()
        begun = await answer.inner_text()
        assert SENTENCE.startswith(begun.strip())
        assert begun.strip() != SENTENCE
        await page.get_by_role("button", name="Settings of this conversation").click()
        await page.get_by_label("Most tokens of an answer").fill("")
        await page.get_by_role("button", name="Close").click()
        await page.get_by_role("button", name="Continue").click()
        await expect(answer).to_have_text(SENTENCE)


async def test_a_refused_request_says_why_and_the_message_can_be_sent_again(stack: RoundhouseStack) -> None:
    async with open_context(stack.url) as context:
        page = await context.new_page()
        await ask(page, "Is anybody there?", "off")
        await expect(page.get_by_role("alert").filter(has_text="is not loaded")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("article", name="Your message")).to_contain_text("Is anybody there?")
        await expect(page.get_by_text("This message has no answer yet.")).to_be_visible()
        await choose_model(page, "clockwork")
        await page.get_by_role("button", name="Ask again").click()
        await expect(page.get_by_role("article", name="Answer")).to_contain_text(SENTENCE)
        await expect(page.get_by_role("article", name="Your message")).to_have_count(1)


async def test_two_tabs_that_send_at_once_lose_no_message(stack: RoundhouseStack) -> None:
    async with open_context(stack.url) as context:
        pages = [await context.new_page(), await context.new_page()]
        answer = await ask(pages[0], "Begin", "clockwork")
        await expect(answer).to_contain_text(SENTENCE)
        await choose_model(pages[0], "slow")
        await pages[1].goto(pages[0].url)
        await expect(pages[1].get_by_role("button", name="Model: slow")).to_be_visible()
        messages = ["From the first tab", "From the second tab"]
        await asyncio.gather(*(send_message(page, text) for page, text in zip(pages, messages, strict=True)))
        for page in pages:
            await expect(text_of(page.get_by_role("article", name="Answer").last)).to_have_text(TEXT)
        stored = await user_texts(stack, pages[0].url.rpartition("/")[2])
        drafts = [await page.get_by_role("textbox", name="Message", exact=True).input_value() for page in pages]
        for text, draft in zip(messages, drafts, strict=True):
            assert (text in stored) != (draft == text), "it is stored, or still in its composer"


async def user_texts(stack: RoundhouseStack, conversation: str) -> list[str]:
    """Texts of the user's messages of all branches."""
    url = f"{stack.url}/v1/conversations/{conversation}/items?branch=all&limit=1000"
    async with aiohttp.ClientSession() as session, session.get(url) as got:
        items = (await got.json())["data"]
    return [item["content"][0]["text"] for item in items if item.get("role") == "user"]


async def test_a_conversation_may_be_deleted_and_others_shown_while_it_streams(stack: RoundhouseStack) -> None:
    async with open_context(stack.url) as context:
        page = await context.new_page()
        answer = await ask(page, "Kept")
        await reaches(answer, 2)
        await reaches(await ask(page, "Deleted"), 2)
        await page.get_by_role("button", name="Delete Deleted").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(page.get_by_role("link", name="Deleted")).to_have_count(0)
        await page.get_by_role("link", name="Kept").click()
        await expect(text_of(answer)).to_have_text(TEXT)
    await stack.model_where("slow", lambda model: model.replicas[0].inflight == 0, "nothing is made any more")
