"""Requests: what is taken, and what a bad one is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from worker.errors import RequestError
from worker.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
    parse_request,
)

HELLO = b'"messages": [{"role": "user", "content": "hello"}]'


@pytest.mark.parametrize(
    ("kind", "body", "param", "message"),
    [
        (ChatRequest, b"", None, "The body is not JSON"),
        (ChatRequest, b"\xff", None, "The body is not JSON"),
        (ChatRequest, b"[]", None, "not a JSON object"),
        (ChatRequest, b"{}", "messages", "`messages` is missing."),
        (ChatRequest, b'{"messages": []}', "messages", "at least 1 item"),
        (ChatRequest, b'{"messages": [{"content": "x"}]}', "messages[0].role", "`messages[0].role` is missing."),
        (ChatRequest, b"{" + HELLO + b', "n": 2}', "n", "`n`: Input should be 1."),
        (ChatRequest, b"{" + HELLO + b', "max_tokens": 0}', "max_tokens", "greater than or equal to 1"),
        (ChatRequest, b"{" + HELLO + b', "max_tokens": "5"}', "max_tokens", "valid integer"),
        (ChatRequest, b"{" + HELLO + b', "stop": 1}', "stop", "string, or: Input should be a valid array"),
        (ChatRequest, b"{" + HELLO + b', "stop": ["a", ""]}', "stop[1]", "at least 1 character"),
        (ChatRequest, b"{" + HELLO + b', "thinking": "yes"}', "thinking", "'default', 'enabled' or 'disabled'"),
        (ChatRequest, b"{" + HELLO + b', "tools": [{"type": "x"}]}', "tools[0].type", "'function'"),
        (
            ChatRequest,
            b"{" + HELLO + b', "tools": [{"type": "function", "function": {}}]}',
            "tools[0].function.name",
            "`tools[0].function.name` is missing.",
        ),
        (ChatRequest, b"{" + HELLO + b', "tool_choice": "x"}', "tool_choice", "'none', 'auto' or 'required', or: "),
        (ChatRequest, b"{" + HELLO + b', "tool_choice": {"type": "function"}}', "tool_choice.function", "is missing"),
        (ChatRequest, b"{" + HELLO + b', "functions": []}', "functions", "should be null"),
        (ChatRequest, b"{" + HELLO + b', "top_logprobs": 2}', "top_logprobs", "should be 0"),
        (ChatRequest, b"{" + HELLO + b', "modalities": ["text", "audio"]}', "modalities[1]", "should be 'text'"),
        (ChatRequest, b"{" + HELLO + b', "logit_bias": {"x": 1}}', "logit_bias.x", "pattern"),
        (TokenizeRequest, b'{"content": ["a", 1.5]}', "content[1]", "valid string, or: Input should be a valid int"),
        (TokenizeRequest, b"{}", "content", "`content` is missing."),
        (DetokenizeRequest, b'{"tokens": "1"}', "tokens", "valid array"),
        (ChatRequest, b"{" + HELLO + b', "logprobs": true}', "logprobs", "`logprobs`: Input should be False."),
        (CompletionRequest, b'{"prompt": "x", "echo": true}', "echo", "`echo`: Input should be False."),
        (CompletionRequest, b"{}", "prompt", "`prompt` is missing."),
        (CompletionRequest, b'{"prompt": {}}', "prompt", "`prompt`: "),
        (EmbeddingRequest, b'{"input": ""}', "input", "at least 1 character"),
        (EmbeddingRequest, b'{"input": []}', "input", "at least 1 item"),
        (EmbeddingRequest, b'{"input": [1, "a"]}', "input[0]", "`input[0]`: Input should be a valid string"),
        (EmbeddingRequest, b'{"input": [[]]}', "input[0]", "at least 1 item"),
        (EmbeddingRequest, b'{"input": [1.5]}', "input[0]", "`input[0]`: "),
        (EmbeddingRequest, b'{"input": "a", "encoding_format": "hex"}', "encoding_format", "'float'"),
    ],
)
def test_a_bad_request_is_explained(kind: type[BaseModel], body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(kind, body)
    assert (raised.value.code, raised.value.param) == ("invalid_request" if param else "invalid_json", param)
    assert message in str(raised.value)


def test_fields_that_are_null_count_as_left_out_and_unknown_ones_are_kept() -> None:
    request = parse_request(ChatRequest, b"{" + HELLO + b', "stop": null, "stream": null, "service_tier": "auto"}')
    assert request.stops == []
    assert not request.stream
    assert request.model_extra == {"service_tier": "auto"}
    assert request.token_limit is None


def test_the_newer_name_of_the_token_limit_wins() -> None:
    request = parse_request(ChatRequest, b"{" + HELLO + b', "max_tokens": 5, "max_completion_tokens": 3}')
    assert request.token_limit == 3


@pytest.mark.parametrize(("options", "wanted"), [(b"null", False), (b"{}", False), (b'{"include_usage": true}', True)])
def test_usage_in_a_stream_is_sent_when_it_is_asked_for(options: bytes, wanted: bool) -> None:
    request = parse_request(CompletionRequest, b'{"prompt": "x", "stream_options": ' + options + b"}")
    assert request.include_usage is wanted


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (b'"temperature": 1e400', "temperature"),
        (b'"min_p": NaN', "min_p"),
        (b'"repeat_penalty": -Infinity', "repeat_penalty"),
        (b'"logit_bias": {"1": NaN}', "logit_bias"),
    ],
)
def test_a_number_that_is_not_finite_is_refused(sent: bytes, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(ChatRequest, b"{" + HELLO + b", " + sent + b"}")
    assert (raised.value.param or "").startswith(param)


@pytest.mark.parametrize(
    ("sent", "inputs"),
    [(b'"a"', ["a"]), (b'["a", "b"]', ["a", "b"]), (b"[1, 2]", [[1, 2]]), (b"[[1, 2], [3]]", [[1, 2], [3]])],
)
def test_one_text_or_several_or_their_tokens(sent: bytes, inputs: list[Any]) -> None:
    assert parse_request(EmbeddingRequest, b'{"input": ' + sent + b"}").inputs == inputs


@pytest.mark.parametrize(
    ("sent", "prompt"), [(b'"a"', "a"), (b'["a"]', "a"), (b"[1, 2]", [1, 2]), (b'""', ""), (b"[]", [])]
)
def test_a_prompt_is_a_text_or_token_ids(sent: bytes, prompt: str | list[int]) -> None:
    assert parse_request(CompletionRequest, b'{"prompt": ' + sent + b"}").text_or_tokens == prompt


def test_several_prompts_are_refused() -> None:
    with pytest.raises(RequestError, match="must be one") as raised:
        _ = parse_request(CompletionRequest, b'{"prompt": ["a", "b"]}').text_or_tokens
    assert raised.value.param == "prompt"


def test_fields_that_say_nothing_about_the_answer_are_taken() -> None:
    harmless = (
        b'"parallel_tool_calls": true, "service_tier": "flex", "user": "u", "safety_identifier": "s", "metadata": {},'
        b'"prompt_cache_key": "k", "reasoning_effort": "low", "store": true, "verbosity": "low", "modalities": ["text"]'
    )
    parse_request(ChatRequest, b"{" + HELLO + b", " + harmless + b"}")


def test_tools_are_offered_as_they_were_sent_unless_none_may_be_called() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    assert parse_request(ChatRequest, json.dumps(body).encode()).offered_tools == [tool]
    assert parse_request(ChatRequest, json.dumps({**body, "tool_choice": "none"}).encode()).offered_tools == []
