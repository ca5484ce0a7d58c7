"""What an answer looks like: Markdown, code, formulas, diagrams, images, thoughts, figures; as it grows, and whole."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.fakes.fake_tool_model import Move
from tests.support.page_browser import Look, open_page, send_message
from tests.support.page_stacks import SpokenStack, message
from tests.support.page_texts import RICH

pytestmark = [pytest.mark.engines, pytest.mark.slow]


async def test_each_element_of_markdown_is_drawn(spoken: SpokenStack, look: Look) -> None:
    name = await spoken.add_conversation("Rich", [message("user", "Show all"), message("assistant", RICH)])
    async with open_page(spoken.url, look, f"/#/chat/{name}") as page:
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.get_by_role("heading", name="Heading")).to_be_visible()
        link = answer.get_by_role("link", name="link", exact=True)
        await expect(link).to_have_attribute("href", "https://example.org/a")
        await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
        await expect(link).to_have_attribute("target", "_blank")
        await expect(answer.get_by_text("bad one")).to_be_visible()
        await expect(answer.get_by_role("link", name="bad one")).to_have_count(0)

        code = answer.get_by_role("figure").filter(has_text="def add")
        await expect(code.locator(".hljs-keyword").first).to_have_text("def")
        await code.get_by_role("button", name="Copy code").click()
        await expect(code.get_by_role("button", name="Copy code")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == "def add(a, b):\n    return a + b"
        await code.get_by_role("button", name="Wrap lines").click()
        await expect(code.get_by_role("button", name="Wrap lines")).to_have_attribute("aria-pressed", "true")
        assert await code.locator("code").evaluate("each => getComputedStyle(each).textWrapMode") == "wrap"

        await expect(answer.get_by_role("cell", name="one")).to_be_visible()
        await expect(answer.get_by_role("checkbox", name="Done", exact=True)).to_be_checked()
        await expect(answer.get_by_role("checkbox", name="Not done")).not_to_be_checked()
        await expect(answer.locator(".katex-display .katex-html")).to_be_visible()
        await expect(answer.locator(".katex")).to_have_count(2)
        await expect(answer.get_by_text("for $5 or $6.")).to_be_visible()
        loaded = "[...document.fonts].filter(each => each.status === 'loaded').map(each => each.family).join()"
        assert "KaTeX_Main" in await page.evaluate(f"document.fonts.ready.then(() => {loaded})")

        drawn = page.frame_locator("iframe[title=Diagram]").first
        await expect(drawn.get_by_text("Start", exact=True)).to_be_visible()
        await expect(answer.get_by_text("This diagram cannot be drawn. Its source:")).to_be_visible()
        await expect(answer.get_by_text("graph nonsense ((")).to_be_visible()
        preview = answer.get_by_role("figure").filter(has_text="Hello from the preview")
        await expect(page.locator("iframe[title=Preview]")).to_have_count(0)
        await preview.get_by_role("button", name="Preview").click()
        await expect(page.frame_locator("iframe[title=Preview]").locator("#told")).to_have_text(
            "Hello from the preview!"
        )

        await expect(answer.get_by_role("img", name="a pixel")).to_be_visible()
        foreign = answer.get_by_role("link", name="Image from evil.example: secret")
        await expect(foreign).to_have_attribute("href", "https://evil.example/leak.png?data=1")
        await answer.get_by_role("button", name="Copy answer").click()
        await expect(answer.get_by_role("button", name="Copy answer")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == RICH.strip()


async def test_a_diagram_is_whole_in_a_frame_that_gets_a_width_and_another(spoken: SpokenStack, look: Look) -> None:
    branches = "".join(f"  Root --> A{number}[Branch {number}] --> B{number}[Leaf {number}]\n" for number in range(6))
    name = await spoken.add_conversation("Grows", [message("assistant", f"```mermaid\ngraph TD\n{branches}```")])
    async with open_page(spoken.url, look) as page:
        whole = page.viewport_size
        assert whole is not None
        await page.set_viewport_size({"width": 360, "height": whole["height"]})
        # As on a busy machine, where the frame's document is there before the frame is laid out.
        await page.evaluate("document.styleSheets[0].insertRule('iframe[title=Diagram] {display: none !important}')")
        async with page.expect_event("framenavigated", lambda frame: frame.url.endswith("/diagram.html")) as navigated:
            await page.evaluate(f"location.hash = '#/chat/{name}'")
        frame = await navigated.value
        await frame.wait_for_load_state("networkidle")  # all of Mermaid that it would draw with is there
        await page.evaluate("document.styleSheets[0].deleteRule(0)")
        height = "document.querySelector('iframe[title=Diagram]').clientHeight"
        await page.wait_for_function(
            f"() => {height} > 40 && {height} != 120"
        )  # 120 before its diagram says more, 40 at least
        narrow = await page.evaluate(height)
        await page.set_viewport_size(whole)
        await page.wait_for_function(f"high => {height} > high * 1.5", arg=narrow)
        drawn = frame.locator("svg")
        assert await drawn.evaluate("each => each.getBoundingClientRect().bottom <= innerHeight")
        assert await drawn.evaluate("each => each.getBoundingClientRect().height") > 100


@pytest.mark.looks(Look.PHONE)
async def test_thoughts_fold_when_the_answer_begins_and_figures_follow(spoken: SpokenStack, look: Look) -> None:
    spoken.scripts["Think"] = [Move("The **answer** is `4", thought="Two and two", tokens=9)]
    async with open_page(spoken.url, look) as page:
        await send_message(page, "Think")
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.locator("strong")).to_have_text("answer")
        thoughts = answer.get_by_text(re.compile(r"^Thought for \d+\.\d s$"))
        await expect(thoughts).to_be_visible()
        await expect(answer.get_by_text("Two and two")).to_have_count(0)
        # The stored answer has taken the place of the one that came, and opens for itself.
        await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
        await thoughts.click()
        await expect(answer.get_by_text("Two and two")).to_be_visible()
        # No rate where the whole answer came at one moment.
        line = re.compile(r"^10 tokens in · 9 out( · [\d.]+ tokens/s)? · first after [\d.]+ s$")
        figures = answer.get_by_text(line)
        await expect(figures).to_be_visible()
        said = [await figures.inner_text(), await thoughts.inner_text()]
        address = page.url
    # The gateway keeps them: a browser that has not read the answer shows the same.
    async with open_page(spoken.url, look, address) as page:
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.locator("strong")).to_have_text("answer")
        for text in said:
            await expect(answer.get_by_text(text, exact=True)).to_be_visible()


async def test_thoughts_are_open_while_nothing_else_comes(spoken: SpokenStack, look: Look) -> None:
    spoken.scripts["Wait"] = [Move("Held", holds=True, thought="Still at it")]
    async with open_page(spoken.url, look) as page:
        await send_message(page, "Wait")
        answer = page.get_by_role("article", name="Answer")
        await expect(answer.get_by_text("Still at it")).to_be_visible()
        await expect(answer.get_by_text("Thinking…")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_text("You stopped this answer.")).to_be_visible()
        await expect(answer.get_by_text("Thinking…")).to_have_count(0)
