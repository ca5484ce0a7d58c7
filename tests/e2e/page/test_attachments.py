"""What is attached to a message: images, sounds, PDFs, texts; and what the chosen model cannot take of it."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.async_api import FilePayload, Locator, Page, Request, expect

from tests.support.document_files import make_pdf
from tests.support.page_browser import Look, choose_model, open_page, require_page, send_message
from tests.support.roundhouse_stack import SENTENCE, RoundhouseStack, serving
from tests.support.seeing_model import BRIGHT, DARK, encode, make_image, make_projector, make_seeing_model, make_sound

pytestmark = [pytest.mark.engines, pytest.mark.slow]

TEXT_ONLY = {"model_path": "see.gguf", "llama_server_n_ctx": 4096, "llama_server_threads": 1}
HEARING = TEXT_ONLY | {"llama_server_mmproj": "projector.gguf", "modalities": ["text", "image", "audio"]}

GIVE_FILE = """(element, [kind, name]) => {
    const data = new DataTransfer();
    data.items.add(new File(["text of " + name], name, { type: "text/plain" }));
    const options = { bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data };
    element.dispatchEvent(kind === "drop" ? new DragEvent(kind, options) : new ClipboardEvent(kind, options));
}"""
"""Gives an element a file, as a drop or a paste does."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoundhouseStack]:
    """Two real llama-servers: `hearing` takes images and sounds, `blind` texts alone."""
    require_page()
    stack = RoundhouseStack(tmp_path_factory.mktemp("attachments"), "process", {"ROUNDHOUSE_MDNS": "off"})
    make_seeing_model(stack.models / "see.gguf")
    make_projector(stack.models / "projector.gguf", hears=True)
    stack.declare({"hearing": HEARING, "blind": TEXT_ONLY})
    with serving(stack, "hearing", "blind"):
        yield stack


async def attach(page: Page, name: str, kind: str, content: bytes) -> Locator:
    """Pick a file. Returns its entry in the list of attachments."""
    payload: FilePayload = {"name": name, "mimeType": kind, "buffer": content}
    await page.get_by_label("Attach files from this device").set_input_files(payload)
    entry = page.get_by_role("list", name="Attachments").get_by_role("listitem").filter(has_text=name)
    await expect(entry).to_be_visible()
    return entry


async def take_picture(page: Page, name: str, content: bytes) -> Locator:
    """Take a picture by a phone's camera, which the browser opens. Returns its entry in the list of attachments."""
    async with page.expect_file_chooser() as opened:
        await page.get_by_role("button", name="Take a picture").click()
    camera = await opened.value
    assert not camera.is_multiple()
    assert await camera.element.get_attribute("capture") == "environment"
    await camera.set_files({"name": name, "mimeType": "image/png", "buffer": content})
    return page.get_by_role("list", name="Attachments").get_by_role("listitem").filter(has_text=name)


async def send_and_read(page: Page, text: str) -> list[dict[str, Any]]:
    """Send what is written. Returns the parts of the message as they were stored."""

    def is_message(request: Request) -> bool:
        return request.method == "POST" and request.url.endswith("/items")

    async with page.expect_request(is_message) as sent:
        await send_message(page, text)
    fields = json.loads((await sent.value).post_data or "")
    content: list[dict[str, Any]] = fields["items"][0]["content"]
    return content


