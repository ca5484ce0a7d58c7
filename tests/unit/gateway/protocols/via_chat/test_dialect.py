"""Requests that are translated into chat completions: what is checked, and what the engine gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.admin import Capabilities
from contract.routing import ModelRoute
from gateway.protocols.anthropic.via_chat import MESSAGES_COUNTED_VIA_CHAT, MESSAGES_VIA_CHAT
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.large_body import LARGE_BYTES, LargeBody
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.completions import COMPLETIONS_VIA_CHAT
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, present

MESSAGE: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
PROMPT: dict[str, Any] = {"prompt": "Hi"}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
LONG_TEXT = 'say "no"\n' * (LARGE_BYTES // 8)
LONG_SCHEMA = {"type": "string", "description": LONG_TEXT}


def read(dialect: Dialect, fields: dict[str, Any], model: ModelRoute) -> InferenceRequest:
    """Return the request after it was checked; a large one is read by its outline."""
    raw = json.dumps({"model": "m", **fields}).encode()
    body = LargeBody()
    body.add_part(raw)
    body.finish()
    request = parse_request(raw if len(raw) <= LARGE_BYTES else body, may_stream=True)
    dialect.check_request(request, model)
    return request


def sent(dialect: Dialect, request: InferenceRequest, model: ModelRoute) -> dict[str, Any]:
    body = request.fill(dialect.engine_body(request, model, as_stream=False))
    fields: dict[str, Any] = json.loads(body if isinstance(body, bytes) else b"".join(body))
    return fields


def backend(name: str, **fields: Any) -> ModelRoute:
    return route("m").model_copy(update={"backend": name, **fields})


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [(MESSAGES_VIA_CHAT, MESSAGE), (MESSAGES_COUNTED_VIA_CHAT, MESSAGE), (COMPLETIONS_VIA_CHAT, PROMPT)],
    ids=["messages", "token count", "completions"],
)
@pytest.mark.parametrize(
    ("constraint", "in_engines_words"),
    [
        ({"guided_json": json.dumps(LONG_SCHEMA)}, {"json_schema": LONG_SCHEMA}),
        ({"guided_json": LONG_SCHEMA}, {"json_schema": LONG_SCHEMA}),
        ({"guided_choice": [LONG_TEXT]}, {"grammar": f"root ::= {json.dumps(LONG_TEXT)}"}),
        ({"structured_outputs": {"choice": [LONG_TEXT]}}, {"grammar": f"root ::= {json.dumps(LONG_TEXT)}"}),
        ({"grammar": LONG_TEXT}, {"grammar": LONG_TEXT}),
    ],
    ids=["JSON of a schema", "schema", "choice", "choice of a holder", "grammar"],
)
def test_constraints_of_a_large_body_are_read_whole(
    dialect: Dialect, asked: dict[str, Any], constraint: dict[str, Any], in_engines_words: dict[str, Any]
) -> None:
    model = backend("llama_cpp")
    fields = sent(dialect, read(dialect, {**asked, **constraint}, model), model)
    assert {name: fields.get(name) for name in in_engines_words} == in_engines_words
    assert "guided_json" not in fields


@pytest.mark.parametrize("name", ["guided_json", "grammar"])
@pytest.mark.parametrize(
    ("dialect", "asked", "place"),
    [
        (MESSAGES_VIA_CHAT, {**MESSAGE, "output_config": {"format": FORMAT}}, "output_config.format"),
        (MESSAGES_VIA_CHAT, {**MESSAGE, "output_format": FORMAT}, "output_format"),
        (MESSAGES_COUNTED_VIA_CHAT, {**MESSAGE, "output_format": FORMAT}, "output_format"),
        (COMPLETIONS_VIA_CHAT, {**PROMPT, "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_two_constraints_are_refused_at_once(dialect: Dialect, asked: dict[str, Any], place: str, name: str) -> None:
    error = error_of(lambda: read(dialect, {**asked, name: '{"type": "string"}'}, backend("llama_server")))
    assert (error.entry.code, error.param) == ("invalid_request", place)
    assert f"`{name}` and `{place}`" in error.message


@pytest.mark.parametrize("dialect", [MESSAGES_VIA_CHAT, MESSAGES_COUNTED_VIA_CHAT], ids=["messages", "token count"])
def test_a_wish_to_think_is_kept_for_a_model_that_changes_while_the_request_waits(dialect: Dialect) -> None:
    plain = backend("llama_server", capabilities=Capabilities())
    thinker = backend(
        "llama_server",
        capabilities=Capabilities(thinking_modes=("default", "enabled", "disabled")),
        thinking_control="chat_template_kwargs",
    )
    told = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 2}
    request = read(dialect, {**MESSAGE, "thinking": {"type": "enabled", "budget_tokens": 2}}, plain)
    for model, wish in ((plain, {}), (thinker, told), (plain, {})):
        dialect.check_request(request, model)
        fields = sent(dialect, request, model)
        assert {name: fields[name] for name in told if name in fields} == wish
    error = error_of(lambda: read(dialect, {**MESSAGE, "thinking": "enabled"}, plain))
    assert error.entry.code == "thinking_unsupported"


BEGUN = {"role": "assistant", "content": "Well"}
GOES_ON = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize("dialect", [MESSAGES_VIA_CHAT, MESSAGES_COUNTED_VIA_CHAT], ids=["messages", "token count"])
@pytest.mark.parametrize(
    ("name", "messages", "extra", "expected"),
    [
        ("vllm_serve", [BEGUN], {}, GOES_ON),
        ("vllm", [BEGUN], {}, GOES_ON),
        ("vllm_serve", [BEGUN, *MESSAGE["messages"]], {}, {}),
        ("vllm_serve", [{**BEGUN, "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}], {}, {}),
        ("vllm_serve", [BEGUN], {"add_generation_prompt": True}, {"add_generation_prompt": True}),
        ("vllm_serve", [BEGUN], {"continue_final_message": False}, {"continue_final_message": False}),
        ("llama_server", [BEGUN], {}, {}),
        ("ct2", [BEGUN], {}, {}),
        ("openai_remote", [BEGUN], {}, {}),
    ],
)
def test_vllm_continues_the_last_text(
    dialect: Dialect, name: str, messages: list[Any], extra: dict[str, Any], expected: dict[str, Any]
) -> None:
    model = backend(name)
    engine_fields = sent(dialect, read(dialect, {**MESSAGE, "messages": messages, **extra}, model), model)
    assert {name: engine_fields[name] for name in GOES_ON if name in engine_fields} == expected


@pytest.mark.parametrize(("name", "text", "thought"), [("vllm", "so on", None), ("ct2", " on", "so")])
def test_of_a_text_that_vllm_continues_nothing_is_a_thought(name: str, text: str, thought: str | None) -> None:
    message = {"role": "assistant", "content": " on", "reasoning_content": "so"}
    model = backend(name)
    fields = {**MESSAGE, "messages": [*MESSAGE["messages"], BEGUN]}
    blocking = present(MESSAGES_VIA_CHAT.get_body_converter(read(MESSAGES_VIA_CHAT, fields, model)))
    told = json.loads(blocking(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()))
    assert [part["text"] for part in told["content"] if part["type"] == "text"] == [text]
    assert [part["thinking"] for part in told["content"] if part["type"] == "thinking"] == (
        [thought] if thought else []
    )
    stream = MESSAGES_VIA_CHAT.open_stream(read(MESSAGES_VIA_CHAT, {**fields, "stream": True}, model))
    chunks = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "so"}}]},
        {"choices": [{"index": 0, "delta": {"content": " on"}, "finish_reason": "stop"}]},
    ]
    events = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
    told_events = stream.feed_data(events.encode()).decode()
    assert ("thinking_delta" in told_events) is (thought is not None)
    assert ('"text_delta","text":"so"' in told_events) is (thought is None)
    assert '"text_delta","text":" on"' in told_events
