"""Draws docs/page: `python -m tests.support.page_pictures`, which `make pictures` runs.

Starts Roundhouses as the tests of the page do, uses the page in Debian's Chromium, and keeps what it shows.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Final

from playwright.async_api import Page, expect

from tests.fakes.fake_mcp_server import text_result
from tests.fakes.fake_tool_model import Move
from tests.support.page_browser import DEADLINE_MS, Look, open_context, open_page, send_message
from tests.support.page_stacks import MODELS, make_hub, managed_stack, spoken_stack
from tests.support.page_tour import serve_own_file, take_tour, tour_stack
from tests.support.roundhouse_stack import RoundhouseStack
from worker.clockwork import make_model

PICTURES: Final = Path(__file__).parents[2] / "docs" / "page"
QUESTION: Final = "How does a turntable find the right track?"
ANSWER: Final = r"""It does not search: **the operator** turns it until the rails meet, and a bolt holds it there.

| part | what it does |
| --- | --- |
| pit rail | carries the bridge's ends |
| pivot | carries most of the weight |

The angle between two of *n* tracks is $\alpha = 360^\circ / n$:

```python
def angle_between(tracks: int) -> float:
    return 360 / tracks
```
"""


async def draw_chat(url: str, out: Path) -> None:
    """A conversation on a desk, and on a phone in the dark theme."""
    async with open_page(url) as page:
        await send_message(page, QUESTION)
        await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
        await expect(page.locator(".katex").first).to_be_visible()
        await page.mouse.move(0, 0)
        await keep(page, out / "chat.png")
        hash_of_it = page.url.partition("#")[2]
    async with open_page(url, Look.PHONE_DARK, f"/#{hash_of_it}") as page:
        await expect(page.locator(".katex").first).to_be_visible()
        await keep(page, out / "chat-phone.png")


async def draw_models(url: str, out: Path) -> None:
    async with open_page(url, path="/#/models") as page:
        await expect(page.get_by_role("link", name="clockwork", exact=True)).to_be_visible()
        await keep(page, out / "models.png")


async def draw_tour(stack: RoundhouseStack, clockwork: Path, out: Path) -> None:
    """What a new user does first."""

    async def draw(page: Page, name: str) -> None:
        await page.mouse.move(0, 0)
        await keep(page, out / f"tour-{name}.png")

    async with open_context(stack.url) as context:
        await take_tour(await context.new_page(), draw)
    async with open_page(stack.url, path="/#/models") as page:
        await serve_own_file(page, stack.models, clockwork, "my-model", draw)


async def keep(page: Page, path: Path) -> None:
    """Keep what is shown, once its fonts are there."""
    await page.evaluate("document.fonts.ready.then(() => null)")
    await page.screenshot(path=path)


def draw_pictures(out: Path) -> None:
    out.mkdir(exist_ok=True)
    expect.set_options(timeout=DEADLINE_MS)
    with tempfile.TemporaryDirectory(prefix="rh") as folder:
        clockwork = Path(folder) / "clockwork.gguf"
        make_model(clockwork)
        with spoken_stack(Path(folder) / "spoken", {"look": text_result("It rains.")}) as spoken:
            spoken.scripts[QUESTION] = [Move(ANSWER)]
            asyncio.run(draw_chat(spoken.url, out))
        with make_hub(clockwork) as hub, managed_stack(Path(folder) / "managed", clockwork, hub) as stack:
            # Its reason would show a path of this machine.
            stack.declare({name: fields for name, fields in MODELS.items() if name != "broken"})
            asyncio.run(stack.gone("broken"))
            asyncio.run(draw_models(stack.url, out))
        with tour_stack(Path(folder) / "tour", clockwork) as stack:
            asyncio.run(draw_tour(stack, clockwork, out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIR")
    draw_pictures(parser.parse_args().out)
