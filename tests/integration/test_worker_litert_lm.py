"""LiteRT-LM in a real worker, on the models that .ci/litertlm writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support.litertlm_files import litertlm
from tests.support.litertlm_model import CALLED, DONE_SAID, SPOKEN, THOUGHT
from tests.support.worker_process import Worker, eventually, free_port, leave
from worker.clockwork import COMPLETION_TOKENS, CONTEXT, SENTENCE

Start = Callable[..., Worker]
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
WILD: dict[str, Any] = {"temperature": 1000, "top_k": 0, "top_p": 1, "max_tokens": 12}
SLOW: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x" * 3900}],
    "temperature": 1000,
    "top_k": 0,
    "top_p": 1,
}
"""A prompt that takes a while to read, and then an answer at random, whose end is one token of 320."""


def started(log: Path, model: Path, *flags: str, token: str | None = None) -> Worker:
    port = free_port()
    args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", "--model", str(model))
    cache = ("--cache-dir", str(log.parent / "cache"))
    env = {"ROUNDHOUSE_ENGINE_TOKEN": token} if token else {}
    return Worker(log, port, "litert_lm", *args, *cache, *flags, token=token, env=env)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One that serves the demo model, for the tests that leave it as it was."""
    log = tmp_path_factory.mktemp("worker") / "log"
    with started(log, litertlm("clockwork"), token="secret") as running:
        yield running.ready()


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One that thinks and calls."""
    with started(tmp_path_factory.mktemp("caller") / "log", litertlm("caller")) as running:
        yield running.ready()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def begun(*flags: str, model: Path | None = None) -> Worker:
        workers.append(started(tmp_path / f"{len(workers)}.log", model or litertlm("clockwork"), *flags))
        return workers[-1]

    yield begun
    for each in workers:
        each.__exit__()


def asked(worker: Worker, messages: list[Any] = HELLO, **fields: Any) -> tuple[int, Any]:
    status, body = worker.ask("POST", "/v1/chat/completions", {"messages": messages, **fields})
    return status, json.loads(body)


def said(worker: Worker, messages: list[Any] = HELLO, **fields: Any) -> str:
    status, answer = asked(worker, messages, **fields)
    assert status == 200, answer
    text: str = answer["choices"][0]["message"]["content"]
    return text


def refused(worker: Worker, messages: list[Any] = HELLO, **fields: Any) -> tuple[str, str | None]:
    status, answer = asked(worker, messages, **fields)
    assert status == 400, answer
    return answer["error"]["code"], answer["error"]["param"]


def test_exact_text_and_counts_through_the_openai_sdk(worker: Worker) -> None:
    client = worker.openai()
    (model,) = client.models.list()
    assert model.id == "demo"
    assert model.model_extra == {"meta": {"n_ctx": CONTEXT}}
    before = worker.figure("tokens_predicted_total")
    chat = client.chat.completions.create(model="any", messages=HELLO)
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (SENTENCE, "stop")
    assert chat.usage is not None
    # As every other engine counts: <|user|>, <|end|> and <|assistant|>, and "hello" as its five bytes.
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (8, COMPLETION_TOKENS)
    events = [
        *client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    ]
    texts = [event.choices[0].delta.content for event in events if event.choices and event.choices[0].delta.content]
    assert "".join(texts) == SENTENCE
    assert len(texts) == COMPLETION_TOKENS - 1, "one event for each token"
    assert events[-1].usage == chat.usage
    assert worker.figure("tokens_predicted_total") - before == 2 * COMPLETION_TOKENS
    status, body = worker.ask("POST", "/v1/completions", {"prompt": "a"})
    assert (status, json.loads(body)["error"]["code"]) == (501, "not_supported")


@pytest.mark.parametrize(
    ("limit", "text", "reason"),
    [
        (1, "The", "length"),
        (3, "The quick brown", "length"),
        (COMPLETION_TOKENS - 1, SENTENCE, "length"),
        (COMPLETION_TOKENS, SENTENCE, "stop"),
    ],
)
def test_the_token_limit(worker: Worker, limit: int, text: str, reason: str) -> None:
    _, answer = asked(worker, max_tokens=limit)
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["usage"]["completion_tokens"] == limit


def test_a_stop_string_ends_the_answer_and_the_next_is_whole(worker: Worker) -> None:
    assert said(worker, stop=" fox") == "The quick brown"
    assert said(worker) == SENTENCE


def test_sampling_fields_reach_the_engine(worker: Worker) -> None:
    assert (
        said(worker, **WILD | {"top_k": 1})
        == said(worker, **WILD | {"temperature": 0})
        == SENTENCE.partition(" it ")[0]
    )
    assert said(worker, **WILD | {"top_p": 0.001}) == SENTENCE.partition(" it ")[0]
    assert said(worker, **WILD, seed=1) == said(worker, **WILD, seed=1) != said(worker, **WILD, seed=2)
    assert len({said(worker, **WILD) for _ in range(3)}) == 3, "without a seed every answer has its own"
    long = {**WILD, "max_tokens": 60, "seed": 1}
    assert said(worker, **long, presence_penalty=1e6) != said(worker, **long)


def test_the_context_bounds_prompt_and_answer(worker: Worker, start: Start) -> None:
    assert refused(worker, [{"role": "user", "content": "x" * 5000}]) == ("context_length_exceeded", "messages")
    _, answer = asked(worker, [{"role": "user", "content": "x" * (CONTEXT - 11)}])
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT
    small = start("--max-tokens", "64").ready()
    assert refused(small, [{"role": "user", "content": "x" * 64}])[0] == "context_length_exceeded"
    assert said(small) == SENTENCE


@pytest.mark.parametrize(
    ("messages", "fields", "error"),
    [
        (HELLO, {"min_p": 0.1}, ("invalid_request", "min_p")),
        (HELLO, {"logit_bias": {"1": 2}}, ("invalid_request", "logit_bias")),
        (HELLO, {"repeat_penalty": 0.5}, ("invalid_request", "repeat_penalty")),
        (HELLO, {"response_format": {"type": "json_object"}}, ("structured_output_unsupported", "response_format")),
        (HELLO, {"tools": [TOOL]}, ("tools_unsupported", "tools")),
        ([*HELLO, {"role": "assistant", "content": "a"}], {}, ("invalid_request", "messages[1].role")),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
            {},
            ("invalid_request", "messages[0].content[0].type"),
        ),
    ],
)
def test_what_it_refuses(worker: Worker, messages: list[Any], fields: Any, error: tuple[str, str]) -> None:
    assert refused(worker, messages, **fields) == error


def test_thoughts_and_calls_are_told_from_what_is_said(caller: Worker) -> None:
    name, arguments = CALLED
    for stream in (False, True):
        create: Any = caller.openai().chat.completions.create
        if stream:
            events = [*create(model="m", messages=HELLO, tools=[TOOL], stream=True)]
            deltas = [event.choices[0].delta for event in events]
            thought = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
            text = "".join(delta.content or "" for delta in deltas)
            [call] = [call for delta in deltas for call in delta.tool_calls or []]
            reason = events[-1].choices[0].finish_reason
        else:
            [choice] = create(model="m", messages=HELLO, tools=[TOOL]).choices
            thought, text = choice.message.model_extra["reasoning_content"], choice.message.content
            [call], reason = choice.message.tool_calls, choice.finish_reason
        assert (thought, text, reason) == (THOUGHT, SPOKEN, "tool_calls")
        assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments)
    answer = {"role": "assistant", "content": text, "tool_calls": [call.model_dump(exclude={"index"})]}
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 7}'}
    assert said(caller, [*HELLO, answer, result], tools=[TOOL]) == DONE_SAID
    assert refused(caller, tools=[TOOL], tool_choice="required") == ("tools_unsupported", "tool_choice")
    without = said(caller, tools=[TOOL], tool_choice="none")
    assert without.startswith(SPOKEN + "<tool_call>"), "no tools, no calls: it is text"


def test_a_client_that_leaves_frees_the_slot(worker: Worker) -> None:
    for stream in (True, False):
        connection = worker.open("POST", "/v1/chat/completions", {**SLOW, "stream": stream})
        eventually("it runs", lambda: worker.figure("requests_processing") == 1)
        leave(connection)
        eventually("nothing runs", lambda: worker.figure("requests_processing") == 0)
    assert said(worker) == SENTENCE


def test_one_at_a_time_and_others_wait(worker: Worker) -> None:
    bodies = [{"messages": [{"role": "user", "content": "x" * number}]} for number in (3900, 3901, 3902)]
    running = [worker.open("POST", "/v1/chat/completions", body) for body in bodies]
    eventually("two wait", lambda: worker.figure("requests_deferred") == 2)
    for connection in running:
        answer = json.loads(connection.getresponse().read())
        assert answer["choices"][0]["message"]["content"] == SENTENCE
        connection.close()


def _no_model(path: Path) -> None:
    path.write_bytes(b"GGUF and so on")


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(50_000)


@pytest.mark.parametrize(
    ("spoil", "flags", "line", "verdict"),
    [
        (_no_model, (), "PATH is not a .litertlm file: it begins with b'GGUF and'", "not a .litertlm file"),
        (_cut, (), "LiteRT-LM cannot load PATH", "the file is not complete"),
        (None, ("--vision-backend", "cpu"), "PATH takes no images", "the model takes no images"),
        (None, ("--max-tokens", "5000"), "--max-tokens 5000 is more than the 4096 that PATH", "bad argument"),
        (None, ("--backend", "gpu"), "LiteRT-LM cannot load PATH with its computing on the gpu", "it needs Vulkan"),
    ],
)
def test_a_model_that_cannot_be_served(
    start: Start, tmp_path: Path, spoil: Callable[[Path], None] | None, flags: tuple[str, ...], line: str, verdict: str
) -> None:
    path = tmp_path / "m.litertlm"
    shutil.copy(litertlm("clockwork"), path)
    if spoil:
        spoil(path)
    worker = start(*flags, model=path)
    assert worker.ended() == 1
    assert worker.last_line.startswith(line.replace("PATH", str(path)))
    found = ENGINES["litert_lm"].explain(1, worker.log)
    assert found is not None
    assert found.permanent
    assert verdict in found.message


def test_a_signal_ends_it_with_work_running(start: Start) -> None:
    worker = start().ready()
    connection = worker.open("POST", "/v1/chat/completions", {**SLOW, "stream": True})
    eventually("it runs", lambda: worker.figure("requests_processing") == 1)
    assert worker.stop() == 0
    connection.close()


async def test_through_the_gateway(worker: Worker) -> None:
    engine = ENGINES["litert_lm"]
    definition = engine.definition.model_validate({"model_path": "m.litertlm"})
    async with (
        gateway_harness() as here,
        openai.AsyncOpenAI(base_url=here.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        known: dict[str, Any] = {"apis": engine.apis(definition), "capabilities": engine.capabilities(definition)}
        await here.publish(route("demo", [f"http://127.0.0.1:{worker.port}"], token="secret", **known))
        turns = [*HELLO, {"role": "assistant", "content": SENTENCE}, {"role": "user", "content": "again"}]
        chat = await client.chat.completions.create(model="demo", messages=turns)
        assert chat.choices[0].message.content == SENTENCE
        response = await client.responses.create(model="demo", input=turns)
        assert response.output_text == SENTENCE
        text = await client.completions.create(model="demo", prompt="hello")
        assert text.choices[0].text == SENTENCE
