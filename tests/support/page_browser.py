"""Debian's Chromium, driven by Playwright: what no page of ours may do in it, and axe-core, which finds what is not
accessible.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request, ViewportSize, async_playwright, expect

from gateway.page.page_files import BUILT_FOLDER, INDEX
from tests.support.require import require
from tests.support.roundhouse_stack import REPOSITORY, RoundhouseStack

CHROMIUM = "chromium"
DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
DEADLINE_MS = 60_000
"""How long a step of a walk may take: the machine may be busy."""
_EXPECTED = ("Failed to load resource", "net::ERR_")
"""Chromium's own words for answers with a status of 400 or more, and for a connection that a test broke."""


class Look(StrEnum):
    """A window and a theme in which a walk is taken."""

    DESK = "desk-light"
    DESK_DARK = "desk-dark"
    PHONE = "phone-light"
    PHONE_DARK = "phone-dark"

    @property
    def is_phone(self) -> bool:
        """Whether the window is a phone's, which is touched."""
        return self in (Look.PHONE, Look.PHONE_DARK)

    @property
    def is_dark(self) -> bool:
        """Whether the system asks for a dark theme."""
        return self in (Look.DESK_DARK, Look.PHONE_DARK)


def require_page() -> None:
    """Skip the test, or fail where CI requires the page, unless a browser and the built page are there."""
    require("page", (BUILT_FOLDER / INDEX).exists(), "the page is not built: `make page`")
    require("page", shutil.which(CHROMIUM) is not None, "no chromium: apt-get install chromium")


@dataclass
class Offences:
    """What a page did that it must never do."""

    origin: str
    found: list[str] = field(default_factory=list)

    def note_console(self, message: ConsoleMessage) -> None:
        """Errors on the console, among them each violation of the Content-Security-Policy."""
        if message.type == "error" and not any(each in message.text for each in _EXPECTED):
            self.found.append(f"console: {message.text}")

    def note_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.found.append(f"request: {request.url:.300}")

    def note_error(self, error: Exception) -> None:
        self.found.append(f"error: {error}")


@contextlib.asynccontextmanager
async def open_context(url: str, look: Look = Look.DESK) -> AsyncIterator[BrowserContext]:
    """A fresh browser profile. When it ends without another failure, it fails for what `Offences` noted in any page.

    The context has `url` as base, so `page.goto("/")` opens the page.
    """
    offences = Offences(url)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
        context = await browser.new_context(
            base_url=url,
            viewport=PHONE if look.is_phone else DESK,
            color_scheme="dark" if look.is_dark else "light",
            has_touch=look.is_phone,
            is_mobile=look.is_phone,
            accept_downloads=True,
        )
        context.set_default_timeout(DEADLINE_MS)
        await context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        context.on("console", offences.note_console)
        context.on("request", offences.note_request)
        context.on("weberror", lambda error: offences.note_error(error.error))
        try:
            yield context
        finally:
            await context.close()
            await browser.close()
    assert offences.found == [], "\n".join(offences.found)


@contextlib.asynccontextmanager
async def open_page(url: str, look: Look = Look.DESK, path: str = "/") -> AsyncIterator[Page]:
    """The page at `path` in a context of its own."""
    async with open_context(url, look) as context:
        page = await context.new_page()
        await page.goto(path)
        yield page


async def choose_model(page: Page, model: str) -> None:
    """For the conversation that is shown."""
    await page.get_by_role("button", name="Model:").click()
    # Another model's reason may have the name in it.
    entry = re.compile(rf"^{re.escape(model)}\s")
    await page.get_by_role("dialog", name="Models").get_by_role("button", name=entry).click()


async def send_message(page: Page, text: str) -> None:
    """Write a message and send it, once a model is chosen."""
    await page.get_by_role("textbox", name="Message", exact=True).fill(text)
    await page.get_by_role("button", name="Send", exact=True).click()


async def show_conversations(page: Page) -> None:
    """Have the list of conversations be there: on a phone it is behind a button."""
    await _fold(page, _CONVERSATIONS, is_open=True)


async def open_menu(page: Page, name: str) -> None:
    """Have the controls of a menu of the bar be there (`Views`, `More actions`): on a phone they are behind a
    button."""
    await _fold(page, name, is_open=True)


async def hide_conversations(page: Page) -> None:
    """Have the conversation itself be there again, after `show_conversations`."""
    await _fold(page, _CONVERSATIONS, is_open=False)


_CONVERSATIONS: Final = re.compile("^(Show|Hide) conversations$")


async def _fold(page: Page, name: str | re.Pattern[str], *, is_open: bool) -> None:
    """Have what a button of that name opens on a phone be open or closed there. A wider window shows it always."""
    if page.viewport_size is None or page.viewport_size["width"] > PHONE["width"]:
        return
    button = page.get_by_role("button", name=name)
    wanted = "true" if is_open else "false"
    if await button.get_attribute("aria-expanded") != wanted:
        await button.click()
    await expect(button).to_have_attribute("aria-expanded", wanted)


async def post_as_page(stack: RoundhouseStack, path: str, body: Mapping[str, Any]) -> Any:
    """Ask a gateway without keys as the page does, so that what it makes is the page's user's. Returns the JSON."""
    reply = await stack.request("POST", path, body)
    assert reply.status in (200, 202), reply.body
    return reply.body


AXE: Final[Path] = REPOSITORY / "web/node_modules/axe-core/axe.min.js"
"""To be given to `context.add_init_script`: a script of the browser's, before the page's own, so that the page's policy
stays as it is."""

_THEMES: Final[tuple[tuple[Literal["light", "dark"], dict[str, list[str]]], ...]] = (
    ("light", {}),
    ("dark", {"runOnly": ["color-contrast"]}),
)
_LOOK_AT: Final = "async ([within, options]) => (await axe.run(within, options)).violations"


def require_axe() -> None:
    """Skip the test, or fail where CI requires the page, unless axe-core is there."""
    require("page", AXE.exists(), "axe-core is not installed: `web/build --with-checks`")


async def violations(page: Page, within: str = "html") -> dict[str, list[str]]:
    """What axe-core finds wrong with what the page shows now in an element, each with its rule and elements, by theme
    and size of the window. Of the dark theme, contrast alone is looked at: the elements are the same. What a frame
    holds is a model's, and not looked at."""
    found: dict[str, list[str]] = {}
    for size, viewport in (("desk", DESK), ("phone", PHONE)):
        await page.set_viewport_size(viewport)
        for theme, options in _THEMES:
            await page.emulate_media(color_scheme=theme)
            seen = await page.evaluate(_LOOK_AT, [within, {**options, "iframes": False}])
            reports = [
                f"{each['id']}: {node['html']:.300} {node['failureSummary']}" for each in seen for node in each["nodes"]
            ]
            if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                reports.append("wider than the window")
            if reports:
                found[f"{size}, {theme}"] = reports
    await page.set_viewport_size(DESK)
    return found
