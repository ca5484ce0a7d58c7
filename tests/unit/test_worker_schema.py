"""Requests: what is taken, and what a bad one is told."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from worker.errors import RequestError
from worker.schema import ChatRequest, CompletionRequest, EmbeddingRequest, parse

HELLO = b'"messages": [{"role": "user", "content": "hello"}]'


@pytest.mark.parametrize(
    ("kind", "body", "param", "message"),
    [
        (ChatRequest, b"", None, "The body is not JSON"),
        (ChatRequest, b"\xff", None, "The body is not JSON"),
        (ChatRequest, b"[]", None, "not a JSON object"),
        (ChatRequest, b"{}", "messages", "`messages` is missing."),
        (ChatRequest, b'{"messages": []}', "messages", "at least 1 item"),
        (ChatRequest, b'{"messages": [{"content": "x"}]}', "messages", "`messages.0.role` is missing."),
        (ChatRequest, b"{" + HELLO + b', "n": 2}', "n", "`n`: Input should be 1."),
        (ChatRequest, b"{" + HELLO + b', "max_tokens": 0}', "max_tokens", "greater than or equal to 1"),
        (ChatRequest, b"{" + HELLO + b', "max_tokens": "5"}', "max_tokens", "valid integer"),
        (ChatRequest, b"{" + HELLO + b', "stop": 1}', "stop", "string, or: Input should be a valid array"),
        (ChatRequest, b"{" + HELLO + b', "logprobs": true}', "logprobs", "`logprobs`: Input should be False."),
        (CompletionRequest, b'{"prompt": "x", "echo": true}', "echo", "`echo`: Input should be False."),
        (CompletionRequest, b"{}", "prompt", "`prompt` is missing."),
        (CompletionRequest, b'{"prompt": {}}', "prompt", "`prompt`: "),
        (EmbeddingRequest, b'{"input": ""}', "input", "at least 1 character"),
        (EmbeddingRequest, b'{"input": []}', "input", "at least 1 item"),
        (EmbeddingRequest, b'{"input": [1, 2]}', "input", "`input`: Input should be a valid string."),
        (EmbeddingRequest, b'{"input": "a", "encoding_format": "hex"}', "encoding_format", "'float'"),
    ],
)
def test_a_bad_request_is_told_what_and_where(
    kind: type[BaseModel], body: bytes, param: str | None, message: str
) -> None:
    with pytest.raises(RequestError) as raised:
        parse(kind, body)
    assert (raised.value.code, raised.value.param) == ("invalid_request" if param else "invalid_json", param)
    assert message in str(raised.value)


def test_fields_that_are_null_count_as_left_out_and_unknown_ones_are_kept() -> None:
    request = parse(ChatRequest, b"{" + HELLO + b', "stop": null, "stream": null, "min_p": 0.1}')
    assert request.stop is None
    assert not request.stream
    assert (request.model_extra or {})["min_p"] == 0.1
    assert request.token_limit is None


def test_the_newer_name_of_the_token_limit_wins() -> None:
    request = parse(ChatRequest, b"{" + HELLO + b', "max_tokens": 5, "max_completion_tokens": 3}')
    assert request.token_limit == 3


@pytest.mark.parametrize(("options", "wanted"), [(b"null", False), (b"{}", False), (b'{"include_usage": true}', True)])
def test_usage_in_a_stream_is_sent_when_it_is_asked_for(options: bytes, wanted: bool) -> None:
    request = parse(CompletionRequest, b'{"prompt": "x", "stream_options": ' + options + b"}")
    assert request.include_usage is wanted


@pytest.mark.parametrize(("sent", "texts"), [(b'"a"', ["a"]), (b'["a", "b"]', ["a", "b"])])
def test_one_text_or_several(sent: bytes, texts: list[str]) -> None:
    assert parse(EmbeddingRequest, b'{"input": ' + sent + b"}").texts == texts


def test_a_prompt_may_be_token_ids() -> None:
    assert parse(CompletionRequest, b'{"prompt": [1, 2]}').prompt == [1, 2]
