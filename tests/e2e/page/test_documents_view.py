"""The view of documents: added, followed, cut, found with scores, deleted; vector stores; retrieval that is away."""

from __future__ import annotations

import re
import signal

import pytest
from playwright.async_api import FilePayload, expect

from contract.status import ModelState
from tests.support.page_browser import Look, choose_model, open_context, open_page, post_as_page, send_message
from tests.support.page_stacks import message
from tests.support.roundhouse_stack import RoundhouseStack

pytestmark = [pytest.mark.engines, pytest.mark.slow]

NOTES = "# Engines\n\n" + "The turntable moves the engines.\n" * 80 + "\n# Coal\n\nCoal is stored beside the shed.\n"
COAL = "# Coal\n\nCoal is stored beside the shed.\n"
CREW = "# Crew\n\nThe driver sleeps in the yard.\n"


def text_file(name: str, text: str) -> FilePayload:
    return {"name": name, "mimeType": "text/markdown", "buffer": text.encode()}


async def test_documents_are_added_cut_found_and_deleted(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/documents") as page:
        await page.get_by_label("Attributes of these documents").fill("project=yard")
        picker = page.get_by_label("Drop files here, or choose them")
        await picker.set_input_files([text_file("notes.md", NOTES), text_file("crew.md", CREW)])
        documents = page.get_by_role("list", name="Documents", exact=True)
        notes = documents.get_by_role("listitem", name="notes.md")
        await expect(notes).to_contain_text(re.compile(r"ready, [2-9] chunks"))
        await expect(notes).to_contain_text("project=yard")
        await expect(documents.get_by_role("listitem", name="crew.md")).to_contain_text("ready, 1 chunk")
        # A file that cannot be read is refused or failed, with the reason.
        torn: FilePayload = {"name": "torn.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7 torn"}
        await picker.set_input_files([torn])
        await expect(documents.get_by_role("listitem", name="torn.pdf")).to_contain_text("failed")

        search = page.get_by_role("form", name="Try a search")
        await search.get_by_label("Query").fill("where is the coal?")
        await search.get_by_label("Mode").select_option("sparse")
        await search.get_by_role("button", name="Search").click()
        hits = page.get_by_role("list", name="Passages").get_by_role("listitem")
        await expect(hits.first).to_contain_text("Coal is stored beside the shed.")
        await expect(hits.first).to_contain_text("place 1 by words (BM25")
        # What this gateway cannot do is said in its own words.
        await search.get_by_label("Mode").select_option("dense")
        await search.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("region", name="Try a search", exact=True).get_by_role("alert")).to_be_visible()

        await notes.get_by_role("link", name="notes.md").click()
        chunks = page.get_by_role("list", name="Chunks").get_by_role("listitem")
        await expect(chunks.last).to_contain_text("Coal is stored beside the shed.")
        await expect(chunks.first).to_contain_text("0: bytes 0 to ")
        await expect(chunks.nth(1)).to_contain_text("bytes of the one before")
        async with page.expect_download() as downloading:
            await page.get_by_role("button", name="Download the original").click()
        assert (await (await downloading.value).path()).read_bytes() == NOTES.encode()

        await page.get_by_role("link", name="All documents").click()
        await page.get_by_label("Status").select_option("failed")
        await expect(notes).to_have_count(0)
        await page.get_by_label("Status").select_option("")
        for name, others in (("notes.md", 2), ("torn.pdf", 1), ("crew.md", 0)):
            await documents.get_by_role("button", name=f"Delete {name}").click()
            await page.get_by_role("button", name="Yes").click()
            await expect(documents.get_by_role("listitem", name=re.compile("notes|crew|torn"))).to_have_count(others)


