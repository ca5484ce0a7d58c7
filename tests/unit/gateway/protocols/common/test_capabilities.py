"""What a request holds against what its model takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, get_args, get_type_hints

import pytest

from contract.admin import Capabilities
from contract.errors import RoundhouseError
from gateway.protocols.common.bodies import CONSTRAINT_FIELDS, adapt_constraints
from gateway.protocols.common.capabilities import check_capabilities, check_prompt
from gateway.protocols.common.conversation import (
    Assistant,
    Audio,
    Image,
    OutputFormat,
    Part,
    Prompt,
    System,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.fan_out import check_choices, count_slots
from gateway.protocols.common.large_body import BLOCK_BYTES, LargeBody
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, refusal

TEXT = Capabilities()
SEES = Capabilities(modalities=("text", "image"))
HEARS = Capabilities(modalities=("text", "audio"))
THINKS = Capabilities(thinking_modes=("default", "enabled", "disabled"))
ONE_TURN = Capabilities(multi_turn=False)
CALLS_FREELY = Capabilities(forced_tools=False)
CALLS_NOTHING = Capabilities(tools=False)
FREE_ONLY = Capabilities(structured_output=False)

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
SAYS = {"type": "text", "text": "What is this?"}


def refused(fields: dict[str, Any], capabilities: Capabilities) -> tuple[str, str | None] | None:
    """Code and param of the refusal; None if the request passes."""
    try:
        check_capabilities(fields, capabilities, "m")
    except RoundhouseError as error:
        return error.entry.code, error.param
    return None


def asks(*contents: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def turns(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "x"} for role in roles]}


@pytest.mark.parametrize(
    ("thinking", "capabilities", "code"),
    [
        *((thinking, TEXT, None) for thinking in ("default", {"type": "enabled", "budget_tokens": 1024}, True, None)),
        *((thinking, TEXT, "thinking_unsupported") for thinking in ("enabled", "disabled")),
        *((thinking, THINKS, None) for thinking in ("enabled", "disabled")),
        ("disabled", Capabilities(thinking_modes=("default", "enabled")), "thinking_unsupported"),
        ("default", Capabilities(thinking_modes=()), None),
        *((thinking, THINKS, "invalid_request") for thinking in ("on", "")),
    ],
)
def test_thinking_that_a_model_lacks_is_refused(thinking: Any, capabilities: Capabilities, code: str | None) -> None:
    expected = None if code is None else (code, "thinking")
    assert refused({"thinking": thinking}, capabilities) == expected
    assert refused({"thinking": thinking} | asks("Hi"), capabilities) == expected


@pytest.mark.parametrize(
    ("part", "takes", "lacks"),
    [
        *((IMAGE | {"type": kind}, SEES, (TEXT, HEARS)) for kind in ("image_url", "input_image", "image")),
        *((AUDIO | {"type": kind}, HEARS, (TEXT, SEES)) for kind in ("input_audio", "audio", "audio_url")),
    ],
)
def test_media_only_for_models_that_take_them(part: Any, takes: Capabilities, lacks: tuple[Capabilities, ...]) -> None:
    request = asks("Hi", [SAYS, part])
    for capabilities in lacks:
        assert refused(request, capabilities) == ("modality_unsupported", "messages[1].content[1]")
    assert refused(request, takes) is None


def test_a_part_without_a_type_is_what_it_holds() -> None:
    assert refused(asks([{"image_url": IMAGE["image_url"]}]), TEXT) == (
        "modality_unsupported",
        "messages[0].content[0]",
    )


def test_the_refusal_names_what_the_model_takes() -> None:
    with pytest.raises(RoundhouseError, match="takes no audio; it takes text, image"):
        check_capabilities(asks([AUDIO]), SEES, "m")


def test_a_role_that_is_no_text_is_left_to_the_engine() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": ["user"], "content": "x"}, {"role": {}, "content": "x"}]
    assert refused({"messages": messages}, ONE_TURN) is None


@pytest.mark.parametrize(
    "fields",
    [
        *({}, {"prompt": "Hi"}, {"messages": "Hi"}, {"messages": [None, 1, "x", []]}),
        {"messages": [{"role": "user"}, {"content": None}]},
        asks([None, 1, "x", {"type": 5}, {"type": "file"}, {}, SAYS]),
    ],
)
def test_what_is_not_of_the_known_shape_is_the_engines_to_refuse(fields: dict[str, Any]) -> None:
    assert refused(fields, Capabilities(multi_turn=True)) is None


@pytest.mark.parametrize(
    ("roles", "param"),
    [
        *((roles.split(), None) for roles in ("user", "system user", "developer system user", "user assistant")),
        *((roles.split(), None) for roles in ("assistant", "user system")),
        *((roles.split(), "messages[1]") for roles in ("user user", "assistant user", "assistant tool", "user tool")),
        *((roles.split(), "messages[2]") for roles in ("user assistant tool", "user assistant function")),
        (["system", "user", "assistant", "user"], "messages[3]"),
    ],
)
def test_a_conversation_only_for_models_that_take_it(roles: list[str], param: str | None) -> None:
    assert refused(turns(*roles), ONE_TURN) == (None if param is None else ("multi_turn_unsupported", param))
    assert refused(turns(*roles), TEXT) is None


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


ONE_TOOL: dict[str, Any] = {"tools": [TOOL]}
FUNCTIONS = {"functions": [TOOL["function"]]}
SCHEMA_FORMAT = {"type": "json_schema", "schema": {}}
NO_TOOLS = [{"tools": []}, {"tools": None}, {"tool_choice": "required"}, {}, FUNCTIONS | {"function_call": "none"}]
NO_FORM_FIELDS = [
    *({"response_format": {"type": "text"}}, {"response_format": None}, {"text": {"verbosity": "low"}}),
    *({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"output_config": {"effort": "low"}}),
    *({"grammar": ""}, {"json_schema": None}, {"guided_json_object": False}),
]
FREE_CHOICES: list[Any] = [
    *("auto", "none", {"type": "auto"}, {"type": "none"}, {"type": "allowed_tools", "mode": "auto"}),
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
]
FORCED_CHOICES: list[Any] = [
    *("required", {"type": "function", "function": {"name": "f"}}, {"type": "any"}, {"type": "tool", "name": "f"}),
    {"type": "allowed_tools", "mode": "required"},
    {"type": "allowed_tools", "allowed_tools": {"mode": "required"}},
]


@pytest.mark.parametrize(
    ("lacks", "fields", "param"),
    [
        *((CALLS_NOTHING, ONE_TOOL | more, "tools") for more in ({}, {"tool_choice": "auto"})),
        (CALLS_NOTHING, ONE_TOOL | {"tool_choice": {"type": "auto"}}, "tools"),
        (CALLS_NOTHING, FUNCTIONS, "functions"),
        *((CALLS_NOTHING, ONE_TOOL | {"tool_choice": choice}, None) for choice in ("none", {"type": "none"})),
        *((CALLS_NOTHING, fields, None) for fields in NO_TOOLS),
        (FREE_ONLY, {"response_format": {"type": "json_object"}}, "response_format"),
        (FREE_ONLY, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format"),
        (FREE_ONLY, {"text": {"format": SCHEMA_FORMAT}}, "text.format"),
        (FREE_ONLY, {"output_config": {"format": SCHEMA_FORMAT}}, "output_config.format"),
        (FREE_ONLY, {"output_format": SCHEMA_FORMAT}, "output_format"),
        *((FREE_ONLY, {name: "root ::= [0-9]"}, name) for name in ("grammar", "guided_grammar")),
        *((FREE_ONLY, {name: {}}, name) for name in ("json_schema", "guided_json")),
        (FREE_ONLY, {"guided_regex": "a+"}, "guided_regex"),
        (FREE_ONLY, {"guided_choice": ["a", "b"]}, "guided_choice"),
        (FREE_ONLY, {"guided_json_object": True}, "guided_json_object"),
        (FREE_ONLY, {"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
        *((FREE_ONLY, fields, None) for fields in NO_FORM_FIELDS),
        (CALLS_FREELY, ONE_TOOL, None),
        (CALLS_FREELY, {"tool_choice": "required"}, None),
        *((CALLS_FREELY, ONE_TOOL | {"tool_choice": choice}, None) for choice in FREE_CHOICES),
        *((CALLS_FREELY, ONE_TOOL | {"tool_choice": choice}, "tool_choice") for choice in FORCED_CHOICES),
        (CALLS_FREELY, FUNCTIONS | {"function_call": {"name": "f"}}, "function_call"),
        (CALLS_FREELY, FUNCTIONS | {"function_call": "auto"}, None),
    ],
)
def test_tools_and_forms_that_a_model_lacks(lacks: Capabilities, fields: dict[str, Any], param: str | None) -> None:
    code = "structured_output_unsupported" if lacks is FREE_ONLY else "tools_unsupported"
    for request in (fields | asks("Hi"), fields | {"input": "Hi"}, fields | {"prompt": "Hi"}):
        assert refused(request, lacks) == (None if param is None else (code, param))
    assert refused(fields | asks("Hi"), TEXT) is None


SOURCE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
PICTURE = {"type": "image", "source": SOURCE}


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (PICTURE, ""),
        ({"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}, ""),
        ({"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}, ""),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}, None),
        ({"type": "document", "source": {"type": "content", "content": [SAYS, PICTURE]}}, ".source.content[1]"),
        ({"type": "document", "source": {"type": "content", "content": "x"}}, None),
        ({"type": "document"}, None),
        ({"type": "tool_result", "tool_use_id": "t", "content": [SAYS, PICTURE]}, ".content[1]"),
        ({"type": "tool_result", "tool_use_id": "t", "content": "x"}, None),
        ({"type": "tool_result", "tool_use_id": "t", "content": [SAYS]}, None),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {"content": [PICTURE]}}, None),
    ],
)
def test_images_in_blocks_of_anthropics(block: dict[str, Any], param: str | None) -> None:
    request = asks([SAYS, block])
    expected = None if param is None else ("modality_unsupported", f"messages[0].content[1]{param}")
    assert refused(request, TEXT) == expected
    assert refused(request, SEES.model_copy(update={"media_urls": True})) is None


def refused_prompt(prompt: Prompt, capabilities: Capabilities) -> tuple[str, str | None] | None:
    try:
        check_prompt(prompt, capabilities, "m")
    except RoundhouseError as error:
        return error.entry.code, error.param
    return None


SAID = User((Text("Hi"),), place="input[0]")


MODES: tuple[Literal["enabled", "disabled"], ...] = ("enabled", "disabled")


SYSTEM, ANSWER = System("be nice", place="p"), Assistant("Hello", place="p")
AGAIN = User((Text("And?"),), place="input[2]")
F = (Tool("f"),)


@pytest.mark.parametrize(
    ("prompt", "capabilities", "expected"),
    [
        *((Prompt(turns=(SAID,), thinking=mode), TEXT, ("thinking_unsupported", "thinking")) for mode in MODES),
        (Prompt(turns=(SAID,), thinking="disabled"), THINKS, None),
        (Prompt(turns=(SAID,)), TEXT, None),
        (Prompt(turns=(SAID,), tools=F), CALLS_NOTHING, ("tools_unsupported", "tools")),
        (Prompt(turns=(SAID,), tools=F, tool_choice=ToolChoice("none")), CALLS_NOTHING, None),
        (Prompt(turns=(SAID,), tools=F, tool_choice=ToolChoice("auto")), CALLS_NOTHING, ("tools_unsupported", "tools")),
        (Prompt(turns=(SAID,), tools=F), TEXT, None),
        *(
            (
                Prompt(turns=(SAID,), tools=F, tool_choice=ToolChoice(kind, "f")),
                CALLS_FREELY,
                None if kind in ("auto", "none") else ("tools_unsupported", "tool_choice"),
            )
            for kind in get_args(get_type_hints(ToolChoice)["kind"])
        ),
        (
            Prompt(turns=(SAID,), output_format=OutputFormat(place="text.format")),
            FREE_ONLY,
            ("structured_output_unsupported", "text.format"),
        ),
        (Prompt(turns=(SAID,), output_format=OutputFormat()), TEXT, None),
    ],
)
def test_a_request_that_was_read(prompt: Prompt, capabilities: Capabilities, expected: tuple[str, str] | None) -> None:
    assert refused_prompt(prompt, capabilities) == expected


PLACED_IMAGE = Image("data:", place="input[1].content[1]")


@pytest.mark.parametrize(
    ("lacks", "takes", "turns_", "param"),
    [
        (TEXT, SEES, (SAID, User((Text("x"), PLACED_IMAGE), place="input[1]")), "input[1].content[1]"),
        (TEXT, SEES, (SAID, User((Image("data:"),), place="input[1]")), "input[1]"),
        (TEXT, SEES, (SAID, ToolResult("c", (Image("data:"),), place="input[1]")), "input[1]"),
        (TEXT, SEES, (SAID, ToolResult("c", (Text("x"),), place="input[1]")), None),
        (SEES, HEARS, (User((Audio("AA==", "wav"),), place="messages[0]"),), "messages[0]"),
        *(
            (ONE_TURN, TEXT, each, None)
            for each in ((SAID,), (SYSTEM, SAID), (SAID, ANSWER), (ANSWER,), (SAID, SYSTEM))
        ),
        (ONE_TURN, TEXT, (SAID, AGAIN), "input[2]"),
        (ONE_TURN, TEXT, (ANSWER, AGAIN), "input[2]"),
        (ONE_TURN, TEXT, (SYSTEM, SAID, ANSWER, AGAIN), "input[2]"),
        (ONE_TURN, TEXT, (SAID, ToolResult("c", (Text("x"),), place="input[2]")), "input[2]"),
    ],
)
def test_media_and_turns_that_were_read_only_for_models_that_take_them(
    lacks: Capabilities, takes: Capabilities, turns_: tuple[Turn, ...], param: str | None
) -> None:
    code = "multi_turn_unsupported" if lacks is ONE_TURN else "modality_unsupported"
    assert refused_prompt(Prompt(turns=turns_), lacks) == (None if param is None else (code, param))
    assert refused_prompt(Prompt(turns=turns_), takes) is None


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        *(({}, 1), ({"n": 1}, 1), ({"n": 3}, 3), ({"n": 9}, 4), ({"n_cmpl": 2, "n": 3}, 2)),
        *(({"n_cmpl": 1, "n": 3}, 1), ({"n_cmpl": None, "n": 3}, 3), ({"n_cmpl": True, "n": 3}, 1)),
        *(({"n": None}, 1), ({"n": True}, 1), ({"n": "3"}, 1), ({"n": -1}, 1), ({"prompt": "one"}, 1)),
        *(({"prompt": ["one"], "n": 2}, 2), ({"prompt": ["one", "two"]}, 2)),
        *(({"prompt": [[1, 2], [3]], "n": 2}, 4), ({"prompt": [1, 2, 3, 4, 5]}, 1)),
        *(({"prompt": ["one", 2, "three"]}, 1), ({"prompt": ["one", [2, 3], [4, "five"]]}, 3)),
        ({"prompt": {"prompt_string": "one"}}, 1),
        ({"prompt": [{"prompt_string": "one"}, {"prompt_string": "two"}]}, 2),
        ({"prompt": [], "n": 2}, 2),
    ],
)
def test_each_answer_to_each_prompt_takes_a_slot(fields: dict[str, Any], slots: int) -> None:
    assert count_slots(fields, route("m", target_inflight=4)) == slots
    assert count_slots(fields, route("m", target_inflight=4, choices_take_slots=False)) == 1


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_more_answers_than_the_engine_makes_are_refused(name: str) -> None:
    model = route("m", max_choices=4)
    check_choices({name: 4}, model)
    check_choices({name: 5}, route("m"))
    error = error_of(lambda: check_choices({name: 5}, model))
    assert (error.entry.code, error.param) == ("invalid_request", name)
    assert "at most 4" in error.message
    assert "it is 5" in error.message


TAKES_MEDIA = Capabilities(modalities=("text", "image", "audio"))
URL_AS_TEXT = {"type": "text", "text": "http://127.0.0.1/is only text"}
DATA = (
    "data:image/png;base64,iVBORw0KGgo=",
    "DATA:image/png,%00",
    "iVBORw0KGgo=",
    "_-8=",
    "aGkA" * 16 + "\r\naGk=",
    "/9j/4AAQSkZJRg==",
    "",
)
ADDRESSES = (
    "http://127.0.0.1:8080/x.png",
    "https://x/y.png",
    "HTTP://x",
    "httpx",
    "file:///etc/passwd",
    "ftp://x",
    " http://x",
    "\n" * 70 + "http://x",
    "h" + "\n" * 70 + "ttp://x",
    "\x01http://x",
    "\\u0068ttp",
    "s3://bucket/x",
    "//x/y.png?",
    "x.png",
)


def refused_place(check: Callable[[], None]) -> str | None:
    """The `param` of the refusal, after its code where that is another; None: nothing is refused."""
    try:
        check()
    except RoundhouseError as error:
        return f"{error.entry.code} {error.param}".removeprefix("invalid_request ")
    return None


def found(*parts: Any, capabilities: Capabilities = TAKES_MEDIA) -> str | None:
    """The same of a user's message with these parts, passed through."""
    fields = {"messages": [{"role": "user", "content": [URL_AS_TEXT, *parts]}]}
    return refused_place(lambda: check_capabilities(fields, capabilities, "m"))


