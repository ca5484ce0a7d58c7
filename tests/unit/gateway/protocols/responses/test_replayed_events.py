"""Events of a response that is over: what a client makes of them is the response."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocols.common.conversation import Answer, Call, Tokens
from gateway.protocols.responses.answer_stream import ResponseWriter
from gateway.protocols.responses.file_search import FoundFiles
from gateway.protocols.responses.replayed_events import replay_end, replay_events
from tests.fakes.fake_retrieval import file_hit
from tests.support.responses import context, events_in, folded

DONE = b"data: [DONE]\n\n"
PROBABILITY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
ANSWERS = {
    "text": Answer(text="Hi", tokens=Tokens(1, 2)),
    "probabilities": Answer(text="a", logprobs=(PROBABILITY,), tokens=Tokens(1, 2)),
    "thought": Answer(text="Hi", thought="Hm.", tokens=Tokens(1, 2)),
    "refusal": Answer(refusal="No."),
    "calls": Answer(calls=(Call("c1", "f", '{"a":1}'), Call("c2", "shell", '{"input":"ls"}'), Call("c3", "f", ""))),
    "cut": Answer(text="Hi", finish="length", tokens=Tokens(1, 2)),
    "nothing": Answer(),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_response_is_what_its_events_say(name: str, is_open: bool) -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "shell"}]
    asked: dict[str, Any] = {"model": "m", "input": "Hi", "background": True, "tools": tools}
    response = ResponseWriter(asked, context(stores=True)).build_answer(ANSWERS[name])
    assert folded(replay_events(response, is_open_responses=is_open) + DONE, is_open=is_open) == response


@pytest.mark.parametrize("includes_results", [False, True])
def test_the_search_and_the_citations_of_a_response(includes_results: bool) -> None:
    found = FoundFiles("Where?", (file_hit(1, "There."),), includes_results)
    asked: dict[str, Any] = {"model": "m", "input": "Where?", "tools": [{"type": "file_search"}]}
    asked["tools"][0]["vector_store_ids"] = ["vs"]
    answer = Answer(text="There [1], I think [2].", tokens=Tokens(1, 2))
    response = ResponseWriter(asked, context(stores=True, found_files=found)).build_answer(answer)
    assert [item["type"] for item in response["output"]] == ["file_search_call", "message"]
    assert len(response["output"][1]["content"][0]["annotations"]) == 1
    assert folded(replay_events(response, is_open_responses=False) + DONE) == response
    writer = ResponseWriter(asked, made := context(stores=True, found_files=found))
    stream = writer.begin_answer("") + writer.write_text("There [1], I ", None) + writer.write_text("think [2].", None)
    stream += writer.end_answer("stop", None, answer.tokens)
    assert folded(stream) == made.response
    assert made.response is not None
    assert made.response["output"] == response["output"]


def test_one_that_failed_or_was_cancelled() -> None:
    writer = ResponseWriter({"model": "m", "input": "Hi"}, made := context(stores=True))
    writer.begin_answer("")
    writer.write_text("Hi", None)
    writer.fail_answer({"message": "Too late.", "type": "server_error", "code": "request_timeout", "status": 504})
    assert made.response is not None
    events = events_in(replay_events(made.response, is_open_responses=False) + DONE)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert (events[-2]["code"], events[-1]["response"]) == ("request_timeout", made.response)
    cancelled = {**made.response, "status": "cancelled", "error": None}
    [last] = events_in(replay_end(cancelled, 7) + DONE)
    assert (last["type"], last["sequence_number"], last["response"]) == ("response.incomplete", 7, cancelled)
