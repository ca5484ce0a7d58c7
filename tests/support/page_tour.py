"""The first hour of a new user on the page: get a model, show it an image, load it, ground on a document, call a tool.

A walk takes the tour (tests/e2e/page/test_first_hour.py), and `make pictures` draws it for docs/page.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from playwright.async_api import FilePayload, Page, expect

from tests.fakes.fake_tool_model import Call, Fields, Move, tool_model
from tests.support.fake_hub.repositories import HubRepository
from tests.support.fake_hub.server import FakeHub
from tests.support.page_browser import send_message
from tests.support.page_stacks import MODELS, managed_stack, open_in_thread
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.seeing_model import BRIGHT, make_image, make_projector, make_seeing_model

REPOSITORY = "sees/clock-GGUF"
SEES = "clock"
"""The name that `REPOSITORY`'s model gets by itself."""
CALLER = "caller"
"""A scripted model, which cites, and calls `calculate`."""
MANUAL = "# Coal\n\nCoal is stored beside the shed.\n"
CITES = "The manual says: beside the shed [1]."
SUM = "6 * 7"

Keep = Callable[[Page, str], Awaitable[None]]
"""Called where there is something to see, with its name."""


@contextlib.contextmanager
def tour_stack(root: Path, clockwork: Path) -> Iterator[RoundhouseStack]:
    """A `managed_stack` with `CALLER`, built-in tools, and `REPOSITORY` at its hub: a model that sees."""
    root.mkdir(parents=True, exist_ok=True)
    make_seeing_model(root / "see.gguf")
    make_projector(root / "projector.gguf")
    files = {"clock-Q4_K_M.gguf": root / "see.gguf", "mmproj-model-f16.gguf": root / "projector.gguf"}
    with (
        open_in_thread(tool_model(decide=_decide)) as model,
        FakeHub([HubRepository(REPOSITORY, files)]) as hub,
        managed_stack(root / "stack", clockwork, hub) as stack,
    ):
        remote = {"backend": "openai_remote", "base_url": f"{model.url}/v1"}
        stack.declare({"clockwork": MODELS["clockwork"], CALLER: remote})
        stack.write("tools.yaml", {"tools": {"calculate": {}, "current_time": {}}})

        async def settle() -> None:
            await stack.gone("broken")
            await stack.loaded("clockwork")
            await stack.model_where(CALLER, lambda row: row.state.value == "loaded", "loaded")

        asyncio.run(settle())
        yield stack


async def take_tour(page: Page, keep: Keep) -> None:
    """Do in one go what a new user does first. Fails where the page does not show what it should."""
    await _get_a_model(page, keep)
    await _show_an_image(page, keep)
    await _load_again(page, keep)
    await _ground_on_a_document(page, keep)
    await _call_a_tool(page, keep)


async def serve_own_file(page: Page, models: Path, source: Path, name: str, keep: Keep) -> int:
    """Copy a model's file as `name`.gguf into the models folder while the page shows what lies there, have it served,
    and chat with it. Return how often something was clicked until the answer was there; the message is sent with the
    Enter key. The models page must have been opened."""
    await page.evaluate("clicks = 0, addEventListener('click', () => clicks++, true)")
    shutil.copy(source, models / f"{name}.gguf")
    file = page.get_by_role("list", name="Models folder").get_by_role("listitem", name=f"{name}.gguf", exact=True)
    await file.get_by_role("button", name=f"Serve {name}.gguf").click()
    row = page.get_by_role("list", name="Models", exact=True).get_by_role("listitem", name=name, exact=True)
    await expect(row).to_contain_text("loaded")
    await file.scroll_into_view_if_needed()
    await keep(page, "serve")
    await row.get_by_role("link", name=f"Chat with {name}").click()
    await expect(page.get_by_role("button", name=f"Model: {name}")).to_be_visible()
    message = page.get_by_role("textbox", name="Message", exact=True)
    await message.fill("Who are you?")
    await message.press("Enter")
    await _answered(page, SENTENCE)
    return int(await page.evaluate("clicks"))


