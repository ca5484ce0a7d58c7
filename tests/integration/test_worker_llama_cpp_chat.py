"""What real llama-cpp-python says, as clients get it: thoughts, calls, JSON, stop strings, TranslateGemma."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.support.clockwork_speaker import Token, make_speaker
from tests.support.llama_servers import needed, started
from tests.support.require import require
from tests.support.worker_process import Worker, free_port
from worker.clockwork import CHAT_TEMPLATE
from worker.translategemma import DETECT

Serve = Callable[..., Worker]
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]

THINKER_TEMPLATE = """\
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|end|>{% endfor -%}
<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{%- if begun %}<think>{% endif %}"""
THINKER = [
    "<think>",
    "\nhm, </",
    "</thi",
    "well <",
    "</think>",
    "\n\n",
    "Grüße, und zwar an alle und jeden, die dies hier lesen oder hören wollen: ",
    b"\xf0\x9f",
    b"\x98\x80",
]
THOUGHT = "hm, </</thiwell <"
SPOKEN = "Grüße, und zwar an alle und jeden, die dies hier lesen oder hören wollen: 😀"

CALLER_TEMPLATE = """\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- for t in m.tool_calls or [] %}<tool_call>{{ t.function.arguments.day }}</tool_call>{% endfor %}<|end|>{% endfor -%}
<|assistant|>"""
FIRST = '\n{"name": "plan", "arguments": {"day": "mon"}}\n'
SECOND = '<tool_call>{"name": "plan", "arguments": {"day": "tue"}}</tool_call>'
CALLER = ["Well.", "\n", "<tool_call>", FIRST, "</tool_call>", SECOND]

# As strict as google/translategemma-4b-it's: one user message, one part, two known languages.
TRANSLATEGEMMA_TEMPLATE = """\
{%- set languages = {"de": "German", "de-AT": "German", "en": "English", "es": "Spanish"} -%}
{{ bos_token }}
{%- if messages[0]['role'] != 'user' %}{{ raise_exception("must start with a user prompt") }}{% endif -%}
{%- for message in messages -%}
    {%- set content = message['content'] -%}
    {%- if content is string or content | length != 1 %}{{ raise_exception("exactly one item") }}{% endif -%}
    {%- set source = content[0]['source_lang_code'] | replace("_", "-") -%}
    {%- set target = content[0]['target_lang_code'] | replace("_", "-") -%}
    {%- if content[0]['type'] != 'text' %}{{ raise_exception("type") }}{% endif -%}
    {{- '<|user|>' + languages[source] + ' (' + source + ') to ' + languages[target] + ' (' + target + '):\n\n\n' -}}
    {{- content[0]['text'] | trim + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}"""

DAYS = {"type": "object", "properties": {"day": {"enum": ["mon", "tue"]}}, "required": ["day"]}
PLAN = {"type": "function", "function": {"name": "plan", "parameters": DAYS}}
REST = {"type": "function", "function": {"name": "rest"}}
NAMED = {"type": "function", "function": {"name": "plan"}}


@pytest.fixture(scope="module", autouse=True)
def llama_cpp_is_there() -> None:
    available = importlib.util.find_spec("llama_cpp") is not None
    require("llama_cpp", available, "llama-cpp-python is not installed (extra `llama-cpp`)")


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A worker whose model says these tokens; the same one for the same arguments."""
    folder = tmp_path_factory.mktemp("speakers")
    workers: dict[object, Worker] = {}

    def serving(says: Sequence[Token], template: str = CHAT_TEMPLATE, *flags: str, **how: Any) -> Worker:
        key = (tuple(says), template, flags, repr(how))
        if key not in workers:
            path = folder / f"{len(workers)}.gguf"
            make_speaker(path, says, template, **how)
            port = free_port()
            args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", "--model", str(path))
            workers[key] = Worker(folder / f"{len(workers)}.log", port, "llama_cpp", *args, *flags)
        return workers[key].ready()

    yield serving
    for worker in workers.values():
        worker.__exit__()


@pytest.fixture(scope="module")
def thinker(serve: Serve) -> Worker:
    return serve(THINKER, THINKER_TEMPLATE, hidden=["<think>", "</think>"])


@pytest.fixture(scope="module")
def caller(serve: Serve) -> Worker:
    return serve(CALLER, CALLER_TEMPLATE, hidden=["<tool_call>", "</tool_call>"])


@pytest.fixture(scope="module")
def plain(serve: Serve) -> Worker:
    return serve(["Hi"])


def told(worker: Worker, path: str = CHAT, **fields: Any) -> Any:
    """The answer, whatever it is."""
    body = {"messages": USER, **fields} if path != "/v1/completions" else fields
    return json.loads(worker.ask("POST", path, body)[1])


def choice(worker: Worker, **fields: Any) -> Any:
    answer = told(worker, **fields)
    assert "choices" in answer, answer
    return answer["choices"][0]


def streamed(worker: Worker, **fields: Any) -> list[Any]:
    """The choices of a stream's chunks."""
    text = worker.ask("POST", CHAT, {"messages": USER, "stream": True, **fields})[1]
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event)["choices"][0] for event in events]


