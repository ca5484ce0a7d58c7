"""The forms an answer can take."""

from __future__ import annotations

import json

import pytest

from controller.schema.errors import RoundhouseError
from gateway.exchange.client_response import JSON_LINE, ClientResponse
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common.openai_events import DONE as DONE_EVENT
from gateway.server.call import ClientCall
from tests.fakes.fake_client import FakeConnection

ERROR = RoundhouseError("engine_disconnected", "gone")
HEARTBEAT = CHAT.heartbeat


def call_on(client: FakeConnection, *, keep_alive: bool = True, chunked: bool = True) -> ClientCall:
    """A call whose body is complete."""

    def never(_: ClientCall) -> None:
        raise AssertionError

    call = ClientCall(client, never, b"POST", b"/x", b"", [], keep_alive=keep_alive, is_http_1_1=chunked)  # type: ignore[arg-type]
    call.body_complete = True
    return call


@pytest.fixture
def client() -> FakeConnection:
    """Nobody yet."""
    return FakeConnection()


@pytest.fixture
def answer(client: FakeConnection) -> ClientResponse:
    """An answer to a chat completion."""
    return ClientResponse(call_on(client), CHAT, "req-1", lambda: 7.0)


def test_an_error_before_the_first_byte_is_a_plain_answer(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_error(ERROR)
    assert client.status == 502
    assert client.error["request_id"] == "req-1"
    assert client.head["retry-after"] == "5"
    assert answer.broken_off_code is None
    assert len(client.complete) == 1


def test_an_error_in_a_stream_is_its_last_event(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_events(b"data: 1\n\n")
    answer.send_error(ERROR)
    assert client.status == 200
    first, error, rest = client.body.split(b"\n\n", 2)
    assert first == b"data: 1"
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_disconnected"
    assert rest == DONE_EVENT
    assert answer.broken_off_code == "engine_disconnected"
    assert len(client.complete) == 1


def test_a_heartbeat_is_of_the_family_and_commits_the_answer(client: FakeConnection) -> None:
    answer = ClientResponse(call_on(client), MESSAGES, "req-1", lambda: 7.0)
    answer.send_heartbeat(7.0)
    assert client.body == b'event: ping\ndata: {"type": "ping"}\n\n'
    answer.send_error(ERROR)
    assert client.status == 200
    assert b"event: error\n" in client.body
    assert b"[DONE]" not in client.body


def test_a_whole_answer_to_a_stream_that_has_begun_is_one_event(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_heartbeat(7.0)
    answer.send_whole(400, JSON_LINE, b'{\n "error":\r\n {"message": "no"}}')
    event = client.body.removeprefix(HEARTBEAT).removesuffix(DONE_EVENT)
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == {"error": {"message": "no"}}


def test_an_answer_that_flows_and_fails_stays_visibly_unfinished(
    client: FakeConnection, answer: ClientResponse
) -> None:
    answer.send_part(200, JSON_LINE, b"part")
    answer.send_error(ERROR)
    assert client.written.endswith(b"part\r\n")  # no last chunk
    assert client.transport.is_closing()
    assert answer.broken_off_code == "engine_disconnected"


def test_what_is_no_stream_cannot_flow_into_one(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_heartbeat(7.0)
    with pytest.raises(RoundhouseError, match="something else"):
        answer.send_part(200, JSON_LINE, b"part")


def test_after_the_end_a_failure_says_nothing(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_whole(200, JSON_LINE, b"{}")
    answer.send_error(ERROR)
    assert client.body == b"{}"


def test_the_first_byte_is_an_events_and_not_a_heartbeats(answer: ClientResponse) -> None:
    answer.send_heartbeat(7.0)
    assert answer.first_byte_at is None
    answer.send_events(b"data: 1\n\n")
    assert answer.first_byte_at == 7.0


def test_an_old_client_gets_no_chunks_and_its_connection_ends_the_answer(client: FakeConnection) -> None:
    answer = ClientResponse(call_on(client, keep_alive=False, chunked=False), CHAT, "req-1", lambda: 7.0)
    answer.send_events(b"data: 1\n\n")
    answer.end_response(b"data: 2\n\n")
    assert client.body == b"data: 1\n\ndata: 2\n\n"
    assert client.head["connection"] == "close"
    assert "transfer-encoding" not in client.head
