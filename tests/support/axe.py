"""axe-core, which tells what of a page is not accessible."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Page

from tests.support.page_browser import DESK, PHONE
from tests.support.require import require
from tests.support.roundhouse_stack import REPOSITORY

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
            told = [
                f"{each['id']}: {node['html']:.300} {node['failureSummary']}" for each in seen for node in each["nodes"]
            ]
            if await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                told.append("wider than the window")
            if told:
                found[f"{size}, {theme}"] = told
    await page.set_viewport_size(DESK)
    return found
