"""llama-cpp-python in a real worker: its formats, TranslateGemma's prompt, its cache, its embeddings.

It is compiled on install and may be missing: see `require`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.support import llama_servers
from tests.support.scripted_models import CHAT, USER, choice, error, post
from tests.support.worker_engines import Fleet, fleet_in
from tests.support.worker_process import Worker
from worker.clockwork import CHAT_TEMPLATE, SENTENCE
from worker.text.translategemma import DETECT

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


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet")) as made:
        yield made


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
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Guten Tag"}], "target_lang_code": "en"}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"source_lang_code": "de_AT"}, "German (de-AT)", "Guten Tag"),
        ({}, "Spanish (es)", f"{DETECT}Guten Tag"),
        ({"source_lang_code": "mixed"}, "Spanish (es)", f"{DETECT}Guten Tag"),
    ]
    for fields, source, text in cases:
        prompt = post(translator, "/apply-template", **asked, **fields)["prompt"]
        assert prompt == f"<|endoftext|><|user|>{source} to English (en):\n\n\n{text}<|end|><|assistant|>"
        answer = post(translator, **asked, **fields)
        assert answer["choices"][0]["message"]["content"] == "Good day"
        counted = post(translator, f"{CHAT}/input_tokens", **asked, **fields)
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
    llama_servers.needed("embedded")
    worker = serve(["The quick brown fox"], begins=True)
    model = worker.process.cmdline()[worker.process.cmdline().index("--model") + 1]
    with llama_servers.started("embedded", tmp_path, "m", Path(model), token="secret") as server:
        server.ready()
        asked = [
            *(("/tokenize", body) for body in TEXTS),
            ("/detokenize", {"tokens": [*range(300)]}),
            ("/detokenize", {"tokens": []}),
            *(("/apply-template", body) for body in CONVERSATIONS),
        ]
        for path, body in asked:
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
