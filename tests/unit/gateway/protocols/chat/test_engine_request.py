"""A chat completion in the words of each engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.schema.admin import Capabilities
from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute, ThinkingControl
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.chat.engine_request import adapt_fields, adapt_request
from gateway.protocols.common.request import parse_request
from tests.fakes.fake_controller import route

SWITCHED = Capabilities(thinking_modes=("default", "enabled", "disabled"))
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def to(backend: str, control: ThinkingControl | None = None, capabilities: Capabilities = SWITCHED) -> ModelRoute:
    """A model of that backend."""
    made = route("m", ["http://x"], capabilities=capabilities)
    return made.model_copy(update={"backend": backend, "thinking_control": control})


def sent(fields: dict[str, Any], model: ModelRoute) -> dict[str, Any]:
    """What the engine gets, without the model's name."""
    request = parse_request(json.dumps({"model": "m", **HI, **fields}).encode(), may_stream=True)
    body = CHAT.engine_body(request, model, as_stream=False)
    made = json.loads(body)
    assert made.pop("model") == "m"
    assert request.fields == {"model": "m", **HI, **fields}, "the request itself stays"
    if {"model": "m", **HI, **fields} == made | {"model": "m"}:
        assert body == request.raw, "where nothing must change, nothing is encoded anew"
    return dict(made)


@pytest.mark.parametrize(
    ("fields", "control", "expected"),
    [
        ({"thinking": "default"}, "chat_template_kwargs", {}),
        ({"thinking": "default"}, None, {}),
        ({"thinking": "enabled"}, "chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": "disabled"}, "chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}),
        (
            {"thinking": "disabled", "chat_template_kwargs": {"a": 1, "enable_thinking": True}},
            "chat_template_kwargs",
            {"chat_template_kwargs": {"a": 1, "enable_thinking": False}},
        ),
        ({"thinking": "disabled"}, "thinking", {"thinking": "disabled"}),
        ({"thinking": "enabled"}, "reasoning_effort", {"reasoning_effort": "medium"}),
        ({"thinking": "enabled", "reasoning_effort": "high"}, "reasoning_effort", {"reasoning_effort": "high"}),
        ({"thinking": "enabled", "reasoning_effort": "none"}, "reasoning_effort", {"reasoning_effort": "medium"}),
        ({"thinking": "disabled", "reasoning_effort": "high"}, "reasoning_effort", {"reasoning_effort": "none"}),
        (
            {"thinking": "enabled", "reasoning_effort": "none"},
            "chat_template_kwargs",
            {"chat_template_kwargs": {"enable_thinking": True}},
        ),
        (
            {"thinking": "enabled", "reasoning_effort": "low"},
            "chat_template_kwargs",
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"},
        ),
        ({"reasoning_effort": "none"}, "chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"reasoning_effort": "none"}, "thinking", {"thinking": "disabled"}),
        (
            {"thinking": "default", "reasoning_effort": "none"},
            "thinking",
            {"thinking": "disabled"},
        ),
        ({"reasoning_effort": "none"}, "reasoning_effort", {"reasoning_effort": "none"}),
        ({"reasoning_effort": "none"}, None, {"reasoning_effort": "none"}),
        ({"reasoning_effort": "low"}, "chat_template_kwargs", {"reasoning_effort": "low"}),
        ({"thinking": {"type": "enabled"}}, "chat_template_kwargs", {"thinking": {"type": "enabled"}}),
        ({"thinking": None}, "chat_template_kwargs", {"thinking": None}),
    ],
)
def test_thinking(fields: dict[str, Any], control: ThinkingControl | None, expected: dict[str, Any]) -> None:
    assert sent(fields, to("vllm_serve", control)) == HI | expected


def test_an_effort_of_none_is_the_engines_where_the_model_cannot_be_told() -> None:
    only_on = Capabilities(thinking_modes=("default", "enabled"))
    fields = {"reasoning_effort": "none"}
    assert sent(fields, to("llama_server", "chat_template_kwargs", only_on)) == HI | fields


def test_completions_are_left_alone() -> None:
    raw = b'{"model": "m", "prompt": "Hi", "thinking": "disabled", "reasoning_effort": "none"}'
    request = parse_request(raw, may_stream=True)
    assert COMPLETIONS.engine_body(request, to("llama_server", "chat_template_kwargs"), as_stream=False) == raw


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_of_earlier_answers_are_there_under_both_names(name: str) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", name: "so"}, HI["messages"][0]]
    both = turns[1] | {"reasoning": "so", "reasoning_content": "so"}
    assert sent({"messages": turns}, to("llama_server")) == {"messages": [turns[0], both, turns[2]]}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "b", "reasoning": "so", "reasoning_content": "so"},
        {"role": "assistant", "content": "b", "reasoning": "so", "reasoning_content": "other"},
        {"role": "assistant", "content": "b", "reasoning": None},
        {"role": "assistant", "content": "b", "reasoning": {"x": 1}},
        {"role": "assistant", "content": "b"},
        None,
        "x",
    ],
)
def test_other_messages_stay(message: Any) -> None:
    assert sent({"messages": [message]}, to("llama_server")) == {"messages": [message]}
    assert sent({"messages": message}, to("llama_server")) == {"messages": message}