def joined(choices: list[Any], name: str) -> str:
    return "".join(each["delta"].get(name) or "" for each in choices)


def error(worker: Worker, **fields: Any) -> tuple[int, str, str | None]:
    status, body = worker.ask("POST", CHAT, {"messages": USER, **fields})
    said = json.loads(body)["error"]
    return status, said["code"], said["param"]


def test_thoughts_come_beside_the_text_under_both_names(thinker: Worker) -> None:
    message = choice(thinker)["message"]
    assert message == {"role": "assistant", "content": SPOKEN, "reasoning_content": THOUGHT, "reasoning": THOUGHT}
    chunks = streamed(thinker)
    assert (joined(chunks, "reasoning_content"), joined(chunks, "reasoning")) == (THOUGHT, THOUGHT)
    assert joined(chunks, "content") == SPOKEN
    assert len([each for each in chunks if each["delta"].get("reasoning")]) > 1, "as they are made"
    usage = told(thinker)["usage"]
    assert usage["completion_tokens"] == len(THINKER) + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": "disabled"},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"thinking": "disabled", "chat_template_kwargs": {"enable_thinking": True}},
    ],
)
def test_thinking_can_be_switched_off(thinker: Worker, fields: dict[str, Any]) -> None:
    assert choice(thinker, **fields)["message"] == {"role": "assistant", "content": f"\n\n{SPOKEN}"}
    assert told(thinker, "/apply-template", **fields)["prompt"].endswith("<|assistant|><think></think>")


@pytest.mark.parametrize("fields", [{}, {"thinking": "default"}, {"thinking": "enabled"}, {"reasoning_effort": "low"}])
def test_thinking_is_on_else(thinker: Worker, fields: dict[str, Any]) -> None:
    assert choice(thinker, **fields)["message"]["reasoning"] == THOUGHT


def test_a_thought_that_the_prompt_began(thinker: Worker) -> None:
    fields = {"chat_template_kwargs": {"begun": True}}
    assert told(thinker, "/apply-template", **fields)["prompt"].endswith("<|assistant|><think>")
    message = choice(thinker, **fields)["message"]
    assert (message["reasoning"], message["content"]) == (THOUGHT, SPOKEN)
    cut = choice(thinker, max_tokens=2, **fields)
    assert (cut["message"]["content"], cut["message"]["reasoning"], cut["finish_reason"]) == (
        "",
        "hm, </</thi",
        "length",
    )


@pytest.mark.parametrize("names", [["reasoning"], ["reasoning_content"], ["reasoning", "reasoning_content"]])
def test_earlier_thoughts_reach_the_template(thinker: Worker, names: list[str]) -> None:
    said = {"role": "assistant", "content": "Hi", **dict.fromkeys(names, "so")}
    prompt = told(thinker, "/apply-template", messages=[*USER, said, *USER])["prompt"]
    assert prompt == "<|user|>hello<|end|><|assistant|><think>so</think>Hi<|end|><|user|>hello<|end|><|assistant|>"


def test_a_variable_that_is_not_the_client_s(thinker: Worker) -> None:
    assert error(thinker, chat_template_kwargs={"messages": []}) == (
        400,
        "invalid_request",
        "chat_template_kwargs.messages",
    )


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_stop_string_ends_the_answer_and_the_work(plain: Worker, serve: Serve, path: str) -> None:
    worker = serve(["The quick", " brown fox ", "jumps"])
    before = worker.figure("tokens_predicted_total")
    asked: dict[str, Any] = {"prompt": "<|assistant|>"} if path != CHAT else {}
    answer = told(worker, path, **asked, stop=["never", "k brown f"])
    ended = answer["choices"][0]
    text = ended["message"]["content"] if path == CHAT else ended["text"]
    assert (text, ended["finish_reason"], ended["stop_reason"]) == ("The quic", "stop", "k brown f")
    assert answer["usage"]["completion_tokens"] == 2
    assert worker.figure("tokens_predicted_total") - before == 2
    assert "stop_reason" not in told(worker, path, **asked)["choices"][0]


