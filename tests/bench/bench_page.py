"""How much the page's main thread works while an answer streams into a long conversation, and how fast such a
conversation opens.

A Roundhouse as processes, a worker that says a long Markdown text at a steady pace, and Debian's Chromium, whose trace
tells each task of the page's main thread. A frame's work is the CPU time of the tasks since the frame before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, CDPSession, async_playwright

from tests.bench.report import Figure
from tests.support.page_browser import CHROMIUM, DESK, require_page, send_message
from tests.support.roundhouse_stack import RoundhouseStack

PARAGRAPH: Final = "The **locomotive** stands in the `roundhouse` and waits for [its turn](https://example.org). " * 3
SECTION: Final = (
    f"## A heading\n\n{PARAGRAPH}\n\n- one *item*\n- another item\n\n"
    "```python\ndef wait(turn):\n    return turn + 1\n```\n\n| name | value |\n| ---- | ----- |\n| one  | 1     |\n\n"
)
ANSWER: Final = SECTION * 100
"""Longer than it is watched, on a busy machine too."""
PACE_MS: Final = 10
"""Between two pieces of the answer: 100 tokens a second."""
SECONDS: Final = 6.0
"""How long the stream is watched."""
AIM: Final = "<= 16"
OPENINGS: Final = 5
"""How often the conversation is opened, each time in a browser profile of its own."""
OPEN: Final = """async (conversation) => {
    const begun = performance.now();
    location.hash = `#/chat/${conversation}`;
    const isShown = () => {
        const cell = [...document.querySelectorAll("[role=log] article")].at(-1)?.querySelector("td");
        if (!cell) return false;
        const [seen, box] = [cell.closest("[role=log]").getBoundingClientRect(), cell.getBoundingClientRect()];
        return box.top >= seen.top && box.bottom <= seen.bottom;
    };
    while (!isShown()) await new Promise(requestAnimationFrame);
    return performance.now() - begun;
}"""
"""Opens a conversation and returns the milliseconds until the end of its last answer is seen, as Markdown."""
_FRAME: Final = "BeginMainThreadFrame"
_TASK: Final = "ThreadControllerImpl::RunTask"


def run(options: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="make bench ARGS=page")
    parser.add_argument("--messages", type=int, default=1000, metavar="N")
    parser.add_argument("--top", action="store_true", help="also print where the time went")
    arguments = parser.parse_args(options)
    require_page()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), arguments.messages, shows_top=arguments.top))


async def _measure(folder: Path, messages: int, *, shows_top: bool) -> list[Figure]:
    stack = RoundhouseStack(folder, "process", {"ROUNDHOUSE_MDNS": "off"})
    stack.declare({"speaker": {"backend": "stub", "stub_text": ANSWER, "stub_token_delay_ms": PACE_MS}})
    async with stack.running("speaker"):
        name = await _store_conversation(stack, messages)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
            opened = [await _open(browser, stack.url, name, messages) for _ in range(OPENINGS)]
            figures = await _watch(browser, stack.url, name, messages, shows_top=shows_top)
            await browser.close()
        what = f"a conversation of {messages:,} messages is opened, median of {OPENINGS}"
        return [
            *figures,
            Figure(f"{what}, its newest are seen", statistics.median(newest for newest, _ in opened), "ms", "<= 1,000"),
            Figure(f"{what}, CPU time of all of it", statistics.median(cpu for _, cpu in opened), "ms"),
        ]


async def _store_conversation(stack: RoundhouseStack, messages: int) -> str:
    parts = {"user": {"type": "input_text", "text": PARAGRAPH}, "assistant": {"type": "output_text", "text": SECTION}}
    created = await stack.request("POST", "/v1/conversations", {"settings": {"model": "speaker"}})
    name = str(created.body["id"])
    items = [
        {"type": "message", "role": role, "content": [parts[role]]}
        for _ in range(messages // 2)
        for role in ("user", "assistant")
    ]
    for first in range(0, len(items), 20):
        added = await stack.request("POST", f"/v1/conversations/{name}/items", {"items": items[first : first + 20]})
        assert added.success
    return name


async def _open(browser: Browser, url: str, name: str, messages: int) -> tuple[float, float]:
    """Milliseconds until the newest messages can be read, and of the main thread's CPU until the oldest are there."""
    context = await browser.new_context(base_url=url, viewport=DESK)
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    await page.goto("/")
    await page.get_by_role("button", name="Send").wait_for()
    before = await _cpu_ms(session)
    newest_ms: float = await page.evaluate(OPEN, name)
    await page.wait_for_function(
        "count => document.querySelectorAll('[role=log] article').length === count", arg=messages
    )
    cpu_ms = await _cpu_ms(session) - before
    await context.close()
    return newest_ms, cpu_ms


