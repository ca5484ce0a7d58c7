"""What a model thinks and calls, told from what it says; and OpenAI's answer objects."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Generator
from typing import Any

import pytest

from worker.engine import Job, Piece
from worker.errors import JobCancelledError, RequestError
from worker.metrics import Counters, prometheus_text
from worker.schema import ChatRequest, parse_request
from worker.text import answer_text, openai_objects
from worker.text.answer_text import Marks, is_open, marks_of, split_reasoning
from worker.text.openai_objects import ChatShape, CompletionShape, merge_tool_calls
from worker.text.tool_calls import (
    DEPTH,
    GEMMA,
    MISTRAL,
    QWEN,
    Markup,
    forced_tools,
    gemma_call,
    markup_of,
    split_calls,
    split_forced_call,
    split_json_calls,
)


def split(text: str, marks: Marks, *, opened: bool = False) -> tuple[str, str]:
    answer = (each for each in (Piece(text), Piece(finish_reason="stop")))
    pieces = [*split_reasoning(answer, marks, is_thinking=opened)]
    return "".join(piece.thought for piece in pieces), "".join(piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("text", "marks", "opened", "thought", "said"),
    [
        ("<think>\nhm\n\nwell\n</think>\n\nHi ", answer_text.QWEN, False, "hm\n\nwell", "Hi "),
        ("\n<think>hm</think>Hi", answer_text.QWEN, False, "hm", "Hi"),
        ("hm</think>\n\nHi", answer_text.QWEN, True, "hm", "Hi"),
        ("<think>\n\n</think>\n\nHi", answer_text.QWEN, False, "", "Hi"),
        ("<think>hm", answer_text.QWEN, False, "hm", ""),
        ("hm", answer_text.QWEN, True, "hm", ""),
        (" The tag <think> opens a thought, </think> ends it.", answer_text.QWEN, False, "", None),
        ("<thin", answer_text.QWEN, False, "", "<thin"),
        ("<|channel>thought\nhm\n<channel|>Hi", answer_text.GEMMA, False, "hm", "Hi"),
        ("<|channel>thought\n<channel|>Hi", answer_text.GEMMA, False, "", "Hi"),
        ("[THINK]hm[/THINK]Hi", answer_text.MISTRAL, False, "hm", "Hi"),
    ],
)
def test_by_the_marks_at_the_beginning(text: str, marks: Marks, opened: bool, thought: str, said: str | None) -> None:
    assert split(text, marks, opened=opened) == (thought, text if said is None else said)


@pytest.mark.parametrize(
    ("prompt_format", "template", "marks"),
    [
        ("qwen3_template", "", answer_text.QWEN),
        ("gemma4_template", "", answer_text.GEMMA),
        ("generic", "", None),
        (None, "{{ messages }}", None),
        (None, "{{ content.split('</think>')[-1] }}", answer_text.QWEN),
        ("generic", "{{ '<|channel>thought\\n<channel|>' }}", answer_text.GEMMA),
        ("mistral_template", "[THINK][/THINK]", answer_text.MISTRAL),
        ("translategemma_template", "<start_of_turn>", None),
    ],
)
def test_marks_of_a_format_or_of_the_template(prompt_format: str | None, template: str, marks: Marks | None) -> None:
    assert marks_of(prompt_format, template) == marks


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("user: hi\nassistant: <think>\n", True), ("<think>\n\n</think>\n\n", False), ("say <think> twice", False)],
)
def test_a_prompt_may_end_inside_a_thought(prompt: str, opened: bool) -> None:
    assert is_open(prompt, answer_text.QWEN) is opened


SCHEMAS = {"f": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}
F1 = ("f", {"n": 1})


def pieces(*texts: str, finish: str = "stop") -> Generator[Piece]:
    yield from map(Piece, texts)
    yield Piece(finish_reason="length" if finish == "length" else "stop")


def new_id() -> str:
    return "id0000000"


def read(made: Generator[Piece]) -> tuple[str, list[tuple[str, Any]], str | None]:
    all_pieces = list(made)
    calls = [call["function"] for piece in all_pieces for call in piece.tool_calls]
    text = "".join(piece.text for piece in all_pieces)
    named = [(call["name"], json.loads(call["arguments"])) for call in calls]
    return text, named, all_pieces[-1].finish_reason


@pytest.mark.parametrize(
    ("markup", "text", "said", "calls"),
    [
        (QWEN, '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>', "", [F1]),
        (
            QWEN,
            'Well.\n\n<tool_call>{"name": "f", "arguments": "{\\"n\\": 1}"}</tool_call>\n<tool_call>'
            '{"name": "g", "parameters": {}}</tool_call>\n',
            "Well.",
            [F1, ("g", {})],
        ),
        (
            QWEN,
            "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=s>\n1\n</parameter>\n"
            "<parameter=other>\nx\ny\n</parameter>\n</function>\n</tool_call>",
            "",
            [("f", {"n": 1, "s": "1", "other": "x\ny"})],
        ),
        (MISTRAL, '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}', "", [F1, ("g", {})]),
        (MISTRAL, ' [TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}, {"name": "g"}]', "", [F1, ("g", {})]),
        (MISTRAL, '[TOOL_CALLS]f{"n": 1}', "", [F1]),
        (
            GEMMA,
            "<|tool_call>call:f{n:1}<tool_call|>"
            '<|tool_call>call:g{s:<|"|>a, {b}<|"|>,l:[1,true],o:{k:null}}<tool_call|>',
            "",
            [F1, ("g", {"s": "a, {b}", "l": [1, True], "o": {"k": None}})],
        ),
        (QWEN, "<tool_call> is how a call begins.", None, []),
        (QWEN, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
        (QWEN, '<tool_call>{"name": "f", "arguments": {"n": NaN}}</tool_call>', None, []),
        (QWEN, "<tool_call><function=></tool_call> ", None, []),
        (MISTRAL, "[TOOL_CALLS]no json[TOOL_CALLS]", None, []),
        (QWEN, '<tool_call>{"name": "f", "arguments": {"n": 1e999}}</tool_call>', None, []),
        (QWEN, "<tool_call><function=f><parameter=n>1</parameter></tool_call>", None, []),
        (QWEN, "<tool_call><function=f><parameter=n>1</parameter>more</function></tool_call>", None, []),
        (GEMMA, "<|tool_call>call:f{n:1e999}<tool_call|>", None, []),
        (GEMMA, "<|tool_call>call:f{n:<tool_call|>", None, []),
        (GEMMA, "<|tool_call>f{}<tool_call|>", None, []),
    ],
)
def test_by_the_markup_of_the_family(markup: Markup, text: str, said: str | None, calls: list[tuple[str, Any]]) -> None:
    expected = (text if said is None else said, calls, "tool_calls" if calls else "stop")
    assert read(split_calls(pieces(text), markup, SCHEMAS, new_id, several=True)) == expected


def test_a_call_s_delta_has_its_index_and_an_id_and_is_whole() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"s": "é"}}</tool_call>'
    made = [piece.tool_calls for piece in split_calls(pieces(text, text), QWEN, {}, new_id, several=True)]
    function = {"name": "f", "arguments": '{"s": "é"}'}
    assert made == [
        ({"index": 0, "id": new_id(), "type": "function", "function": function},),
        ({"index": 1, "id": new_id(), "type": "function", "function": function},),
        (),
    ]


def test_white_space_around_a_call_is_nobody_s_and_between_words_it_is_text() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    made = split_calls(pieces("First ", "this. \n", call, "\n", " Then", " that. "), QWEN, {}, new_id, several=True)
    assert read(made) == ("First this.Then that.", [("f", {})], "tool_calls")


def test_where_there_may_be_one_only_the_engine_is_stopped_after_it() -> None:
    engine = pieces('<tool_call>{"name": "f", "arguments": {}}</tool_call> <tool_call>', "more", "and more")
    assert read(split_calls(engine, QWEN, {}, new_id, several=False)) == ("", [("f", {})], "tool_calls")
    assert list(engine) == []


@pytest.mark.parametrize(
    ("properties", "value"),
    [
        ({"n": {"type": "integer"}}, 1),
        ({"n": {"type": ["string", "null"]}}, "1"),
        ({"n": {"anyOf": [{"type": "null"}, {"type": "string"}]}}, "1"),
        ({"n": {"oneOf": [{"type": "integer"}, {"enum": ["1", "2"]}]}}, "1"),
        ({"n": {"enum": ["1", "2"]}}, "1"),
        ({"n": {"enum": [1, 2]}}, 1),
        ({"n": {"type": 5, "enum": "1", "anyOf": {}, "oneOf": None}}, 1),
        ({"n": None}, 1),
        (None, 1),
        ([], 1),
    ],
)
def test_what_may_be_text_stays_text(properties: Any, value: Any) -> None:
    text = "<tool_call><function=f><parameter=n>1</parameter></function></tool_call>"
    made = split_calls(pieces(text), QWEN, {"f": {"properties": properties}}, new_id, several=True)
    assert read(made)[1] == [("f", {"n": value})]


@pytest.mark.parametrize(
    "half", ['<tool_call>{"name": "f", "argum', "<tool_call><function=f><parameter=n>1</parameter><parameter=s>hel"]
)
def test_an_answer_that_is_cut_short_keeps_its_reason_and_its_words(half: str) -> None:
    made = split_calls(pieces("Hm. ", half, finish="length"), QWEN, {}, new_id, several=True)
    assert read(made) == (f"Hm. {half}", [], "length")


def test_a_call_that_was_forced_comes_as_it_is_made() -> None:
    made = list(split_forced_call(pieces('{"n"', ": 1}"), "f", new_id))
    first = {"index": 0, "id": new_id(), "type": "function", "function": {"name": "f", "arguments": '{"n"'}}
    assert [piece.tool_calls for piece in made] == [(first,), ({"index": 0, "function": {"arguments": ": 1}"}},), ()]
    assert [piece.finish_reason for piece in made] == [None, None, "tool_calls"]
    assert all(not piece.text for piece in made)
    thinking = (each for each in (Piece(thought="hm"), Piece("{}"), Piece(finish_reason="length")))
    thought, arguments, end = split_forced_call(thinking, "f", new_id)
    assert (thought.thought, thought.tool_calls) == ("hm", ())
    assert (arguments.tool_calls[0]["function"]["arguments"], end.finish_reason) == ("{}", "length")
    cut = list(split_forced_call((each for each in (Piece(thought="hm"), Piece(finish_reason="length"))), "f", new_id))
    assert [(piece.tool_calls, piece.finish_reason) for piece in cut] == [((), None), ((), "length")]
    (empty,) = split_forced_call(pieces(), "f", new_id)
    assert (empty.tool_calls[0]["function"]["arguments"], empty.finish_reason) == ("", "tool_calls")


def test_one_of_several_tools_is_told_by_the_answer() -> None:
    made = split_json_calls(pieces('{"name": "f", ', '"arguments": {"n": 1}}'), new_id)
    assert read(made) == ("", [F1], "tool_calls")
    cut = '{"name": "f", "argu'
    assert read(split_json_calls(pieces(cut, finish="length"), new_id)) == (cut, [], "length")
    endless = '{"name": "f", "arguments": {"n": 1e999}}'
    assert read(split_json_calls(pieces(endless), new_id)) == (endless, [], "stop")


@pytest.mark.parametrize(
    ("prompt_format", "template", "markup"),
    [
        ("qwen3_template", "", QWEN),
        ("mistral_template", "", MISTRAL),
        ("gemma4_template", "", GEMMA),
        (None, "<tool_call>", QWEN),
        ("generic", "[TOOL_CALLS]", MISTRAL),
        (None, "{{ messages }}", None),
    ],
)
def test_markup_of_a_format_or_of_the_template(prompt_format: str | None, template: str, markup: Markup | None) -> None:
    assert markup_of(prompt_format, template) is markup


@pytest.mark.parametrize(
    "text",
    ["", *(f"call:f{rest}" for rest in ("", "{", "{a}", "{a:1", "{a:1}}", "{a:1,}", '{a:<|"|>x}', "{a:[}"))],
)
def test_what_is_no_call_of_gemma_s(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one is not told to anybody
        gemma_call(text)


def test_values_in_gemmas_calls_are_read() -> None:
    text = 'call:a.b{ x : -1.5 , <|"|>y z<|"|>:[ ] , w:{}, t:<|"|>1<|"|>, bare:some words, n:NaN}'
    values = {"x": -1.5, "y z": [], "w": {}, "t": "1", "bare": "some words", "n": "NaN"}
    assert gemma_call(text) == ("a.b", values)
    with pytest.raises(ValueError, match="too deep"):
        gemma_call("call:f{a:" + "[" * DEPTH + "]" * DEPTH + "}")


TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]


def request(**fields: Any) -> ChatRequest:
    return parse_request(ChatRequest, json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode())


def test_which_tools_must_be_called() -> None:
    nothing = {"type": "object", "properties": {}}
    named = {"type": "function", "function": {"name": "g"}}
    assert forced_tools(request(tools=TOOLS)) == forced_tools(request(tools=TOOLS, tool_choice="auto")) == {}
    assert forced_tools(request(tools=TOOLS, tool_choice="none")) == {}
    assert forced_tools(request(tools=TOOLS, tool_choice="required")) == {"f": nothing, "g": nothing}
    assert forced_tools(request(tools=TOOLS, tool_choice=named)) == {"g": nothing}
    for choice in ("required", named):
        with pytest.raises(RequestError) as raised:
            forced_tools(request(tools=[], tool_choice=choice))
        assert raised.value.param == "tool_choice"


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
def test_the_stop_string_is_in_the_answer(kind: type[ChatShape] | type[CompletionShape], job: Job) -> None:
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
