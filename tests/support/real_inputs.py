"""Documents as they are found, uploaded to a retrieval program one by one, and what becomes of each."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import aiohttp
import psutil
from charset_normalizer.md import mess_ratio

from tests.support.retrieval_harness import DocumentsSite, documents_site

MOST_S: Final = 60.0
"""Seconds that a document may take."""
MOST_MIB: Final = 1500
"""MiB that retrieval and its parsers may take together."""
MESS: Final = 0.4
"""How odd charset-normalizer finds a text that is taken for mojibake: German read as cp1252 is 0.5, Greek, Russian and
Chinese are 1.9 and more; the noise of a scan's recognition is 0.33."""
_JUDGED: Final = 20_000


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one document."""

    path: Path
    outcome: str
    """`ready`, or the code of the refusal."""
    seconds: float
    problem: str | None
    """What must not be; None: nothing."""


async def try_documents(files: Sequence[Path], folder: Path) -> tuple[list[Tried], float]:
    """Upload the files to a program whose state is in `folder`. Returns what became of each, and the most MiB that the
    program took with its parsers."""
    async with documents_site(folder) as site:
        most = _Peak(psutil.Process(site.retrieval_pid))
        watch = asyncio.create_task(most.watch())
        try:
            tried = [await _try_document(site, path, number) for number, path in enumerate(files)]
        finally:
            watch.cancel()
        return tried, most.mib


class _Peak:
    def __init__(self, program: psutil.Process) -> None:
        self._program = program
        self.mib = 0.0

    async def watch(self) -> None:
        while True:
            taken = 0
            for each in (self._program, *self._program.children(recursive=True)):
                try:
                    taken += each.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.mib = max(self.mib, taken / 2**20)
            await asyncio.sleep(0.2)


async def _try_document(site: DocumentsSite, path: Path, number: int) -> Tried:
    raw = path.read_bytes()
    form = aiohttp.FormData()
    form.add_field("file", raw, filename=path.name)
    form.add_field("id", f"d{number}")
    began_at = time.monotonic()
    reply = await site.gateway.request("POST", "/v1/documents?wait=true", data=form)
    seconds = time.monotonic() - began_at
    outcome = "ready" if reply.status == 200 else reply.code
    problem = None
    if reply.status >= 500 or outcome == "internal_error":
        problem = f"answered with {reply.status} ({reply.text:.300})"
    elif reply.status == 202:
        problem = "not searchable after ten minutes"
    elif seconds > MOST_S:
        problem = f"took {seconds:.0f} s"
    elif outcome == "ready":
        text = (await site.gateway.get(f"/v1/documents/{quote(f'd{number}')}/text")).text
        problem = find_mojibake(raw, text)
    return Tried(path, outcome, seconds, problem)


def find_mojibake(raw: bytes, text: str) -> str | None:
    """Return why the text of a document is mojibake; None: it is none. What the file itself says in valid UTF-8 is
    right by definition."""
    with contextlib.suppress(UnicodeDecodeError, OSError, EOFError, zlib.error):
        if text in (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode():
            return None
    ratio = mess_ratio(text[:_JUDGED], MESS)
    return f"mojibake: {ratio:.2f} of it is odd ({text[:80]!r})" if ratio >= MESS else None