def test_a_stop_string_in_a_stream(serve: Serve) -> None:
    worker = serve(["The quick", " brown fox ", "jumps"])
    chunks = streamed(worker, stop="k brown f")
    assert joined(chunks, "content") == "The quic"
    assert [(each["finish_reason"], each.get("stop_reason")) for each in chunks[-2:]] == [
        (None, None),
        ("stop", "k brown f"),
    ]


def test_a_stop_string_is_looked_for_in_what_is_said_not_in_what_is_thought(thinker: Worker) -> None:
    ended = choice(thinker, stop=["h"])
    assert (ended["message"]["content"], ended["message"]["reasoning"]) == (SPOKEN.split("h", maxsplit=1)[0], THOUGHT)


def calls_in(message: Any) -> list[tuple[str, Any]]:
    return [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]


BOTH = [("plan", {"day": "mon"}), ("plan", {"day": "tue"})]


@pytest.mark.parametrize(("fields", "calls"), [({}, BOTH), ({"parallel_tool_calls": False}, BOTH[:1])])
def test_the_model_s_own_calls(caller: Worker, fields: dict[str, Any], calls: list[Any]) -> None:
    ended = choice(caller, tools=[PLAN, REST], **fields)
    assert (ended["message"]["content"], ended["finish_reason"]) == ("Well.", "tool_calls")
    assert calls_in(ended["message"]) == calls
    assert len({each["id"] for each in ended["message"]["tool_calls"]}) == len(calls)
    chunks = streamed(caller, tools=[PLAN, REST], **fields)
    deltas = [each for chunk in chunks for each in chunk["delta"].get("tool_calls", ())]
    assert [each["index"] for each in deltas] == [*range(len(calls))]
    assert calls_in({"tool_calls": deltas}) == calls
    assert (joined(chunks, "content"), chunks[-1]["finish_reason"]) == ("Well.", "tool_calls")


def test_without_tools_there_are_no_calls(caller: Worker) -> None:
    for fields in ({}, {"tools": [PLAN], "tool_choice": "none"}):
        ended = choice(caller, **fields)
        assert "tool_calls" not in ended["message"]
        assert ended["finish_reason"] == "stop"
        assert FIRST in ended["message"]["content"]
        assert "plan" not in told(caller, "/apply-template", **fields)["prompt"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("tools", "chosen"), [([PLAN], "required"), ([PLAN, REST], NAMED)])
def test_a_call_that_must_be(caller: Worker, tools: list[Any], chosen: Any, stream: bool) -> None:
    fields = {"tools": tools, "tool_choice": chosen, "max_tokens": 200, "seed": 1}
    if stream:
        chunks = streamed(caller, **fields)
        parts = [each for chunk in chunks for each in chunk["delta"].get("tool_calls", ())]
        assert len(parts) > 2, "as it is made"
        assert [("id" in part, part["index"]) for part in parts] == [(number == 0, 0) for number in range(len(parts))]
        function = parts[0]["function"]["name"], "".join(part["function"]["arguments"] for part in parts)
        finish = chunks[-1]["finish_reason"]
    else:
        ended = choice(caller, **fields)
        assert not ended["message"]["content"]
        (call,) = ended["message"]["tool_calls"]
        function, finish = (call["function"]["name"], call["function"]["arguments"]), ended["finish_reason"]
    assert (function[0], finish) == ("plan", "tool_calls")
    assert json.loads(function[1])["day"] in ("mon", "tue")


def test_one_of_two_tools_must_be_called(caller: Worker) -> None:
    (call,) = calls_in(choice(caller, tools=[PLAN, REST], tool_choice="required", max_tokens=200)["message"])
    assert call in (*BOTH, ("rest", {}))


def test_earlier_calls_and_their_results_reach_the_template(caller: Worker) -> None:
    call = {"id": "i", "type": "function", "function": {"name": "plan", "arguments": '{"day": "mon"}'}}
    conversation = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "i", "content": [{"type": "text", "text": "done"}]},
    ]
    prompt = told(caller, "/apply-template", messages=conversation)["prompt"]
    assert prompt == (
        "<|user|>hello<|end|><|assistant|><tool_call>mon</tool_call><|end|><|tool|>done<|end|><|assistant|>"
    )


