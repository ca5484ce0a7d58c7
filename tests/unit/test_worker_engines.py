"""The parts of the engines that need no model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from worker.engine import Job, Piece
from worker.engines.llama_cpp import chat_pieces, flash_attention, mean, padded, plain, response_format, sampling, unit
from worker.engines.stub import DIMENSIONS, Stub, embedding, split
from worker.errors import RequestError
from worker.metrics import Counters
from worker.schema import CompletionRequest, Message, parse


@pytest.mark.parametrize("text", ["", " ", "one", "two words", " lead  and\nlines\n", "à la ☺ mode. "])
def test_the_stub_s_tokens_are_its_text(text: str) -> None:
    assert "".join(split(text)) == text


def test_the_stub_keeps_to_the_token_limit_and_counts() -> None:
    job = Job(Counters())
    stub = Stub("one two three")
    pieces = list(stub.complete(CompletionRequest(prompt="a b", max_tokens=2), job))
    assert pieces == [Piece("one"), Piece(" two"), Piece(finish_reason="length")]
    assert (job.prompt_tokens, job.completion_tokens) == (2, 2)
    assert list(stub.complete(CompletionRequest(prompt=[1, 2, 3]), job))[-1] == Piece(finish_reason="stop")
    assert job.prompt_tokens == 2 + 3


def test_the_stub_s_vectors_tell_texts_apart() -> None:
    one, other = embedding("one"), embedding("other")
    assert one == embedding("one")
    assert len(one) == DIMENSIONS
    assert math.isclose(math.hypot(*one), 1)
    assert abs(sum(a * b for a, b in zip(one, other, strict=True))) < 0.9


@pytest.mark.parametrize(
    ("choice", "type_v", "on"),
    [
        ("on", "f16", True),
        ("off", "q8_0", False),
        ("auto", "f16", False),
        ("auto", "bf16", False),
        ("auto", "q8_0", True),
    ],
)
def test_flash_attention_is_on_where_llama_cpp_insists(choice: str, type_v: str, on: bool) -> None:
    assert flash_attention(choice, type_v) is on


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (1, 256), (256, 256), (257, 512), (4096, 4096)])
def test_a_context_is_rounded_up_as_llama_cpp_does(asked: int, got: int) -> None:
    assert padded(asked) == got


def test_only_what_a_request_sets_is_passed_to_the_sampler() -> None:
    body = b'{"prompt": "x", "temperature": 0, "min_p": 0.1, "seed": null, "stop": ["a"], "user": "u", "top_k": null}'
    assert sampling(parse(CompletionRequest, body)) == {"temperature": 0, "min_p": 0.1, "stop": ["a"]}


def test_a_message_in_parts_becomes_one_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert plain(Message(role="user", content=parts)) == {"role": "user", "content": "one two"}
    assert plain(Message(role="assistant", tool_calls=[])) == {"role": "assistant", "tool_calls": []}
    with pytest.raises(RequestError, match="reads text, not image_url"):
        plain(Message(role="user", content=[*parts, {"type": "image_url"}]))


def test_a_json_schema_in_the_library_s_words() -> None:
    schema = {"type": "object"}
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert response_format(asked) == {"type": "json_object", "schema": schema}
    assert response_format({"type": "json_object"}) == {"type": "json_object"}
    assert response_format(None) is None


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def test_chunks_become_pieces_and_the_one_with_the_role_vanishes() -> None:
    chunks = [chunk(role="assistant"), chunk(content="Hi"), chunk(content=None), chunk("stop")]
    assert list(chat_pieces(chunks)) == [Piece("Hi"), Piece(finish_reason="stop")]


def test_a_tool_call_s_id_and_name_are_sent_once() -> None:
    def part(arguments: str) -> dict[str, Any]:
        return {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}

    pieces = list(chat_pieces([chunk(tool_calls=[part("{")]), chunk(tool_calls=[part("}")]), chunk("tool_calls")]))
    assert [piece.tool_calls for piece in pieces] == [
        (part("{"),),
        ({"index": 0, "function": {"arguments": "}"}},),
        (),
    ]
    assert pieces[-1].finish_reason == "tool_calls"


def test_vectors() -> None:
    assert mean([[1.0, 2.0], [3.0, 4.0]]) == [2.0, 3.0]
    assert unit([3.0, 4.0]) == [0.6, 0.8]
    assert unit([0.0, 0.0]) == [0.0, 0.0]