def tool(name: str) -> dict[str, Any]:
    """A tool of that name."""
    return {"type": "function", "function": {"name": name, "parameters": {}}}


TOOLS = {"tools": [tool("a"), tool("b"), tool("c")]}
ONE = {"type": "function", "function": {"name": "b"}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice among these."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("backend", "choice", "expected"),
    [
        ("llama_server", ONE, {"tools": [tool("b")], "tool_choice": "required"}),
        ("vllm_serve", ONE, TOOLS | {"tool_choice": ONE}),
        ("llama_cpp", ONE, TOOLS | {"tool_choice": ONE}),
        ("llama_server", allowed("auto", "a", "c"), {"tools": [tool("a"), tool("c")], "tool_choice": "auto"}),
        ("llama_cpp", allowed("required", "c"), {"tools": [tool("c")], "tool_choice": "required"}),
        ("openai_remote", allowed("auto", "a"), TOOLS | {"tool_choice": allowed("auto", "a")}),
        ("openai_remote", ONE, TOOLS | {"tool_choice": ONE}),
        ("llama_server", "auto", TOOLS | {"tool_choice": "auto"}),
        ("llama_server", "none", TOOLS | {"tool_choice": "none"}),
        ("llama_server", {"type": "other"}, TOOLS | {"tool_choice": {"type": "other"}}),
    ],
)
def test_a_choice_of_tools(backend: str, choice: Any, expected: dict[str, Any]) -> None:
    assert sent(TOOLS | {"tool_choice": choice}, to(backend)) == HI | expected


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "z"}}, allowed("auto", "a", "z")])
def test_a_choice_of_a_tool_that_is_not_there(choice: Any) -> None:
    request = parse_request(json.dumps({"model": "m", **HI, **TOOLS, "tool_choice": choice}).encode(), may_stream=True)
    with pytest.raises(RoundhouseError, match="'z', which is not among") as caught:
        adapt_request(request, to("llama_server"))
    assert (caught.value.entry.code, caught.value.param) == ("invalid_request", "tool_choice")


def test_what_was_written_here_is_said_in_a_remotes_own_words() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning_content": "t", "reasoning": "t"}
    fields = {"messages": [thought], "max_tokens": 5, "seed": 1}
    remote = route("m").model_copy(update={"backend": "openai_remote", "max_tokens_field": "max_completion_tokens"})
    assert adapt_fields({**fields, "messages": [dict(thought)]}, remote) == {
        "messages": [{"role": "assistant", "content": "a", "reasoning_content": "t"}],
        "max_completion_tokens": 5,
        "seed": 1,
    }
    assert adapt_fields(fields, route("m")) is fields