def test_a_template_that_knows_no_tools(plain: Worker) -> None:
    assert error(plain, tools=[PLAN]) == (400, "tools_unsupported", "tools")
    (call,) = calls_in(choice(plain, tools=[PLAN], tool_choice="required", max_tokens=200)["message"])
    assert call in BOTH


SCHEMA = {
    "type": "object",
    "properties": {
        "day": {"enum": ["mon", "tue"]},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["day", "hours"],
    "additionalProperties": False,
}


def fits(text: str) -> bool:
    value = json.loads(text)
    whole = all(isinstance(hour, int) for hour in value["hours"]) and len(value["hours"]) <= 2
    return {*value} == {"day", "hours"} and value["day"] in ("mon", "tue") and whole


def test_an_answer_follows_its_schema(plain: Worker, thinker: Worker) -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        asked = {"response_format": strict, "max_tokens": 400, "seed": seed}
        assert fits(choice(plain, **asked)["message"]["content"])
        for fields in ({}, {"chat_template_kwargs": {"begun": True}}):
            message = choice(thinker, **asked, **fields)["message"]
            assert message["reasoning"] == THOUGHT, "the grammar begins behind the thought"
            assert fits(message["content"])
        message = choice(thinker, **asked, thinking="disabled")["message"]
        assert "reasoning" not in message
        assert fits(message["content"])


def test_any_json_object(plain: Worker) -> None:
    ended = choice(plain, response_format={"type": "json_object"}, max_tokens=1000, seed=3)
    assert ended["message"]["content"].startswith("{")
    assert ended["finish_reason"] == "length" or isinstance(json.loads(ended["message"]["content"]), dict)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "https://example.org/schema"},
        {"type": "object", "properties": 5},
        {"type": "string", "pattern": "no anchors"},
        {"type": "string", "pattern": "^[z-a$"},
        {"type": "string", "pattern": r"^\d$"},
        {"enum": []},
        {"type": "array", "items": {"type": "string"}, "maxItems": 10**9},
    ],
)
def test_a_schema_that_cannot_be_followed(plain: Worker, schema: dict[str, Any]) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    status, code, param = error(plain, response_format=asked)
    assert (status, code, param) == (400, "invalid_request", "response_format.json_schema.schema")
    bad = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert error(plain, tools=[bad], tool_choice="required") == (400, "invalid_request", "tools")
    assert choice(plain)["message"]["content"] == "Hi", "the worker lives"


@pytest.fixture(scope="module")
def translator(serve: Serve) -> Worker:
    return serve(["Good day"], TRANSLATEGEMMA_TEMPLATE, "--prompt-format", "translategemma_template")


def test_translategemma_gets_its_structure(translator: Worker) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Guten Tag"}], "target_lang_code": "en"}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"source_lang_code": "de_AT"}, "German (de-AT)", "Guten Tag"),
        ({}, "Spanish (es)", f"{DETECT}Guten Tag"),
        ({"source_lang_code": "mixed"}, "Spanish (es)", f"{DETECT}Guten Tag"),
    ]
    for fields, source, text in cases:
        prompt = told(translator, "/apply-template", **asked, **fields)["prompt"]
        assert prompt == f"<|endoftext|><|user|>{source} to English (en):\n\n\n{text}<|end|><|assistant|>"
        answer = told(translator, **asked, **fields)
        assert answer["choices"][0]["message"]["content"] == "Good day"
        counted = told(translator, f"{CHAT}/input_tokens", **asked, **fields)
        assert counted == {"input_tokens": answer["usage"]["prompt_tokens"], "object": "response.input_tokens"}


def test_what_translategemma_cannot_translate(translator: Worker, serve: Serve) -> None:
    assert error(translator) == (400, "invalid_request", "target_lang_code")
    assert error(translator, target_lang_code="xx") == (400, "invalid_request", "messages")
    assert error(translator, messages=[*USER, *USER], target_lang_code="en")[1] == "multi_turn_unsupported"
    # Without the structure the template refuses: it is what the format is for.
    unstructured = serve(["Good day"], TRANSLATEGEMMA_TEMPLATE)
    assert error(unstructured, source_lang_code="de", target_lang_code="en") == (400, "invalid_request", "messages")


def test_a_prompt_format_needs_a_template(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="--prompt-format qwen3_template: the file has no chat template") as raised:
        serve(["Hi"], "", "--prompt-format", "qwen3_template")
    verdict = ENGINES["llama_cpp"].explain(1, str(raised.value))
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == ("no chat template in the file", True)
    with pytest.raises(AssertionError, match="not allowed with argument --chat-format"):
        serve(["Hi"], CHAT_TEMPLATE, "--chat-format", "chatml", "--prompt-format", "generic")


