"""Answers that outlive what happens to their connection: cuts, an offline browser, reloads, another tab, a killed
gateway. The text is the engine's, to the byte; or a true prefix that says so."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import FilePayload, Locator, Page, expect

from contract.status import ModelState
from tests.fakes.fake_paced_engine import PacedEngine, paced_engine
from tests.support.broken_peers import CuttingProxy, cutting_proxy
from tests.support.campaign import RecordProperty, campaign_count, campaign_name, campaign_seed, record_figure
from tests.support.page_browser import (
    Look,
    choose_model,
    open_context,
    open_page,
    require_page,
    send_message,
    show_conversations,
)
from tests.support.page_stacks import open_in_thread
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack, serving
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.slow]

WORDS = [f"w{number}é" for number in range(240)]
TEXT = " ".join(WORDS)
"""What the model `slow` says, each word when a test allows it; the last character of each is two bytes."""
TABLE_AND_FORMULA = [
    "| name | value |\n",
    "| --- | --- |\n",
    "| one | 1 |\n",
    "| two",
    "| 2 |\n\n",
    "$$x^2 +",
    "y^2$$\n\n",
    "Done.",
]
"""What the model `growing` says."""
MANY_CUTS = 5 if campaign_name() == "page_matrix" else campaign_count(5, 50)
WAYS = ("cut", "down", "offline", "reload", "away")
"""How a connection breaks."""


@pytest.fixture(scope="module")
def engine() -> Iterator[PacedEngine]:
    with open_in_thread(paced_engine(WORDS)) as engine:
        yield engine


@pytest.fixture(scope="module")
def growing_engine() -> Iterator[PacedEngine]:
    with open_in_thread(paced_engine(TABLE_AND_FORMULA)) as engine:
        yield engine


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, clockwork: Path, engine: PacedEngine, growing_engine: PacedEngine
) -> Iterator[RoundhouseStack]:
    """A real llama-server with `clockwork`; engines that a test paces, of which `narrow` has one slot and one place in
    its queue; and a model that is off."""
    require_page()
    settings = {"ROUNDHOUSE_MDNS": "off", "ROUNDHOUSE_PROBE_INTERVAL_S": "0.2", "ROUNDHOUSE_MAX_BODY_MIB": "1"}
    stack = RoundhouseStack(tmp_path_factory.mktemp("streams"), "process", settings)
    shutil.copy(clockwork, stack.models / "clockwork.gguf")
    stack.declare(
        {
            "clockwork": {"model_path": "clockwork.gguf", "llama_server_n_ctx": 4096},
            "slow": {"backend": "openai_remote", "base_url": f"{engine.url}/v1"},
            "narrow": {
                "backend": "openai_remote",
                "base_url": f"{engine.url}/v1",
                "target_inflight": 1,
                "queue_limit": 1,
            },
            "growing": {"backend": "openai_remote", "base_url": f"{growing_engine.url}/v1"},
            "off": {"backend": "stub", "enabled": False},
        }
    )

    with serving(stack, "clockwork"):
        for name in ("slow", "narrow", "growing"):
            asyncio.run(serves(stack, name))
        yield stack


@pytest.fixture(autouse=True)
def no_words_yet(engine: PacedEngine) -> None:
    """Let each test begin with an engine that says nothing."""
    engine.echoes = False
    engine.allow(0)


async def serves(stack: RoundhouseStack, model: str = "slow") -> None:
    """Wait until the gateway has found the engine of a remote model."""
    await stack.model_where(model, lambda found: found.state is ModelState.LOADED, "loaded")


async def ask(page: Page, text: str, model: str = "slow") -> Locator:
    """Begin a conversation with a model. Returns its answer."""
    await page.goto("/#/chat")
    await choose_model(page, model)
    await send_message(page, text)
    return page.get_by_role("article", name="Answer")


def text_of(answer: Locator) -> Locator:
    """The paragraph of an answer, without the buttons below it."""
    return answer.locator("p").first


async def says(engine: PacedEngine, count: int, *answers: Locator) -> str:
    """Allow so many words, wait until the answers have them and no more, and return them."""
    engine.allow(count)
    text = " ".join(WORDS[:count])
    for answer in answers:
        await expect(text_of(answer)).to_have_text(text)
    return text


async def said_until(engine: PacedEngine, count: int, shown: Locator) -> int:
    """Allow one word after the other, until the page shows something. Returns their number."""

    async def look() -> bool:
        nonlocal count
        count = min(count + 1, len(WORDS) - 1)
        engine.allow(count)
        return await shown.is_visible()

    await until("it is shown", look)
    return count


async def test_no_break_of_the_connection_changes_the_text(
    stack: RoundhouseStack, engine: PacedEngine, record_property: RecordProperty, look: Look
) -> None:
    chance = random.Random(campaign_seed())
    done: list[str] = []
    async with cutting_proxy(stack.port) as proxy, open_context(proxy.url, look) as context:
        page = await context.new_page()
        while len(done) < MANY_CUTS:
            engine.allow(0)
            answer = await ask(page, f"Break {len(done)}")
            ways = chance.sample(WAYS, len(WAYS))
            for count, way in zip(sorted(chance.sample(range(1, len(WORDS)), len(ways))), ways, strict=True):
                await says(engine, count, answer)
                await _break(page, proxy, way)
                done.append(way)
            await says(engine, len(WORDS), answer)
            await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
            await expect(answer).to_have_count(1)
            await expect(text_of(answer)).to_have_text(TEXT)
        assert proxy.cuts > 0
    record_figure(record_property, "breaks in the middle of a stream, after which the text is exact", len(done))


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


async def test_a_second_tab_follows_and_either_may_stop(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    async with open_context(stack.url, look) as context:
        first, second = await context.new_page(), await context.new_page()
        answer = await ask(first, "Follow me")
        await says(engine, 4, answer)
        await second.goto(first.url)
        copy = second.get_by_role("article", name="Answer")
        await expect(second.get_by_role("article", name="Your message")).to_contain_text("Follow me")
        count = await said_until(engine, 4, answer.get_by_text(re.compile(r"^[\d.]+ tokens/s$")))
        said = await says(engine, count, answer, copy)
        await second.get_by_role("button", name="Stop", exact=True).click()
        for page in (first, second):
            await expect(page.get_by_text("You stopped this answer.")).to_be_visible()
            await expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
            await expect(text_of(page.get_by_role("article", name="Answer"))).to_have_text(said)
        await first.reload()
        await expect(text_of(answer)).to_have_text(said)
        await expect(answer).to_have_count(1)


async def test_a_full_queue_is_said_and_loses_no_message(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    async with open_context(stack.url, look) as context:
        page = await context.new_page()
        engine.allow(2)
        answer = await ask(page, "Served", "narrow")
        await says(engine, 2, answer)
        # Both wait for the engine, so that nothing of this is shown for a moment alone.
        await ask(page, "Queued", "narrow")
        await expect(answer).to_contain_text("Number 1 in the queue of narrow")
        await expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
        queued = page.url
        await ask(page, "Refused", "narrow")
        reason = page.get_by_text("Every slot of the model 'narrow' is taken, and 1 requests wait")
        await expect(reason).to_be_visible()
        await expect(page.get_by_text(re.compile(r"^Asked again (in \d+ s|now), waiting for \d+ s"))).to_be_visible()
        mine = page.get_by_role("article", name="Your message")
        await expect(mine).to_contain_text("Refused")
        refused = page.url
        # It waits in the page, asks again by itself, and can be stopped.
        async with page.expect_request(lambda request: request.url.endswith("/v1/responses")):
            pass
        await expect(reason).to_be_visible()
        await page.get_by_role("button", name="Stop", exact=True).click()
        await expect(page.get_by_text("You stopped this answer.")).to_be_visible()

        await page.goto("/#/models/narrow")
        state = page.get_by_role("region", name="State", exact=True)
        await expect(state).to_contain_text("1 running, 1 waiting")
        await page.goto(refused)
        await page.reload()
        await expect(mine).to_contain_text("Refused")
        await expect(page.get_by_text("This message has no answer yet.")).to_be_visible()
        engine.allow_all()
        await page.goto(queued)
        await expect(text_of(answer.last)).to_have_text(TEXT)
        await page.goto(refused)
        await page.get_by_role("button", name="Ask again").click()
        await expect(text_of(answer.last)).to_have_text(TEXT)
        await expect(mine).to_have_count(1)


async def test_a_message_that_a_full_queue_refused_is_answered_once_there_is_room(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    async with open_context(stack.url, look) as context:
        page = await context.new_page()
        engine.allow(2)
        answer = await ask(page, "Served", "narrow")
        await says(engine, 2, answer)
        await ask(page, "Queued", "narrow")
        await expect(answer).to_contain_text("Number 1 in the queue of narrow")
        await ask(page, "Refused", "narrow")
        await expect(page.get_by_text("Every slot of the model 'narrow' is taken")).to_be_visible()
        engine.allow_all()
        await expect(text_of(answer)).to_have_text(TEXT)
        await expect(page.get_by_role("article", name="Your message")).to_have_text(re.compile("Refused"))


@pytest.mark.looks(Look.PHONE, Look.DESK_DARK)
async def test_sending_and_stopping_show_the_end_and_a_button_leads_there(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    async def scroll_up() -> None:
        await page.get_by_role("log").evaluate("(element) => { element.scrollTop = 0; }")
        await expect(to_end).to_be_visible()

    async with open_page(stack.url, look) as page:
        to_end = page.get_by_role("button", name="To the end")
        mine = page.get_by_role("article", name="Your message")
        regenerate = page.get_by_role("button", name="Regenerate answer")
        engine.allow_all()
        await ask(page, "First")
        for number, text in enumerate(("Second", "Third"), 2):
            await expect(regenerate).to_have_count(number - 1)
            await send_message(page, text)
        await expect(regenerate).to_have_count(3)
        await expect(to_end).to_have_count(0)
        await scroll_up()
        await expect(mine.last).not_to_be_in_viewport()
        await to_end.click()
        await expect(regenerate.last).to_be_in_viewport()
        await expect(to_end).to_have_count(0)

        await scroll_up()
        engine.allow(0)
        await send_message(page, "Fourth")
        await expect(mine.last).to_contain_text("Fourth")
        await expect(mine.last).to_be_in_viewport()

        engine.allow(200)
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(WORDS[199])
        await scroll_up()
        await page.get_by_role("button", name="Stop", exact=True).click()
        await expect(regenerate).to_have_count(4)
        await expect(regenerate.last).to_be_in_viewport()
        await expect(page.get_by_role("button", name="Continue", exact=True)).to_be_in_viewport()


@pytest.mark.looks(Look.PHONE)
async def test_what_a_killed_gateway_cut_is_marked_and_can_be_continued(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    async with open_context(stack.url, look) as context:
        page = await context.new_page()
        answer = await ask(page, "Cut me")
        said = await says(engine, 16, answer)
        stack.kill("gateway")
        await expect(page.get_by_text("Trying to go on")).to_be_visible()
        stack.start("gateway")
        await stack.gateway_connected()
        await expect(page.locator("[data-unfinished=cut]")).to_contain_text("This answer was cut short.")
        await expect(text_of(answer)).to_have_text(said)
        await page.reload()
        await expect(text_of(answer)).to_have_text(said)
        await serves(stack)
        engine.allow_all()
        await page.get_by_role("button", name="Continue").click()
        # This engine does not go on from the text that it is given, and says all of its own.
        await expect(text_of(answer)).to_have_text(said + TEXT)
        given = engine.requests[-1]["messages"]
        assert [(each["role"], each["content"]) for each in given] == [("user", "Cut me"), ("assistant", said)]


async def test_a_real_engine_continues_the_text(stack: RoundhouseStack, look: Look) -> None:
    async with open_page(stack.url, look, "/#/chat") as page:
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


async def test_a_refused_request_says_why_and_the_message_can_be_sent_again(stack: RoundhouseStack, look: Look) -> None:
    async with open_context(stack.url, look) as context:
        page = await context.new_page()
        await ask(page, "Is anybody there?", "off")
        await expect(page.get_by_role("alert").filter(has_text="is not loaded")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("article", name="Your message")).to_contain_text("Is anybody there?")
        await expect(page.get_by_text("This message has no answer yet.")).to_be_visible()
        await choose_model(page, "clockwork")
        await page.get_by_role("button", name="Ask again").click()
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
        await expect(page.get_by_role("article", name="Your message")).to_have_count(1)
        # What the gateway would refuse for its size is not sent.
        large: FilePayload = {"name": "large.txt", "mimeType": "text/plain", "buffer": b"a" * 900_000}
        await page.get_by_label("Attach files from this device").set_input_files(large)
        told = page.get_by_role("alert").filter(has_text="The message has 1.1 MiB, and a request at most 1.0 MiB.")
        await expect(told).to_be_visible()
        await expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
        await page.get_by_role("button", name="Remove large.txt").click()
        await expect(told).to_have_count(0)


async def test_a_table_and_a_formula_grow_without_their_marks(
    stack: RoundhouseStack, growing_engine: PacedEngine, look: Look
) -> None:
    growing_engine.allow(0)
    async with open_context(stack.url, look) as context:
        page = await context.new_page()
        answer = await ask(page, "Grow", "growing")
        table, formula = answer.get_by_role("table"), answer.locator(".katex-display")
        rows = answer.get_by_role("row")
        # The engine waits after each of these numbers of pieces.
        growing_engine.allow(2)
        await expect(table.get_by_role("columnheader")).to_have_text(["name", "value"])
        growing_engine.allow(4)
        await expect(rows).to_have_text(["namevalue", "one1", "two"])
        await expect(answer).not_to_contain_text("|")
        growing_engine.allow(6)
        await expect(rows).to_have_text(["namevalue", "one1", "two2"])
        await expect(formula).to_have_count(0)
        await expect(answer).not_to_contain_text("x^2")
        growing_engine.allow(7)
        await expect(formula.locator(".katex-html")).to_be_visible()
        growing_engine.allow_all()
        await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
        await expect(table.last).to_be_visible()
        await expect(formula.last).to_be_visible()
        await expect(answer.last).to_contain_text("Done.")
        await expect(answer.last).not_to_contain_text("$$")


async def test_two_tabs_that_send_at_once_each_get_their_own_answer(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    engine.echoes = True
    messages = ["From the first tab", "From the second tab"]
    texts = [f"{message} {TEXT}" for message in messages]
    async with open_context(stack.url, look) as context:
        pages = [await context.new_page(), await context.new_page()]
        answer = await ask(pages[0], "Begin", "clockwork")
        await expect(answer).to_contain_text(SENTENCE)
        await choose_model(pages[0], "slow")
        await pages[1].goto(pages[0].url)
        await expect(pages[1].get_by_role("button", name="Model: slow")).to_be_visible()
        await expect(pages[1].get_by_role("article", name="Answer")).to_contain_text(SENTENCE)
        fields = [page.get_by_role("textbox", name="Message", exact=True) for page in pages]
        for field, text in zip(fields, messages, strict=True):
            await field.fill(text)
        await asyncio.gather(*(field.press("Enter") for field in fields))
        await until("both answers are made at the same time", lambda: engine.running == 2)
        engine.allow(4)
        for page, text in zip(pages, messages, strict=True):
            await shows(page, ["Begin", text], f"{text} {' '.join(WORDS[:3])}")
        engine.allow_all()
        for page, text, said in zip(pages, messages, texts, strict=True):
            await expect(page.get_by_role("button", name="Regenerate answer")).to_have_count(2)
            await shows(page, ["Begin", text], said)
            await expect(page.get_by_role("article", name="Your message").last).to_contain_text("/ 2")
        # Each goes on where it is.
        await send_message(pages[0], "More")
        await shows(pages[0], ["Begin", messages[0], "More"], f"More {TEXT}")
        given = engine.requests[-1]["messages"]
        assert [each["content"] for each in given] == ["Begin", SENTENCE, messages[0], texts[0], "More"]
        links = await said_below(stack, pages[0].url.rpartition("/")[2])
        assert sorted(links, key=str) == sorted(
            [
                ("Begin", None),
                (SENTENCE, "Begin"),
                *((message, SENTENCE) for message in messages),
                *zip(texts, messages, strict=True),
                ("More", texts[0]),
                (f"More {TEXT}", "More"),
            ],
            key=str,
        )


async def shows(page: Page, messages: list[str], answer: str) -> None:
    """Wait until a page shows these messages of the user, and this text as the last answer."""
    mine = page.get_by_role("article", name="Your message")
    await expect(mine).to_have_count(len(messages))
    for number, text in enumerate(messages):
        await expect(mine.nth(number)).to_contain_text(text)
    await expect(text_of(page.get_by_role("article", name="Answer").last)).to_have_text(answer)


async def said_below(stack: RoundhouseStack, conversation: str) -> list[tuple[str, str | None]]:
    """Text of each message of all branches, with the text of the message that it follows."""
    path = f"/v1/conversations/{conversation}/items?branch=all&limit=1000"
    items = (await stack.request("GET", path)).success["data"]
    texts = {item["id"]: item["content"][0]["text"].strip() for item in items}
    return [(texts[item["id"]], texts.get(item["parent_id"])) for item in items]


async def test_a_conversation_may_be_deleted_and_others_shown_while_it_streams(
    stack: RoundhouseStack, engine: PacedEngine, look: Look
) -> None:
    async with open_context(stack.url, look) as context:
        page = await context.new_page()
        engine.allow(3)
        answer = await ask(page, f"Kept {look}")
        await says(engine, 3, answer)
        await says(engine, 3, await ask(page, "Deleted"))
        cancelled = engine.cancelled
        await show_conversations(page)
        await page.get_by_role("button", name="Delete Deleted").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        await expect(page.get_by_role("link", name="Deleted")).to_have_count(0)
        await until("its answer is stopped", lambda: engine.cancelled == cancelled + 1)
        await page.get_by_role("link", name=f"Kept {look}").click()
        await says(engine, len(WORDS), answer)
    await until("nothing is made any more", lambda: engine.running == 0)
