"""A completion that is kept on its way: under an id of the gateway's, in every form that engines give it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.exchange.attempt import AnswerForm
from gateway.exchange.completion_recorder import record_form
from gateway.protocols.chat.dialect import CHAT
from gateway.protocols.common.request import InferenceRequest

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
    events = form_of(kept, stream=True).events
    assert events is not None
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
    events = form_of(kept, stream=True).events
    assert events is not None
    events.feed_data(chunk("one") + end)
    events.finish_stream()
    assert not kept


def test_a_gathered_answer_is_kept() -> None:
    kept: list[Any] = []
    collector = form_of(kept, stream=False, collects=True).collector
    assert collector is not None
    collector.feed_data(STREAM)
    result = collector.build_result()
    assert result is not None
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
