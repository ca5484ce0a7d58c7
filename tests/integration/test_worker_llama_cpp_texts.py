"""TranslateGemma's prompt, and what texts and conversations are to llama-cpp-python and to llama-server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.llama_servers import needed, started
from tests.support.scripted_models import (
    CHAT,
    USER,
    Serve,
    error,
    scripted_models,
    told,
)
from tests.support.worker_process import Worker, eventually, leave
from worker.clockwork import CHAT_TEMPLATE, make_vocabulary
from worker.translategemma import DETECT

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


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with scripted_models(tmp_path_factory.mktemp("scripted_models")) as serving:
        yield serving


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
    ends = [str(make_vocabulary().id_of(each)) for each in ("<|end|>", "<|endoftext|>")]
    endless = {"prompt": "<|assistant|>", "max_tokens": 4000, "logit_bias": dict.fromkeys(ends, -1000)}
    running = worker.open("POST", "/v1/completions", endless)
    eventually("it is worked on", lambda: worker.figure("tokens_predicted_total") > 0)
    assert told(worker, f"{CHAT}/input_tokens")["input_tokens"] == 8
    assert worker.figure("requests_processing") == 1
    leave(running)
