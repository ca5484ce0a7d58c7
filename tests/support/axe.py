"""axe-core, which tells what of a page is not accessible."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from playwright.async_api import Page

from tests.support.page_browser import DESK, PHONE
from tests.support.require import require
from tests.support.roundhouse_stack import REPOSITORY

AXE: Final[Path] = REPOSITORY / "web/node_modules/axe-core/axe.min.js"
"""To be given to `context.add_init_script`: a script of the browser's, before the page's own, so that the page's policy
stays as it is."""


def require_axe() -> None:
    """Skip the test, or fail where CI requires the page, unless axe-core is there."""
    require("page", AXE.exists(), "axe-core is not installed: `npm ci` in web/")


async def violations(page: Page) -> dict[str, list[str]]:
    """What axe-core finds wrong with what the page shows now, each with its rule and elements, by theme and size of the
    window. Of the dark theme, contrast alone is looked at: the elements are the same."""
    found: dict[str, list[str]] = {}
    for size, viewport in (("desk", DESK), ("phone", PHONE)):
        await page.set_viewport_size(viewport)
        for theme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type] # one of its literals
            seen = await page.evaluate("async (options) => (await axe.run(options)).violations", options)
            told = [
                f"{each['id']}: {node['html']:.300} {node['failureSummary']}" for each in seen for node in each["nodes"]
            ]
            if told:
                found[f"{size}, {theme}"] = told
    await page.set_viewport_size(DESK)
    return found