def answer_of(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer").last


def size_of(url: str) -> tuple[int, int]:
    """Width and height of a PNG in a data: address."""
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    width, height = struct.unpack(">II", base64.b64decode(data)[16:24])
    return width, height


@pytest.mark.looks(Look.DESK, Look.PHONE)
async def test_a_model_sees_and_hears_what_is_attached(stack: RoundhouseStack, look: Look) -> None:
    async with open_page(stack.url, look, "/#/chat") as page:
        await choose_model(page, "hearing")
        picture = make_image(230)
        if look.is_phone:
            entry = await take_picture(page, "bright.png", picture)
        else:
            await expect(page.get_by_role("button", name="Take a picture")).to_be_hidden()
            entry = await attach(page, "bright.png", "image/png", picture)
        await expect(entry.get_by_role("img", name="Preview of bright.png")).to_be_visible()
        content = await send_and_read(page, "What is it?")
        assert content[1]["image_url"] == f"data:image/png;base64,{encode(picture)}", "a small one is sent as it is"
        await expect(answer_of(page)).to_contain_text(BRIGHT)
        await attach(page, "silence.wav", "audio/wav", make_sound(0))
        content = await send_and_read(page, "And this?")
        assert content[1]["input_audio"] == {"data": encode(make_sound(0)), "format": "wav"}
        await expect(page.get_by_role("article", name="Answer")).to_have_count(2)
        await expect(page.get_by_role("list", name="Attachments")).to_have_count(0)


async def test_files_are_dropped_pasted_scaled_and_removed(stack: RoundhouseStack, look: Look) -> None:
    async with open_page(stack.url, look, "/#/chat") as page:
        await choose_model(page, "hearing")
        form = page.get_by_role("form", name="New message")
        message = page.get_by_role("textbox", name="Message", exact=True)
        for target, event, name in ((form, "drop", "dropped.txt"), (message, "paste", "pasted.txt")):
            await target.evaluate(GIVE_FILE, [event, name])
            await expect(page.get_by_role("listitem").filter(has_text=name)).to_be_visible()
        await page.get_by_role("button", name="Remove dropped.txt").click()
        await attach(page, "large.png", "image/png", make_image(20, 3000, 1000))
        noise = bytes(range(256)) * 8
        await page.get_by_label("Attach files from this device").set_input_files(
            {"name": "noise.bin", "mimeType": "application/octet-stream", "buffer": noise}
        )
        await expect(page.get_by_role("alert")).to_contain_text("noise.bin is no text, image, sound or PDF.")
        text, pasted, image = await send_and_read(page, "Look")
        assert text == {"type": "input_text", "text": "Look"}
        assert pasted["filename"] == "pasted.txt"
        assert base64.b64decode(pasted["file_data"].partition(",")[2]) == b"text of pasted.txt"
        assert size_of(image["image_url"]) == (1536, 512)
        await expect(answer_of(page)).to_contain_text(DARK)


async def test_a_pdf_goes_as_text_or_as_pages_to_a_model_that_can_take_them(stack: RoundhouseStack, look: Look) -> None:
    async with open_page(stack.url, look, "/#/chat") as page:
        await choose_model(page, "blind")
        await attach(page, "two.pdf", "application/pdf", make_pdf("Coal is here", "Water is there"))
        await expect(page.get_by_text("Text of 2 pages")).to_be_visible()
        await page.get_by_role("button", name="Send two.pdf as pages").click()
        note = page.get_by_role("alert").filter(has_text="blind takes no images")
        await expect(note.get_by_role("button", name="Use hearing")).to_be_visible()
        # It is not sent like this, neither by the button, which says why, nor by the key.
        send = page.get_by_role("button", name="Send", exact=True)
        await page.get_by_role("textbox", name="Message", exact=True).fill("Look")
        await expect(send).to_be_disabled()
        await expect(send).to_have_accessible_description(re.compile("blind takes no images"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("article", name="Your message")).to_have_count(0)
        await note.get_by_role("button", name="Send two.pdf as text").click()
        await expect(note).to_have_count(0)
        (_, file) = await send_and_read(page, "Summarise")
        assert base64.b64decode(file["file_data"].partition(",")[2]).decode().split() == [
            *("Coal", "is", "here", "Water", "is", "there")
        ]
        await expect(answer_of(page)).to_contain_text(SENTENCE)
        await choose_model(page, "hearing")
        await attach(page, "pages.pdf", "application/pdf", make_pdf("One", "Two"))
        await page.get_by_role("button", name="Send pages.pdf as pages").click()
        await expect(page.get_by_text("2 of 2 pages")).to_be_visible()
        (_, *pages) = await send_and_read(page, "Look")
        assert [each["image_url"].partition(",")[0] for each in pages] == ["data:image/jpeg;base64"] * 2
        await expect(answer_of(page)).to_contain_text(BRIGHT)
        await choose_model(page, "blind")
        note = page.get_by_role("alert").filter(has_text="This conversation has some in earlier messages.")
        await note.get_by_role("button", name="Use hearing").click()
        await expect(note).to_have_count(0)
        await expect(page.get_by_role("button", name="Model: hearing")).to_be_visible()