@pytest.mark.parametrize("value", DATA)
def test_data_passes_in_every_form(value: str) -> None:
    assert [found(part) for part in parts_with(value)] == [None] * len(parts_with(value))


@pytest.mark.parametrize("value", ADDRESSES)
def test_an_address_is_refused_in_every_form(value: str) -> None:
    places = [found(part) for part in parts_with(value)]
    assert places == ["messages[0].content[1]"] * (len(places) - 2) + [
        "messages[0].content[1].content[1]",
        "messages[0].content[1].source.content[0]",
    ]
    declared = TAKES_MEDIA.model_copy(update={"media_urls": True})
    assert {found(part, capabilities=declared) for part in parts_with(value)} == {None}


def parts_with(value: str) -> list[Any]:
    image = {"type": "image_url", "image_url": {"url": value}}
    return [
        image,
        {"type": "image_url", "image_url": value},
        {"image_url": {"url": value}},
        {"type": "input_image", "image_url": value},
        {"type": "image", "source": {"type": "url", "url": value}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": value}},
        {"type": "input_audio", "input_audio": {"data": value, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"url": value}},
        {"type": "audio_url", "audio_url": {"url": value}},
        {"type": "input_video", "input_video": {"data": value}},
        {"type": "video_url", "video_url": {"url": value}},
        {"type": "tool_result", "tool_use_id": "t", "content": [URL_AS_TEXT, image]},
        {"type": "document", "source": {"type": "content", "content": [image]}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_use", "id": "t", "name": "open", "input": {"url": "http://x"}, "source": "http://x"},
        {"type": "search_result", "source": "https://x/page", "title": "x", "content": [URL_AS_TEXT]},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "http://x is down"}},
        {"type": "tool_result", "tool_use_id": "t", "content": "http://x"},
        {"type": "image_url", "image_url": 7},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": None}},
        "http://x",
        None,
    ],
    ids=str,
)
def test_what_is_no_medium_passes(part: Any) -> None:
    assert found(part) is None


