"""Completions of a prompt, asked as a chat and answered as completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion

from contract.admin import Capabilities
from contract.routing import ModelRoute
from gateway.protocols.api_matrix import serving_option
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.completions import COMPLETIONS_VIA_CHAT
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, present

CHAT = "/v1/chat/completions"
TOP = {"id": "cmpl-ab-1", "object": "text_completion", "created": 1700000000, "model": "alias"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
SWITCHED = route(
    "m",
    apis=(CHAT,),
    served_name="inner",
    capabilities=Capabilities(thinking_modes=("default", "enabled", "disabled")),
    thinking_control="chat_template_kwargs",
)


def checked(of: ModelRoute = SWITCHED, **fields: Any) -> InferenceRequest:
    request = parse_request(json.dumps({"model": "alias", "prompt": "Hi", **fields}).encode(), may_stream=True)
    request.id, request.received_at = "req-ab-1", 1700000000.9
    COMPLETIONS_VIA_CHAT.check_request(request, of)
    return request


def sent(*, as_stream: bool = False, **fields: Any) -> Any:
    return json.loads(COMPLETIONS_VIA_CHAT.engine_body(checked(**fields), SWITCHED, as_stream=as_stream))


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    fields = {"id": "chatcmpl-x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def streamed(*events: bytes, **fields: Any) -> bytes:
    made = COMPLETIONS_VIA_CHAT.open_stream(checked(stream=True, **fields))
    out = b"".join(made.feed_data(event) for event in events) + made.finish_stream()
    assert made.is_complete
    return out


def part(text: str, finish: str | None = None, **more: Any) -> bytes:
    fields = {**TOP, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}], **more}
    return b"data: %b\n\n" % json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def test_the_native_way_is_the_better_one() -> None:
    request = parse_request(b'{"model":"m","prompt":"Hi"}', may_stream=True)
    for apis in ((), ("/v1/completions", CHAT)):
        assert serving_option("/v1/completions", request, route("m", apis=apis)).target is None
    assert serving_option("/v1/completions", request, route("m", apis=(CHAT,))).target == CHAT
    error = error_of(lambda: serving_option("/v1/completions", request, route("m", apis=("/v1/embeddings",))))
    assert error.entry.code == "not_supported"


def test_the_prompt_is_what_a_user_says_and_nothing_else_is_sent() -> None:
    said = {"model": "inner", "messages": [{"role": "user", "content": "Hi"}]}
    nothing: dict[str, Any] = {"echo": False, "suffix": "", "best_of": 1, "n": 1}
    nothing |= {"logprobs": None, "stop": None, "max_tokens": None}
    assert sent() == sent(prompt=["Hi"]) == sent(**nothing) == sent(thinking="default") == said
    fields: dict[str, Any] = {"max_tokens": 5, "stop": ["a", "b"], "temperature": 0, "seed": 1, "user": "u", "own": {}}
    assert sent(**fields, tools=[{}], messages=[1]) == said | fields
    assert sent(stop="a")["stop"] == ["a"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert sent(stream=True) == sent(as_stream=True) == said | options
    assert sent(thinking="disabled")["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent(thinking={"own": 1})["thinking"] == {"own": 1}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({name: value}, name) for name, value in (("echo", True), ("suffix", "b"), ("best_of", 2), ("n", 2))),
        *(({"logprobs": value}, "logprobs") for value in (0, 5)),
        *(({"prompt": value}, "prompt") for value in (None, "", [""], [], [1, 2], [[1, 2]], ["a", "b"])),
        *(({"max_tokens": value}, "max_tokens") for value in ("5", -1)),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"thinking": "maybe"}, "thinking"),
    ],
)
def test_what_a_chat_cannot_answer_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    error = error_of(lambda: checked(**fields))
    assert (error.entry.code, error.param) == ("invalid_request", param)
    assert f"`{param}`" in error.message


def test_a_stream_of_chat_chunks_becomes_one_of_completions() -> None:
    events = (
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "Hm"}),
        chunk({"content": 'Die "schnelle"\n'}),
        chunk({"content": "ü€\U0001f600"}),
        chunk({}, "length"),
        b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n',
        b"data: [DONE]\n\n",
    )
    texts = part('Die "schnelle"\n'), part("ü€\U0001f600"), part("", "length")
    assert streamed(*events) == b"".join(texts) + b"data: [DONE]\n\n"
    with_null = part('Die "schnelle"\n', usage=None), part("ü€\U0001f600", usage=None), part("", "length", usage=None)
    told = b"data: " + json.dumps({**TOP, "choices": [], "usage": USAGE}, separators=(",", ":")).encode() + b"\n\n"
    asked = streamed(*events, stream_options={"include_usage": True})
    assert asked == b"".join(with_null) + told + b"data: [DONE]\n\n"
    for event in asked.split(b"\n\n")[:-2]:
        # In the SDK's type a reason is never null; what OpenAI sends is, until the last part.
        Completion.model_validate_json(event.removeprefix(b"data: ").replace(b'reason":null', b'reason":"stop"'))


def test_a_stream_that_fails_ends_with_the_error() -> None:
    made = streamed(chunk({"content": "a"}), b'data: {"error":{"message":"no cells","code":500}}\n\n')
    failed, done = made.removeprefix(part("a")).split(b"\n\n", 1)
    error = json.loads(failed.removeprefix(b"data: "))["error"]
    assert (error["message"], error["code"], error["status"]) == ("no cells", "engine_error", 500)
    assert error["request_id"] == "req-ab-1"
    assert done == b"data: [DONE]\n\n"


def test_half_a_surrogate_pair_can_be_written() -> None:
    made = streamed(chunk({"content": "\ud83d"}, "stop"), b"data: [DONE]\n\n")
    assert b'"text":"\\ud83d"' in made


WHOLE = {
    "id": "chatcmpl-x",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi!", "reasoning": "Hm"}, "finish_reason": "stop"}
    ],
    "usage": {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
}


def given(told: Any, **fields: Any) -> Any:
    translate = present(COMPLETIONS_VIA_CHAT.get_body_converter(checked(**fields)))
    made = json.loads(translate(json.dumps(told).encode()))
    Completion.model_validate(made)
    return made


def test_a_blocking_answer_holds_what_the_engine_tells() -> None:
    choice = {"index": 0, "text": "Hi!", "logprobs": None, "finish_reason": "stop"}
    assert given(WHOLE) == {**TOP, "choices": [choice], "usage": WHOLE["usage"]}
    done, options = b"data: [DONE]\n\n", {"stream_options": {"include_usage": True}}
    told: list[dict[str, Any]] = [{}, {"usage": None}, {"usage": {}}]
    for usage in told:
        assert "usage" not in given({"choices": WHOLE["choices"], **usage})
        assert b'"usage":{' not in streamed(chunk({}, "stop", **usage), done, **options)
    nothing = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
    assert given({"choices": WHOLE["choices"], **nothing})["usage"] == nothing["usage"]
    assert b'"usage":{"prompt_tokens":0,' in streamed(chunk({}, "stop", **nothing), done, **options)


@pytest.mark.parametrize(
    ("message", "finish", "text", "reason"),
    [
        ({"content": "a"}, "length", "a", "length"),
        ({"content": "a"}, "content_filter", "a", "content_filter"),
        ({"content": None, "refusal": "No."}, "stop", "No.", "stop"),
        ({"content": "a", "tool_calls": [{"function": {"name": "f"}}]}, "tool_calls", "a", "stop"),
    ],
)
def test_a_completion_says_how_the_chat_ended(message: Any, finish: str, text: str, reason: str) -> None:
    told = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    choice = given(told)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    made = streamed(chunk(message, finish), b"data: [DONE]\n\n")
    assert made == part(text) + part("", reason) + b"data: [DONE]\n\n"
