"""PDFs and texts as files of requests, in every family: the engine gets their text."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.admin import Capabilities
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, engines
from tests.fakes.mock_engine import MockEngine
from tests.support import response_state
from tests.support.document_files import WAITS, as_data_url, count_running, make_pdf
from tests.support.gateway_rest import nothing_left
from tests.support.response_state import Site, refusal, socket
from tests.support.retrieval_harness import retrieval_gateway
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


PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
WEBP = b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(40)
PNG_URL, WEBP_URL = (
    f"data:image/{kind};base64,{base64.b64encode(data).decode()}" for kind, data in (("png", PNG), ("webp", WEBP))
)
NOTE = "Größe: 7 \U0001f98a\n".encode()
PDF_BYTES = make_pdf("Hello from a PDF.", "Page two.")
CHAT = "/v1/chat/completions"


@dataclass
class Keeping:
    """A gateway with a model that sees, a remote, and retrieval; one key, and the files of its tenant by name."""

    gateway: GatewayHarness
    engine: MockEngine
    files: dict[str, str]
    foreign: str
    """A file of another tenant."""

    async def ask(self, kind: str, part: Any, model: str = "m", **fields: Any) -> Any:
        """The reply to a request of a family that holds this part after a text."""
        content = [{"type": "input_text" if kind == "responses" else "text", "text": "What?"}, part]
        message = [{"role": "user", "content": content}]
        if kind == "responses":
            return await self.gateway.post("/v1/responses", {"model": model, "input": message, **fields}, headers=ALICE)
        path = CHAT if kind == "chat" else "/v1/messages"
        body = {"model": model, "max_tokens": 5, "messages": message, **fields}
        return await self.gateway.post(path, body, headers=ALICE)

    @property
    def sent(self) -> Any:
        """What the engine was sent of the last message after the text: a text, or the part of an image or a file."""
        content = self.engine.requests[-1].body["messages"][-1]["content"]
        if isinstance(content, str):
            return content.removeprefix("What?\n")
        return content[1].get("text", content[1])


ALICE = {"x-client-id": "alice"}
KEPT = {"note.md": NOTE, "a.pdf": PDF_BYTES, "scan.pdf": make_pdf(""), "p.png": PNG, "w.webp": WEBP,
        "x.docx": b"PK\x03\x04\xff\xfe", "old.txt": "Größe".encode("latin-1"), "big.txt": b"x" * 300_000}  # fmt: skip


@contextlib.asynccontextmanager
async def keeping(folder: Path) -> AsyncIterator[Keeping]:
    async with retrieval_gateway(folder) as (gateway, retrieval), engines(1) as (engine,):
        seeing = route("m", [engine.url], apis=(CHAT,), capabilities=Capabilities(modalities=("text", "image")))
        blind = route("blind", [engine.url], apis=(CHAT,))
        remote = route("r", [engine.url], apis=(CHAT,)).model_copy(update={"backend": "openai_remote"})
        await gateway.publish(seeing, blind, remote)

        async def keep(name: str, content: bytes, tenant: str = "alice") -> str:
            purpose = {"purpose": "vision" if name.endswith(("g", "p")) else "user_data"}
            reply = await retrieval.request("POST", "/v1/files", files={"file": (name, content)}, data=purpose,
                                            tenant=tenant)  # fmt: skip
            return str(reply.json()["id"])

        files = {name: await keep(name, content) for name, content in KEPT.items()}
        yield Keeping(gateway, engine, files, await keep("bob.md", b"Mine.", "bob"))


def naming(kind: str, file_id: Any, *, image: bool = False) -> Any:
    """A part of a family that names a file."""
    if kind == "responses":
        return {"type": "input_image" if image else "input_file", "file_id": file_id}
    if kind == "chat":
        return {"type": "file", "file": {"file_id": file_id}}
    return {"type": "image" if image else "document", "source": {"type": "file", "file_id": file_id}}


PLACES = {"responses": "input[0].content[1]", "chat": "messages[0].content[1].file",
          "messages": "messages[0].content[1].source"}  # fmt: skip


async def test_kept_files_can_be_named_in_every_family(tmp_path: Path) -> None:
    async with keeping(tmp_path) as site:
        for kind in PLACES:
            for stream in (False, True):
                reply = await site.ask(kind, naming(kind, site.files["note.md"]), stream=stream)
                assert reply.status == 200, reply.text
                assert site.sent == NOTE.decode()
            reply = await site.ask(kind, naming(kind, site.files["a.pdf"]))
            assert reply.status == 200, reply.text
            assert site.sent == (TEXT if kind == "messages" else NAMED)
        for kind in ("responses", "messages"):
            for name, url in (("p.png", PNG_URL), ("w.webp", WEBP_URL)):
                reply = await site.ask(kind, naming(kind, site.files[name], image=True))
                assert reply.status == 200, reply.text
                assert site.sent["image_url"]["url"] == url
        await nothing_left(site.gateway)


async def test_what_a_named_file_held_is_kept_with_the_response(tmp_path: Path) -> None:
    async with keeping(tmp_path) as site:
        first = (await site.ask("responses", naming("responses", site.files["a.pdf"]), background=True)).success
        path = f"/v1/responses/{first['id']}"

        async def is_over() -> bool:
            return bool((await site.gateway.get(path, headers=ALICE)).body["status"] == "completed")

        await until("it is made", is_over)
        assert site.sent == NAMED
        assert (await site.gateway.request("DELETE", f"/v1/files/{site.files['a.pdf']}", headers=ALICE)).status == 200
        body = {"model": "m", "input": "Go on.", "previous_response_id": first["id"]}
        assert (await site.gateway.post("/v1/responses", body, headers=ALICE)).status == 200
        assert NAMED in str(site.engine.requests[-1].body["messages"][0]["content"]).replace("\\n", "\n")
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = [{"type": "input_file", "file_id": site.files["note.md"]}]
        result = {"type": "function_call_output", "call_id": "c", "output": output}
        reply = await site.gateway.post("/v1/responses", {"model": "m", "input": [call, result]}, headers=ALICE)
        assert reply.status == 200, reply.text
        assert site.sent == NOTE.decode()


async def test_a_file_that_cannot_be_named_is_refused_at_its_id(tmp_path: Path) -> None:
    async with keeping(tmp_path) as site:
        for kind, place in PLACES.items():
            for named, refused in (
                (site.foreign, (404, "file_not_found")),
                ("file-" + "0" * 32, (404, "file_not_found")),
                ("../vector_stores", (400, "invalid_request")),
                ("", (400, "invalid_request")),
                (7, (400, "invalid_request")),
                (site.files["scan.pdf"], (400, "file_unreadable")),
                (site.files["x.docx"], (400, "modality_unsupported")),
                (site.files["old.txt"], (400, "modality_unsupported")),
                (site.files["p.png"], (400, "modality_unsupported")),
            ):
                reply = await site.ask(kind, naming(kind, named))
                if kind == "messages":  # whose errors have neither code nor place
                    assert reply.status == refused[0]
                else:
                    assert (*reply.refusal, reply.error["param"]) == (*refused, f"{place}.file_id")
        for part, model, place in (
            (naming("responses", site.files["note.md"], image=True), "m", "input[0].content[1].file_id"),
            (naming("responses", site.files["p.png"], image=True), "blind", "input[0].content[1]"),
        ):
            reply = await site.ask("responses", part, model)
            assert (*reply.refusal, reply.error["param"]) == (400, "modality_unsupported", place)
        assert not site.engine.requests
        await nothing_left(site.gateway)


async def test_named_files_count_as_if_the_request_held_them(tmp_path: Path) -> None:
    async with keeping(tmp_path) as site:
        budget = site.gateway.app.inference.body_budget
        part = naming("chat", site.files["big.txt"])
        reply = await site.ask("chat", part)
        assert (reply.status, len(site.sent)) == (200, 300_000)
        await until("it is given back", lambda: budget.used_bytes == 0)
        budget.max_held_bytes = 4 * 650_000
        many = [{"role": "user", "content": [part, part, part]}]
        reply = await site.gateway.post(CHAT, {"model": "m", "messages": many}, headers=ALICE)
        assert (*reply.refusal, reply.error["param"]) == (
            *(413, "body_too_large"), "messages[0].content[2].file.file_id"
        )  # fmt: skip
        assert budget.hold(4 * 500_000)
        assert (await site.ask("chat", part)).refusal == (429, "queue_full")
        budget.give_back(4 * 500_000)
        assert (await site.ask("chat", part)).status == 200
        await nothing_left(site.gateway)


async def test_a_remote_gets_our_files_and_its_own_ids(tmp_path: Path) -> None:
    async with keeping(tmp_path) as site:
        own = naming("chat", "file-abc")
        assert (await site.ask("chat", own, "r")).status == 200
        assert site.sent == own
        for name, content, kind in (("a.pdf", PDF_BYTES, "application/pdf"), ("note.md", NOTE, "text/plain")):
            assert (await site.ask("chat", naming("chat", site.files[name]), "r")).status == 200
            data = f"data:{kind};base64,{base64.b64encode(content).decode()}"
            assert site.sent == {"type": "file", "file": {"filename": name, "file_data": data}}


async def test_without_retrieval_a_named_file_is_refused_by_name() -> None:
    async with response_state.site(retrieval=False) as site:
        part = {"type": "input_image", "file_id": "file-" + "a" * 32}
        pending = site.client.responses.create(model="m", input=input_of(part))
        assert await refusal(pending) == (403, "retrieval_disabled", "input[0].content[1].file_id")


async def test_the_place_of_an_id_is_the_clients_where_passages_are_added(tmp_path: Path) -> None:
    async with keeping(tmp_path) as site:
        document = {"text": "What? Coal.", "id": "d"}
        assert (await site.gateway.post("/v1/documents?wait=true", document, headers=ALICE)).status == 200
        reply = await site.ask("chat", naming("chat", site.foreign), rag=True)
        assert (*reply.refusal, reply.error["param"]) == (404, "file_not_found", f"{PLACES['chat']}.file_id")
        assert (await site.ask("chat", naming("chat", site.files["note.md"]), rag=True)).status == 200
        content = site.engine.requests[-1].body["messages"][-1]["content"]
        assert ["Coal" in content[0]["text"], content[2]["text"]] == [True, NOTE.decode()]
