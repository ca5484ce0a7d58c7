"""Documents through the gateway, and `roundhouse rag export`, `import` and `eval`; retrieval is real, over fakes of its
parts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.app import run
from cli.gateway_client import GatewayAddress
from cli.output import ExitCode
from cli.rag.client import RagClient
from cli.rag.transferring import export_documents
from tests.fakes.gateway_harness import gateway_harness
from tests.support.queueing import key
from tests.support.retrieval_harness import RetrievalHarness, retrieval_gateway

FIELDS = ("id", "status", "filename", "declared_media_type", "bytes", "sha256", "metadata", "chunking")
TEXTS = {"yard": "Coal is stored beside the shed.", "crew": "The driver wears a cap.", "other": "Nothing of use here."}
QUESTIONS = [
    {"query": "stored coal", "relevant": ["yard"]},
    {"query": "driver", "relevant": {"crew": 2, "yard": 1}},
    {"query": "water", "relevant": ["well"]},
]


def upload(content: bytes, filename: str, **options: Any) -> aiohttp.FormData:
    form = aiohttp.FormData(**options)
    form.add_field("file", content, filename=filename)
    return form


async def command(url: str, *words: str) -> int:
    """Run `roundhouse rag` against a gateway, for the tenant `me`."""
    return await asyncio.to_thread(run, ["rag", *words, "--gateway", url, "--tenant", "me"])


async def read_documents(retrieval: RetrievalHarness) -> list[dict[str, Any]]:
    response = await retrieval.request("GET", "/v1/documents?limit=100", tenant="me")
    return sorted(
        ({name: each[name] for name in FIELDS} for each in response.json()["data"]), key=lambda each: each["id"]
    )


async def fill(url: str, retrieval: RetrievalHarness) -> None:
    """Documents of each kind: a text, files with and without names, twice the same content, one that fails."""
    await retrieval.add("A fox.", "text", tenant="me", metadata={"lang": "en", "tags": ["a", "b"]})
    await retrieval.add("A fox.", "same", tenant="me", filename='größe" 1.txt', chunking={"max_tokens": 64})
    await retrieval.request("POST", "/v1/documents", {"text": "bad", "id": "fails"}, tenant="me")
    await retrieval.request("GET", "/v1/documents/fails/events", tenant="me")
    async with aiohttp.ClientSession(headers={"x-client-id": "me"}) as session:
        for name in ("", "plan.html"):
            form = aiohttp.FormData()
            form.add_field("file", b"<p>A dog." * 1000, filename=name, content_type="text/html")
            form.add_field("id", f"file{len(name)}")
            async with session.post(f"{url}/v1/documents?wait=true", data=form) as response:
                assert response.status == 200, await response.text()
    await retrieval.add("Not mine.", "other", tenant="other")


async def test_a_document_goes_through_with_its_tenant(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        headers = {"x-client-id": "Alice B", "x-roundhouse-tenant": "bob", "x-roundhouse-admin": "1"}
        form = upload(b"A fox.", "fox.txt")
        made = await gateway.request("POST", "/v1/documents?wait=true", data=form, headers=headers)
        url = f"/v1/documents/{made.success['id']}"
        assert (made.headers["x-tenant-id"], made.headers["location"]) == ("Alice B", url)
        assert await retrieval.texts("fox", tenant="Alice B") == ["A fox."]
        content = await gateway.get(f"{url}/content", headers=headers)
        assert content.content == b"A fox."
        assert content.headers["content-disposition"] == 'attachment; filename="fox.txt"'
        events = await gateway.get(f"{url}/events", headers=headers)
        assert events.headers["content-type"].startswith("text/event-stream")
        assert events.text.startswith("event: document\ndata: {")
        foreign = await gateway.get(url, headers={"x-client-id": "bob"})
        assert foreign.refusal == (404, "document_not_found")
        assert foreign.error["request_id"] == foreign.headers["x-request-id"]


async def test_without_keys_page_command_line_and_api_have_one_tenant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):

        async def rag(*words: str) -> tuple[int, str, str]:
            code = await asyncio.to_thread(run, ["rag", *words, "--gateway", gateway.url])
            return code, *capsys.readouterr()

        async def search(**headers: str) -> dict[str, Any]:
            reply = await gateway.post("/v1/search", {"query": "coal", "mode": "sparse"}, headers=headers)
            found: dict[str, Any] = reply.success
            return found

        (tmp_path / "coal.txt").write_text("Coal is beside the shed.")
        for tenant, document_id in (("roundhouse-page", "old"), ("me", "mine")):
            await retrieval.add("Coal of earlier.", document_id, tenant=tenant)
        empty = await search()
        assert (empty["data"], empty["notice"]) == (
            [],
            "The tenant default has no documents. Other tenants have some: me (1), roundhouse-page (1).",
        )
        assert (await rag("add", str(tmp_path / "coal.txt")))[0] == ExitCode.DONE
        assert [hit["text"] for hit in (await search(**{"user-agent": "curl/8"}))["data"]] == [
            "Coal is beside the shed."
        ]
        assert (await rag("tenants"))[1].split()[4::4] == ["default", "me", "roundhouse-page"]
        assert (await rag("move", "roundhouse-page"))[:2] == (0, "1 document of roundhouse-page moved to default\n")
        assert len((await search())["data"]) == 2
        assert [hit["document_id"] for hit in (await search(**{"x-client-id": "me"}))["data"]] == ["mine"]
        code, _, err = await rag("move", "roundhouse-page")
        assert (code, "the tenant roundhouse-page has no documents" in err) == (ExitCode.FAILED, True)
        await retrieval.add("Coal of another kind.", "mine", tenant="default")
        code, _, err = await rag("move", "me")
        assert (code, "default has other documents of these ids, so nothing was moved: mine" in err) == (1, True)
        assert len((await search(**{"x-client-id": "me"}))["data"]) == 1
        nothing = await gateway.post("/v1/search", {"query": "penguin", "mode": "sparse"})
        assert nothing.success["notice"].startswith("The tenant default has 3 documents, of which none fits. Other")


async def test_a_folder_is_added_once_however_its_path_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):

        async def add(folder: Path, *words: str) -> tuple[int, str]:
            monkeypatch.chdir(folder)
            code = await asyncio.to_thread(run, ["rag", "add", *words, "--gateway", gateway.url])
            return code, capsys.readouterr().err

        async def documents() -> dict[str, str]:
            listed = await retrieval.request("GET", "/v1/documents", tenant="default")
            return {each["id"]: each["metadata"].get("added_from", "") for each in listed.json()["data"]}

        first, second = tmp_path / "first", tmp_path / "second"
        for folder in (first, second):
            (folder / "docs").mkdir(parents=True)
            for name in ("a.txt", "b.txt"):
                (folder / "docs" / name).write_text(f"Coal of {name}")
        await retrieval.add("Coal of an earlier version.", "docs:a.txt", tenant="default")
        for folder, words in ((first, "docs"), (first, "./docs"), (first / "docs", "."), (tmp_path, f"{first}/docs")):
            assert await add(folder, words) == (ExitCode.DONE, "")
            assert (await documents()).keys() == {"docs:a.txt", "docs:b.txt"}
        before = await documents()
        code, err = await add(second, "docs")
        assert (code, await documents()) == (ExitCode.FAILED, before)
        assert f"`rag add {second}/docs/" in err
        assert await add(second, "docs", "--set", "added_from=yard") == (ExitCode.DONE, "")
        assert await documents() == {"docs:a.txt": "yard", "docs:b.txt": "yard"}


async def test_where_a_key_decides_for_the_tenant_nothing_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_KEY", "secret-k")
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        await gateway.publish(keys=(key("k", tenant="old"),))
        await retrieval.add("A fox.", "fox", tenant="old")
        for source in ("old", "other"):
            code = await asyncio.to_thread(run, ["rag", "move", source, "--gateway", gateway.url])
            assert (code, "the key decides for which tenant" in capsys.readouterr().err) == (ExitCode.FAILED, True)
        assert await retrieval.texts("fox", tenant="old") == ["A fox."]


async def test_what_others_have_is_for_admins_alone(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (_, retrieval):
        await retrieval.add("A fox.", "a", tenant="secret")
        for is_admin, notice in (
            (
                False,
                "The tenant mine has no documents. It has those that were added with a key of the same `tenant`.",
            ),
            (True, "The tenant mine has no documents. Other tenants have some: secret (1)."),
        ):
            found = await retrieval.request("POST", "/v1/search", {"query": "fox"}, tenant="mine", is_admin=is_admin)
            assert (found.json()["data"], found.json()["notice"]) == ([], notice)


async def test_a_download_is_called_by_a_name_without_a_path(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, _):
        document = await gateway.post("/v1/documents", text="A fox.", filename="../a\\x\0\u202efdp.txt")
        assert document.status < 300
        form = upload(b"A fox.", "a/b\u202ec.txt", fields={"purpose": "assistants"}, quote_fields=False)
        file = (await gateway.request("POST", "/v1/files", data=form)).body
        assert file["filename"] == "bc.txt"
        for path, shown in ((f"documents/{document.body['id']}", "xfdp.txt"), (f"files/{file['id']}", "bc.txt")):
            reply = await gateway.get(f"/v1/{path}/content")
            assert reply.headers["content-disposition"] == f'attachment; filename="{shown}"'


async def test_a_document_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        for size in (1024 * 1024 + 1, 20 * 1024 * 1024):
            reply = await gateway.request("POST", "/v1/documents", data=upload(b"x" * size, "x.txt"))
            assert reply.status == 413, reply.text
        assert list(retrieval.retrieval.originals.list_originals()) == []


async def test_another_token_is_told_as_what_it_is(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path, gateway_token="another-token-than-that") as (gateway, _):
        reply = await gateway.get("/v1/documents")
        assert reply.refusal == (503, "retrieval_unavailable")
        assert "refuses the gateway's token" in reply.error["message"]
        assert reply.headers["retry-after"] == "5"


async def test_a_client_that_leaves_ends_its_upload(tmp_path: Path) -> None:
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(
            b"POST /v1/documents HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b'content-length: 1000\r\n\r\n{"text": "half'
        )
        await writer.drain()
        writer.close()
        assert (await gateway.get("/v1/documents")).body["data"] == []
        assert await reader.read() == b""
        assert list(retrieval.retrieval.originals.list_originals()) == []


async def test_turned_off_it_is_said(tmp_path: Path) -> None:
    async with gateway_harness(retrieval=False) as gateway:
        for method, path in (("GET", "/v1/documents"), ("POST", "/v1/search"), ("GET", "/v1/files")):
            assert (await gateway.request(method, path)).refusal == (403, "retrieval_disabled")


async def test_documents_come_back_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "documents.tar"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with retrieval_gateway(tmp_path / "one") as (gateway, retrieval):
        await fill(gateway.url, retrieval)
        documents = await read_documents(retrieval)
        assert await command(gateway.url, "export", str(file), "--json") == ExitCode.DONE
        exported = json.loads(capsys.readouterr().out)
        assert (exported["tenant"], exported["documents"], exported["originals"]) == ("me", 5, 3)
        # Exported anew, it takes the earlier file's place.
        assert await command(gateway.url, "export", str(file)) == ExitCode.DONE
        assert "5 documents of me" in capsys.readouterr().out
    async with retrieval_gateway(tmp_path / "two") as (gateway, retrieval):
        assert await command(gateway.url, "import", str(file)) == ExitCode.FAILED
        out, err = capsys.readouterr()
        assert "5 documents, 5 added, 0 there already, 1 failed" in out
        assert err == "roundhouse: fails: The document begins with bad.\n"
        assert await read_documents(retrieval) == documents
        assert sorted(await retrieval.texts("fox", tenant="me")) == ["A fox.", "A fox."]
        assert await command(gateway.url, "import", str(file), "--no-wait", "--json") == ExitCode.DONE
        again = json.loads(capsys.readouterr().out)
        assert (again["added"], again["unchanged"], again["failed"]) == (0, 5, [])


async def test_an_export_that_was_broken_off_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "documents.tar"
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        for number in range(6):
            await retrieval.add(f"Fox {number}.", f"d{number}", tenant="me")

        def break_off(document_id: str) -> None:
            if document_id == "d3":
                raise KeyboardInterrupt

        async with RagClient(GatewayAddress(gateway.url, verifies=True), "me") as client:
            with pytest.raises(KeyboardInterrupt):
                await export_documents(client, file, break_off)
        assert not file.exists()
        await retrieval.request("DELETE", "/v1/documents/d0", tenant="me")
        await retrieval.add("Another fox.", "d1", tenant="me")
        assert await command(gateway.url, "export", str(file), "--json") == ExitCode.DONE
        exported = json.loads(capsys.readouterr().out)
        # Four originals were there; of two of them the documents are gone or changed.
        assert (exported["documents"], exported["originals"], exported["fetched"]) == (5, 7, 3)
    (tmp_path / "two").mkdir()
    async with retrieval_gateway(tmp_path / "two") as (gateway, retrieval):
        await retrieval.add("Fox 2.", "d2", tenant="me", metadata={"old": True})
        assert await command(gateway.url, "import", str(file)) == ExitCode.DONE
        texts = sorted(await retrieval.texts("fox", tenant="me"))
        assert texts == ["Another fox.", "Fox 2.", "Fox 3.", "Fox 4.", "Fox 5."]
        assert [each["metadata"] for each in await read_documents(retrieval)] == [{}] * 5


async def test_documents_that_are_replaced_and_deleted_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "documents.tar"
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        for number in range(4):
            await retrieval.add(f"Fox {number}.", f"d{number}", tenant="me")
        async with RagClient(GatewayAddress(gateway.url, verifies=True), "me") as client:
            listed = [document async for document in client.list_documents()]
            await retrieval.add("A new fox.", "d1", tenant="me")
            await retrieval.request("DELETE", "/v1/documents/d2", tenant="me")

            async def stale(_: object = None) -> Any:
                for document in listed:
                    yield document

            client.list_documents = stale  # type: ignore[method-assign, assignment]
            exported = await export_documents(client, file, lambda _: None)
            assert (exported.documents, exported.originals) == (3, 3)


async def test_a_damaged_file_is_told_and_the_rest_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "documents.tar"
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        await retrieval.add("A fox.", "d", tenant="me")
        assert await command(gateway.url, "export", str(file)) == ExitCode.DONE
        file.write_bytes(file.read_bytes().replace(b"A fox.", b"B fox."))
        await retrieval.request("DELETE", "/v1/documents/d", tenant="me")
        assert await command(gateway.url, "import", str(file)) == ExitCode.FAILED
        assert "the original of d is not what its hash says" in capsys.readouterr().err
        assert await read_documents(retrieval) == []


async def test_each_way_that_the_gateway_can_do_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, report = tmp_path / "questions.jsonl", tmp_path / "report.md"
    questions.write_text("\n".join(map(json.dumps, QUESTIONS)))
    options = {"retrieval_embedding_model": "minilm", "retrieval_rerank_model": "judge"}
    async with retrieval_gateway(tmp_path, **options) as (gateway, retrieval):
        for name, text in TEXTS.items():
            await retrieval.add(text, name, tenant="me")
        command = ["rag", "eval", str(questions), "--gateway", gateway.url, "--tenant", "me", "--report", str(report)]
        assert await asyncio.to_thread(run, command) == ExitCode.DONE
        out, err = capsys.readouterr()
        rows = {row[0]: row[1:] for row in map(str.split, out.splitlines())}
        # Found first, found first of two, and not there: recall (1 + 1/2 + 0) / 3, reciprocal ranks (1 + 1 + 0) / 3.
        assert rows["sparse"][:2] == ["0.500", "0.667"]
        assert set(rows) == {"SEARCH", "sparse", "dense", "hybrid", "reranked"}
        assert "1 document of the questions are not there, so no search finds them: well" in err
        assert "| reranked | " in report.read_text()
        assert "- water (well)" in report.read_text()


async def test_what_the_gateway_cannot_do_has_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, report = tmp_path / "questions.jsonl", tmp_path / "report.json"
    questions.write_text("\n".join(map(json.dumps, QUESTIONS)))
    async with retrieval_gateway(tmp_path) as (gateway, retrieval):
        await retrieval.add(TEXTS["yard"], "yard", tenant="me")
        command = ["rag", "eval", str(questions), "--gateway", gateway.url, "--tenant", "me", "--report", str(report)]
        assert await asyncio.to_thread(run, [*command, "--json"]) == ExitCode.DONE
        out, err = capsys.readouterr()
        searches = json.loads(out)["searches"]
        assert searches["sparse"]["reason"] is None
        assert [name for name, each in searches.items() if each["recall@5"] is None] == ["dense", "hybrid", "reranked"]
        assert "dense: " in err
        assert len(json.loads(report.read_text())["by_question"]) == 3
        assert await asyncio.to_thread(run, [*command, "--report", str(tmp_path)]) == ExitCode.FAILED
        assert "cannot be written" in capsys.readouterr().err
