"""The heads of GGUF files, byte by byte."""

from __future__ import annotations

import struct

import pytest

from controller.artifacts.facts import ArtifactError
from controller.artifacts.gguf import GgufHead, parse_head


def head(key: str, value: bytes) -> bytes:
    """A head of one field and no tensor; `value` begins with its type."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key.encode() + value


def test_an_array_of_numbers_is_kept() -> None:
    array = struct.pack("<IIQ", 9, 4, 2) + struct.pack("<II", 7, 8)
    assert parse_head(head("k", array)) == GgufHead({"k": (7, 8)}, {}, {}, 64)


@pytest.mark.parametrize("kind", [9, 13])
def test_an_array_of_a_type_that_is_not_known_is_told(kind: int) -> None:
    array = struct.pack("<IIQ", 9, kind, 2) + struct.pack("<II", 7, 8)
    with pytest.raises(ArtifactError) as told:
        parse_head(head("k", array))
    expected = f"holds an array of the unknown type {kind}: it is damaged, or newer than this reader"
    assert str(told.value) == expected
