"""kill -9 while documents are accepted, replaced and deleted: nothing accepted is lost, and nothing is half visible."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from contract.retrieval import TENANT_HEADER
from tests.support.campaign import campaign_seeds
from tests.support.roundhouse_stack import REPOSITORY
from tests.support.wait import until

DOCUMENTS = 6
WORD = "turntable"


def text_of(document_id: int, version: int) -> str:
    """Twelve paragraphs that say which version they are of; each is long enough to be a chunk of its own."""
    return "\n\n".join(
        f"## Part {part}\n\nThe {WORD} of document {document_id} in version {version}, part {part}. " + "Filler. " * 40
        for part in range(12)
    )


class Program:
    """The retrieval program as a process, over its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "retrieval.sock"
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        environment = own | {
            "ROUNDHOUSE_STATE": str(self.folder),
            "ROUNDHOUSE_RETRIEVAL_LISTEN": f"unix:{self.socket}",
            "ROUNDHOUSE_RETRIEVAL_CHUNK_TOKENS": "128",
        }
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "retrieval"], cwd=REPOSITORY, env=environment, stdout=log, stderr=log
            )

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(30)

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self.socket)), headers={TENANT_HEADER: "alice"}
        )


@pytest.mark.parametrize("seed", campaign_seeds(3, 50))
async def test_what_was_accepted_is_there_after_a_kill(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    program = Program(tmp_path)
    program.start()
    accepted: dict[int, set[int | None]] = {}
    """By document: the versions that may be there (None: no document), the last accepted and what came after it."""
    try:
        await until("it listens", lambda: is_listening(program))
        worker = asyncio.create_task(change_documents(program, chance, accepted))
        await asyncio.sleep(chance.uniform(0.05, 0.8))
        program.end(signal.SIGKILL)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        program.start()
        await until("it listens again", lambda: is_listening(program))
        async with program.session() as session:
            await until("everything is made", lambda: is_quiet(session))
            for document_id, versions in accepted.items():
                await check_document(session, document_id, versions)
    finally:
        program.end(signal.SIGTERM)


async def change_documents(program: Program, chance: random.Random, accepted: dict[int, set[int | None]]) -> None:
    """Add, replace and delete, a few at a time, until the program dies."""

    async def work(number: int) -> None:
        version = 0
        async with program.session() as session:
            while True:
                document_id = number * 2 + chance.randrange(2)
                version += 1
                is_deletion = chance.random() < 0.2
                allowed = accepted.setdefault(document_id, {None})
                allowed.add(None if is_deletion else version)  # may be done, though nobody says so
                path = f"http://retrieval/v1/documents/{document_id}"
                metadata = {"number": document_id}
                body = {"text": text_of(document_id, version), "id": str(document_id), "metadata": metadata}
                request = (
                    session.delete(path) if is_deletion else session.post("http://retrieval/v1/documents", json=body)
                )
                async with request as answer:
                    await answer.read()
                    assert answer.status in ((200, 404) if is_deletion else (200, 202))
                # Now only this one may be there.
                allowed.clear()
                allowed.add(None if is_deletion else version)

    await asyncio.gather(*(work(number) for number in range(DOCUMENTS // 2)))


async def check_document(session: aiohttp.ClientSession, document_id: int, versions: set[int | None]) -> None:
    """One of the versions is there, whole, and searches find its chunks and no others."""
    async with session.get(f"http://retrieval/v1/documents/{document_id}/text") as answer:
        text = await answer.text() if answer.status == 200 else None
    expected = {None if version is None else text_of(document_id, version): version for version in versions}
    assert text in expected, (document_id, versions, text and text[:80])
    query = {"query": WORD, "top_k": 100, "filter": {"number": document_id}}
    async with session.post("http://retrieval/v1/search", json=query) as answer:
        hits: list[Any] = (await answer.json())["data"]
    if text is None:
        assert hits == []
        return
    content = text.encode()
    assert all(content[hit["start"] : hit["end"]].decode() == hit["text"] for hit in hits)
    async with session.get(f"http://retrieval/v1/documents/{document_id}/chunks?limit=100") as answer:
        chunks = (await answer.json())["data"]
    assert sorted(hit["chunk"] for hit in hits if WORD in hit["text"]) == [
        chunk["index"] for chunk in chunks if WORD in chunk["text"]
    ]


async def is_listening(program: Program) -> bool:
    try:
        async with program.session() as session, session.get("http://retrieval/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def is_quiet(session: aiohttp.ClientSession) -> bool:
    async with session.get("http://retrieval/v1/documents?limit=100") as answer:
        documents = (await answer.json())["data"]
    return all(document["status"] == "ready" for document in documents)
