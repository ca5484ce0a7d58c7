"""The view of models: what runs and why, memory, loads with values, downloads, and what a key without `admin` sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, Locator, Page, Route, expect

from contract.downloads import FoundRepository, ModelChoice
from contract.errors import RoundhouseError
from tests.fakes.fake_transfers import FakeSource, FakeTransfers
from tests.support.fake_hub.faults import Fault
from tests.support.fake_hub.repositories import make_gguf
from tests.support.fake_hub.server import FakeHub
from tests.support.monitored_site import gpu_site
from tests.support.page_browser import (
    AXE,
    PHONE,
    Look,
    open_context,
    open_menu,
    open_page,
    require_axe,
    require_page,
    send_message,
    violations,
)
from tests.support.page_stacks import FILE, LARGE, LARGE_FILE, REPOSITORY, keyed_stack, secret_of
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.slow]


def row(page: Page, model: str) -> Locator:
    """A model's entry in the list."""
    return page.get_by_role("list", name="Models", exact=True).get_by_role("listitem", name=model, exact=True)


async def test_models_say_what_they_do_and_why_they_wait(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/models") as page:
        await expect(row(page, "clockwork")).to_contain_text("loaded")
        await expect(row(page, "clockwork")).to_contain_text("replicas1 of 1")
        await expect(row(page, "clockwork")).to_contain_text("waiting0")
        # Why a model waits is said in plain words, without opening anything.
        await expect(row(page, "broken")).to_contain_text("missing.gguf")
        await expect(page.get_by_role("region", name="Memory", exact=True)).to_contain_text("This host has no GPU")
        await expect(page.get_by_text("roundhouse status")).to_be_visible()

        # A load and an unload show each step by themselves, and the focus stays on the button.
        button = page.get_by_role("button", name="Load resting", exact=True)
        await button.focus()
        await page.keyboard.press("Enter")
        # Not before: "load ordered by" is there from the beginning, and while a request runs a button waits for it.
        await expect(row(page, "resting").get_by_role("heading", name="resting loaded")).to_be_visible()
        unload = page.get_by_role("button", name="Unload resting", exact=True)
        await expect(unload).to_be_focused()
        await unload.press("Enter")
        await expect(row(page, "resting")).to_contain_text("unloaded")
        await page.get_by_role("button", name="Reset resting to the files", exact=True).click()
        await expect(page.get_by_role("button", name="Reset resting to the files", exact=True)).to_have_count(0)


async def test_a_model_is_loaded_with_values_within_its_constraints(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/models") as page:
        await page.get_by_role("link", name="resting", exact=True).click()
        await expect(page.get_by_role("heading", name="resting", level=1)).to_be_visible()
        form = page.get_by_role("form", name="Load with values")
        length = form.get_by_role("textbox", name="llama_server_n_ctx")
        await length.fill("many")
        await expect(form).to_contain_text("many is no number.")
        await length.fill("0")
        await form.get_by_role("button", name="Load", exact=True).click()
        # The gateway's own words, and what to do.
        await expect(form.get_by_role("alert")).to_contain_text("llama_server_n_ctx")
        await length.fill("1024")
        await expect(form).to_contain_text("roundhouse load resting --set llama_server_n_ctx=1024")
        # What it would do is told before, and nothing is done.
        told = form.get_by_role("list", name="What would happen")
        # What the browser says of the network is no reason to wait: the gateway may be on this machine.
        await page.evaluate("dispatchEvent(new Event('offline'))")
        # By the keyboard: a row that comes above moves the button, and a click would miss it.
        await form.get_by_role("button", name="What would happen").press("Enter")
        await expect(told.get_by_role("listitem")).to_have_text([re.compile("^Start resting/0: .+[.]$")])
        await expect(page.get_by_role("region", name="State", exact=True)).to_contain_text("unloaded")
        await length.fill("0")
        await expect(told).to_have_count(0)
        await form.get_by_role("button", name="What would happen").press("Enter")
        # It is refused as the load before was, whose refusal is still told.
        refusals = form.get_by_role("alert")
        await expect(refusals).to_have_count(2)
        await expect(refusals.nth(1)).to_contain_text("llama_server_n_ctx")
        await length.fill("1024")
        await form.get_by_role("button", name="Load", exact=True).click()
        state = page.get_by_role("region", name="State", exact=True)
        await expect(state).to_contain_text("llama_server_n_ctx = 1024")
        await expect(state.get_by_text("loaded", exact=True)).to_be_visible()
        await expect(form.get_by_role("button", name="Restart with these values")).to_be_visible()
        # What its engine says, and how it was started.
        await expect(page.get_by_role("region", name="Last lines", exact=True)).to_contain_text("llama")
        await page.get_by_text("Command line of the newest engine").click()
        await expect(page.get_by_role("region", name="Command line", exact=True)).to_contain_text("1024")
        await page.get_by_role("button", name="Reset resting to the files", exact=True).click()
        await expect(state.get_by_text("unloaded", exact=True)).to_be_visible()
        # What stands in the way is told with its reason.
        await page.goto("/#/models/broken")
        await form.get_by_role("button", name="What would happen").press("Enter")
        await expect(told.get_by_role("listitem")).to_have_text([re.compile("^broken cannot start: .*missing.gguf")])


async def test_a_failed_model_says_why_everywhere_and_is_reset(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/models/resting") as page:
        # The file has no layers for it, so that llama-server ends.
        form = page.get_by_role("form", name="Load with values")
        await form.get_by_label("llama_server_spec_type").select_option("draft-mtp")
        await form.get_by_role("button", name="Load", exact=True).click()
        state = page.get_by_role("region", name="State", exact=True)
        await expect(state.get_by_text("failed", exact=True)).to_be_visible()
        await expect(state).to_contain_text("the engine ended with exit code 1")
        await page.get_by_role("link", name="All models").click()
        why = row(page, "resting").get_by_role("list", name="Why resting is failed")
        await expect(why.get_by_role("listitem").first).to_have_text("the engine ended with exit code 1.")

        await page.goto("/#/chat")
        await page.get_by_role("button", name="Model:").click()
        picked = page.get_by_role("dialog", name="Models").get_by_role("button", name="resting")
        await expect(picked).to_contain_text("failed")
        await picked.click()
        await expect(page.get_by_text("resting could not be loaded.")).to_be_visible()
        await send_message(page, "Are you there?")
        await expect(page.get_by_role("alert").filter(has_text="resting")).to_be_visible()
        await expect(page.get_by_role("article", name="Your message")).to_contain_text("Are you there?")

        other = await page.context.new_page()
        await other.goto("/#/models")
        await other.get_by_role("button", name="Reset resting to the files", exact=True).click()
        await expect(row(other, "resting").get_by_role("heading", name="resting unloaded")).to_be_visible()
        # The load has the message answered that was refused.
        await page.get_by_role("button", name="Load it and send").click()
        await expect(row(other, "resting").get_by_role("heading", name="resting loaded")).to_be_visible()
        await expect(page.get_by_role("article", name="Answer").last).to_contain_text(SENTENCE)
        await other.get_by_role("button", name="Reset resting to the files", exact=True).click()
        await expect(row(other, "resting").get_by_role("heading", name="resting unloaded")).to_be_visible()


async def test_memory_of_gpus_is_shown_as_bars(tmp_path: Path, look: Look) -> None:
    require_page()
    async with (
        gpu_site(tmp_path, engine_mib=4000, used_mib=6000, busy_percent=37) as url,
        open_page(url, look, "/#/models") as page,
    ):
        card = page.get_by_role("region", name="GPU 0", exact=True)
        for name, percent in (("used", 75), ("claimed", 50), ("predicted", 25)):
            meter = card.get_by_role("meter", name=f"GPU 0 {name}")
            await expect(meter).to_have_js_property("value", percent)
        await expect(card).to_contain_text("5.9 GiB of 7.8 GiB")
        await expect(card).to_contain_text("chat: 3.9 GiB claimed, 2.0 GiB at its start")
        await expect(card).to_contain_text("busy 37 %")
        await expect(page.get_by_role("region", name="Memory", exact=True)).to_contain_text(
            "GPU 1 (GPU-2, PCI 0000:02:00.0) is left out: it has fallen off the bus"
        )
        # On top of all, the GPU as one bar; each model's part leads to it.
        bar = page.get_by_role("region", name="Memory by model").get_by_role("list", name="GPU 0", exact=True)
        await expect(bar.get_by_role("listitem")).to_have_text(
            ["chat: 3.9 GiB", "Other programs: 2.0 GiB", "Free: 2.0 GiB"]
        )
        # So is main memory, of which nobody knows what other programs take.
        host = page.get_by_role("list", name="Main memory", exact=True)
        await expect(host.get_by_role("listitem")).to_have_text(
            [re.compile(r"^chat: [\d.]+ MiB$"), re.compile(r"^Free: [\d.]+ GiB$")]
        )
        await bar.get_by_role("link", name="chat").click()
        await expect(page).to_have_url(re.compile("#/models/chat$"))


async def test_a_model_is_found_on_the_hub_downloaded_and_served(tmp_path: Path, folder: Path, look: Look) -> None:
    """`transfers` is a fake, whose hub has one repository; its downloads are as far as this test says."""
    require_page()
    require_axe()
    reference, main = "hf:user/tiny-GGUF:Q8_0", "user/tiny-GGUF/tiny-Q8_0.gguf"
    choice = ModelChoice(reference=reference, format="gguf", quantisation="Q8_0", main=main, file_count=1, size=2**30)
    huge = choice.model_copy(update={"reference": "hf:user/tiny-GGUF:F16", "quantisation": "F16", "size": 2**33})
    async with (
        FakeTransfers(folder, tmp_path / "models") as transfers,
        gpu_site(tmp_path, engine_mib=2000, used_mib=2000, busy_percent=0, transfers_url=transfers.url) as url,
        open_page(url, look, "/#/models") as page,
    ):
        transfers.sources[reference] = FakeSource({main: make_gguf()}, main, f"{reference}@abc")
        transfers.found = [FoundRepository(repository="user/tiny-GGUF", downloads=7, choices=[choice, huge])]
        await page.context.add_init_script(path=AXE)
        await page.reload()
        # The first of all that the view has, by the keyboard alone.
        sections = page.get_by_role("region", name="Models", exact=True).get_by_role("region")
        await expect(sections.first).to_have_accessible_name("Get a model")
        words = page.get_by_role("searchbox")
        await words.fill("nothing like it")
        await words.press("Enter")
        await expect(sections.first.get_by_role("status")).to_contain_text("with “nothing like it” in its name")
        await words.fill("tiny GGUF")
        await expect(sections.first).to_contain_text("roundhouse search 'tiny GGUF'")
        transfers.refusal = RoundhouseError("source_unavailable", "No connection to the hub: no route.")
        await words.press("Enter")
        await expect(sections.first.get_by_role("alert")).to_contain_text("No connection to the hub: no route.")
        transfers.refusal = None
        await words.fill("tiny-GGUF")
        await words.press("Enter")
        found = sections.first.get_by_role("listitem", name=reference, exact=True)
        await expect(found).to_contain_text("about 2151 MiB; fits on GPU 0 beside chat")
        await expect(page.get_by_role("listitem", name="hf:user/tiny-GGUF:F16")).to_contain_text(
            "no GPU has room for it"
        )

        await found.get_by_role("button", name="Download").press("Enter")
        await expect(found.get_by_role("meter")).to_be_visible()
        (download,) = transfers.downloads
        transfers.set_state(download, "finished")
        await found.get_by_role("button", name="Serve").press("Enter")
        await expect(found.get_by_role("link")).to_be_visible()
        await expect(row(page, await found.get_by_role("link").inner_text())).to_be_visible()
        # Who searches again is told who uses it.
        await words.press("Enter")
        await expect(found.get_by_role("link")).to_be_visible()
        seen = await violations(page)
        assert not any(seen.values()), seen


COUNT = 30


async def multiply_models(context: BrowserContext) -> None:
    """Have the page see `COUNT` models, made of the one that there is, and the last hour of the first. `loading-1`
    loads, `failed-2` has failed, and the others are loaded."""

    async def answer_models(route: Route) -> None:
        listing = await (await route.fetch()).json()
        [model] = listing["models"]
        rows = [model | {"name": f"loaded-{number}", "queue_depth": number} for number in range(COUNT)]
        starting = {"phase": "starting", "started_at": listing["observed_at"] - 30}
        rows[1] |= {"name": "loading-1", "runtime_state": "loading", "load_progress": 0.4}
        rows[1]["replica_details"] = [each | starting for each in model["replica_details"]]
        rows[2] |= {"name": "failed-2", "runtime_state": "failed", "last_error": "out of memory"}
        await route.fulfill(json=listing | {"models": rows})

    async def answer_history(route: Route) -> None:
        hour = {"tokens_per_s": [0, 60, 41], "waiting": [0, 2, 1], "first_token_s": [None, 0.25, 1.5]}
        await route.fulfill(json={"object": "metrics.history", "interval_s": 60, "models": {"loaded-0": hour}})

    await context.route("**/v1/admin/models", answer_models)
    await context.route("**/v1/metrics/history", answer_history)


async def test_many_models_are_a_table_that_sorts_and_filters(tmp_path: Path, look: Look) -> None:
    require_axe()
    async with (
        gpu_site(tmp_path, engine_mib=4000, used_mib=6000, busy_percent=37) as url,
        open_context(url, look) as context,
    ):
        await context.add_init_script(path=AXE)
        await multiply_models(context)
        page = await context.new_page()
        await page.goto("/#/models")
        table = page.get_by_role("table", name="Models")
        names = table.get_by_role("rowheader")
        await expect(names).to_have_count(COUNT)
        await expect(names.first).to_contain_text("failed-2")
        await expect(table).to_contain_text("out of memory")
        await expect(table.get_by_role("meter", name="Reading the model")).to_have_js_property("value", 40)
        curve = table.get_by_role("img", name="tokens per second, last hour: now 41.0, most 60.0")
        await expect(curve).to_be_visible()
        # On a phone, no column hangs over the edge of the window.
        await page.set_viewport_size(PHONE)
        assert await page.evaluate("document.querySelector('table').getBoundingClientRect().right <= innerWidth")

        # A heading sorts by its column, and turns the order round, by the keyboard, too.
        waiting = table.get_by_role("columnheader", name="Waiting")
        await expect(waiting).to_have_attribute("aria-sort", "none")
        await waiting.get_by_role("button").press("Enter")
        await expect(waiting).to_have_attribute("aria-sort", "descending")
        await expect(names.first).to_contain_text("loaded-29")
        await waiting.get_by_role("button").press("Enter")
        await expect(waiting).to_have_attribute("aria-sort", "ascending")
        await expect(names.first).to_contain_text("loaded-0")
        assert await violations(page, "[aria-label='Declared models']") == {}

        await page.get_by_label("State", exact=True).select_option("failed")
        await expect(names).to_have_count(1)
        await expect(page.get_by_text("1 of 30 models")).to_be_visible()
        await page.get_by_role("searchbox", name="Find a model").fill("loaded")
        await expect(names).to_have_count(0)
        await page.get_by_label("State", exact=True).select_option("")
        await expect(names).to_have_count(COUNT - 2)

        # A model's own page has each curve with its figures.
        await page.goto("/#/models/loaded-0")
        hour = page.get_by_role("region", name="Last hour")
        await expect(hour.get_by_role("img", name="most requests waiting, last hour: now 1, most 2")).to_be_visible()
        await expect(hour.get_by_role("img", name="time to the first token, last hour: now 1.5 s")).to_be_visible()
        # The page asks on and on: what is being answered now ends with the page.
        await context.unroute_all(behavior="ignoreErrors")


async def test_a_model_is_looked_at_downloaded_declared_and_removed(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/models") as page:
        reference = page.get_by_role("textbox", name="Reference of a model")
        await reference.fill("clock/nothing-GGUF")
        await page.get_by_role("button", name="Look", exact=True).click()
        await expect(page.get_by_role("alert").filter(has_text="clock/nothing-GGUF")).to_be_visible()
        await reference.fill(f"{REPOSITORY}:Q4_K_M")
        await page.get_by_role("button", name="Look", exact=True).click()
        found = page.get_by_role("region", name="What was found", exact=True)
        await expect(found).to_contain_text("1 file")
        await expect(found).to_contain_text("main memory: fits")
        # An earlier download of the same may be in the list as finished until this one is known.
        async with page.expect_response(lambda each: each.request.method == "POST" and each.url.endswith("/downloads")):
            await found.get_by_role("button", name="Download").click()
        download = page.get_by_role("list", name="Downloads").get_by_role("listitem").filter(has_text=REPOSITORY)
        await expect(download).to_contain_text("finished")

        await download.get_by_role("textbox", name="Name of the model").fill("fetched")
        await download.get_by_role("button", name="What would happen").press("Enter")
        await expect(download.get_by_role("list", name="What would happen")).to_contain_text("Start fetched/0")
        await expect(row(page, "clockwork")).to_be_visible()
        await expect(row(page, "fetched")).to_have_count(0)
        await download.get_by_role("button", name="Declare as a model").click()
        await expect(row(page, "fetched")).to_contain_text("loaded")
        files = page.get_by_role("list", name="Models folder")
        stored = files.get_by_role("listitem").filter(has_text=FILE)
        await expect(stored).to_contain_text("used by fetched")

        await page.get_by_role("link", name="fetched", exact=True).first.click()
        await page.get_by_role("button", name="Take the declaration back").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(row(page, "clockwork")).to_be_visible()
        await expect(row(page, "fetched")).to_have_count(0)
        await expect(stored).to_contain_text("used by no model")

        # The file is the engine's until that has ended: until then the page says so, and the user tries again.
        refused = page.get_by_role("alert").filter(has_text="in use by an engine of the model fetched")

        async def is_removed() -> bool:
            async with page.expect_response(lambda each: each.request.method == "DELETE") as answered:
                await stored.get_by_role("button", name=f"Remove {REPOSITORY}/{FILE}").click()
                await page.get_by_role("button", name="Yes").click()
            if (await answered.value).ok:
                return True
            await expect(refused).to_be_visible()
            return False

        await until("the file is removed", is_removed)
        await expect(page.get_by_role("status").filter(has_text="are free again")).to_be_visible()
        await expect(stored).to_have_count(0)


@pytest.fixture
def slow_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """A hub that is made slow: it speaks as fast as ever when the test is over."""
    yield hub
    hub.faults.clear()


async def test_a_download_is_cancelled(whole_stack: RoundhouseStack, slow_hub: FakeHub, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/models") as page:
        await page.get_by_role("textbox", name="Reference of a model").fill(f"{LARGE}:Q4_K_M")
        await page.get_by_role("button", name="Look", exact=True).click()
        found = page.get_by_role("region", name="What was found", exact=True)
        await expect(found).to_contain_text("1 file")
        # More than a minute is left of it; slower, and a cancellation would wait long for the piece that is being read.
        slow_hub.faults.add(Fault("slow", path=LARGE_FILE, bytes_per_s=500_000, times=0))
        await found.get_by_role("button", name="Download").click()
        download = page.get_by_role("list", name="Downloads").get_by_role("listitem").filter(has_text=LARGE)
        await expect(download.get_by_role("meter", name="Downloaded")).to_be_visible()
        await download.get_by_role("button", name="Cancel").click()
        await expect(download).to_contain_text("cancelled")
        await expect(download.get_by_role("meter")).to_have_count(0)
        await expect(download.get_by_role("button", name="Download again")).to_be_visible()


@pytest.fixture(scope="module")
def closed_stack(tmp_path_factory: pytest.TempPathFactory, clockwork: Path) -> Iterator[RoundhouseStack]:
    with keyed_stack(tmp_path_factory.mktemp("closed"), clockwork) as stack:
        yield stack


async def test_keys_open_what_they_may(closed_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(closed_stack.url, look, "/#/models") as page:
        key = page.get_by_label("API key")
        await key.fill("rh-unknown")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("does not accept the key")

        # A key without the scope `admin` shows the models, and nothing that changes them.
        await key.fill(secret_of("reader"))
        await page.get_by_role("button", name="Sign in").click()
        await expect(row(page, "clockwork")).to_contain_text("loaded")
        await expect(page.get_by_text("a key with the scope admin is needed")).to_be_visible()
        await expect(page.get_by_role("button", name="Unload clockwork")).to_have_count(0)
        await open_menu(page, "Views")
        await page.get_by_role("link", name="Activity").click()
        await expect(page.get_by_role("alert")).to_be_visible()

        # The key is in memory alone unless the user asks for more, and signing out forgets it.
        assert await page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})") == "{}"
        await open_menu(page, "Views")
        await page.get_by_role("link", name="Settings").click()
        await page.get_by_role("button", name="Sign out").click()
        await open_menu(page, "Views")
        await page.get_by_role("link", name="Models").click()
        await key.fill(secret_of("boss"))
        await page.get_by_role("checkbox", name="Keep it in this browser until I sign out").check()
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("button", name="Unload clockwork")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("button", name="Unload clockwork")).to_be_visible()
        assert secret_of("boss") not in page.url
        assert await page.context.cookies() == []
