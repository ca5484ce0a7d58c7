"""Prompts that are too long: what engines say, and what clients are told."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common import errors
from gateway.protocols.common.context_overflow import ContextOverflow, find_overflow
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.embeddings.dialect import EMBEDDINGS
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT

LLAMA = {
    "code": 400,
    "message": "request (10911 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 10911,
    "n_ctx": 4096,
}
OPENAI_WORDS = "This model's maximum context length is 4096 tokens. However, your messages resulted in 10911 tokens. "
"""Up to the advice."""
ENGINES = {
    "vllm": (
        "This model's maximum context length is 512 tokens. However, your prompt contains 600 input tokens, which "
        "exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    ),
    "vllm, not counted to the end": (
        "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    ),
    "vllm, not counted": (
        "This model's maximum context length is 512 tokens. However, your prompt contains 99999 characters (more than "
        "6656 characters, which is the upper bound for 512 input tokens). Please reduce the length of the input prompt."
    ),
    "vllm, one token of room": (
        "The decoder prompt (length 512) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 512. Make sure that `max_model_len` is no smaller than the number of text tokens."
    ),
    "an earlier vllm": (
        "This model's maximum context length is 512 tokens. However, you requested 100 output tokens and your prompt "
        "contains at least 413 input tokens, for a total of at least 513 tokens."
    ),
    "openai": (
        "This model's maximum context length is 4097 tokens. However, you requested 4927 tokens (927 in the messages, "
        "4000 in the completion). Please reduce the length of the messages or completion."
    ),
    "openai, embeddings": (
        "This model's maximum context length is 8192 tokens, however you requested 10000 tokens (10000 in your prompt; "
        "0 for the completion). Please reduce your prompt; or completion length."
    ),
    "anthropic": "prompt is too long: 205148 tokens > 200000 maximum",
    "anthropic, with the answer": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again"
    ),
    "a worker": "The prompt has 5000 tokens, more than fit the context of 4096.",
    "llama-server, a text to embed": (
        "input (600 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
    ),
}
FOUND = {
    "vllm": (512, 600, False, None),
    "vllm, not counted to the end": (512, 513, True, None),
    "vllm, not counted": (512, 513, True, None),
    "vllm, one token of room": (512, 512, False, None),
    "an earlier vllm": (512, 413, True, 100),
    "openai": (4097, 927, False, 4000),
    "openai, embeddings": (8192, 10000, False, None),
    "anthropic": (200000, 205148, False, None),
    "anthropic, with the answer": (200000, 188240, False, 21333),
    "a worker": (4096, 5000, False, None),
    "llama-server, a text to embed": (512, 600, False, None),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_engines_say_is_understood(engine: str) -> None:
    found = find_overflow({"message": ENGINES[engine]})
    assert found is not None
    assert (found.limit, found.prompt_tokens, found.is_at_least, found.output_tokens) == FOUND[engine]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_clients_are_told_is_understood_again_and_stays(engine: str) -> None:
    found = find_overflow({"message": ENGINES[engine]})
    assert found is not None
    for message in (found.describe_for_openai(), found.describe_for_anthropic()):
        again = find_overflow({"message": message})
        assert again is not None
        assert again.describe_for_anthropic() == found.describe_for_anthropic()
    assert find_overflow({"message": found.describe_for_openai()}).describe_for_openai() == found.describe_for_openai()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Context size has been exceeded.", "type": "server_error", "code": 500},
        {"message": "max_tokens must be at least 1", "code": "invalid_request"},
        {"message": None, "type": 5},
        {"message": f"prompt is too long: {'9' * 5000} tokens > 5 maximum"},
        {},
    ],
)
def test_other_errors_are_others(error: dict[str, Any]) -> None:
    assert find_overflow(error) is None


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES_VIA_CHAT])
def test_openais_clients_are_told_in_openais_words(dialect: Dialect) -> None:
    error = read(dialect.engine_error_body(400, json.dumps({"error": LLAMA}).encode(), "r"))
    assert error["message"].startswith(OPENAI_WORDS)
    assert "exceeds the context window" in error["message"], "LangChain knows a response's by these"
    assert (error["code"], error["type"], error["status"]) == ("context_length_exceeded", "invalid_request_error", 400)
    assert (error["n_ctx"], error["n_prompt_tokens"]) == (4096, 10911)


@pytest.mark.parametrize("dialect", [MESSAGES, MESSAGES_VIA_CHAT])
def test_anthropics_clients_are_told_in_anthropics_words(dialect: Dialect) -> None:
    error = read(dialect.engine_error_body(400, json.dumps({"error": LLAMA}).encode(), "r"))
    assert error["message"] == "prompt is too long: 10911 tokens > 4096 maximum"
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")


def test_an_engine_that_speaks_anthropics_form_is_told_in_its_words_too() -> None:
    vllm = {"type": "error", "error": {"type": "invalid_request_error", "message": ENGINES["vllm"]}}
    error = read(MESSAGES.engine_error_body(400, json.dumps(vllm).encode(), "r"))
    assert error["message"] == "prompt is too long: 600 tokens > 512 maximum"
    own = json.dumps({"type": "error", "error": {"type": "x", "message": ENGINES["anthropic"]}}).encode()
    assert MESSAGES.engine_error_body(400, own, "r") is own
    stream = MESSAGES.open_stream(InferenceRequest(b"", {}, "m", stream=True, wants_usage=False))
    event = b"event: error\ndata: " + json.dumps(vllm).encode() + b"\n\n"
    assert b"prompt is too long: 600 tokens > 512 maximum" in stream.feed_data(event) + stream.finish_stream()


def test_without_numbers_the_engines_words_stay() -> None:
    told = {
        "error": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}
    }
    assert read(CHAT.engine_error_body(400, json.dumps(told).encode(), "r"))["message"].endswith(
        "Your input exceeds the context window of this model."
    )
    error = read(MESSAGES.engine_error_body(400, json.dumps(told).encode(), "r"))
    assert error["message"].startswith("prompt is too long: ")
    assert ContextOverflow().describe_for_anthropic() == "prompt is too long."


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, {"error": LLAMA}, 400),
        (413, {"error": LLAMA}, 400),
        (500, {"error": {"message": ENGINES["llama-server, a text to embed"], "code": 500}}, 400),
        (400, {"message": ENGINES["vllm"]}, 400),
        (500, {"error": {"message": "Context size has been exceeded."}}, 503),
        (302, {}, 502),
    ],
)
def test_the_status_is_that_of_both_families(status: int, body: dict[str, Any], told: int) -> None:
    encoded = json.dumps(body).encode()
    assert errors.answer_status(status, encoded) == told
    assert read(CHAT.engine_error_body(status, encoded, "r"))["status"] == told


def test_an_overflow_that_is_told_as_plain_text_has_one_status() -> None:
    for body in (ENGINES["vllm"].encode(), b"[" * 500 + ENGINES["vllm"].encode()):
        assert errors.answer_status(500, body) == read(CHAT.engine_error_body(500, body, "r"))["status"]
    assert errors.answer_status(500, ENGINES["vllm"].encode()) == 400


def test_a_stream_of_a_response_is_told_by_events() -> None:
    body = RESPONSES_VIA_CHAT.engine_error_body(400, json.dumps({"error": LLAMA}).encode(), "r")
    assert RESPONSES_VIA_CHAT.is_told_by_events(body)
    assert not CHAT.is_told_by_events(body)
    other = RESPONSES_VIA_CHAT.engine_error_body(400, b'{"error":{"message":"x"}}', "r")
    assert not RESPONSES_VIA_CHAT.is_told_by_events(other)
    fields = {"model": "m", "input": "Hello"}
    request = InferenceRequest(
        b"", fields, "m", stream=True, wants_usage=False, state=ResponseContext("resp_1", 0, float, str)
    )
    request.prompt = RESPONSES_VIA_CHAT.read_request(request)
    events = RESPONSES_VIA_CHAT.error_as_events(body, request)
    assert re.findall(rb"event: (\S+)", events) == [
        b"response.created",
        b"response.in_progress",
        b"error",
        b"response.failed",
    ]
    failed = json.loads(re.findall(rb"data: (.*)\n", events)[3])
    assert failed["response"]["error"]["code"] == "context_length_exceeded"


def read(body: bytes) -> dict[str, Any]:
    """The error object."""
    error: dict[str, Any] = json.loads(body)["error"]
    return error
