"""What real llama-cpp-python thinks and says, as clients get it, and where it stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.engines import ENGINES
from tests.support.scripted_models import (
    CHAT,
    SPOKEN,
    THINKER,
    THOUGHT,
    USER,
    Serve,
    choice,
    error,
    joined,
    scripted_models,
    streamed,
    thinking_worker,
    told,
)
from tests.support.worker_process import Worker
from worker.clockwork import CHAT_TEMPLATE


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with scripted_models(tmp_path_factory.mktemp("scripted_models")) as serving:
        yield serving


@pytest.fixture(scope="module")
def thinker(serve: Serve) -> Worker:
    return thinking_worker(serve)


@pytest.fixture(scope="module")
def plain(serve: Serve) -> Worker:
    return serve(["Hi"])


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


def test_a_prompt_format_needs_a_template(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="--prompt-format qwen3_template: the file has no chat template") as raised:
        serve(["Hi"], "", "--prompt-format", "qwen3_template")
    verdict = ENGINES["llama_cpp"].explain(1, str(raised.value))
    assert verdict is not None
    assert (verdict.message, verdict.permanent) == ("no chat template in the file", True)
    with pytest.raises(AssertionError, match="not allowed with argument --chat-format"):
        serve(["Hi"], CHAT_TEMPLATE, "--chat-format", "chatml", "--prompt-format", "generic")


def test_the_generic_format_takes_the_library_s_own_where_the_file_has_no_template(serve: Serve) -> None:
    worker = serve(["Hi"], "", "--prompt-format", "generic", after=b"]")
    assert told(worker, "/apply-template")["prompt"].endswith("[/INST]")
    assert choice(worker)["message"]["content"] == "Hi"


def test_a_chat_format_of_the_library_s_own_ends_answers_by_its_own_words(serve: Serve) -> None:
    worker = serve(["Hi", "<|im_", "end|>", " more"], CHAT_TEMPLATE, "--chat-format", "chatml", after=b"\n")
    prompt = told(worker, "/apply-template")["prompt"]
    assert prompt.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
    ended = choice(worker)
    assert (ended["message"]["content"], ended["finish_reason"], "stop_reason" in ended) == ("Hi", "stop", False)
    answer = told(worker)
    assert told(worker, f"{CHAT}/input_tokens")["input_tokens"] == answer["usage"]["prompt_tokens"]
    tool = {"type": "function", "function": {"name": "plan"}}
    assert error(worker, tools=[tool]) == (400, "tools_unsupported", "tools")


def test_prompts_that_hold_no_tokens_of_the_model(plain: Worker) -> None:
    for prompt, param in (([-1], "prompt"), ([10**6], "prompt"), ([], "prompt"), ("", "prompt")):
        status, body = plain.ask("POST", "/v1/completions", {"prompt": prompt})
        assert (status, json.loads(body)["error"]["param"]) == (400, param)
    status, body = plain.ask("POST", "/v1/completions", {"prompt": "a", "logit_bias": {"999999": 1}})
    assert (status, json.loads(body)["error"]["param"]) == (400, "logit_bias")
