"""Files are copied and fetched: what a kernel does not copy, and a source that begins anew each time."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contract.errors import RoundhouseError
from transfers import fetch
from transfers.fetch import ENOUGH_BYTES, DownloadProgress, FileContext, SegmentFetch, copy_file
from transfers.network import RetryPolicy
from transfers.sources.base import Resolution, SourceFile


def _progress(file: SourceFile) -> DownloadProgress:
    progress = DownloadProgress()
    progress.set_files(Resolution("file:m", "file:m", None, (file,), "m"))
    return progress


@pytest.mark.parametrize("by_kernel", [0, 1])
def test_a_file_of_another_disk_is_copied(by_kernel: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`by_kernel`: parts that the kernel copies before it does so no more."""
    content = os.urandom(300_000)
    (tmp_path / "here").write_bytes(content)
    file = SourceFile("m.gguf", len(content), local_path=tmp_path / "here")
    copied = 0

    def copy_some(source: int, copy: int, _: int) -> int:
        nonlocal copied
        if copied == by_kernel:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        copied += 1
        return os.write(copy, os.read(source, 100_000))

    monkeypatch.setattr(os, "copy_file_range", copy_some)
    digest = copy_file(file, tmp_path / "copy", _progress(file), threading.Event())
    assert (tmp_path / "copy").read_bytes() == content
    assert digest.sha256 == hashlib.sha256(content).hexdigest()


def test_a_source_that_begins_anew_each_time_and_breaks_off_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, tries = 4 * ENOUGH_BYTES, 0

    @contextmanager
    def read_part(_client: Any, _url: str, start: int, end: int) -> Iterator[SimpleNamespace]:
        nonlocal tries
        tries += 1
        assert tries < 20, "for ever"
        yield SimpleNamespace(hops=[], total=size, start=start, end=end, chunks=[b"x" * (ENOUGH_BYTES + 1)])

    monkeypatch.setattr(fetch, "read_range", read_part)
    file = SourceFile("m.gguf", size, sha256="0" * 64, url="http://127.0.0.1:9/m.gguf")
    policy = RetryPolicy(attempts=3, first_delay_s=0.001)
    with (tmp_path / "part").open("wb") as part:
        client: Any = None
        context = FileContext(client, file, "u", part.fileno(), policy, _progress(file), threading.Event())
        with pytest.raises(RoundhouseError) as raised:
            SegmentFetch(context, (0, size), restarts=True).run()
    assert raised.value.entry.code == "source_unavailable"
    assert tries == policy.attempts, "the first one alone brought something new"
