"""A fake of asyncio's transport: writes are kept, and nothing is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class FakeTransport:
    """An open connection to nobody."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_open = True
        self.reads = True

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.write(part)

    def close(self) -> None:
        self.is_open = False

    abort = close

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Nothing more comes."""

    def get_write_buffer_size(self) -> int:
        """All is sent at once."""
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
