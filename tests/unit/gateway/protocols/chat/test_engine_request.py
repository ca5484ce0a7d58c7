"""A chat completion in the words of each engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.admin import Capabilities
from contract.errors import RoundhouseError
from contract.routing import ModelRoute, ThinkingControl
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS, adapt_fields, adapt_request, fold_system_messages
from gateway.protocols.chat.prompt_progress import (
    PromptProgress,
    PromptProgressStream,
    ask_for_progress,
    tells_progress,
)
from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.completions import COMPLETIONS_VIA_CHAT
from gateway.protocols.llama_native import NATIVE
from tests.fakes.fake_controller import route

SWITCHED = Capabilities(thinking_modes=("default", "enabled", "disabled"))
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def to(backend: str, control: ThinkingControl | None = None, capabilities: Capabilities = SWITCHED) -> ModelRoute:
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


ON, OFF = ({"chat_template_kwargs": {"enable_thinking": is_on}} for is_on in (True, False))
NO_EFFORT = {"reasoning_effort": "none"}


@pytest.mark.parametrize(
    ("fields", "control", "expected"),
    [
        *(({"thinking": "default"}, control, {}) for control in ("chat_template_kwargs", None)),
        ({"thinking": "enabled"}, "chat_template_kwargs", ON),
        ({"thinking": "disabled"}, "chat_template_kwargs", OFF),
        (
            {"thinking": "disabled", "chat_template_kwargs": {"a": 1, "enable_thinking": True}},
            "chat_template_kwargs",
            {"chat_template_kwargs": {"a": 1, "enable_thinking": False}},
        ),
        ({"thinking": "disabled"}, "thinking", {"thinking": "disabled"}),
        ({"thinking": "enabled"}, "reasoning_effort", {"reasoning_effort": "medium"}),
        ({"thinking": "enabled", "reasoning_effort": "high"}, "reasoning_effort", {"reasoning_effort": "high"}),
        ({"thinking": "enabled"} | NO_EFFORT, "reasoning_effort", {"reasoning_effort": "medium"}),
        ({"thinking": "disabled", "reasoning_effort": "high"}, "reasoning_effort", NO_EFFORT),
        ({"thinking": "enabled"} | NO_EFFORT, "chat_template_kwargs", ON),
        ({"thinking": "enabled", "reasoning_effort": "low"}, "chat_template_kwargs", ON | {"reasoning_effort": "low"}),
        (NO_EFFORT, "chat_template_kwargs", OFF),
        *((fields | NO_EFFORT, "thinking", {"thinking": "disabled"}) for fields in ({}, {"thinking": "default"})),
        *((NO_EFFORT, control, NO_EFFORT) for control in ("reasoning_effort", None)),
        *((fields, "chat_template_kwargs", fields) for fields in ({"reasoning_effort": "low"}, {"thinking": None})),
        ({"thinking": {"type": "enabled"}}, "chat_template_kwargs", {"thinking": {"type": "enabled"}}),
    ],
)
def test_thinking_becomes_what_the_engine_understands(
    fields: dict[str, Any], control: ThinkingControl | None, expected: dict[str, Any]
) -> None:
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
def test_messages_of_other_forms_stay_as_they_are(message: Any) -> None:
    assert sent({"messages": [message]}, to("llama_server")) == {"messages": [message]}
    assert sent({"messages": message}, to("llama_server")) == {"messages": message}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}}}


TOOLS = {"tools": [tool("a"), tool("b"), tool("c")]}
ONE = {"type": "function", "function": {"name": "b"}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
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


Message = dict[str, Any]
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
IMAGE: Message = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def system(text: Any = "rule") -> Message:
    return {"role": "system", "content": text}


def user(content: Any = "ask") -> Message:
    return {"role": "user", "content": content}


def assistant(text: str = "answer") -> Message:
    return {"role": "assistant", "content": text}


def result(text: Any = "found") -> Message:
    return {"role": "tool", "tool_call_id": "c", "content": text}


def reminder(text: str = "rule") -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def developer(text: str) -> Message:
    return {"role": "developer", "content": text}


@pytest.mark.parametrize(
    "messages",
    [
        [user()],
        [system(), user(), assistant(), user()],
        [system(), user(), CALL, result(), assistant()],
        [system([{"type": "text", "text": "rule"}]), user()],
        [],
        ["what is this", {"role": 5}, {}],
        [user(), system([IMAGE])],
        [user(), system(None)],
    ],
)
def test_a_conversation_that_the_template_takes_stays_the_same_object(messages: list[Any]) -> None:
    assert fold_system_messages(messages) is messages


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # As Claude Code sends them: behind the user's first message, and behind results of tools.
        ([system("s"), user(), system()], [system("s"), user(f"ask\n\n{reminder()}")]),
        (
            [user(), CALL, result(), system(), assistant(), user()],
            [user(), CALL, result(f"found\n\n{reminder()}"), assistant(), user()],
        ),
        # Behind an answer it waits for what comes next.
        ([user(), assistant(), system(), user("b")], [user(), assistant(), user(f"{reminder()}\n\nb")]),
        ([user(), assistant(), system()], [user(), assistant(), user(reminder())]),
        ([user(), assistant(), system(), assistant("b")], [user(), assistant(), user(reminder()), assistant("b")]),
        # Between a call and its result nothing may stand.
        ([user(), CALL, system(), result()], [user(), CALL, result(f"{reminder()}\n\nfound")]),
        # Several at once, in their order.
        ([user(), system("a"), system("b")], [user(f"ask\n\n{reminder('a')}\n\n{reminder('b')}")]),
        (
            [user(), assistant(), system("a"), system("b"), user("c")],
            [user(), assistant(), user(f"{reminder('a')}\n\n{reminder('b')}\n\nc")],
        ),
        # Those at the beginning are one, whichever of both roles they have.
        ([system("a"), system("b"), user()], [system("a\n\nb"), user()]),
        ([developer("a"), user()], [system("a"), user()]),
        ([user(), developer("a")], [user(f"ask\n\n{reminder('a')}")]),
        # Parts.
        ([user([IMAGE]), system()], [user([IMAGE, {"type": "text", "text": reminder()}])]),
        ([assistant(), system(), user([IMAGE])], [assistant(), user([{"type": "text", "text": reminder()}, IMAGE])]),
        (
            [user(), system([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
            [user(f"ask\n\n{reminder('a' + chr(10) + 'b')}")],
        ),
        ([result(""), system()], [result(reminder())]),
        ([{"role": "user"}, system()], [{"role": "user"}, user(reminder())]),
    ],
)
def test_each_goes_to_its_neighbour(messages: list[Message], expected: list[Message]) -> None:
    before = repr(messages)
    assert fold_system_messages(messages) == expected
    assert repr(messages) == before, "the request itself stays"


def test_a_text_written_as_parts_gives_the_same_message_as_a_string() -> None:
    parts = [{"type": "text", "text": "ask"}]
    assert fold_system_messages([user(parts), system()]) == fold_system_messages([user(), system()])


LLAMA = route("m").model_copy(update={"backend": "llama_server"})


def event(fields: dict[str, Any], processed: int | None = None, total: int = 100) -> bytes:
    """One event, of a prompt of which so many tokens are processed."""
    told = {"total": total, "cache": 10, "processed": processed, "time_ms": 1}
    return b"data: %b\n\n" % json.dumps(fields if processed is None else {**fields, "prompt_progress": told}).encode()


def choice(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "finish_reason": None, **fields}]}


ROLE = choice(delta={"role": "assistant", "content": None})
TEXT = choice(delta={"content": 'it says "prompt_progress"'})
END = choice(delta={}) | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"


def parsed(**fields: Any) -> InferenceRequest:
    return parse_request(json.dumps({"model": "m", "stream": True, **fields}).encode(), may_stream=True)


def fed(stream: bytes, *, drops: bool = True, size: int | None = None, dialect: Any = CHAT) -> tuple[bytes, list[Any]]:
    """What a client gets of a stream that comes in pieces of this size, and what is told."""
    told: list[PromptProgress] = []
    reader = PromptProgressStream(dialect.open_stream(parsed()), told.append, drops=drops)
    step = size or len(stream)
    passed = b"".join(reader.feed_data(stream[start : start + step]) for start in range(0, len(stream), step))
    passed += reader.finish_stream()
    assert reader.is_complete
    return passed, told


WHOLE = event(ROLE, 10) + event(ROLE, 60) + event(ROLE, 100) + event(ROLE) + event(TEXT) + event(END) + DONE
REST = event(ROLE) + event(TEXT) + event(END) + DONE
TOLD = [PromptProgress(100, 10, done) for done in (10, 60, 100)]


@pytest.mark.parametrize("size", range(1, 40))
def test_the_progress_is_told_and_dropped_wherever_the_stream_is_cut(size: int) -> None:
    assert fed(WHOLE, size=size) == (REST, TOLD)


def test_a_client_that_asked_itself_gets_the_progress_too() -> None:
    assert fed(WHOLE, drops=False) == (WHOLE, TOLD)


def test_a_stream_without_progress_passes_byte_for_byte() -> None:
    assert fed(REST) == (REST, [])
    assert fed(REST.removesuffix(b"\n\n"), size=7) == (REST, [])


def test_several_prompts_are_told_of_together() -> None:
    stream = event(choice(0, text=""), 50) + event(choice(1, text=""), 10, 300) + event(choice(1, text=""), 300, 300)
    assert fed(stream + DONE)[1] == [
        PromptProgress(100, 10, 50),
        PromptProgress(400, 20, 60),
        PromptProgress(400, 20, 350),
    ]


def test_a_translated_request_asks_for_progress() -> None:
    request = parsed(prompt="Hi")
    request.prompt = COMPLETIONS_VIA_CHAT.read_request(request)
    asking = ask_for_progress(request)
    assert json.loads(COMPLETIONS_VIA_CHAT.engine_body(asking, LLAMA, as_stream=False))["return_progress"] is True


@pytest.mark.parametrize(
    ("fields", "dialect"),
    [
        (choice(delta={"role": "assistant", "content": "Hi"}), CHAT),
        (choice(delta={"reasoning_content": "Hm", "reasoning": "Hm"}), CHAT),
        (choice(text="Hi"), COMPLETIONS),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, CHAT),
        ({"index": 0, "content": "Hi", "stop": False}, NATIVE),
    ],
)
def test_an_event_that_holds_a_part_of_the_answer_loses_the_progress_alone(fields: Any, dialect: Any) -> None:
    passed, told = fed(event(fields, 100) + DONE, dialect=dialect)
    assert [json.loads(passed.split(b"\n\n")[0].removeprefix(b"data: ")), *told] == [fields, TOLD[-1]]


@pytest.mark.parametrize(
    "fields", [choice(text=""), choice(delta={"role": "assistant", "content": None}), {"content": "", "stop": False}]
)
def test_an_event_of_the_progress_alone_is_dropped(fields: Any) -> None:
    assert fed(event(fields, 100) + DONE)[0] == DONE


@pytest.mark.parametrize("told", ["null", "[]", '"x"', "{}", '{"total": "x", "processed": -1, "cache": true}'])
def test_whatever_an_engine_sends_in_its_place(told: str) -> None:
    passed, _ = fed(b'data: {"choices":[{"index":null}],"prompt_progress":%b}\n\n' % told.encode() + DONE)
    assert passed.endswith(DONE)


@pytest.mark.parametrize(("prompt", "share"), [((0, 0, 0), 1.0), ((4, 0, 1), 0.25), ((4, 4, 4), 1.0), ((4, 0, 9), 1.0)])
def test_the_share_of_a_prompt_that_is_read(prompt: tuple[int, int, int], share: float) -> None:
    assert PromptProgress(*prompt).share == share


@pytest.mark.parametrize("asked", [{}, {"return_progress": False}, {"return_progress": None}])
def test_a_request_asks_for_progress(asked: dict[str, Any]) -> None:
    asking = ask_for_progress(parsed(messages=[], **asked))
    sent = json.loads(CHAT.engine_body(asking, LLAMA, as_stream=False))
    options = {"return_progress": True, "stream_options": {"include_usage": True}}
    assert sent == {"model": "m", "stream": True, "messages": [], **options}
    assert asking.outline_fields["return_progress"] is True
    assert ask_for_progress(asking) is asking


@pytest.mark.parametrize(
    ("api", "backend", "tells"),
    [
        *(("/v1/chat/completions", "llama_server", True), ("/completion", "llama_server", True)),
        *(("/v1/messages", "llama_server", False), ("/v1/chat/completions", "vllm_serve", False)),
        ("/v1/chat/completions", "openai_remote", False),
    ],
)
def test_which_engines_report_progress_of_a_prompt(api: str, backend: str, tells: bool) -> None:
    assert tells_progress(api, route("m").model_copy(update={"backend": backend})) is tells
