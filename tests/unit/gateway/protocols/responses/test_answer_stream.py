"""Responses: what chat completions become, event by event and whole.

`tests/golden/responses` holds streams of a real llama-server (`.chat`) and what is made of them (`.events`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Answer, Call, Tokens
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses.answer import ResponseWriter
from gateway.protocols.responses.context import AnswerTimes, ResponseContext
from gateway.protocols.responses.file_search import FoundFiles
from gateway.protocols.responses.replayed_events import replay_end, replay_events
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import file_hit
from tests.support.outcomes import present
from tests.support.responses import Fields, check_response, context, events_in, folded

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "responses"
FUNCTION = {"type": "function", "name": "get_weather"}
ASKED: dict[str, Fields] = {
    "text": {},
    "probabilities": {"top_logprobs": 2, "include": ["message.output_text.logprobs"], "max_output_tokens": 3},
    "calls": {"tools": [FUNCTION, {"type": "function", "name": "sum"}], "max_output_tokens": 60},
    "custom": {"tools": [{"type": "custom", "name": "shell"}], "tool_choice": "required"},
}
"""Transcript to what was asked for."""


def writer(made: ResponseContext | None = None, **fields: Any) -> ResponseWriter:
    return ResponseWriter({"model": "m", "input": "Hi", **fields}, made or context())


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_transcript_of_chunks_becomes_its_golden_events(name: str, is_open: bool) -> None:
    fields = {"model": "m", "input": "Hi", "stream": True, **ASKED[name]}
    request = InferenceRequest(b"", fields, "m", stream=True, wants_usage=False)
    request.state = context(is_open_responses=is_open)
    events = RESPONSES_VIA_CHAT.open_stream(request)
    out = events.feed_data((GOLDEN / f"{name}.chat").read_bytes()) + events.finish_stream()
    golden = f"{name}.open.events" if is_open and name == "custom" else f"{name}.events"  # only `custom` thinks
    assert out == (GOLDEN / golden).read_bytes()
    assert folded(out, is_open=is_open) == request.state.response


def test_what_was_requested_is_told_again() -> None:
    asked: Fields = {
        "background": True,
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "presence_penalty": 1,
        "frequency_penalty": 0.5,
        "previous_response_id": "resp_0",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "service_tier": "flex",
        "temperature": 0,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "f"},
        "top_logprobs": 2,
        "top_p": 0.9,
        "truncation": "disabled",
        "user": "u",
    }
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "defer_loading": True}]
    response = writer(context(stores=True), **asked, tools=tools).build_answer(Answer(text="Hi", tokens=Tokens(1, 2)))
    assert asked.items() <= response.items()
    assert response["tools"] == [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "description": None, "strict": None}
    ]
    assert (response["store"], response["model"]) == (True, "m")
    check_response(response)
    response = writer(metadata=None, tools=None, text=None, temperature=None).build_answer(Answer(text="Hi"))
    check_response(response)
    told = ("temperature", "top_p", "tool_choice", "truncation", "store", "metadata", "service_tier", "text")
    assert [response[name] for name in told] == [
        *(1.0, 1.0, "auto", "disabled", False, {}, "default"),
        {"format": {"type": "text"}},
    ]


def test_tool_choices_and_forms_are_told_as_the_schemas_have_them() -> None:
    chosen = {"type": "allowed_tools", "tools": [{"type": "function", "name": "f", "x": 1}]}
    schema = {"type": "object", "properties": {}}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    fields: Fields = {"tools": [{"type": "function", "name": "f"}], "tool_choice": chosen, "text": form}
    response = writer(**fields).build_answer(Answer())
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    assert response["tool_choice"] == allowed
    told = {"type": "json_schema", "name": "n", "description": None, "strict": False}
    assert response["text"] == {"format": {**told, "schema": schema}}
    check_response(response)
    response = writer(context(is_open_responses=True), **fields).build_answer(Answer())
    assert response["text"] == {"format": {**told, "schema": None}}
    check_response(response, is_open=True)


def test_an_answer_that_is_whole() -> None:
    made = context()
    answer = Answer(
        text="a",
        thought="b",
        refusal="c",
        calls=(Call("1", "f", "{}"), Call("2", "g", '{"input":"x"}'), Call("3", "g", "odd")),
        tokens=Tokens(5, 4, cached=3, reasoning=2),
    )
    response = writer(made, tools=[{"type": "custom", "name": "g"}]).build_answer(answer)
    check_response(response)
    assert response is made.response
    assert response["output"] == [
        *({"id": "rs_0", "type": "reasoning", "status": "completed",
           "summary": [{"type": "summary_text", "text": "b"}], "content": [thought("b")]},),
        *({"id": "msg_0", "type": "message", "status": "completed", "role": "assistant", "content": said("a", "c")},),
        *({"id": "fc_0", "type": "function_call", "status": "completed", "call_id": "1", "name": "f",
           "arguments": "{}"},),
        *({"id": "ctc_0", "type": "custom_tool_call", "status": "completed", "call_id": "2", "name": "g",
           "input": "x"},),
        *({"id": "ctc_1", "type": "custom_tool_call", "status": "completed", "call_id": "3", "name": "g",
           "input": "odd"},),
    ]  # fmt: skip
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 9,
    }


def thought(text: str) -> Fields:
    return {"type": "reasoning_text", "text": text}


def said(text: str, refusal: str) -> list[Fields]:
    spoken = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return [spoken, {"type": "refusal", "refusal": refusal}]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete_and_so_is_its_last_item(finish: Any, reason: str) -> None:
    cut = writer()
    stream = cut.begin_answer("x") + cut.write_reasoning("a") + cut.write_text("b", None)
    stream += cut.end_answer(finish, None, Tokens(1, 1))
    response = folded(stream)
    assert events_in(stream)[-1]["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": reason}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    whole = writer().build_answer(Answer(thought="a", text="b", finish=finish, tokens=Tokens(1, 1)))
    assert whole == response
    assert (whole["status"], whole["completed_at"]) == ("incomplete", None)
    nothing = writer()
    empty = folded(nothing.begin_answer("x") + nothing.end_answer(finish, None, None))
    assert (empty["output"], empty["usage"], empty["status"]) == ([], None, "incomplete")
    assert writer().build_answer(Answer(finish=finish)) == empty


def test_a_conversation_in_which_nothing_is_said_goes_to_the_engine() -> None:
    fields = {"model": "m", "input": [{"type": "reasoning", "summary": []}]}
    request = InferenceRequest(b"", fields, "m", stream=False, wants_usage=False, state=context())
    engine = route("m").model_copy(update={"backend": "llama_server"})
    RESPONSES_VIA_CHAT.check_request(request, engine)
    assert RESPONSES_VIA_CHAT.open_collector(request) is not None
    assert json.loads(RESPONSES_VIA_CHAT.engine_body(request, engine, as_stream=False))["messages"] == []


def test_an_error_while_a_stream_waits_for_its_engine_is_a_whole_stream_too() -> None:
    told = RoundhouseError("queue_full", "No.").json_bytes("r")
    request = InferenceRequest(b"", {"model": "m", "input": "Hi"}, "m", stream=True, wants_usage=False)
    request.state = context()
    # What could not be read has no response.
    alone = events_in(RESPONSES_VIA_CHAT.error_as_events(told, request))
    assert [(event["type"], event["sequence_number"]) for event in alone] == [("error", 0)]
    request.prompt = RESPONSES_VIA_CHAT.read_request(request)
    response = folded(RESPONSES_VIA_CHAT.error_as_events(told, request))
    assert response == request.state.response
    assert response["error"]["reason"] == "queue_full"


@pytest.mark.parametrize("stop", ["x", ["x"]])
def test_what_a_stream_would_lose_is_not_gathered(stop: Any) -> None:
    for limit, is_gathered in (({}, True), ({"max_output_tokens": 5}, False)):
        fields = {"model": "m", "input": "Hi", "stop": stop, **limit}
        request = InferenceRequest(b"", fields, "m", stream=False, wants_usage=False, state=context())
        request.prompt = RESPONSES_VIA_CHAT.read_request(request)
        assert (RESPONSES_VIA_CHAT.open_collector(request) is not None) is is_gathered


def test_calls_that_overlap_lose_nothing() -> None:
    both = writer()
    stream = both.begin_answer("x")
    for call in ((0, "a", "f", '{"x":'), (1, "b", "g", "{}"), (0, None, None, "1}"), (2, None, "h", "")):
        stream += both.write_tool_call(*call)
    stream += both.write_tool_call(1, None, None, "late")
    stream += both.write_text("so", None) + both.end_answer("tool_calls", None, None)
    response = folded(stream)
    called = [(item["call_id"], item["arguments"]) for item in response["output"][:3]]
    assert called == [("a", '{"x":1}'), ("b", "{}"), ("call_0", "")]
    # A call is done as soon as another item begins, if it is JSON by then.
    kinds = [(event["type"], event.get("output_index")) for event in events_in(stream)]
    assert kinds.index(("response.output_item.done", 0)) < kinds.index(("response.output_item.added", 2))
    assert kinds.index(("response.output_item.done", 2)) > kinds.index(("response.output_item.added", 3))


def test_thoughts_between_texts_are_items_between_items() -> None:
    mixed = writer()
    stream = mixed.begin_answer("x") + mixed.write_text("a", None) + mixed.write_reasoning("b")
    stream += mixed.write_text("c", None) + mixed.write_refusal("d") + mixed.end_answer("stop", None, None)
    response = folded(stream)
    assert [item["type"] for item in response["output"]] == ["message", "reasoning", "message"]
    assert [part["type"] for part in response["output"][2]["content"]] == ["output_text", "refusal"]


def test_half_a_surrogate_pair_can_be_written() -> None:
    half = writer()
    stream = half.begin_answer("x") + half.write_text("\ud83d", None) + half.write_text("ü", None)
    stream += half.end_answer("stop", None, None)
    assert "ü".encode() in stream
    assert json.dumps(folded(stream)["output"][0]["content"][0]["text"]) == '"\\ud83d\\u00fc"'


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("engine_disconnected", "server_error"),
        ("queue_full", "rate_limit_exceeded"),
        ("invalid_request", "invalid_prompt"),
    ],
)
def test_an_error_before_anything_began_is_a_whole_stream(code: str, told: str) -> None:
    error = RoundhouseError(code, "No.", param="input").build_envelope("r").error.model_dump()
    made = context()
    stream = writer(made).fail_answer(error)
    response = folded(stream)
    assert [event["type"] for event in events_in(stream)] == [
        *("response.created", "response.in_progress", "error", "response.failed")
    ]
    failed = {"code": told, "message": "No.", "type": error["type"], "param": "input", "reason": code}
    assert response["error"] == failed
    assert made.response == response


def test_a_stream_that_somebody_ends_is_cancelled() -> None:
    made = context()
    cut = writer(made)
    stream = cut.begin_answer("x") + cut.write_reasoning("a") + cut.write_text("b", None)
    stream += cut.write_tool_call(0, "c", "f", "{")
    response = folded(stream + present(made.cancel)())
    assert response is not made.response
    assert response == made.response
    assert response["status"] == "cancelled"
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]


USAGE = {"input_tokens": 3, "output_tokens": 4}


def response(*names: str) -> dict[str, Any]:
    return {"id": "resp_1", "model": "m", "usage": USAGE, "output": [{"id": name} for name in names]}


def test_each_item_tells_how_long_it_took() -> None:
    times = AnswerTimes(100.0)
    times.begin_item(100.5, is_said=False)
    times.begin_item(101.25, is_said=True)
    times.begin_item(103.0, is_said=True)
    times.ended_at = 103.5
    figures = {"model": "m", "usage": USAGE, "first_token_ms": 1250, "total_ms": 3500}
    assert times.describe_items(response("list", "thought", "text")) == [
        {"response_id": "resp_1", "took_ms": 750, "figures": None},
        {"response_id": "resp_1", "took_ms": 1750, "figures": None},
        {"response_id": "resp_1", "took_ms": 500, "figures": figures},
    ]
    times = AnswerTimes(100.0, ended_at=102.0)
    figures = {"model": "m", "usage": USAGE, "first_token_ms": None, "total_ms": 2000}
    assert times.describe_items(response("thought", "text")) == [
        {"response_id": "resp_1", "took_ms": None, "figures": None},
        {"response_id": "resp_1", "took_ms": None, "figures": figures},
    ]
    assert times.describe_items(response()) == []
    times = AnswerTimes(100.0)
    times.begin_item(100.1, is_said=True)
    times.restart()
    times.begin_item(99.0, is_said=True)
    times.ended_at = 98.0
    [described] = times.describe_items(response("text"))
    assert (described["took_ms"], described["figures"]["first_token_ms"], described["figures"]["total_ms"]) == (0, 0, 0)


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


def test_a_response_that_was_stored_without_a_summary_is_replayed_without_one() -> None:
    response = ResponseWriter({"model": "m", "input": "Hi"}, context()).build_answer(ANSWERS["thought"])
    response["output"][0]["summary"] = []
    assert folded(replay_events(response, is_open_responses=False) + DONE) == response


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