def test_a_model_that_takes_text_alone_is_left_to_its_engine() -> None:
    part = {"type": "video_url", "video_url": {"url": "http://x"}}
    assert found(part, capabilities=Capabilities()) is None
    assert found(part, capabilities=Capabilities(modalities=("image",))) == "messages[0].content[1]"


@pytest.mark.parametrize("value", ADDRESSES)
@pytest.mark.parametrize("medium", [Image, lambda value, place: Audio(value, "wav", place)], ids=["image", "audio"])
def test_a_translated_request_is_held_to_the_same(medium: Any, value: str) -> None:
    def place_of(turn: User | ToolResult, capabilities: Capabilities = TAKES_MEDIA) -> str | None:
        return refused_place(lambda: check_prompt(Prompt(turns=(turn,)), capabilities, "m"))

    def parts(value: str, place: str) -> tuple[Part, ...]:
        part: Part = Image(value, place=place) if medium is Image else medium(value, place)
        return Text("http://x"), part

    assert place_of(User(parts(value, "input[0].content[1]"))) == "input[0].content[1]"
    assert place_of(User(parts(value, ""), place="input[0]")) == "input[0]"
    assert place_of(ToolResult("t", parts(value, "input[3].output[1]"))) == "input[3].output[1]"
    assert place_of(User(parts(value, "")), TAKES_MEDIA.model_copy(update={"media_urls": True})) is None
    assert {place_of(User(parts(each, ""))) for each in DATA} == {None}


