"""Decoding of large texts on the event loop, which goes on in between."""

from __future__ import annotations

import asyncio
import codecs
from typing import Final

SLICE_BYTES: Final = 256 * 1024
"""Decoded at a time: a tenth of a millisecond for ASCII, half of one for other texts."""


async def decode_text(data: bytes, charset: str) -> str:
    """Return `data` as text, and let the event loop go on after each `SLICE_BYTES`. What is not of the encoding becomes
    replacement characters. A thread would not help: Python decodes with its lock held. Raises LookupError: Python has
    no encoding `charset`."""
    decoder = codecs.getincrementaldecoder(charset)(errors="replace")
    pieces = []
    for begin in range(0, len(data), SLICE_BYTES):
        pieces.append(decoder.decode(data[begin : begin + SLICE_BYTES]))
        await asyncio.sleep(0)
    pieces.append(decoder.decode(b"", final=True))
    return "".join(pieces)
