"""OpenAI's answer objects."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from worker.engine import Job, Piece
from worker.errors import JobCancelledError
from worker.metrics import Counters, prometheus_text
from worker.text import openai_objects
from worker.text.openai_objects import ChatShape, CompletionShape, merge_tool_calls

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
REST = {"index": 0, "function": {"arguments": 'ty": "Bern"}'}}


@pytest.fixture
def job() -> Job:
    counted = Job(Counters())
    counted.count_prompt_tokens(3)
    counted.count_token()
    counted.count_token()
    return counted


def test_a_whole_chat_answer(job: Job) -> None:
    shape = ChatShape("chatcmpl-1", "m", 1, with_usage=False)
    whole = shape.whole_answer([Piece("Hel"), Piece("lo"), Piece(finish_reason="length")], job)
    message = {"role": "assistant", "content": "Hello"}
    assert whole == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_tool_calls_are_put_together(job: Job) -> None:
    shape = ChatShape("c", "m", 1, with_usage=False)
    message = shape.whole_answer(
        [Piece(tool_calls=(CALL,)), Piece(tool_calls=(REST,), finish_reason="tool_calls")], job
    )
    choice = message["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert choice["message"]["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]


def test_what_utf_8_cannot_hold_ends_no_answer(job: Job) -> None:
    shape = ChatShape("c", "m", 1, with_usage=False)
    call = {**CALL, "function": {"name": "f\ud800", "arguments": '{"a": "\ud83d"}'}}
    chunk = json.loads(
        openai_objects.encode_event(shape.chunk_event(Piece("so\udfff", tool_calls=(call,)))).removeprefix(b"data: ")
    )
    delta = chunk["choices"][0]["delta"]
    assert (delta["content"], delta["tool_calls"][0]["function"]) == ("so?", {"name": "f?", "arguments": '{"a": "?"}'})


def test_tool_calls_keep_the_order_of_their_index() -> None:
    second = {"index": 1, "id": "b", "function": {"name": "second", "arguments": ""}}
    assert [call["id"] for call in merge_tool_calls([second, CALL, REST])] == ["call_1", "b"]


@pytest.mark.parametrize("kind", [ChatShape, CompletionShape])
def test_the_stop_string_that_ended_an_answer_is_told_with_the_reason(
    kind: type[ChatShape] | type[CompletionShape], job: Job
) -> None:
    shape = kind("c", "m", 1, with_usage=False)
    end = Piece("lo", finish_reason="stop", stop_reason="\n")
    for choice in (shape.whole_answer([Piece("Hel"), end], job)["choices"][0], shape.chunk_event(end)["choices"][0]):
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "\n")
    for choice in (
        shape.whole_answer([Piece("a", finish_reason="stop")], job)["choices"][0],
        shape.chunk_event(Piece("a"))["choices"][0],
    ):
        assert "stop_reason" not in choice


def test_thoughts_have_both_names_in_use(job: Job) -> None:
    shape = ChatShape("c", "m", 1, with_usage=False)
    whole = shape.whole_answer([Piece(thought="h"), Piece("Hi", thought="m"), Piece(finish_reason="stop")], job)
    thoughts = {"reasoning_content": "hm", "reasoning": "hm"}
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Hi", **thoughts}
    assert shape.chunk_event(Piece(thought="h"))["choices"][0]["delta"] == {"reasoning_content": "h", "reasoning": "h"}


def test_a_stream_says_the_role_first_and_counts_last(job: Job) -> None:
    shape = ChatShape("c", "m", 1, with_usage=True)
    opening = shape.opening_event()
    assert opening is not None
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert opening["usage"] is None
    chunk = shape.chunk_event(Piece("Hi"))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"] == [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}]
    assert shape.chunk_event(Piece(tool_calls=(CALL,)))["choices"][0]["delta"] == {"tool_calls": [CALL]}
    counts = shape.counts_event(job)
    assert counts["choices"] == []
    assert counts["usage"]["total_tokens"] == 5


def test_without_include_usage_no_event_has_a_usage(job: Job) -> None:
    shape = CompletionShape("c", "m", 1, with_usage=False)
    assert "usage" not in shape.chunk_event(Piece("Hi"))
    assert shape.opening_event() is None
    choice = {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}
    assert shape.whole_answer([Piece("Hi")], job)["choices"][0] == choice


def test_an_event_is_one_line_of_json_whatever_the_text() -> None:
    sent = openai_objects.encode_event({"text": 'a "b"\nc ☺'})
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    assert sent.count(b"\n") == 2
    assert json.loads(sent.removeprefix(b"data: ")) == {"text": 'a "b"\nc ☺'}


@pytest.mark.parametrize(("status", "kind"), [(400, "invalid_request_error"), (503, "server_error")])
def test_errors_have_openai_s_form(status: int, kind: str) -> None:
    made = openai_objects.error_object("what", "why", status, "where")
    assert made == {"error": {"message": "what", "type": kind, "code": "why", "param": "where"}}


def test_embeddings_as_numbers_and_as_base64(job: Job) -> None:
    vectors = [[0.5, -0.25], [1.0, 0.0]]
    as_float = openai_objects.embeddings_object(vectors, "m", "float", job)
    assert [item["embedding"] for item in as_float["data"]] == vectors
    assert as_float["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    encoded = openai_objects.embeddings_object(vectors, "m", "base64", job)["data"][0]["embedding"]
    assert struct.unpack("<2f", base64.b64decode(encoded)) == (0.5, -0.25)


def test_the_figures_are_prometheus_text_under_llama_cpp_s_names(job: Job) -> None:
    counters = Counters()
    counters.count_queued()
    counters.count_queued()
    counters.count_started()
    counters.add_prompt_tokens(4)
    counters.add_predicted_token()
    lines = prometheus_text(counters.read_figures()).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "llamacpp:prompt_tokens_total 4",
        "llamacpp:tokens_predicted_total 1",
        "llamacpp:requests_processing 1",
        "llamacpp:requests_deferred 1",
    ]
    assert "# TYPE llamacpp:tokens_predicted_total counter" in lines


def test_a_cancelled_job_neither_goes_on_nor_waits(job: Job) -> None:
    job.check_cancelled()
    job.pause(0)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.check_cancelled()
    with pytest.raises(JobCancelledError):
        job.pause(3600)
