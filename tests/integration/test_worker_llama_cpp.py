"""llama-cpp-python in a real worker on the demo model. It is compiled on install and may be missing: see `require`."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionContentPartTextParam

from controller.engines import ENGINES
from tests.support.require import require
from tests.support.worker_process import Worker, eventually, free_port, leave
from worker.clockwork import COMPLETION_TOKENS, SENTENCE, make, make_vocabulary

Start = Callable[..., Worker]
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module", autouse=True)
def llama_cpp_is_there() -> None:
    available = importlib.util.find_spec("llama_cpp") is not None
    require("llama_cpp", available, "llama-cpp-python is not installed (extra `llama-cpp`)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "clockwork.gguf"
    make(path)
    return path


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def started(*flags: str, token: str | None = None, path: Path = model) -> Worker:
        port = free_port()
        args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", "--model", str(path))
        env = {"ROUNDHOUSE_ENGINE_TOKEN": token} if token else {}
        log = tmp_path / f"{len(workers)}.log"
        workers.append(Worker(log, port, "llama_cpp", *args, *flags, token=token, env=env))
        return workers[-1]

    yield started
    for worker in workers:
        worker.__exit__()


def endless() -> dict[str, object]:
    """A completion that goes round and round: its end token is never chosen."""
    end = make_vocabulary().id_of("<|end|>")
    return {"prompt": "<|assistant|>", "max_tokens": 10_000, "logit_bias": {str(end): -1000}}


def test_exact_text_and_counts_through_the_openai_sdk(start: Start) -> None:
    worker = start(token="secret").ready()
    client = worker.openai()
    assert [each.id for each in client.models.list()] == ["demo"]
    for _ in range(2):  # the second time from the cache
        chat = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "hello"}])
        assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (SENTENCE, "stop")
        assert chat.model == "demo"
        assert chat.usage is not None
        # The template's <|user|>, <|end|> and <|assistant|>, and "hello" as its five bytes.
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (8, COMPLETION_TOKENS)
    events = list(
        client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == SENTENCE
    assert events[-1].usage == chat.usage
    assert client.completions.create(model="demo", prompt="<|assistant|>").choices[0].text == SENTENCE
    content: list[ChatCompletionContentPartTextParam] = [{"type": "text", "text": "hello"}]
    chat = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": content}])
    assert chat.usage == events[-1].usage
    parts = list(client.completions.create(model="demo", prompt="<|assistant|>", stream=True, max_tokens=3))
    assert "".join(part.choices[0].text for part in parts) == "The quick brown"
    assert parts[-1].choices[0].finish_reason == "length"
    assert worker.figure("tokens_predicted_total") == 5 * COMPLETION_TOKENS + 3
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"http://127.0.0.1:{worker.port}/v1", api_key="wrong").models.list()


def test_sampling_fields_reach_the_engine(start: Start) -> None:
    worker = start().ready()

    def said(**fields: object) -> str:
        wild = {"temperature": 1000, "top_p": 1, "min_p": 0}
        body = {"prompt": "<|assistant|>", "max_tokens": COMPLETION_TOKENS, **wild, **fields}
        text: str = json.loads(worker.ask("POST", "/v1/completions", body)[1])["choices"][0]["text"]
        return text

    assert said(top_k=1) == said(top_p=0.001) == said(min_p=0.9) == said(temperature=0) == SENTENCE
    assert said(seed=1) == said(seed=1) != said(seed=2)
    assert len({said() for _ in range(3)}) == 3, "without a seed every answer has its own"


def test_a_forced_tool_call_has_the_tool_s_name_and_arguments_in_its_schema(start: Start) -> None:
    schema = {"type": "object", "properties": {"day": {"enum": ["mon", "tue"]}}, "required": ["day"]}
    tool = {"type": "function", "function": {"name": "plan", "parameters": schema}}
    forced = {**HELLO, "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "plan"}}}
    worker = start().ready()
    _, body = worker.ask("POST", "/v1/chat/completions", {**forced, "max_tokens": 200})
    (choice,) = json.loads(body)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "plan"
    assert json.loads(call["function"]["arguments"])["day"] in ("mon", "tue")


def test_embeddings_and_nothing_else_with_the_flag(start: Start) -> None:
    worker = start("--embedding").ready()
    client = worker.openai()
    answer = client.embeddings.create(model="demo", input=["a", "bc", "a"])
    one, other, again = (item.embedding for item in answer.data)
    assert one == pytest.approx(again)
    assert one != pytest.approx(other)
    assert sum(number**2 for number in one) == pytest.approx(1)
    assert answer.usage.prompt_tokens == 4
    status, body = worker.ask("POST", "/v1/chat/completions", HELLO)
    assert (status, json.loads(body)["error"]["code"]) == (501, "not_supported")
    status, body = worker.ask("POST", "/v1/embeddings", {"input": "x" * 3000})
    assert (status, json.loads(body)["error"]["param"]) == (400, "input")


def test_requests_that_the_engine_cannot_serve(start: Start) -> None:
    worker = start("--n-ctx", "64").ready()
    long = {"messages": [{"role": "user", "content": "x" * 300}]}
    for stream in (True, False):
        status, body = worker.ask("POST", "/v1/chat/completions", {**long, "stream": stream})
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "more than fit the context of 256" in error["message"]
    unknown = {**HELLO, "tools": [], "tool_choice": {"type": "function", "function": {"name": "no"}}}
    assert worker.ask("POST", "/v1/chat/completions", unknown)[0] == 400
    status, body = worker.ask("POST", "/v1/embeddings", {"input": "x"})
    assert (status, json.loads(body)["error"]["code"]) == (501, "not_supported")
    assert worker.openai().completions.create(model="m", prompt="<|assistant|>").choices[0].text == SENTENCE


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_generation(start: Start, stream: bool) -> None:
    worker = start("--n-ctx", "16384").ready()
    connection = worker.open("POST", "/v1/completions", {**endless(), "stream": stream})
    eventually("tokens are made", lambda: worker.figure("tokens_predicted_total") > COMPLETION_TOKENS)
    leave(connection)
    eventually("the slot is free", lambda: worker.figure("requests_processing") == 0)
    made = worker.figure("tokens_predicted_total")
    assert made < 10_000
    chat = worker.openai().chat.completions.create(model="demo", messages=[{"role": "user", "content": "hello"}])
    assert chat.choices[0].message.content == SENTENCE
    assert worker.figure("tokens_predicted_total") == made + COMPLETION_TOKENS


def test_one_at_a_time_and_one_that_waits_may_leave(start: Start) -> None:
    worker = start("--n-ctx", "16384").ready()
    running = worker.open("POST", "/v1/completions", endless())
    eventually("it is worked on", lambda: worker.figure("requests_processing") == 1)
    leaving = worker.open("POST", "/v1/chat/completions", {**HELLO, "stream": True})
    staying = worker.open("POST", "/v1/chat/completions", HELLO)
    eventually("two wait", lambda: worker.figure("requests_deferred") == 2)
    leave(leaving)
    eventually("one waits", lambda: worker.figure("requests_deferred") == 1)
    assert worker.figure("requests_processing") == 1
    leave(running)
    answer = json.loads(staying.getresponse().read())
    assert answer["choices"][0]["message"]["content"] == SENTENCE


@pytest.mark.parametrize("stream", [True, False])
def test_a_signal_ends_it_with_work_running(start: Start, stream: bool) -> None:
    worker = start("--n-ctx", "16384").ready()
    connection = worker.open("POST", "/v1/completions", {**endless(), "stream": stream})
    eventually("tokens are made", lambda: worker.figure("tokens_predicted_total") > 0)
    assert worker.stop(signal.SIGTERM) == 0
    assert b"model_unloading" in connection.getresponse().read()


def test_a_quantised_cache_turns_flash_attention_on(start: Start) -> None:
    client = start("--type-k", "q8_0", "--type-v", "q8_0").ready().openai()
    assert client.completions.create(model="m", prompt="<|assistant|>").choices[0].text == SENTENCE


def test_a_chat_format_of_the_library_s_own(start: Start) -> None:
    worker = start("--chat-format", "chatml").ready()
    status, body = worker.ask("POST", "/v1/chat/completions", HELLO)
    assert status == 200
    assert json.loads(body)["usage"]["prompt_tokens"] > 8


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (("--model", "/nowhere/m.gguf"), 1, "cannot open /nowhere/m.gguf: No such file or directory"),
        (("--model", __file__), 1, f"{__file__} is not a GGUF file: it begins with b'\"\"\"l', not b'GGUF'"),
        (("--type-k", "q9"), 2, "python -m worker llama_cpp: error: argument --type-k: invalid choice: 'q9'"),
        (("--chat-format", "none"), 1, "--chat-format none: neither the model nor llama-cpp-python has it"),
    ],
)
def test_a_start_that_cannot_be_says_why_last(start: Start, flags: tuple[str, ...], code: int, line: str) -> None:
    worker = start(*flags)
    assert worker.ended() == code
    assert worker.last_line.startswith(line), worker.log


def test_what_llama_cpp_says_of_a_file_is_the_reason(start: Start, model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(model.read_bytes()[:300_000])
    worker = start(path=short)
    assert worker.ended() == 1
    assert worker.last_line.startswith(f"llama.cpp cannot load {short}: ")
    assert "corrupted or incomplete" in worker.last_line


def test_its_log_says_how_far_a_load_is(start: Start) -> None:
    worker = start().ready()
    log = worker.log
    dots = next(line for line in log.splitlines() if line and not line.strip("."))
    begun = log[: log.index(f"\n{dots}") + 3]
    assert (ENGINES["llama_cpp"].progress(begun), ENGINES["llama_cpp"].progress(log)) == (0.02, 1.0)
