"""Texts that are decoded in slices are what they are whole."""

from __future__ import annotations

import asyncio

import pytest

from gateway.tools.files.sliced_decoding import SLICE_BYTES, decode_text

TEXT = "Größe 日本語 \N{GRINNING FACE} end. " * 40_000


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "utf-16-le", "shift_jis", "iso2022_jp", "gb18030", "ascii"])
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
async def test_a_text_in_slices_is_the_whole(charset: str, cut: int) -> None:
    data = TEXT.encode(charset, errors="replace")
    data = data[: len(data) - cut]
    assert len(data) > 2 * SLICE_BYTES
    assert await decode_text(data, charset) == data.decode(charset, errors="replace")


async def test_the_event_loop_goes_on_in_between() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await decode_text(bytes(4 * SLICE_BYTES), "utf-8")
    counting.cancel()
    assert turns == 4


async def test_an_unknown_encoding_is_an_error() -> None:
    with pytest.raises(LookupError):
        await decode_text(b"x", "martian")
