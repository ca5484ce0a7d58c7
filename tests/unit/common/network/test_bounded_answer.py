"""The one reader of answers that must be held whole, and that nothing reads them in another way."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.network.bounded_answer import DEEPEST_JSON, gather_whole, parse_json, read_whole
from common.network.errors import UnreadableAnswerError

ROOT = Path(__file__).parents[4]
CLIENTS = {"aiohttp", "httpx2", "httpx", "requests"}
READS = {"json", "text", "read", "aread", "readany", "readline", "readexactly", "iter_any", "iter_chunked"} | {
    f"{prefix}{name}" for prefix in ("", "a") for name in ("iter_bytes", "iter_text", "iter_lines", "iter_raw")
}
READERS = {"read_whole", "gather_whole"}
ALLOWED = {
    ("common/program_client.py", "readany"): "parts of an answer of a program of ours",
    ("transfers/sources/range_request.py", "iter_raw"): "parts of files, which their readers count",
    ("gateway/tools/builtin/page_fetcher.py", "iter_raw"): "cut after `LARGEST_PAGE`, before and after decompressing",
}
"""Files that ask by HTTP, and how they read answers without the reader."""


def find_reads(path: Path) -> Iterator[str]:
    """The methods by which a file reads answers, but for those whose parts go to the reader."""
    tree = ast.parse(path.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    if not imported & CLIENTS:
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bounded = {id(part) for call in calls if _name(call.func) in READERS for part in call.args}
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in READS and id(call) not in bounded:
            yield call.func.attr


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def test_nobody_reads_an_answer_in_another_way() -> None:
    """The command line is left out: it asks the operator's own Roundhouse."""
    found = {
        (str(path.relative_to(ROOT)), name)
        for package in ("common", "controller", "gateway", "retrieval", "transfers", "worker")
        for path in (ROOT / package).rglob("*.py")
        if "cli" not in path.parts
        for name in find_reads(path)
    }
    assert found == set(ALLOWED)


def test_a_body_is_read_up_to_its_bound() -> None:
    assert read_whole([b"ab", b"", b"c"], most_bytes=3) == b"abc"
    with pytest.raises(UnreadableAnswerError, match="larger than 2 bytes"):
        read_whole([b"ab", b"", b"c"], most_bytes=2)

    async def parts() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    assert asyncio.run(gather_whole(parts(), most_bytes=3)) == b"abc"
    with pytest.raises(UnreadableAnswerError, match="larger than 2 bytes"):
        asyncio.run(gather_whole(parts(), most_bytes=2))


def test_a_body_that_goes_on_for_too_long_ends() -> None:
    now = iter(range(100))
    with pytest.raises(TimeoutError, match="not complete after 5 s"):
        read_whole((b"x" for _ in range(100)), within_s=5, clock=lambda: next(now))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"NaN",
        b'{"a": -Infinity}',
        b"1" * 5000,
        b"[" * 100_000,
        b'{"a":' * 5000,
        b"\xef\xbb\xbf{}{}",
    ],
)
def test_what_is_no_json_is_said(body: bytes) -> None:
    with pytest.raises(UnreadableAnswerError, match="it is no JSON"):
        parse_json(body)


def test_depth_has_a_bound() -> None:
    for begin, end in (("[", "]"), ('{"a":', "}")):
        deepest = begin * DEEPEST_JSON + "1" + end * DEEPEST_JSON
        assert parse_json(deepest.encode()) == json.loads(deepest)
        with pytest.raises(UnreadableAnswerError, match="nested deeper than 64 levels"):
            parse_json((begin + deepest + end).encode())
