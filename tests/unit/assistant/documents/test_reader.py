"""Reading files in a process of their own: what it tells, and that nothing of a file gets past its limits."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from assistant.documents import extract_text
from assistant.documents.extract_text import NO_MEMORY, UnreadableFileError
from assistant.documents.reader import AT_ONCE, MOST_WAITING, DocumentReader
from contract.errors import RoundhouseError
from gateway.protocols.common.file_parts import FilePart
from tests.support.document_files import WAITS, count_running, make_bomb, make_encrypted_pdf, make_pdf
from tests.support.wait import DEADLINE_S, until


def part(data: bytes | str) -> FilePart:
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return FilePart("input[0].content[0].file_data", encoded, None, [], 0)


async def refused(reader: DocumentReader, data: bytes | str) -> str:
    """Why it cannot be read."""
    with pytest.raises(RoundhouseError) as caught:
        await reader.read_texts([part(data)])
    assert (caught.value.entry.code, caught.value.param) == ("file_unreadable", part("").place)
    return caught.value.message


async def test_pages_are_told_in_order() -> None:
    texts = await DocumentReader().read_texts([part(make_pdf("One.", "", "Two.")), part(make_pdf("Three."))])
    assert texts == ["One.\n\nTwo.", "Three."]


async def test_a_process_that_does_not_start_gives_its_place_back() -> None:
    reader = DocumentReader(("/nowhere/at-all",))
    for _ in range(AT_ONCE + 1):
        with pytest.raises(FileNotFoundError):
            await asyncio.wait_for(reader.read_texts([part(b"x")]), DEADLINE_S)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"%PDF-1.4\nnothing else", "no PDF that can be read"),
        (make_pdf("x")[:300], "no PDF that can be read"),
        (make_pdf(""), "holds no text"),
        ("%%%", "no base64"),
    ],
    ids=["junk", "cut", "empty", "no base64"],
)
async def test_what_cannot_be_read(data: bytes | str, reason: str) -> None:
    assert reason in await refused(DocumentReader(), data)


def test_files_with_a_password_or_too_much_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extract_text.extract_text(make_encrypted_pdf("")) == "secret"
    with pytest.raises(UnreadableFileError, match="encrypted"):
        extract_text.extract_text(make_encrypted_pdf("x"))
    monkeypatch.setattr(extract_text, "MOST_TEXT_BYTES", 10)
    with pytest.raises(UnreadableFileError, match="more than 10 bytes"):
        extract_text.extract_text(make_pdf("123456", "789012"))


async def test_a_bomb_hurts_its_own_process_alone() -> None:
    before = psutil.Process().memory_info().rss
    assert await refused(DocumentReader(), make_bomb())
    assert psutil.Process().memory_info().rss - before < 100 * 1024 * 1024


async def test_memory_and_time_are_limits_of_the_process(tmp_path: Path) -> None:
    head = "from assistant.documents.extract_text import *; import sys; limit_resources(); sys.stdin.read(); "
    hungry = DocumentReader((sys.executable, "-c", head + "x = b'x' * MEMORY_BYTES"))
    assert NO_MEMORY in await refused(hungry, b"x")
    writes = f"open({str(tmp_path / 'written')!r}, 'w').write('x')"
    assert await refused(DocumentReader((sys.executable, "-c", head + writes)), b"x")
    assert (tmp_path / "written").read_bytes() == b""
    slow = DocumentReader(WAITS, within_s=0.2)
    assert "more than 0.2 s" in await refused(slow, b"x")
    assert not count_running()


async def test_few_are_read_at_once_and_few_may_wait() -> None:
    reader = DocumentReader(WAITS)
    tasks = [asyncio.create_task(reader.read_texts([part(b"x")])) for _ in range(MOST_WAITING)]
    await until("some are read", lambda: count_running() == AT_ONCE)
    with pytest.raises(RoundhouseError) as caught:
        await reader.read_texts([part(b"x")])
    assert caught.value.entry.code == "queue_full"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not count_running()
    assert await DocumentReader().read_texts([]) == []


async def test_the_event_loop_goes_on_while_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, went_on = asyncio.get_running_loop(), threading.Event()
    start = subprocess.Popen

    def slow(*arguments: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(DEADLINE_S)
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", slow)
    assert await DocumentReader().read_texts([part(make_pdf("Coal."))]) == ["Coal."]
    assert went_on.is_set()


async def test_a_cancelled_reading_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, may_start, is_asked = DocumentReader(WAITS), threading.Event(), asyncio.Event()
    loop, start, started = asyncio.get_running_loop(), subprocess.Popen, []

    def late(*arguments: Any, **options: Any) -> Any:
        loop.call_soon_threadsafe(is_asked.set)
        assert may_start.wait(DEADLINE_S)
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", late)
    task = asyncio.create_task(reader.read_texts([part(b"x")]))
    await asyncio.wait_for(is_asked.wait(), DEADLINE_S)
    task.cancel()
    await asyncio.sleep(0)
    may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, DEADLINE_S)
    assert started[0].returncode == -signal.SIGKILL