@pytest.mark.parametrize("at", [0, 4090, *range(4094, 4098), BLOCK_BYTES - 1])
@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("data:image/png;base64," + "iVBORw0KGgo" * 40_000, None),
        ("iVBORw0KGgo" * 40_000, None),
        ("http://x/" + "b" * 400_000, "messages[0].content[1]"),
        ("http:\\u002f\\u002fx/" + "b" * 400_000, "messages[0].content[1]"),
        ("\\u0068ttp://x/" + "b" * 400_000, "messages[0].content[1]"),
        ("h\\u0074tp://x/" + "b" * 400_000, "messages[0].content[1]"),
        ("      http://x/" + "b" * 400_000, "messages[0].content[1]"),
    ],
    ids=["data", "base64", "address", "escapes", "first escaped", "second escaped", "spaces"],
)
def test_a_large_body_s_outline_tells_the_same(value: str, place: str | None, at: int) -> None:
    head = '{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"image_url": {"url": "'
    tail = '"}}]}]}'
    body = LargeBody()
    body.add_part((" " * max(0, at - len(head)) + head + value + tail).encode())
    body.finish()
    assert len(body.outline) < 20_000 + at
    assert refused_place(lambda: check_capabilities(json.loads(body.outline), TAKES_MEDIA, "m")) == place


SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}
YES = 'root ::= "yes"'
LLAMA = ("llama_server", "llama_cpp")
VLLM = ("vllm_serve", "vllm")
NO_FORM: tuple[dict[str, Any], ...] = (
    {},
    {"messages": [], "temperature": 0},
    {"grammar": "", "guided_json": None, "guided_json_object": False, "structured_outputs": None},
)
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def adapted(backend: str, *, is_chat: bool = True, **fields: Any) -> dict[str, Any]:
    made = route("m").model_copy(update={"backend": backend})
    return adapt_constraints(fields, made, is_chat=is_chat)


def refused_form(backend: str, *, is_chat: bool = True, **fields: Any) -> tuple[str, str | None]:
    return refusal(lambda: adapted(backend, is_chat=is_chat, **fields))


@pytest.mark.parametrize("backend", [*LLAMA, *VLLM, "openai_remote", "stub"])
@pytest.mark.parametrize("fields", NO_FORM)
def test_what_asks_for_nothing_is_left_as_it_is(backend: str, fields: dict[str, Any]) -> None:
    made = route("m").model_copy(update={"backend": backend})
    assert adapt_constraints(fields, made, is_chat=True) is fields
    assert adapt_constraints(fields, made, is_chat=False) is fields


@pytest.mark.parametrize("backend", LLAMA)
@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grammar": YES}, {"grammar": YES}),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
        ({"guided_json": '{"const": "a"}'}, {"json_schema": {"const": "a"}}),
        ({"guided_json_object": True}, {"json_schema": {"type": "object"}}),
        ({"guided_grammar": YES}, {"grammar": YES}),
        ({"guided_choice": ["a", '"b\\\n']}, {"grammar": 'root ::= "a" | "\\"b\\\\\\n"'}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
    ],
)
def test_options_are_renamed_to_llama_cpps_words(
    backend: str, is_chat: bool, fields: dict[str, Any], words: dict[str, Any]
) -> None:
    assert adapted(backend, is_chat=is_chat, n=1, **fields) == {"n": 1, **words}


