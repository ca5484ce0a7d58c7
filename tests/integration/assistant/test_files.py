"""PDFs and texts as files of requests, in every family: the engine gets their text."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from tests.fakes.fake_controller import route
from tests.support import response_state
from tests.support.document_files import WAITS, as_data_url, count_running, make_pdf
from tests.support.gateway_rest import nothing_left
from tests.support.response_state import Site, refusal, socket
from tests.support.wait import until

PDF = as_data_url(make_pdf("Hello from a PDF.", "Page two."))
TEXT = "Hello from a PDF.\n\nPage two."
NAMED = f"Text of the file a.pdf:\n\n{TEXT}"
FILE: dict[str, Any] = {"type": "input_file", "filename": "a.pdf", "file_data": PDF}


def input_of(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]


def text_sent(site: Site) -> str:
    """What the engine was sent of the last message."""
    content = site.engine.requests[-1].body["messages"][-1]["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


async def test_files_of_responses_reach_the_engine_as_text(site: Site) -> None:
    async with socket(site.gateway) as client:
        first = await site.client.responses.create(model="m", input=input_of(FILE))
        assert text_sent(site) == f"What is it?\n{NAMED}"
        await site.make("Go on.", previous_response_id=first.id)
        assert site.messages()[0] == ("user", f"What is it?\n{NAMED}"), "as it was"
        await client.send(input=input_of(FILE))
        assert (await client.turn())[-1]["response"]["status"] == "completed"
        assert text_sent(site) == f"What is it?\n{NAMED}"
        made = await site.client.responses.create(model="m", input=input_of(FILE), background=True)
        assert (await site.over(made.id)).status == "completed"
        await nothing_left(site.gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_files_of_chats_reach_the_engine_as_text(stream: bool) -> None:
    note = "data:text/plain;base64," + base64.b64encode(b"A note.").decode()
    async with response_state.site() as site:
        file = {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}
        content = [{"type": "text", "text": "What?"}, file, {"type": "file", "file": {"file_data": note}}]
        messages = [{"role": "user", "content": content}]
        assert (
            await site.gateway.post("/v1/chat/completions", model="m", messages=messages, stream=stream)
        ).status == 200
        assert text_sent(site) == f"What?\n{NAMED}\nA note."


async def test_documents_of_messages_reach_the_engine_as_text() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF.partition(",")[2]}
    document = {"type": "document", "title": "A title", "source": source}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [document]}]}
    async with response_state.site(m={"apis": ("/v1/chat/completions",)}) as site:
        reply = await site.gateway.post("/v1/messages", **asked)
        assert reply.status == 200, reply.content
        assert text_sent(site) == f"A title\n{TEXT}"
        source["data"] = "JVBERi0="
        reply = await site.gateway.post("/v1/messages", **asked)
        body = reply.body
        assert (reply.status, body["error"]["type"]) == (400, "invalid_request_error")
        assert "no PDF that can be read" in body["error"]["message"]


async def test_a_remote_reads_its_files_itself(site: Site) -> None:
    remote = route("r", [site.engine.url], apis=("/v1/chat/completions",))
    await site.gateway.publish(remote.model_copy(update={"backend": "openai_remote"}))
    file = {"type": "file", "file": {"file_id": "file-1"}}
    messages = [{"role": "user", "content": [file]}]
    assert (await site.gateway.post("/v1/chat/completions", model="r", messages=messages)).status == 200
    assert site.engine.requests[-1].body["messages"] == messages
    await site.client.responses.create(model="r", input=input_of(FILE))
    assert NAMED in text_sent(site), "what is translated has its text"


async def test_files_that_cannot_be_read_are_refused(site: Site) -> None:
    at = "input[0].content[1]"
    for part, code, place in (
        ({"type": "input_file", "file_data": "JVBERi0="}, "file_unreadable", "file_data"),
        ({"type": "input_file", "file_data": as_data_url(make_pdf(""))}, "file_unreadable", "file_data"),
        ({"type": "input_file", "file_url": "http://127.0.0.1:1/a.pdf"}, "invalid_request", "file_url"),
        ({"type": "input_file", "file_id": "f"}, "invalid_request", "file_id"),
        ({"type": "input_file", "file_data": "data:image/png;base64,aGk="}, "modality_unsupported", "file_data"),
    ):
        pending = site.client.responses.create(model="m", input=input_of(part))
        assert await refusal(pending) == (400, code, f"{at}.{place}")
    assert not site.engine.requests
    await nothing_left(site.gateway)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_process_that_cannot_be_started_is_told_in_the_familys_envelope(stream: bool, site: Site) -> None:
    site.gateway.assistant.documents._program = ("/nowhere/python",)
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF.partition(",")[2]}
    for path, fields in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [file]}]}),
        ("/v1/responses", {"input": input_of(FILE)}),
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "document", "source": source}]}]},
        ),
    ):
        reply = await site.gateway.post(path, model="m", stream=stream, **fields)
        assert (reply.status, reply.code, bool(reply.error["message"])) == (500, "internal_error", True), path
    assert not site.engine.requests
    await nothing_left(site.gateway)


async def test_who_leaves_or_is_stopped_ends_the_reading() -> None:
    async with response_state.site(shutdown_grace_s=0.1) as site:
        server: Any = site.gateway.server
        site.gateway.assistant.documents._program = WAITS

        pending = asyncio.ensure_future(site.gateway.post("/v1/responses", model="m", input=input_of(FILE)))
        await until("it is read", count_running)
        pending.cancel()
        await until("it is ended", lambda: not count_running())
        pending = asyncio.ensure_future(site.gateway.post("/v1/responses", model="m", input=input_of(FILE)))
        await until("it is read", count_running)
        server.should_exit = True
        assert (await pending).status == 503
        await until("it is ended", lambda: not count_running())
