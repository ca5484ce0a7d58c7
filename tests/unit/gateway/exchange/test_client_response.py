"""The forms an answer can take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assistant.hooks.completion_hooks import record_form
from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.admission.ticket import QueuePlace
from gateway.exchange.admission_stage import find_named_replica
from gateway.exchange.client_response import JSON_LINE, ClientResponse
from gateway.exchange.hooks import AnswerForm
from gateway.exchange.progress import (
    TOLD_EVERY_S,
    Progress,
    ProgressPace,
    asked_progress,
    load_comment,
    prefill_progress,
    progress_comment,
    queue_progress,
)
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.chat.prompt_progress import PromptProgress
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import DONE as DONE_EVENT
from gateway.server.call import ClientCall
from tests.fakes.fake_client import FakeConnection
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, present

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
    return FakeConnection()


@pytest.fixture
def answer(client: FakeConnection) -> ClientResponse:
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


def test_heartbeats_are_of_the_family(client: FakeConnection) -> None:
    answer = ClientResponse(call_on(client), MESSAGES, "req-1", lambda: 7.0)
    answer.send_heartbeat(7.0)
    assert client.body == b'event: ping\ndata: {"type": "ping"}\n\n'
    answer.send_error(ERROR)
    assert client.status == 200
    assert b"event: error\n" in client.body
    assert b"[DONE]" not in client.body


def test_an_old_client_gets_no_chunks_and_its_connection_ends_the_answer(client: FakeConnection) -> None:
    client = FakeConnection()
    answer = ClientResponse(call_on(client, keep_alive=False, chunked=False), CHAT, "req-1", lambda: 7.0)
    answer.send_events(b"data: 1\n\n")
    answer.end_response(b"data: 2\n\n")
    assert client.body == b"data: 1\n\ndata: 2\n\n"
    assert client.head["connection"] == "close"
    assert "transfer-encoding" not in client.head


def test_a_whole_answer_to_a_stream_that_has_begun_is_one_event(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_heartbeat(7.0)
    answer.send_whole(400, JSON_LINE, b'{\n "error":\r\n {"message": "no"}}')
    event = client.body.removeprefix(HEARTBEAT).removesuffix(DONE_EVENT)
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == {"error": {"message": "no"}}


def test_a_flowing_answer_that_fails_stays_unfinished(client: FakeConnection, answer: ClientResponse) -> None:
    answer.send_part(200, JSON_LINE, b"part")
    answer.send_error(ERROR)
    assert client.written.endswith(b"part\r\n")  # no last chunk
    assert client.transport.is_closing()
    assert answer.broken_off_code == "engine_disconnected"


def test_what_is_no_stream_cannot_flow_into_one(answer: ClientResponse) -> None:
    answer.send_heartbeat(7.0)
    first_bytes = [answer.first_byte_at]
    with pytest.raises(RoundhouseError, match="something else"):
        answer.send_part(200, JSON_LINE, b"part")
    answer.send_events(b"data: 1\n\n")
    assert [*first_bytes, answer.first_byte_at] == [None, 7.0], "it is an event's and not a heartbeat's"


def test_after_the_end_a_failure_says_nothing() -> None:
    ended = FakeConnection()
    whole = ClientResponse(call_on(ended), CHAT, "req-1", lambda: 7.0)
    whole.send_whole(200, JSON_LINE, b"{}")
    whole.send_error(ERROR)
    assert ended.body == b"{}"


M = route("m")
WAITING = route("m", state=ModelState.LOADING, reason="waiting for room: a is ending")
LOADING = route("m", state=ModelState.LOADING, progress=0.25004)


UNLOADED = route("m", state=ModelState.UNLOADED, reason="no request")


SECOND = QueuePlace(2, 2, None)


@pytest.mark.parametrize(
    ("progress", "fields"),
    [
        (
            queue_progress(M, QueuePlace(3, 4, 1500, (1400, 5200)), is_loading=False),
            b'"stage":"queue","model":"m","queue_position":3,"queue_depth":4,"estimated_wait_ms":1500,'
            b'"wait_p50_ms":1400,"wait_p90_ms":5200',
        ),
        (
            queue_progress(M, SECOND, is_loading=False),
            b'"stage":"queue","model":"m","queue_position":2,"queue_depth":2',
        ),
        (
            queue_progress(LOADING, SECOND, is_loading=True),
            b'"stage":"load","model":"m","state":"loading","progress":0.25,"queue_position":2,"queue_depth":2',
        ),
        (queue_progress(UNLOADED, None, is_loading=True), b'"stage":"load","model":"m","state":"unloaded"'),
        (
            queue_progress(WAITING, None, is_loading=True),
            b'"stage":"load","model":"m","state":"loading","reason":"waiting for room: a is ending"',
        ),
        (prefill_progress("m", session="reused"), b'"stage":"prefill","model":"m","session":"reused"'),
        (prefill_progress("m"), b'"stage":"prefill","model":"m"'),
        (
            prefill_progress("a\n\nb", PromptProgress(1606, 6, 256)),
            b'"stage":"prefill","model":"a\\n\\nb","progress":0.159,"prompt_tokens":1606,'
            b'"cached_tokens":6,"processed_tokens":256',
        ),
    ],
)
def test_a_comment_is_one_line_of_json(progress: Progress, fields: bytes) -> None:
    assert progress_comment(progress) == b": progress {%b}\n\n" % fields
    # That of a load alone has the form that it always had.
    assert load_comment(LOADING) == b': load-progress {"model":"m","state":"loading","progress":0.25}\n\n'
    waits = b': load-progress {"model":"m","state":"loading","reason":"waiting for room: a is ending"}\n\n'
    assert load_comment(WAITING) == waits


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ([(b"x-progress", b"true")], {b"x-progress"}),
        ([(b"accept", b"*/*"), (b"x-progress", b" TRUE ")], {b"x-progress"}),
        ([(b"x-progress", b"false")], set()),
        ([(b"x-progress", b"1")], set()),
        ([(b"x-load-progress", b"true")], {b"x-load-progress"}),
        ([(b"x-load-progress", b"true"), (b"x-progress", b"true")], {b"x-progress", b"x-load-progress"}),
        ([], set()),
    ],
)
def test_progress_is_asked_for_by_header(headers: list[tuple[bytes, bytes]], asked: set[bytes]) -> None:
    assert set(asked_progress(headers)) == asked


def read(processed: int, total: int = 100) -> Progress:
    """A prompt of which so many tokens are read."""
    return prefill_progress("m", PromptProgress(total, 0, processed))


def test_changes_wait_for_their_time_and_are_told_once() -> None:
    pace = ProgressPace()
    assert pace.change(prefill_progress("m"), 1.0) is not None
    assert pace.change(read(0), 1.0) is not None, "the first share"
    assert pace.change(read(10), 1.0) is None
    assert pace.change(read(20), 1.0 + TOLD_EVERY_S / 2) is None
    assert pace.next_comment(1.0 + TOLD_EVERY_S / 2) is None
    assert pace.next_comment(1.0 + TOLD_EVERY_S) == progress_comment(read(20))
    assert pace.next_comment(9.0) is None, "nothing has changed"
    # What was told or is over is not told later.
    pace = ProgressPace()
    assert [pace.change(read(tokens), 1.0) is not None for tokens in (5, 6, 5)] == [True, False, False]
    assert pace.next_comment(9.0) is None
    pace.change(read(6), 1.0)
    pace.drop()
    assert pace.next_comment(9.0) is None


def test_a_new_stage_a_new_state_and_the_end_of_a_prompt_are_told_at_once() -> None:
    pace = ProgressPace()
    steps = (
        queue_progress(route("m", state=ModelState.UNLOADED), None, is_loading=True),
        queue_progress(route("m", state=ModelState.LOADING), None, is_loading=True),
        queue_progress(LOADING, None, is_loading=True),
        queue_progress(M, QueuePlace(2, 2, 0), is_loading=False),
        prefill_progress("m"),
        read(0),
        read(100),
    )
    assert [pace.change(step, 1.0) for step in steps] == [progress_comment(step) for step in steps]


OWN = "chatcmpl-own"


def request(*, stream: bool) -> InferenceRequest:
    return InferenceRequest(b"{}", {"messages": []}, "m", stream=stream, wants_usage=False)


def form_of(kept: list[Any], *, stream: bool, collects: bool = False) -> AnswerForm:
    """What is made of the answer to a request whose completion is kept."""
    asked = request(stream=stream)
    events = CHAT.open_stream(asked) if stream else None
    collector = CHAT.open_collector(asked) if collects else None
    form = AnswerForm(events, collector, CHAT.get_body_converter(asked), may_flow=True)
    return record_form(form, OWN, kept.append)


def chunk(text: str, **more: Any) -> bytes:
    """An event. The id comes last, as from llama-server."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **more}
    fields = {"choices": [choice], "object": "chat.completion.chunk", "model": "m", "id": "1"}
    return f"data: {json.dumps(fields)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
