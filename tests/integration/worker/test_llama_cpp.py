"""llama-cpp-python in a real worker: formats, TranslateGemma's prompt, cache, embeddings, calls, answers by a schema.

It is compiled on install and may be missing: see `require`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.support import installed_engines
from tests.support.scripted_models import (
    CALLER,
    CALLER_TEMPLATE,
    CALLS,
    CHAT,
    DAYS,
    FIRST_CALL,
    HIDDEN,
    PLAN,
    REST,
    SECOND_CALL,
    THOUGHT,
    USER,
    calls_in,
    choice,
    error,
    post,
    streamed,
)
from tests.support.worker_engines import Fleet
from tests.support.worker_process import Worker
from worker.clockwork import CHAT_TEMPLATE, SENTENCE
from worker.text.prompt_form import DETECT

pytestmark = pytest.mark.engines

Serve = Callable[..., Worker]

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


@pytest.fixture
def serve(fleet: Fleet) -> Serve:
    return lambda *args, **how: fleet.says("llama_cpp", *args, **how)


@pytest.fixture
def translator(serve: Serve) -> Worker:
    return serve(["Good day"], TRANSLATEGEMMA_TEMPLATE, "--prompt-format", "translategemma_template")


def test_a_prompt_format_needs_a_template(serve: Serve) -> None:
    with pytest.raises(AssertionError, match="--prompt-format qwen3_template: the file has no chat template") as raised:
        serve(["Hi"], "", "--prompt-format", "qwen3_template")
    verdict = ENGINES["llama_cpp"].explain_exit(1, str(raised.value))
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == ("no chat template in the file", True)


def test_a_build_without_cuda_refuses_gpus_and_the_refusal_is_understood(serve: Serve) -> None:
    with pytest.raises(
        AssertionError, match=r"it was built without CUDA: llama\.cpp sees no GPU, and was given 2"
    ) as raised:
        serve(["Hi"], CHAT_TEMPLATE, "--gpu-count", "2")
    verdict = ENGINES["llama_cpp"].explain_exit(1, str(raised.value))
    assert verdict is not None
    assert verdict.message.startswith("this llama-cpp-python was built without CUDA")
    assert verdict.permanent


def test_the_generic_format_takes_the_library_s_own_where_the_file_has_no_template(serve: Serve) -> None:
    worker = serve(["Hi"], "", "--prompt-format", "generic", after=b"]")
    assert post(worker, "/apply-template")["prompt"].endswith("[/INST]")
    assert choice(worker)["message"]["content"] == "Hi"


def test_a_chat_format_of_the_library_s_own_ends_answers_by_its_own_words(serve: Serve) -> None:
    worker = serve(["Hi", "<|im_", "end|>", " more"], CHAT_TEMPLATE, "--chat-format", "chatml", after=b"\n")
    prompt = post(worker, "/apply-template")["prompt"]
    assert prompt.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    ended = choice(worker)
    assert (ended["message"]["content"], ended["finish_reason"], "stop_reason" in ended) == ("Hi", "stop", False)
    answer = post(worker)
    assert post(worker, f"{CHAT}/input_tokens")["input_tokens"] == answer["usage"]["prompt_tokens"]
    tool = {"type": "function", "function": {"name": "plan"}}
    assert error(worker, tools=[tool]) == (400, "tools_unsupported", "tools")


def test_the_library_takes_shares_of_as_many_gpus_as_are_ever_told(serve: Serve) -> None:
    shares = ",".join(["12000"] * 15)
    worker = serve(["Hi"], CHAT_TEMPLATE, "--chat-format", "chatml", "--tensor-split", shares, after=b"\n")
    assert choice(worker)["message"]["content"] == "Hi"


def test_translategemma_gets_its_structure(translator: Worker) -> None:
    sent: dict[str, Any] = {"messages": [{"role": "user", "content": "Guten Tag"}], "target_lang_code": "en"}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"source_lang_code": "de_AT"}, "German (de-AT)", "Guten Tag"),
        ({}, "Spanish (es)", f"{DETECT}Guten Tag"),
        ({"source_lang_code": "mixed"}, "Spanish (es)", f"{DETECT}Guten Tag"),
    ]
    for fields, source, text in cases:
        prompt = post(translator, "/apply-template", **sent, **fields)["prompt"]
        assert prompt == f"<|endoftext|><|user|>{source} to English (en):\n\n\n{text}<|end|><|assistant|>"
        answer = post(translator, **sent, **fields)
        assert answer["choices"][0]["message"]["content"] == "Good day"
        counted = post(translator, f"{CHAT}/input_tokens", **sent, **fields)
        assert counted == {"input_tokens": answer["usage"]["prompt_tokens"], "object": "response.input_tokens"}


def test_what_translategemma_cannot_translate(translator: Worker, serve: Serve) -> None:
    assert error(translator) == (400, "invalid_request", "target_lang_code")
    assert error(translator, target_lang_code="xx") == (400, "invalid_request", "messages")
    assert error(translator, messages=[*USER, *USER], target_lang_code="en")[1] == "multi_turn_unsupported"
    # Without the structure the template refuses: it is what the format is for.
    unstructured = serve(["Good day"], TRANSLATEGEMMA_TEMPLATE)
    assert error(unstructured, source_lang_code="de", target_lang_code="en") == (400, "invalid_request", "messages")


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
    installed_engines.needed("embedded")
    worker = serve(["The quick brown fox"], begins=True)
    model = worker.process.cmdline()[worker.process.cmdline().index("--model") + 1]
    with installed_engines.started("embedded", tmp_path, "m", Path(model), token="secret") as server:
        server.ready()
        sent = [
            *(("/tokenize", body) for body in TEXTS),
            ("/detokenize", {"tokens": [*range(300)]}),
            ("/detokenize", {"tokens": []}),
            *(("/apply-template", body) for body in CONVERSATIONS),
        ]
        for path, body in sent:
            ours, theirs = (json.loads(each.request("POST", path, body)[1]) for each in (worker, server))
            assert ours == theirs, (path, body)
        for body in CONVERSATIONS:
            ours, theirs = (
                json.loads(each.request("POST", f"{CHAT}/input_tokens", body)[1]) for each in (worker, server)
            )
            # The template alone says whether a conversation begins with the model's first token; llama-server adds one.
            assert ours == {**theirs, "input_tokens": theirs["input_tokens"] - 1}


def test_an_embedding_model_knows_its_tokens_and_no_conversations(serve: Serve) -> None:
    worker = serve((), CHAT_TEMPLATE, "--embedding")
    tokens = post(worker, "/tokenize", content="hello")["tokens"]
    assert post(worker, "/detokenize", tokens=tokens) == {"content": "hello"}
    for path in ("/apply-template", f"{CHAT}/input_tokens", CHAT):
        status, body = worker.request("POST", path, {"messages": USER})
        assert (status, json.loads(body)["error"]["code"]) == (501, "not_supported")
    status, body = worker.request("POST", "/v1/embeddings", {"input": "a", "dimensions": 8})
    assert (status, json.loads(body)["error"]["code"]) == (400, "dimensions_unsupported")
    answer = worker.openai().embeddings.create(model="demo", input=["a", "bc", "a"])
    one, other, again = (item.embedding for item in answer.data)
    assert one == pytest.approx(again)
    assert one != pytest.approx(other)
    assert sum(number**2 for number in one) == pytest.approx(1)
    assert answer.usage.prompt_tokens == 4
    by_tokens = worker.openai().embeddings.create(model="demo", input=post(worker, "/tokenize", content="bc")["tokens"])
    assert by_tokens.data[0].embedding == pytest.approx(other)
    status, body = worker.request("POST", "/v1/embeddings", {"input": [10**6]})
    assert (status, json.loads(body)["error"]["param"]) == (400, "input")
    status, body = worker.request("POST", "/v1/embeddings", {"input": "x" * 3000})
    assert (status, json.loads(body)["error"]["param"]) == (400, "input")


def test_a_quantised_cache_turns_flash_attention_on_and_a_context_is_a_multiple_of_256(serve: Serve) -> None:
    worker = serve((), CHAT_TEMPLATE, "--type-k", "q8_0", "--type-v", "q8_0", "--n-ctx", "64")
    assert choice(worker)["message"]["content"] == SENTENCE
    assert json.loads(worker.request("GET", "/v1/models")[1])["data"][0]["meta"] == {
        "slots": 1, "n_ctx": 256, "cache_type_k": "q8_0", "cache_type_v": "q8_0"
    }  # fmt: skip


def test_its_log_says_how_far_a_load_is(translator: Worker) -> None:
    log = translator.log
    dots = next(line for line in log.splitlines() if line and not line.strip("."))
    begun = log[: log.index(f"\n{dots}") + 3]
    assert (ENGINES["llama_cpp"].parse_progress(begun), ENGINES["llama_cpp"].parse_progress(log)) == (0.02, 1.0)


NAMED = {"type": "function", "function": {"name": "plan"}}


@pytest.fixture
def caller(serve: Serve) -> Worker:
    """It thinks, speaks and calls."""
    return serve(CALLER, CALLER_TEMPLATE, hidden=HIDDEN)


@pytest.fixture
def plain(serve: Serve) -> Worker:
    return serve(["Hi"])


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
    assert call in (*CALLS, ("rest", {}))


def test_a_template_that_knows_no_tools(plain: Worker) -> None:
    unknown = {"type": "function", "function": {"name": "no"}}
    assert error(plain, tools=[], tool_choice=unknown)[0] == 400
    (call,) = calls_in(choice(plain, tools=[PLAN], tool_choice="required", max_tokens=200)["message"])
    assert call in CALLS


SCHEMA = {
    "type": "object",
    "properties": {
        "day": {"enum": ["mon", "tue"]},
        "hours": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "note": {"type": "string", "minLength": 4, "maxLength": 4},
        "sign": {"type": "string", "pattern": "^..$"},
    },
    "required": ["day", "hours", "note", "sign"],
    "additionalProperties": False,
}


def fits(text: str) -> bool:
    value = json.loads(text)
    whole = all(isinstance(hour, int) for hour in value["hours"]) and len(value["hours"]) <= 2
    lengths = len(value.pop("note")), len(value.pop("sign"))
    return {*value} == {"day", "hours"} and value["day"] in ("mon", "tue") and whole and lengths == (4, 2)


def test_an_answer_follows_its_schema(plain: Worker, caller: Worker) -> None:
    strict = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        sent = {"response_format": strict, "max_tokens": 400, "seed": seed}
        assert fits(choice(plain, **sent)["message"]["content"])
        for fields in ({}, {"chat_template_kwargs": {"begun": True}}):
            message = choice(caller, **sent, **fields)["message"]
            assert message["reasoning"] == THOUGHT, "the grammar begins behind the thought"
            assert fits(message["content"])
        message = choice(caller, **sent, thinking="disabled")["message"]
        assert "reasoning" not in message
        assert fits(message["content"])


def test_strings_of_a_schema_are_json(plain: Worker) -> None:
    line_end, quote = (post(plain, "/tokenize", content=each)["tokens"][0] for each in ("\n", '"'))
    sent = {"type": "json_object", "schema": SCHEMA}
    for token in (line_end, quote):  # the model would write nothing else
        ended = choice(plain, response_format=sent, max_tokens=400, seed=1, logit_bias={str(token): 30})
        assert fits(ended["message"]["content"])


TREE = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"string": {"anyOf": [{"$ref": "#/$defs/Node"}, {"enum": ["end"]}]}},
            "required": ["string"],
        }
    },
    "$ref": "#/$defs/Node",
}


def is_tree(value: Any) -> bool:
    return value == "end" or ({*value} == {"string"} and is_tree(value["string"]))


def test_a_schema_that_refers_to_itself(plain: Worker) -> None:
    sent = {"type": "json_schema", "json_schema": {"name": "n", "schema": TREE}}
    for seed in range(3):
        assert is_tree(json.loads(choice(plain, response_format=sent, max_tokens=900, seed=seed)["message"]["content"]))
    days = {"$defs": {"Node": DAYS}, "$ref": "#/$defs/Node"}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": of}} for name, of in (("a", TREE), ("b", days))
    ]
    names = set()
    for seed in range(6):
        ended = choice(plain, tools=tools, tool_choice="required", max_tokens=900, seed=seed)
        ((name, arguments),) = calls_in(ended["message"])
        names.add(name)
        assert is_tree(arguments) if name == "a" else arguments["day"] in ("mon", "tue")
    assert names == {"a", "b"}
    endless = {"type": "json_object", "schema": {"$ref": "#"}}
    assert error(plain, response_format=endless) == (400, "invalid_request", "response_format.schema")


THINKS = "{# <think></think> #}" + CALLER_TEMPLATE


@pytest.mark.parametrize("thought", [[], ["<think>", "hm", "</think>"]])
def test_beside_tools_an_answer_follows_its_schema_or_is_a_call(serve: Serve, thought: list[str]) -> None:
    sent = {"tools": [PLAN], "response_format": {"type": "json_object", "schema": DAYS}, "max_tokens": 100}
    hidden = ["<tool_call>", "</tool_call>", *thought[::2]]
    calling = serve([*thought, "<tool_call>", FIRST_CALL, "</tool_call>", SECOND_CALL], THINKS, hidden=hidden)
    ended = choice(calling, **sent)
    assert (calls_in(ended["message"]), ended["finish_reason"]) == (CALLS, "tool_calls")
    saying = serve([*thought, "Well. ", '{"day"', ': "mon', '"}'], THINKS, hidden=thought[::2])
    ended = choice(saying, **sent, logit_bias={str(post(saying, "/tokenize", content='{"day"')["tokens"][0]): 30})
    assert (ended["message"]["content"], ended["finish_reason"]) == ('{"day": "mon"}', "stop")
    assert ended["message"].get("reasoning") == ("hm" if thought else None)


def test_what_utf_8_cannot_hold(serve: Serve) -> None:
    half = '{"name": "plan", "arguments": {"day": "\\ud83d"}}'
    worker = serve(["<tool_call>", half, "</tool_call>"], CALLER_TEMPLATE)
    assert calls_in(choice(worker, tools=[PLAN])["message"]) == [("plan", {"day": "?"})]
    (delta,) = [each for chunk in streamed(worker, tools=[PLAN]) for each in chunk["delta"].get("tool_calls", ())]
    assert calls_in({"tool_calls": [delta]}) == [("plan", {"day": "?"})]
    call = {"id": "i", "type": "function", "function": json.loads(half)}
    call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    conversation = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt = post(worker, "/apply-template", messages=conversation)["prompt"]
    assert prompt.endswith("<tool_call>?</tool_call><|end|><|assistant|>")
    assert choice(worker, messages=conversation)["finish_reason"] == "stop"


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
    sent = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    status, code, param = error(plain, response_format=sent)
    assert (status, code, param) == (400, "invalid_request", "response_format.json_schema.schema")
    bad = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert error(plain, tools=[bad], tool_choice="required") == (400, "invalid_request", "tools")
    assert choice(plain)["message"]["content"] == "Hi", "the worker lives"
