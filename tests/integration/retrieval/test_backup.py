"""A backup of retrieval, and `python -m retrieval` as a process: what it refuses to start with."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.app import run
from cli.backup.snapshot import open_documents
from cli.output import ExitCode
from retrieval.catalog.versions import is_original_used
from tests.campaigns.record import REPOSITORY
from tests.fakes.fake_retrieval_parts import MemoryVectorStore
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness
from tests.support.wait import until


async def command(name: str, file: Path, folder: Path, *options: str) -> int:
    """Run `roundhouse rag` on a state folder of retrieval."""
    return await asyncio.to_thread(run, ["rag", name, str(file), "--documents", str(folder), *options])


async def contents(harness: RetrievalHarness, tenant: str) -> dict[str, bytes]:
    """The original of each document."""
    listed = (await harness.request("GET", "/v1/documents?limit=100", tenant=tenant)).json()["data"]
    found = {}
    for document in listed:
        answer = await harness.request("GET", f"/v1/documents/{document['id']}/content", tenant=tenant)
        assert answer.status_code == 200, document
        found[document["id"]] = answer.content
    return found


async def change_documents(harness: RetrievalHarness, running: asyncio.Event) -> None:
    """Replace and delete documents until the event is cleared."""
    number = 0
    while running.is_set():
        await harness.add(f"A dog, version {number}.", f"changing{number % 7}")
        if number % 3 == 0:
            await harness.request("DELETE", f"/v1/documents/changing{(number + 2) % 7}")
        number += 1


async def test_a_backup_of_work_in_progress_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "documents.tar.gz"
    async with retrieval_harness(tmp_path / "one") as harness:
        for number in range(20):
            await harness.add(f"Fox {number}.", f"d{number}", metadata={"n": number})
        await harness.add("The fox of Bob.", "d", tenant="bob")
        uploaded = await harness.request(
            "POST", "/v1/files", files={"file": ("a.md", b"# Fox")}, data={"purpose": "user_data"}
        )
        store = await harness.request(
            "POST", "/v1/vector_stores", {"name": "yard", "file_ids": [uploaded.json()["id"]]}
        )
        running = asyncio.Event()
        running.set()
        changes = asyncio.create_task(change_documents(harness, running))
        for _ in range(3):
            assert await command("backup", file, tmp_path / "one") == ExitCode.DONE
        running.clear()
        await changes
        kept = {name: content for name, content in (await contents(harness, "alice")).items() if name[0] == "d"}
        assert "the catalog and " in capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    assert await command("restore", file, tmp_path / "two", "--json") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["kept"] == []
    async with retrieval_harness(tmp_path / "two") as harness:
        restored = await contents(harness, "alice")
        assert {name: content for name, content in restored.items() if name[0] == "d"} == kept
        assert await contents(harness, "bob") == {"d": b"The fox of Bob."}
        await until("all is indexed", lambda: harness.retrieval.index.missing == 0)
        assert len(await harness.texts("fox", top_k=100)) == 20
        found = await harness.request("POST", f"/v1/vector_stores/{store.json()['id']}/search", {"query": "fox"})
        assert [hit["file_id"] for hit in found.json()["data"]] == [uploaded.json()["id"]]
        # Originals that the copied catalog did not need any more are gone.
        assert not await has_leftovers(harness)


async def has_leftovers(harness: RetrievalHarness) -> bool:
    """Whether there are originals that the catalog does not need."""
    hashes = list(harness.retrieval.originals.list_originals())
    return not await harness.retrieval.catalog.read(lambda db: all(is_original_used(db, each) for each in hashes))


async def test_points_of_another_catalog_are_not_found(tmp_path: Path) -> None:
    """A Qdrant server outlives the catalog: there, the numbers of versions mean other documents."""
    file, store = tmp_path / "documents.tar.gz", MemoryVectorStore()
    async with retrieval_harness(tmp_path / "one", store=store) as harness:
        await harness.add("A fox.", "d")
        assert await command("backup", file, tmp_path / "one") == ExitCode.DONE
        await harness.add("A newer fox.", "e")
    assert await command("restore", file, tmp_path / "one", "--force") == ExitCode.DONE
    async with retrieval_harness(tmp_path / "one", store=store) as harness:
        await until("it is indexed", lambda: len(store.points("bm25")) == 1)
        assert await harness.texts("fox") == ["A fox."]
        await harness.add("Another dog.", "f")
        assert await harness.texts("fox") == ["A fox."]
        assert not (tmp_path / "one" / "retrieval" / "restored").exists()
    assert (tmp_path / "one" / "retrieval.before-restore" / "catalog.db").exists()


async def test_originals_stay_while_a_backup_reads_them(tmp_path: Path, harness: RetrievalHarness) -> None:
    await harness.add("A fox.", "d")
    await harness.add("A dog.", "e")
    (work := tmp_path / "work").mkdir()
    with open_documents(tmp_path, work) as copy:
        await harness.request("DELETE", "/v1/documents/d")
        await until("its removal is postponed", lambda: harness.retrieval.originals._postponed)
        assert copy is not None
        assert sorted(path.read_bytes() for _, path in copy.list_originals()) == [b"A dog.", b"A fox."]
        assert await harness.retrieval.collector.remove_postponed() == 0
    assert await harness.retrieval.collector.remove_postponed() == 1
    assert len(list(harness.retrieval.originals.list_originals())) == 1


async def test_documents_that_are_there_stay_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "documents.tar.gz"
    assert await command("backup", file, tmp_path / "none") == ExitCode.FAILED
    assert "is no state folder of retrieval" in capsys.readouterr().err
    async with retrieval_harness(tmp_path / "one") as harness:
        await harness.add("A fox.", "d")
        assert await command("backup", file, tmp_path / "one") == ExitCode.DONE
        assert await command("restore", file, tmp_path / "one", "--force") == ExitCode.LOCKED
        assert "retrieval uses" in capsys.readouterr().err
    async with retrieval_harness(tmp_path / "two") as harness:
        assert await harness.texts("fox") == []
    assert await command("restore", file, tmp_path / "two") == ExitCode.DONE, "an empty catalog is no state"
    assert f"kept: {tmp_path / 'two' / 'retrieval.before-restore'}" in capsys.readouterr().out
    assert await command("restore", file, tmp_path / "two") == ExitCode.FAILED
    assert "holds documents already; --force replaces them" in capsys.readouterr().err
    assert await command("restore", file, tmp_path / "two", "--force") == ExitCode.DONE
    async with retrieval_harness(tmp_path / "two") as harness:
        assert await contents(harness, "alice") == {"d": b"A fox."}


def refuse(**settings: str) -> tuple[int, str]:
    """Return the exit code and all that a program says which does not start."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    env = own | {f"ROUNDHOUSE_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "retrieval"]
    ended = subprocess.run(command, cwd=REPOSITORY, env=env, stderr=subprocess.PIPE, text=True, check=False)
    return ended.returncode, ended.stderr


def test_an_address_of_qdrant_that_is_none_is_told_in_one_line(tmp_path: Path) -> None:
    refused = refuse(STATE=str(tmp_path), QDRANT_URL="http://user:secret@qdrant:port")
    line = "roundhouse retrieval: ROUNDHOUSE_QDRANT_URL: must be the address of a server, such as http://qdrant:6333\n"
    assert refused == (2, line)


def test_a_state_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = refuse(STATE=str(tmp_path / "file" / "state"))
    line = f"roundhouse retrieval: ROUNDHOUSE_STATE: {tmp_path}/file/state cannot be made: Not a directory\n"
    assert refused == (2, line)