def test_a_chat_format_of_the_library_s_own_ends_answers_by_its_own_words(serve: Serve) -> None:
    worker = serve(["Hi", "<|im_", "end|>", " more"], CHAT_TEMPLATE, "--chat-format", "chatml", after=b"\n")
    prompt = told(worker, "/apply-template")["prompt"]
    assert prompt.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    ended = choice(worker)
    assert (ended["message"]["content"], ended["finish_reason"], "stop_reason" in ended) == ("Hi", "stop", False)
    answer = told(worker)
    assert told(worker, f"{CHAT}/input_tokens")["input_tokens"] == answer["usage"]["prompt_tokens"]
    assert error(worker, tools=[PLAN]) == (400, "tools_unsupported", "tools")


def test_prompts_that_hold_no_tokens_of_the_model(plain: Worker) -> None:
    for prompt, param in (([-1], "prompt"), ([10**6], "prompt"), ([], "prompt"), ("", "prompt")):
        status, body = plain.ask("POST", "/v1/completions", {"prompt": prompt})
        assert (status, json.loads(body)["error"]["param"]) == (400, param)
    status, body = plain.ask("POST", "/v1/completions", {"prompt": "a", "logit_bias": {"999999": 1}})
    assert (status, json.loads(body)["error"]["param"]) == (400, "logit_bias")


TEXTS: list[dict[str, Any]] = [
    *({"content": text} for text in ("", "hello", "The quick brown fox", "<|user|>hi<|end|>", "Grüße 😀")),
    {"content": "<|user|>hi", "parse_special": False},
    {"content": "quick", "add_special": True},
    {"content": ["quick", "quick"], "add_special": True},
    {"content": "quick 😀", "with_pieces": True},
    {"content": [5, "quick", "<|end|>", 7]},
]
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": USER},
    {"messages": [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "Hi"}, *USER]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
]


def test_texts_are_to_the_worker_what_they_are_to_llama_server(serve: Serve, tmp_path: Path) -> None:
    needed("embedded")
    worker = serve(["The quick brown fox"], begins=True)
    model = worker.process.cmdline()[worker.process.cmdline().index("--model") + 1]
    with started("embedded", tmp_path, "m", Path(model), token="secret") as server:
        server.ready()
        asked = [
            *(("/tokenize", body) for body in TEXTS),
            ("/detokenize", {"tokens": [*range(300)]}),
            ("/detokenize", {"tokens": []}),
            *(("/apply-template", body) for body in CONVERSATIONS),
        ]
        for path, body in asked:
            ours, theirs = (json.loads(each.ask("POST", path, body)[1]) for each in (worker, server))
            assert ours == theirs, (path, body)
        for body in CONVERSATIONS:
            ours, theirs = (json.loads(each.ask("POST", f"{CHAT}/input_tokens", body)[1]) for each in (worker, server))
            # The template alone says whether a conversation begins with the model's first token; llama-server adds one.
            assert ours == {**theirs, "input_tokens": theirs["input_tokens"] - 1}


def test_an_embedding_model_knows_its_tokens_and_no_conversations(serve: Serve) -> None:
    worker = serve(["Hi"], CHAT_TEMPLATE, "--embedding")
    assert told(worker, "/detokenize", tokens=told(worker, "/tokenize", content="hello")["tokens"]) == {
        "content": "hello"
    }
    for path in ("/apply-template", f"{CHAT}/input_tokens"):
        status, body = worker.ask("POST", path, {"messages": USER})
        assert (status, json.loads(body)["error"]["code"]) == (501, "not_supported")
    status, body = worker.ask("POST", "/v1/embeddings", {"input": "a", "dimensions": 8})
    assert (status, json.loads(body)["error"]["code"]) == (400, "dimensions_unsupported")


def test_counting_waits_for_no_slot(serve: Serve) -> None:
    worker = serve(["The quick brown fox"])
    endless = {"prompt": "<|assistant|>", "max_tokens": 4000, "logit_bias": {"307": -1000}}
    running = worker.open("POST", "/v1/completions", endless)
    try:
        for _ in range(50):
            assert told(worker, "/tokenize", content="a")["tokens"]
            if worker.figure("requests_processing"):
                break
        else:
            pytest.fail("nothing ran beside it")
    finally:
        running.close()
