"""What clients get of engines whose models have a Hugging Face tokenizer: CTranslate2, and ExLlamaV3 on its fake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hf_workers import Serve, serving
from tests.support.scripted_models import (
    CHAT,
    SPOKEN,
    THINKER,
    THINKER_TEMPLATE,
    THOUGHT,
    USER,
    choice,
    error,
    joined,
    streamed,
    told,
)
from tests.support.worker_process import Worker, eventually, leave
from worker.clockwork import COMPLETION_TOKENS, SENTENCE, make_vocabulary

CALLER_TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"""
CALL = ["Well. ", "<tool_call>", '{"name": "plan", "arguments": {"day": "mon"}}', "</tool_call>"]
TOOLS = [{"type": "function", "function": {"name": "plan", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module", params=["ct2", "exllamav3"])
def serve(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with serving(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def plain(serve: Serve) -> Worker:
    return serve()


@pytest.fixture
def thinker(serve: Serve) -> Worker:
    return serve(THINKER, THINKER_TEMPLATE, "--prompt-format", "qwen3_template", hidden=["<think>", "</think>"])


def test_exact_text_and_counts_through_the_openai_sdk(plain: Worker) -> None:
    client = plain.openai()
    chat = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "hello"}])
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (SENTENCE, "stop")
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (8, COMPLETION_TOKENS)
    chunks = streamed(plain)
    assert joined(chunks, "content") == SENTENCE
    assert len(chunks) > COMPLETION_TOKENS, "token by token"
    assert client.completions.create(model="m", prompt="<|assistant|>").choices[0].text == SENTENCE
    cut = client.completions.create(model="m", prompt="<|assistant|>", max_tokens=3)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("The quick brown", "length")
    tokens = [make_vocabulary().id_of("<|assistant|>")]
    assert client.completions.create(model="m", prompt=tokens).choices[0].text == SENTENCE
    assert client.models.list().data[0].model_dump()["meta"]["n_ctx"] in (4095, 4096)


def test_a_stop_string_ends_the_answer_and_the_work(plain: Worker) -> None:
    before = plain.figure("tokens_predicted_total")
    answer = told(plain, "/v1/completions", prompt="<|assistant|>", stop=["never", "k brown f"])
    ended = answer["choices"][0]
    assert (ended["text"], ended["finish_reason"], ended["stop_reason"]) == ("The quic", "stop", "k brown f")
    assert answer["usage"]["completion_tokens"] == plain.figure("tokens_predicted_total") - before == 4


def test_thoughts_come_beside_the_text_and_no_character_is_cut(thinker: Worker) -> None:
    message = choice(thinker)["message"]
    assert message == {"role": "assistant", "content": SPOKEN, "reasoning_content": THOUGHT, "reasoning": THOUGHT}
    chunks = streamed(thinker)
    assert (joined(chunks, "reasoning"), joined(chunks, "content")) == (THOUGHT, SPOKEN)
    assert [each for each in chunks if "😀" in (each["delta"].get("content") or "")], "whole, of two tokens"
    cut = told(thinker, "/v1/completions", prompt="<|assistant|>", max_tokens=len(THINKER) - 1)
    assert cut["choices"][0]["text"].endswith(": \N{REPLACEMENT CHARACTER}"), "half of it, where the answer was cut"


def test_thinking_can_be_switched(thinker: Worker) -> None:
    ends = {"enabled": "<|assistant|>", "default": "<|assistant|>", "disabled": "<|assistant|><think></think>"}
    for thinking, end in ends.items():
        prompt = told(thinker, "/apply-template", thinking=thinking)["prompt"]
        assert prompt == f"<|user|>hello<|end|>{end}"
    assert choice(thinker, thinking="disabled")["message"] == {"role": "assistant", "content": f"\n\n{SPOKEN}"}


def test_calls_of_tools_are_read_where_the_template_tells_of_tools(serve: Serve, plain: Worker) -> None:
    worker = serve(CALL, CALLER_TEMPLATE, "--prompt-format", "qwen3_template", hidden=["<tool_call>", "</tool_call>"])
    called = choice(worker, tools=TOOLS)
    [call] = called["message"]["tool_calls"]
    assert (called["finish_reason"], called["message"]["content"]) == ("tool_calls", "Well.")
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("plan", {"day": "mon"})
    assert told(worker, "/apply-template", tools=TOOLS)["prompt"].startswith('{"type": "function"'), "not for HTML"
    assert error(worker, tools=TOOLS, tool_choice="required") == (400, "tools_unsupported", "tool_choice")
    assert error(plain, tools=TOOLS) == (400, "tools_unsupported", "tools")


def test_texts_are_tokens_and_back_and_conversations_are_counted(plain: Worker) -> None:
    vocabulary = make_vocabulary()
    text = "<|user|>The quick Grüße 😀<|end|>"
    tokens = told(plain, "/tokenize", content=text)["tokens"]
    assert (tokens[0], tokens[-1]) == (vocabulary.id_of("<|user|>"), vocabulary.id_of("<|end|>"))
    assert told(plain, "/detokenize", tokens=tokens) == {"content": text}
    as_text = told(plain, "/tokenize", content="<|user|>", parse_special=False)["tokens"]
    assert len(as_text) == len("<|user|>")
    usage = told(plain)["usage"]
    assert told(plain, f"{CHAT}/input_tokens")["input_tokens"] == usage["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}, "structured_output_unsupported", "response_format"),
        (CHAT, {"mirostat_mode": 2}, "invalid_request", "mirostat_mode"),
        (CHAT, {"typical_p": 0.5}, "invalid_request", "typical_p"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "invalid_request", "chat_template_kwargs.messages"),
        ("/v1/completions", {"prompt": ""}, "invalid_request", "prompt"),
        ("/v1/completions", {"prompt": [10**6]}, "invalid_request", "prompt"),
        ("/v1/completions", {"prompt": "x" * 5000}, "context_length_exceeded", None),
    ],
)
def test_what_cannot_be_served_is_refused(
    plain: Worker, path: str, fields: dict[str, Any], code: str, param: str | None
) -> None:
    asked = fields if "prompt" in fields else {"messages": USER, **fields}
    for stream in (False, True):
        status, body = plain.ask("POST", path, {**asked, "stream": stream})
        said = json.loads(body)["error"]
        assert (status, said["code"], said["param"]) == (400, code, param)


def test_sampling_fields_reach_the_engine(plain: Worker, serve: Serve) -> None:
    def said(**fields: Any) -> str:
        wild = {"prompt": "<|assistant|>", "max_tokens": COMPLETION_TOKENS, "temperature": 1000}
        return str(told(plain, "/v1/completions", **{**wild, **fields})["choices"][0]["text"])

    assert said(top_k=1) == said(top_p=0.001) == said(temperature=0) == SENTENCE
    assert len({said() for _ in range(3)}) == 3
    neutral = {"typical_p": 1, "mirostat_mode": 0, "presence_penalty": 0, "frequency_penalty": 0, "min_p": 0}
    assert said(temperature=0, seed=3, **neutral) == SENTENCE
    repeating = serve(["round ", "and "], endless=True)
    rounds = choice(repeating, max_tokens=4)["message"]["content"]
    assert rounds == "round and round and "
    bored = choice(repeating, max_tokens=4, temperature=1, repeat_penalty=1000.0)
    assert bored["message"]["content"] != rounds


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_generation(serve: Serve, stream: bool) -> None:
    worker = serve(["round ", "and "], endless=True)
    connection = worker.open("POST", CHAT, {"messages": USER, "stream": stream})
    before = worker.figure("tokens_predicted_total")
    eventually("tokens are made", lambda: worker.figure("tokens_predicted_total") > before + 5)
    leave(connection)
    eventually("the slot is free", lambda: worker.figure("requests_processing") == 0)
    made = worker.figure("tokens_predicted_total") - before
    assert made < 4000
    assert choice(worker, max_tokens=3)["message"]["content"] == "round and round "
    assert worker.figure("tokens_predicted_total") - before == made + 3


def test_a_folder_without_a_chat_template_completes_texts_alone(serve: Serve) -> None:
    worker = serve(["Hi"], None)
    assert told(worker, "/v1/completions", prompt="<|assistant|>")["choices"][0]["text"] == "Hi"
    status, body = worker.ask("POST", CHAT, {"messages": USER})
    assert (status, json.loads(body)["error"]["param"]) == (400, "messages")
    assert "send its prompt to /v1/completions" in body
