"""Calls of tools in the text of an answer."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from worker.engine import Piece
from worker.errors import RequestError
from worker.schema import ChatRequest, parse_request
from worker.text.gemma_calls import DEPTH, gemma_call
from worker.text.tool_calls import (
    GEMMA,
    MISTRAL,
    QWEN,
    Markup,
    forced_tools,
    markup_of,
    split_calls,
    split_forced_call,
    split_json_calls,
)

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
def test_the_markup_of_a_format_or_of_the_template(
    prompt_format: str | None, template: str, markup: Markup | None
) -> None:
    assert markup_of(prompt_format, template) is markup


@pytest.mark.parametrize(
    "text",
    ["", *(f"call:f{rest}" for rest in ("", "{", "{a}", "{a:1", "{a:1}}", "{a:1,}", '{a:<|"|>x}', "{a:[}"))],
)
def test_what_is_no_call_of_gemma_s(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one is not told to anybody
        gemma_call(text)


def test_gemma_s_values() -> None:
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