async def _get_a_model(page: Page, keep: Keep) -> None:
    await page.goto("/#/models")
    await page.get_by_role("textbox", name="Reference of a model").fill(f"{REPOSITORY}:Q4_K_M")
    await page.get_by_role("button", name="Look", exact=True).click()
    found = page.get_by_role("region", name="What was found", exact=True)
    await expect(found).to_contain_text("2 files")
    await found.get_by_role("button", name="Download").click()
    download = page.get_by_role("list", name="Downloads").get_by_role("listitem").filter(has_text=REPOSITORY)
    await expect(download).to_contain_text("finished")
    await download.get_by_role("button", name="Declare as a model").click()
    await expect(download).to_contain_text(f"Declared: {SEES}")
    await download.scroll_into_view_if_needed()
    await keep(page, "pull")
    row = page.get_by_role("list", name="Models", exact=True).get_by_role("listitem", name=SEES, exact=True)
    await expect(row).to_contain_text("loaded")
    await row.get_by_role("link", name=f"Chat with {SEES}").click()


async def _show_an_image(page: Page, keep: Keep) -> None:
    image: FilePayload = {"name": "sky.png", "mimeType": "image/png", "buffer": make_image(255)}
    await page.get_by_label("Attach files from this device").set_input_files([image])
    await expect(page.get_by_role("button", name=f"Model: {SEES}")).to_be_visible()
    await send_message(page, "What do you see?")
    await _answered(page, BRIGHT.strip())
    await keep(page, "image")


async def _load_again(page: Page, keep: Keep) -> None:
    await page.goto(f"/#/models/{SEES}")
    await page.get_by_role("button", name=f"Unload {SEES}").click()
    await expect(page.get_by_role("button", name=f"Load {SEES}", exact=True)).to_be_visible()
    await page.goto("/#/chat")
    await expect(page.get_by_text(f"{SEES} is not loaded.")).to_be_visible()
    await keep(page, "load")
    await page.get_by_role("button", name="Load it").click()
    await send_message(page, "Hello again")
    await _answered(page, "The quick brown fox")


async def _ground_on_a_document(page: Page, keep: Keep) -> None:
    await page.goto("/#/documents")
    manual: FilePayload = {"name": "manual.md", "mimeType": "text/markdown", "buffer": MANUAL.encode()}
    await page.get_by_label("Drop files here, or choose them").set_input_files([manual])
    added = page.get_by_role("list", name="Documents", exact=True).get_by_role("listitem", name="manual.md")
    await expect(added).to_contain_text("ready, 1 chunk")
    await page.goto("/#/models")
    await page.get_by_role("link", name=f"Chat with {CALLER}").click()
    await _choose_source(page, "All your documents")
    await send_message(page, "Where is the coal?")
    await _answered(page, "beside the shed")
    await page.get_by_role("button", name="Source 1: manual.md").click()
    await expect(page.get_by_role("dialog", name="manual.md")).to_contain_text("Coal is stored beside the shed.")
    await keep(page, "grounded")
    await page.keyboard.press("Escape")


async def _call_a_tool(page: Page, keep: Keep) -> None:
    await page.goto("/#/chat")
    await _choose_source(page, "Built-in tools")
    await send_message(page, f"What is {SUM}?")
    approval = page.get_by_role("group", name="Call of roundhouse/calculate")
    await expect(approval).to_contain_text(SUM)
    await keep(page, "tool")
    await approval.get_by_role("button", name="Allow once").click()
    await _answered(page, "It is 42.")


async def _choose_source(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Settings of this conversation").click()
    await page.get_by_role("checkbox", name=name).check()
    await page.keyboard.press("Escape")


async def _answered(page: Page, text: str) -> None:
    """Wait until the answer is stored, and holds the text."""
    await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
    await expect(page.get_by_role("article", name="Answer").last).to_contain_text(text)


def _decide(body: Fields) -> Move:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return Move(f"It is {last['content']}.")
    if body.get("tools"):
        return Move(calls=[Call("roundhouse__calculate", {"expression": SUM})])
    return Move(CITES)
