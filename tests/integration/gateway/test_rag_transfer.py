"""`roundhouse rag export` and `import` through gateways: documents leave one retrieval program and come to another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.cli.app import run
from controller.cli.exit_codes import ExitCode
from controller.cli.rag.client import RagClient
from controller.cli.rag.transferring import export_documents
from tests.support.retrieval_gateway import retrieval_gateway
from tests.support.retrieval_harness import RetrievalHarness

FIELDS = ("id", "status", "filename", "declared_media_type", "bytes", "sha256", "metadata", "chunking")


async def command(url: str, *words: str) -> int:
    """Run `roundhouse rag` against a gateway, for the tenant `me`."""
    return await asyncio.to_thread(run, ["rag", *words, "--gateway", url, "--tenant", "me"])


async def read_documents(retrieval: RetrievalHarness) -> list[dict[str, Any]]:
    answer = await retrieval.request("GET", "/v1/documents?limit=100", tenant="me")
    return sorted(
        ({name: each[name] for name in FIELDS} for each in answer.json()["data"]), key=lambda each: each["id"]
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
            async with session.post(f"{url}/v1/documents?wait=true", data=form) as answer:
                assert answer.status == 200, await answer.text()
    await retrieval.add("Not mine.", "other", tenant="other")


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

        async with RagClient(gateway.url, "me", verifies=True) as client:
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
        async with RagClient(gateway.url, "me", verifies=True) as client:
            listed = [document async for document in client.list_documents()]
            await retrieval.add("A new fox.", "d1", tenant="me")
            await retrieval.request("DELETE", "/v1/documents/d2", tenant="me")

            async def stale() -> Any:
                for document in listed:
                    yield document

            client.list_documents = stale  # type: ignore[method-assign]
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
