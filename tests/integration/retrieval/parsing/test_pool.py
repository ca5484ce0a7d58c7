"""Processes that parse: kept, replaced, killed. The processes are fakes that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from retrieval.parsing.base import ChunkingOptions, ParsedDocument, ParsingError, ParsingLimits
from retrieval.parsing.pool import ParserPool, Recycling
from tests.support.wait import until

CHUNKING = ChunkingOptions(100, 10)
ODD = ("garbage", "huge", "malformed", "no-json", "code")
Parse = Callable[[str], Awaitable[ParsedDocument]]


@asynccontextmanager
async def _pool(
    tmp_path: Path,
    mode: str,
    limits: ParsingLimits | None = None,
    *,
    processes: int = 1,
    recycling: Recycling | None = None,
) -> AsyncIterator[tuple[ParserPool, Parse]]:
    program = (sys.executable, "-P", "-m", "tests.fakes.fake_parsing_worker", mode)
    pool = ParserPool(limits, processes=processes, recycling=recycling, program=program)
    path = tmp_path / "file"
    path.write_bytes(b"some text")

    async def parse(name: str) -> ParsedDocument:
        return await pool.parse_file(path, filename=name, media_type=None, chunking=CHUNKING)

    try:
        yield pool, parse
    finally:
        await pool.close()
        assert not _children()


def _children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "fake_parsing_worker" in str(_argv(child))]


def _has_group(number: int) -> bool:
    """Whether there is a process of the group with this number."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _pid(document: ParsedDocument) -> int:
    """The fake says it instead of a media type."""
    pid: int = json.loads(document.media_type)["pid"]
    return pid


async def test_one_process_parses_file_after_file(tmp_path: Path) -> None:
    async with _pool(tmp_path, "none") as (_, parse):
        assert not _children()
        documents = [await parse("good") for _ in range(3)]
    assert {document.text for document in documents} == {"fine"}
    assert [chunk.text for chunk in documents[0].chunks] == ["fine"]
    assert len({_pid(document) for document in documents}) == 1


async def test_processes_work_side_by_side_and_further_files_wait(tmp_path: Path) -> None:
    async with _pool(tmp_path, "none", processes=2) as (_, parse):
        documents = await asyncio.gather(*(parse("good") for _ in range(8)))
    assert len({_pid(document) for document in documents}) == 2


async def test_a_process_has_hardly_any_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_SECRET", "secret")
    async with _pool(tmp_path, "none") as (_, parse):
        document = await parse("good")
    allowed = {"PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "LC_CTYPE"}
    assert set(json.loads(document.media_type)["environment"]) <= allowed


@pytest.mark.parametrize(
    ("mode", "code", "message"),
    [
        *((mode, "parsing_timeout", "more than 2 s") for mode in ("hang", "spin", "children")),
        ("die", "parsing_failed", "exit status -11"),
        ("exit", "parsing_failed", "exit status 1"),
        *((mode, "parsing_failed", "did not answer as it should") for mode in ODD),
        ("allocate", "parsing_failed", "exit status 1"),
    ],
)
async def test_a_process_that_misbehaves_is_replaced(tmp_path: Path, mode: str, code: str, message: str) -> None:
    timeout_s = 2 if code == "parsing_timeout" else 60
    async with _pool(tmp_path, mode, ParsingLimits(timeout_s=timeout_s, memory_bytes=512 * 2**20)) as (_, parse):
        before = await parse("good")
        with pytest.raises(ParsingError, match=message) as raised:
            await parse("bad")
        assert raised.value.code == code
        after = await parse("good")
        assert after.text == "fine"
        assert _pid(before) != _pid(after)
        await until("the process and its children are gone", lambda: not _has_group(_pid(before)))


async def test_what_a_process_said_last_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with _pool(tmp_path, "exit") as (_, parse):
        with pytest.raises(ParsingError):
            await parse("bad")
    assert "these are my last words" in caplog.text


async def test_a_process_that_died_while_idle_is_replaced(tmp_path: Path) -> None:
    async with _pool(tmp_path, "none") as (_, parse):
        pid = _pid(await parse("good"))
        psutil.Process(pid).kill()
        await until("it is dead", lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
        assert _pid(await parse("good")) != pid


async def test_cancelling_a_call_kills_the_process(tmp_path: Path) -> None:
    async with _pool(tmp_path, "hang") as (_, parse):
        pid = _pid(await parse("good"))
        call = asyncio.ensure_future(parse("bad"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until("the process is gone", lambda: not psutil.pid_exists(pid))
        assert (await parse("good")).text == "fine"


async def test_cancelling_a_call_that_waits_takes_nothing(tmp_path: Path) -> None:
    async with _pool(tmp_path, "hang", ParsingLimits(timeout_s=2)) as (_, parse):
        first, second, third = (asyncio.ensure_future(parse(name)) for name in ("bad", "good", "good"))
        await until("the first is being parsed", _children)
        second.cancel()
        with pytest.raises(ParsingError):
            await first
        assert (await third).text == "fine"


@pytest.mark.parametrize(
    ("recycling", "name"),
    [(Recycling(files=2), "good"), (Recycling(rss_bytes=10**6), "large")],
    ids=["files", "memory"],
)
async def test_a_process_is_recycled(tmp_path: Path, recycling: Recycling, name: str) -> None:
    async with _pool(tmp_path, "none", recycling=recycling) as (_, parse):
        pids = [_pid(await parse(name)) for _ in range(4)]
    assert len(set(pids)) == (2 if name == "good" else 4)


async def test_an_idle_process_ends(tmp_path: Path) -> None:
    async with _pool(tmp_path, "none", recycling=Recycling(idle_s=0.05)) as (_, parse):
        await parse("good")
        await until("it ended", lambda: not _children())
        assert (await parse("good")).text == "fine"


async def test_closing_fails_the_calls_under_way_and_those_that_wait(tmp_path: Path) -> None:
    async with _pool(tmp_path, "hang") as (pool, parse):
        calls = [asyncio.ensure_future(parse("bad")) for _ in range(2)]
        await until("one is being parsed", _children)
        await pool.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(result, "code", result) for result in results] == ["parsing_failed"] * 2
        with pytest.raises(ParsingError, match="closed"):
            await parse("good")


async def test_a_file_is_refused_by_its_size_before_it_is_read(tmp_path: Path) -> None:
    large, empty = tmp_path / "large", tmp_path / "empty"
    empty.touch()
    with large.open("wb") as file:
        file.truncate(200 * 2**20)
    async with _pool(tmp_path, "none") as (pool, _):
        refusals = {large: "document_too_large", empty: "document_empty", tmp_path: "unsupported_media_type"}
        for path, code in refusals.items():
            with pytest.raises(ParsingError) as raised:
                await pool.parse_file(path, filename=None, media_type=None, chunking=CHUNKING)
            assert raised.value.code == code
        with pytest.raises(FileNotFoundError):
            await pool.parse_file(tmp_path / "missing", filename=None, media_type=None, chunking=CHUNKING)
        assert not _children()