@pytest.mark.looks(Look.PHONE)
async def test_a_vector_store_is_made_filled_and_deleted(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_page(whole_stack.url, look, "/#/documents") as page:
        await page.get_by_label("Name of the vector store").fill("yard")
        await page.get_by_role("button", name="Create").click()
        store = page.get_by_role("list", name="Vector stores").get_by_role("listitem", name="yard")
        await store.get_by_label("Add files to yard").set_input_files([text_file("notes.md", NOTES)])
        await expect(store).to_contain_text("1 file searchable")
        await expect(store.get_by_role("list", name="Files of yard")).to_contain_text("notes.md: completed")
        await store.get_by_role("button", name="Remove notes.md").click()
        await store.get_by_role("button", name="Yes").click()
        await expect(store).to_contain_text("0 files searchable")
        await store.get_by_role("button", name="Delete yard").click()
        await store.get_by_role("button", name="Yes").click()
        await expect(store).to_have_count(0)


async def test_an_answer_is_grounded_on_documents_and_its_citation_opens(
    whole_stack: RoundhouseStack, look: Look
) -> None:
    store_name = f"ground {look}"
    async with open_page(whole_stack.url, look, "/#/documents") as page:
        await page.get_by_label("Name of the vector store").fill(store_name)
        await page.get_by_role("button", name="Create").click()
        store = page.get_by_role("list", name="Vector stores").get_by_role("listitem", name=store_name)
        await store.get_by_label(f"Add files to {store_name}").set_input_files([text_file("coal.md", COAL)])
        await expect(store).to_contain_text("1 file searchable")
        store_id = await store.locator("code").inner_text()

        await page.goto("/#/chat")
        await choose_model(page, "citing")
        await page.get_by_role("button", name="Settings of this conversation").click()
        await page.get_by_role("checkbox", name=store_name).check()
        await page.get_by_role("dialog").get_by_role("button", name="Close").click()
        await page.get_by_role("button", name="Load it").click()
        await send_message(page, "Where is the coal?")
        answer = page.get_by_role("article", name="Answer")
        await expect(page.get_by_role("button", name="Regenerate answer")).to_be_visible()
        await expect(answer.get_by_text("Searched the documents: 1 passage")).to_be_visible()
        await answer.get_by_role("button", name="Source 1: coal.md").click()
        passage = page.get_by_role("dialog", name="coal.md")
        await expect(passage).to_contain_text("Coal is stored beside the shed.")
        await page.keyboard.press("Escape")
        await expect(passage).to_have_count(0)

        # Answers that do not hold their passages: of a file in a vector store, and of a document.
        for conversation in (await ask_grounded(whole_stack, store_id), await cite_document(whole_stack)):
            await page.goto(f"/#/chat/{conversation}")
            await answer.get_by_role("button", name="Source 1: coal.md").click()
            await expect(passage).to_contain_text("Coal is stored beside the shed.")
            await page.keyboard.press("Escape")
            await expect(passage).to_have_count(0)
        await page.goto("/#/documents")
        await store.get_by_role("button", name=f"Delete {store_name}").click()
        await store.get_by_role("button", name="Yes").click()
        await expect(store).to_have_count(0)
    await post_as_page(whole_stack, "/v1/admin/models/citing/unload", {})
    await whole_stack.model_where("citing", lambda model: model.state is ModelState.UNLOADED, "unloaded")


async def ask_grounded(stack: RoundhouseStack, store: str) -> str:
    """Ask for an answer that is grounded on a vector store, without its passages. Returns the conversation's id."""
    made: str = (await post_as_page(stack, "/v1/conversations", {"metadata": {"title": "Grounded"}}))["id"]
    tools = [{"type": "file_search", "vector_store_ids": [store]}]
    asked = {"model": "citing", "input": "Where is the coal?", "conversation": made, "tools": tools}
    await post_as_page(stack, "/v1/responses", asked)
    return made


async def cite_document(stack: RoundhouseStack) -> str:
    """Store a conversation whose answer cites a document. Returns its id."""
    document = {"id": "cited", "text": COAL, "filename": "coal.md"}
    await post_as_page(stack, "/v1/documents?wait=true", document)
    cited = {"type": "file_citation", "document_id": "cited", "filename": "coal.md", "number": 1, "chunk": 0}
    answer = message("assistant", "Beside the shed [1].", [cited])
    made = await post_as_page(stack, "/v1/conversations", {"items": [message("user", "Where is the coal?"), answer]})
    return str(made["id"])


async def test_retrieval_that_is_away_is_said(whole_stack: RoundhouseStack, look: Look) -> None:
    async with open_context(whole_stack.url, look) as context:
        whole_stack.kill("retrieval", signal.SIGTERM)
        try:
            page = await context.new_page()
            await page.goto("/#/documents")
            listed = page.get_by_role("region", name="Your documents", exact=True)
            await expect(listed.get_by_role("alert")).to_contain_text("retrieval")
        finally:
            whole_stack.start("retrieval")
        # It comes back by itself.
        await expect(listed.get_by_role("alert")).to_have_count(0)