@pytest.mark.parametrize("backend", LLAMA)
def test_a_completions_response_format_is_a_schema_to_llama_cpp(backend: str) -> None:
    assert adapted(backend, is_chat=False, response_format=FORMAT) == {"json_schema": SCHEMA}
    assert adapted(backend, is_chat=False, response_format={"type": "json_object"}) == {
        "json_schema": {"type": "object"}
    }
    assert adapted(backend, is_chat=False, response_format={"type": "text"}) == {"response_format": {"type": "text"}}
    assert adapted(backend, is_chat=True, response_format=FORMAT) == {"response_format": FORMAT}
    assert refused_form(backend, is_chat=False, response_format={"type": "x"}) == ("invalid_request", "response_format")
    assert refused_form(backend, is_chat=False, response_format="x") == ("invalid_request", "response_format")


@pytest.mark.parametrize("backend", LLAMA)
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"guided_regex": "a+"}, "structured_output_unsupported", "guided_regex"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_output_unsupported", "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_output_unsupported", "structured_outputs"),
        ({"structured_outputs": {}}, "invalid_request", "structured_outputs"),
        ({"structured_outputs": []}, "invalid_request", "structured_outputs"),
        ({"guided_json": "{"}, "invalid_request", "guided_json"),
        ({"guided_json": [1]}, "invalid_request", "guided_json"),
        ({"guided_choice": []}, "invalid_request", "guided_choice"),
        ({"guided_choice": ["a", 1]}, "invalid_request", "guided_choice"),
        ({"guided_choice": "a"}, "invalid_request", "guided_choice"),
        ({"guided_grammar": 5}, "invalid_request", "guided_grammar"),
        ({"grammar": YES, "guided_json": SCHEMA}, "invalid_request", "guided_json"),
        ({"guided_json": SCHEMA, "response_format": FORMAT}, "invalid_request", "response_format"),
    ],
)
def test_what_llama_cpp_cannot_be_told(backend: str, fields: dict[str, Any], code: str, param: str) -> None:
    assert refused_form(backend, **fields) == (code, param)
    assert refused_form(backend, is_chat=False, **fields) == (code, param)


@pytest.mark.parametrize("backend", VLLM)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"grammar": YES}, {"grammar": YES}),
        ({"json_schema": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json_object": True}, {"json_object": True}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": YES, "guided_json": None}, {"grammar": YES}),
        (
            {"structured_outputs": {"regex": "a+", "whitespace_pattern": " "}},
            {"regex": "a+", "whitespace_pattern": " "},
        ),
    ],
)
def test_options_are_renamed_to_vllms_newer_words(backend: str, fields: dict[str, Any], words: dict[str, Any]) -> None:
    assert adapted(backend, n=1, **fields) == {"n": 1, "structured_outputs": words}
    assert adapted(backend, is_chat=False, response_format=FORMAT) == {"response_format": FORMAT}


def test_vllm_is_told_one_form_and_any_other_engine_what_the_client_said() -> None:
    for backend in VLLM:
        told = refused_form(backend, guided_json=SCHEMA, structured_outputs={"regex": "a"})
        assert told == ("invalid_request", "structured_outputs")
    fields: dict[str, Any] = dict.fromkeys(CONSTRAINT_FIELDS, "x")
    assert adapted("openai_remote", **fields) == fields
