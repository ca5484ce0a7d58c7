"""First paint of the page in Debian's Chromium, with an empty cache, on loopback; and what the page loads for it."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Response, async_playwright

from tests.bench.report import Figure
from tests.support.page_browser import CHROMIUM, require_page
from tests.support.roundhouse_stack import RoundhouseStack

ROUNDS: Final = 7
_PAINTED: Final = """() => new Promise((painted) => new PerformanceObserver((seen) => {
  for (const entry of seen.getEntries()) if (entry.name === "first-contentful-paint") painted(entry.startTime);
}).observe({ type: "paint", buffered: true }))"""


async def _open(browser: Browser, url: str) -> tuple[float, float]:
    """Milliseconds to the first contentful paint, and kB of JavaScript as transferred, in a new profile."""
    context = await browser.new_context()
    scripts: list[Response] = []
    page = await context.new_page()
    page.on("response", lambda one: scripts.append(one) if one.request.resource_type == "script" else None)
    await page.goto(url)
    painted_ms = float(await page.evaluate(_PAINTED))
    await page.get_by_role("textbox", name="Message", exact=True).wait_for()
    sizes = [int(await each.header_value("content-length") or 0) for each in scripts]
    await context.close()
    return painted_ms, sum(sizes) / 1000


async def _run() -> list[Figure]:
    require_page()
    with tempfile.TemporaryDirectory(prefix="rh") as root:
        stack = RoundhouseStack(Path(root), "process")
        stack.declare({"one": {"backend": "stub"}})
        async with stack.running("one"), async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
            opened = [await _open(browser, f"{stack.url}/") for _ in range(ROUNDS)]
            await browser.close()
    return [
        Figure("first contentful paint, median", statistics.median(ms for ms, _ in opened), "ms", aim="<= 1,000"),
        Figure("first contentful paint, slowest", max(ms for ms, _ in opened), "ms"),
        Figure("JavaScript until the chat can be used", opened[-1][1], "kB, gzip", aim="<= 400"),
    ]


def run() -> list[Figure]:
    """Milliseconds and kB, of so many new profiles of one browser."""
    return asyncio.run(_run())