STREAM = chunk('"1" and "id": "1"') + chunk("1", finish_reason="stop") + DONE


@pytest.mark.parametrize("size", [1, 7, len(STREAM)])
def test_a_stream_is_renamed_and_kept_when_it_is_complete(size: int) -> None:
    kept: list[Any] = []
    events = present(form_of(kept, stream=True).events)
    passed = b""
    for start in range(0, len(STREAM), size):
        assert not kept
        passed += events.feed_data(STREAM[start : start + size])
    [fields] = kept
    assert fields["id"] == OWN
    assert fields["choices"][0]["message"]["content"] == '"1" and "id": "1"1'
    told = [json.loads(line[6:]) for line in passed.decode().split("\n\n")[:2]]
    assert [each["id"] for each in told] == [OWN, OWN]
    assert told[0]["choices"][0]["delta"]["content"] == '"1" and "id": "1"'
    assert (passed[-len(DONE) :], events.finish_stream(), len(kept)) == (DONE, b"", 1)


@pytest.mark.parametrize("end", [b"", b'data: {"error": {"message": "x", "code": 500}}\n\n' + DONE])
def test_a_stream_that_fails_is_not_kept(end: bytes) -> None:
    kept: list[Any] = []
    events = present(form_of(kept, stream=True).events)
    events.feed_data(chunk("one") + end)
    events.finish_stream()
    assert not kept


