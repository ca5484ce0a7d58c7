"""Copies of files with holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retrieval.vector_store.edge.sparse_copy import copy_sparse_file

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (0, {}),
        (MIB, {}),
        (5, {0: b"x"}),
        (32 * MIB, {0: b"begin", 16 * MIB + 7: b"middle", 32 * MIB - 3: b"end"}),
        (3 * MIB, {0: b"x" * 3 * MIB}),
    ],
)
def test_a_copy_has_the_bytes_and_the_holes(tmp_path: Path, size: int, parts: dict[int, bytes]) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as file:
        file.truncate(size)
        for offset, data in parts.items():
            file.seek(offset)
            file.write(data)
    assert copy_sparse_file(str(source), str(copy)) == str(copy)
    assert copy.stat().st_size == source.stat().st_size == size
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_blocks <= source.stat().st_blocks + 8


def test_what_is_no_file_is_not_copied(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        copy_sparse_file(str(tmp_path / "pipe"), str(tmp_path / "copy"))
