"""The forms an answer can take, and that no two of its messages ever overlap."""

from __future__ import annotations

import asyncio
import json

import pytest

from controller.schema.errors import RoundhouseError
from gateway.answer import DONE_EVENT, HEARTBEAT, Answer
from gateway.asgi import Message

FAR = 3600.0
ERROR = RoundhouseError("engine_disconnected", "gone")


class SlowClient:
    """A fake ASGI `send` that waits before each message, and checks what an ASGI server would."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._busy = False

    async def send(self, message: Message) -> None:
        """Take a message; a second one in the meantime is an error, and so is one out of order."""
        assert not self._busy, "two messages at once"
        self._busy = True
        for _ in range(3):
            await asyncio.sleep(0)
        self._busy = False
        assert (message["type"] == "http.response.start") is (not self.messages)
        assert not self.ended, "a message after the end"
        self.messages.append(message)

    @property
    def ended(self) -> bool:
        """Whether the last message was one."""
        return bool(self.messages) and self.messages[-1].get("more_body") is False

    @property
    def body(self) -> bytes:
        """All that was sent."""
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def status(self) -> int:
        """Of the answer."""
        status: int = self.messages[0]["status"]
        return status


def answer_to(client: SlowClient) -> Answer:
    return Answer(client.send, "req-1", asyncio.get_running_loop().time)


async def test_heartbeats_and_events_never_overlap() -> None:
    client = SlowClient()
    answer = answer_to(client)
    answer.start_heartbeats(0.0, 0.0)
    for number in range(50):
        await answer.event(b"data: %d\n\n" % number)
        await asyncio.sleep(0)
    await answer.end()
    sent = client.body.replace(HEARTBEAT, b"")
    assert sent == b"".join(b"data: %d\n\n" % number for number in range(50))
    assert HEARTBEAT in client.body


async def test_no_heartbeat_follows_the_end() -> None:
    client = SlowClient()
    answer = answer_to(client)
    answer.start_heartbeats(0.0, 0.0)
    await asyncio.sleep(0)
    await answer.whole(200, [], b"{}")
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.ended


async def test_an_error_before_the_first_byte_is_a_plain_answer() -> None:
    client = SlowClient()
    answer = answer_to(client)
    answer.start_heartbeats(FAR, FAR)
    await answer.fail(ERROR)
    assert client.status == 502
    assert json.loads(client.body)["error"]["request_id"] == "req-1"
    assert (b"retry-after", b"5") in client.messages[0]["headers"]


async def test_an_error_in_a_stream_is_its_last_event() -> None:
    client = SlowClient()
    answer = answer_to(client)
    await answer.event(b"data: 1\n\n")
    await answer.fail(ERROR)
    assert client.status == 200
    first, error, rest = client.body.split(b"\n\n", 2)
    assert first == b"data: 1"
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_disconnected"
    assert rest == DONE_EVENT
    assert client.ended


async def test_a_whole_answer_to_a_stream_that_has_begun_is_one_event() -> None:
    client = SlowClient()
    answer = answer_to(client)
    await answer.event(HEARTBEAT)
    await answer.whole(200, [], b'{\n "a":\r\n 1}')
    event = client.body.removeprefix(HEARTBEAT).removesuffix(DONE_EVENT)
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == {"a": 1}


async def test_an_answer_that_flows_and_fails_stays_unfinished() -> None:
    client = SlowClient()
    answer = answer_to(client)
    await answer.flow(200, [(b"content-length", b"9")], b"part")
    await answer.fail(ERROR)
    assert client.body == b"part"
    assert not client.ended


async def test_after_the_end_a_failure_says_nothing() -> None:
    client = SlowClient()
    answer = answer_to(client)
    await answer.whole(200, [], b"{}")
    await answer.fail(ERROR)
    assert client.body == b"{}"


@pytest.mark.parametrize("events", [0, 3])
async def test_the_first_byte_is_an_events_and_not_a_heartbeats(events: int) -> None:
    client = SlowClient()
    answer = answer_to(client)
    answer.start_heartbeats(0.0, FAR)
    async with asyncio.timeout(20):
        while not client.messages:  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0)
    assert answer.first_byte_at is None
    for _ in range(events):
        await answer.event(b"data: 1\n\n")
    assert (answer.first_byte_at is not None) is (events > 0)
    answer.close()