def test_a_gathered_answer_is_kept() -> None:
    kept: list[Any] = []
    collector = present(form_of(kept, stream=False, collects=True).collector)
    collector.feed_data(STREAM)
    result = present(collector.build_result())
    assert json.loads(result[1]) == kept[0]
    assert kept[0]["id"] == OWN


@pytest.mark.parametrize("body", [b"", b"[]", b'{"id": "x"}', b"no JSON"])
def test_what_is_no_completion_passes_as_it_is(body: bytes) -> None:
    kept: list[Any] = []
    form = form_of(kept, stream=False)
    assert form.translate is not None
    assert not form.may_flow
    assert form.translate(body) == body
    whole = form.translate(b'{"choices": [], "id": "x"}')
    assert kept == [json.loads(whole)] == [{"choices": [], "id": OWN}]


def _model(*replicas: tuple[str, int]) -> ModelRoute:
    endpoints = tuple(Endpoint(replica=name, index=index, base_url="http://x") for name, index in replicas)
    return route("m").model_copy(update={"endpoints": endpoints})


PAIR = _model(("rh-m-1-aa-0", 1), ("rh-m-3-bb-0", 3))


@pytest.mark.parametrize(
    ("query", "name"),
    [
        *((b"replica=1", "rh-m-1-aa-0"), (b"action=save&replica=3&model=m", "rh-m-3-bb-0")),
        *((b"replica=rh-m-3-bb-0", "rh-m-3-bb-0"), (b"replica=rh%2Dm-1-aa-0", "rh-m-1-aa-0")),
        (b"replica=1&replica=3", "rh-m-3-bb-0"),
    ],
)
def test_a_replica_is_named_by_its_number_or_its_name(query: bytes, name: str) -> None:
    for must_choose in (False, True):
        found = present(find_named_replica(PAIR, query, must_choose=must_choose))
        assert found.replica == name


def test_only_a_change_of_one_of_several_must_name_it() -> None:
    assert find_named_replica(PAIR, b"model=m", must_choose=False) is None
    assert find_named_replica(PAIR, b"", must_choose=False) is None
    for alone in (_model(("rh-m-0-aa-0", 0)), _model()):
        assert find_named_replica(alone, b"model=m", must_choose=True) is None


@pytest.mark.parametrize(
    ("query", "start"),
    [
        (b"", "'m' has 2 replicas, each with a state of its own."),
        (b"model=m", "'m' has 2 replicas, each with a state of its own."),
        (b"replica=0", "No replica '0' serves 'm' now."),
        (b"replica=rh-m-1", "No replica 'rh-m-1' serves 'm' now."),
        (b"replica=%FF" + b"x" * 200, "No replica '"),
    ],
)
def test_what_is_refused_lists_the_replicas(query: bytes, start: str) -> None:
    error = error_of(lambda: find_named_replica(PAIR, query, must_choose=True))
    assert (error.entry.code, error.param) == ("invalid_request", "replica")
    assert error.message.startswith(start)
    assert error.message.endswith(" Name one: `?replica=1`, or by name: rh-m-1-aa-0, rh-m-3-bb-0.")
    assert len(error.message) < 300
