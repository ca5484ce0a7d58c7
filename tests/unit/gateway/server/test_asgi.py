"""What is done with ASGI's messages in every part of the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.schema.errors import RoundhouseError
from gateway.server.asgi import Message, limit_body


def receive_of(*messages: Message) -> Iterator[Message]:
    return iter(messages)


def part(size: int, *, is_last: bool = False) -> Message:
    return {"type": "http.request", "body": b"x" * size, "more_body": not is_last}


async def test_a_body_within_its_limit_passes_as_it_is() -> None:
    messages = [part(4), part(0), part(6, is_last=True), {"type": "http.disconnect"}]
    incoming = receive_of(*messages)

    async def receive() -> Message:
        return next(incoming)

    limited = limit_body(receive, 10)
    assert [await limited() for _ in messages] == messages


async def test_one_byte_more_is_refused() -> None:
    incoming = receive_of(part(4), part(7), part(1, is_last=True))

    async def receive() -> Message:
        return next(incoming)

    limited = limit_body(receive, 10)
    await limited()
    with pytest.raises(RoundhouseError) as raised:
        await limited()
    assert raised.value.entry.code == "body_too_large"
    assert "10 bytes" in str(raised.value)
