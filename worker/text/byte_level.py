"""GPT-2's way to write bytes as letters, in which byte-level vocabularies are stored. Pure."""

from __future__ import annotations


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
