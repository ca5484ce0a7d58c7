"""The parts of the engines that need no model."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from worker.engine import Job, Piece, call_id
from worker.engines.llama_cpp import flash_attention, mean_vector, normalize_vector, pad_context, sampling_options
from worker.engines.stub import DIMENSIONS, Stub, make_embedding, split_words
from worker.errors import RequestError
from worker.metrics import Counters
from worker.schema import ChatRequest, CompletionRequest, parse_request


@pytest.mark.parametrize("text", ["", " ", "one", "two words", " lead  and\nlines\n", "à la ☺ mode. "])
def test_the_stub_s_tokens_are_its_text(text: str) -> None:
    assert "".join(split_words(text)) == text


def test_the_stub_keeps_to_the_token_limit_and_counts() -> None:
    job = Job(Counters())
    stub = Stub("one two three")
    pieces = list(stub.stream_completion(CompletionRequest(prompt="a b", max_tokens=2), job))
    assert pieces == [Piece("one"), Piece(" two"), Piece(finish_reason="length")]
    assert (job.prompt_tokens, job.completion_tokens) == (2, 2)
    assert list(stub.stream_completion(CompletionRequest(prompt=[1, 2, 3]), job))[-1] == Piece(finish_reason="stop")
    assert job.prompt_tokens == 2 + 3


def chat(**fields: Any) -> ChatRequest:
    parts = [{"type": "text", "text": "one two"}]
    messages = [{"role": "user", "content": parts}, {"role": "user", "content": "three"}]
    return parse_request(ChatRequest, json.dumps({"messages": messages, **fields}).encode())


def test_the_stub_s_tokens_are_words_and_it_counts_as_it_does_when_it_answers() -> None:
    stub, job = Stub("x"), Job(Counters())
    tokens = stub.tokenize("one two  one two", add_special=True, parse_special=True)
    assert b"".join(stub.token_texts(tokens)) == b"one two  one two"
    assert len({*tokens}) == 3, "the space before a word is the word's"
    assert stub.tokenize(" two", add_special=False, parse_special=True) == tokens[1:2]
    for unknown in (3, -1):
        with pytest.raises(RequestError, match=f"no token {unknown}"):
            stub.token_texts([unknown])
    assert stub.render_prompt(chat()) == "one two\nthree"
    assert list(stub.stream_chat(chat(), job))[-1].finish_reason == "stop"
    assert stub.count_tokens(chat()) == job.prompt_tokens == 3


def test_the_stub_refuses_what_it_would_overlook() -> None:
    stub, tools = Stub("x"), [{"type": "function", "function": {"name": "f"}}]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tools": tools}, "tools_unsupported"),
        ({"response_format": {"type": "json_object"}}, "structured_output_unsupported"),
    ]
    for fields, code in refused:
        with pytest.raises(RequestError) as raised:
            stub.stream_chat(chat(**fields), Job(Counters()))
        assert raised.value.code == code
    request = chat(tools=tools, tool_choice="none", response_format={"type": "text"}, thinking="enabled")
    assert list(stub.stream_chat(request, Job(Counters())))


def test_the_stub_s_vectors_tell_texts_apart() -> None:
    one, other = make_embedding("one"), make_embedding("other")
    assert one == make_embedding("one")
    assert len(one) == DIMENSIONS
    assert math.isclose(math.hypot(*one), 1)
    assert abs(sum(a * b for a, b in zip(one, other, strict=True))) < 0.9


AUTOMATIC = (("f16", False), ("bf16", False), ("q8_0", True))


@pytest.mark.parametrize(
    ("choice", "type_v", "on"),
    [("on", "f16", True), ("off", "q8_0", False), *(("auto", *each) for each in AUTOMATIC)],
)
def test_flash_attention_is_on_where_llama_cpp_insists(choice: str, type_v: str, on: bool) -> None:
    assert flash_attention(choice, type_v) is on


@pytest.mark.parametrize(("asked", "got"), [(0, 0), (1, 256), (256, 256), (257, 512), (4096, 4096)])
def test_a_context_is_rounded_up_as_llama_cpp_does(asked: int, got: int) -> None:
    assert pad_context(asked) == got


def test_only_what_a_request_sets_is_passed_to_the_sampler() -> None:
    body = b'{"prompt": "x", "top_p": 0.5, "min_p": 0.1, "seed": null, "stop": ["a"], "user": "u", "top_k": null}'
    assert sampling_options(parse_request(CompletionRequest, body)) == {"top_p": 0.5, "min_p": 0.1}


def test_a_call_s_id_is_one_that_mistral_s_templates_take() -> None:
    one, other = call_id(), call_id()
    assert one != other
    assert len(one) == 9
    assert one.isalnum()


def test_vectors_are_averaged_and_normalised() -> None:
    assert mean_vector([[1.0, 2.0], [3.0, 4.0]]) == [2.0, 3.0]
    assert normalize_vector([3.0, 4.0]) == [0.6, 0.8]
    assert normalize_vector([0.0, 0.0]) == [0.0, 0.0]