async def _cpu_ms(session: CDPSession) -> float:
    """CPU time of the tasks of a page's main thread, since the session enabled `Performance`."""
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    seconds: float = next(each["value"] for each in metrics if each["name"] == "TaskDuration")
    return seconds * 1000


async def _watch(browser: Browser, url: str, name: str, messages: int, *, shows_top: bool) -> list[Figure]:
    page = await browser.new_page(base_url=url, viewport=DESK)
    await page.goto("/")
    await page.get_by_role("button", name="Send").wait_for()
    answers = page.get_by_role("article", name="Answer")
    await page.evaluate(OPEN, name)
    await send_message(page, "Go on")
    await answers.nth(messages // 2).get_by_role("table").first.wait_for()
    categories = [
        "toplevel",
        "devtools.timeline",
        "disabled-by-default-devtools.timeline",
        "disabled-by-default-devtools.timeline.frame",
        "devtools.timeline.frame",
    ]
    if shows_top:
        categories.append("disabled-by-default-v8.cpu_profiler")
    await browser.start_tracing(page=page, categories=categories)
    await asyncio.sleep(SECONDS)
    events = json.loads(await browser.stop_tracing())["traceEvents"]
    if shows_top:
        _show_top(events)
    cpu, wall = read_frames(events)
    heap = await page.evaluate("performance.memory.usedJSHeapSize / 1048576")
    what = f"main-thread work per frame, {messages:,} messages, 100 tokens/s"
    assert await answers.last.get_attribute("aria-busy") == "true", "the answer ended before it was watched"
    return [
        Figure(f"{what}, CPU, p50", statistics.median(cpu), "ms"),
        Figure(f"{what}, CPU, p95", statistics.quantiles(cpu, n=20)[-1], "ms", AIM),
        Figure(f"{what}, as the clock goes, p95", statistics.quantiles(wall, n=20)[-1], "ms", AIM),
        Figure("frames a second", len(cpu) / SECONDS, "1/s"),
        Figure("JavaScript heap", heap, "MiB"),
    ]


def read_frames(events: Iterable[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Milliseconds of each frame of the busiest main thread in a trace: CPU time, and time of the clock."""
    tasks: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    frames: dict[tuple[int, int], list[float]] = {}
    for event in events:
        thread = (event["pid"], event["tid"])
        if event["name"] == _TASK and event["ph"] == "X":
            tasks.setdefault(thread, []).append((event["ts"], event.get("tdur", event["dur"]), event["dur"]))
        elif event["name"] == _FRAME:
            frames.setdefault(thread, []).append(event["ts"])
    busiest = max(frames, key=lambda thread: sum(cpu for _, cpu, _ in tasks.get(thread, ())))
    starts = sorted(frames[busiest])
    cpu_ms, wall_ms = [0.0] * (len(starts) - 1), [0.0] * (len(starts) - 1)
    at = 0
    for begun, cpu, wall in sorted(tasks[busiest]):
        while at < len(starts) - 1 and starts[at + 1] <= begun:
            at += 1
        if starts[at] <= begun and at < len(cpu_ms):
            cpu_ms[at] += cpu / 1000
            wall_ms[at] += wall / 1000
    return cpu_ms, wall_ms


def _show_top(events: Iterable[dict[str, Any]]) -> None:
    """Print the kinds of events that took the most time, those within them included."""
    total: Counter[str] = Counter()
    for event in events:
        if event["ph"] == "X":
            total[event["name"]] += event.get("tdur", 0)
    for name, us in total.most_common(25):
        print(f"{us / 1000:10.1f} ms  {name}")
