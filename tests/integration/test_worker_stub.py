"""The stub as a real process: the HTTP surface that every worker engine shares."""

from __future__ import annotations

import base64
import json
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.support.worker_process import Worker, eventually, free_port, leave
from worker.engines.stub import DIMENSIONS, TEXT

Start = Callable[..., Worker]
LONG = "w " * 10_000
SLOW = ("--token-delay-ms", "20", "--text", LONG)
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def started(*flags: str, token: str | None = None) -> Worker:
        port = free_port()
        args = ("stub", "--host", "127.0.0.1", "--port", str(port), "--served-name", "demo", *flags)
        env = {"ROUNDHOUSE_ENGINE_TOKEN": token} if token else {}
        workers.append(Worker(tmp_path / f"{len(workers)}.log", port, *args, token=token, env=env))
        return workers[-1]

    yield started
    for worker in workers:
        worker.__exit__()


def test_the_openai_sdk_unmodified(start: Start) -> None:
    client = start().ready().openai()
    assert [model.id for model in client.models.list()] == ["demo"]
    chat = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "say a thing"}])
    assert chat.choices[0].message.content == TEXT
    assert chat.choices[0].finish_reason == "stop"
    assert chat.usage is not None
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (3, len(TEXT.split()))
    text = client.completions.create(model="demo", prompt="x", max_tokens=3)
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("This is a", "length")


def test_streams_hold_the_same_text_and_usage_only_where_it_was_asked_for(start: Start) -> None:
    client = start().ready().openai()
    events = list(
        client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(event.choices[0].delta.content or "" for event in events[:-1]) == TEXT
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == len(TEXT.split())
    assert [event.usage for event in events[:-1]] == [None] * (len(events) - 1)
    assert len({event.id for event in events}) == 1
    parts = list(client.completions.create(model="demo", prompt="x", stream=True))
    assert "".join(part.choices[0].text for part in parts) == TEXT
    assert all(part.usage is None for part in parts)


def test_a_stream_on_the_wire(start: Start) -> None:
    worker = start("--text", "one two").ready()
    response = worker.open("POST", "/v1/completions", {"prompt": "x", "stream": True}).getresponse()
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.read().decode().split("\n\n")
    assert [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]] == [
        "one",
        " two",
        "",
    ]
    assert events[-2:] == ["data: [DONE]", ""]


def test_a_stop_string_ends_the_text_and_the_work(start: Start) -> None:
    worker = start("--text", "one two three four").ready()
    client = worker.openai()
    chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stop=["o th", "zzz"])
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("one tw", "stop")
    assert (chat.choices[0].model_extra or {})["stop_reason"] == "o th"
    assert chat.usage is not None
    assert worker.figure("tokens_predicted_total") == chat.usage.completion_tokens == 3
    *parts, last = client.completions.create(model="m", prompt="x", stop="o th", stream=True)
    assert "".join(part.choices[0].text for part in [*parts, last]) == "one tw"
    assert (last.choices[0].model_extra or {})["stop_reason"] == "o th"
    assert all("stop_reason" not in (part.choices[0].model_extra or {}) for part in parts)


def test_words_are_its_tokens_in_llama_server_s_shapes(start: Start) -> None:
    worker = start(token="secret").ready()

    def asked(path: str, **fields: object) -> object:
        status, body = worker.ask("POST", path, fields)
        assert status == 200, body
        return json.loads(body)

    assert asked("/tokenize", content="one two one") == {"tokens": [0, 1, 2]}
    pieces = [{"id": 1, "piece": " two"}, {"id": 0, "piece": "one"}]
    assert asked("/tokenize", content=[1, "one"], with_pieces=True) == {"tokens": pieces}
    assert asked("/detokenize", tokens=[0, 1, 2]) == {"content": "one two one"}
    assert asked("/apply-template", **HELLO) == {"prompt": "hello"}
    counted = {"input_tokens": 1, "object": "response.input_tokens"}
    assert asked("/v1/chat/completions/input_tokens", **HELLO) == counted
    assert worker.figure("prompt_tokens_total") == 0
    for path, body, param in (
        ("/tokenize", {}, "content"),
        ("/detokenize", {"tokens": [9]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/v1/embeddings", {"input": "a", "dimensions": 8}, "dimensions"),
        ("/v1/chat/completions", {**HELLO, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ):
        status, text = worker.ask("POST", path, body)
        assert (status, json.loads(text)["error"]["param"]) == (400, param)


def test_embeddings_as_the_sdk_asks_for_them_and_as_numbers(start: Start) -> None:
    worker = start().ready()
    client = worker.openai()
    one, other, again = (item.embedding for item in client.embeddings.create(model="m", input=["a", "b", "a"]).data)
    assert one == again != other
    assert len(one) == DIMENSIONS
    plain = client.embeddings.create(model="m", input="a", encoding_format="float").data[0].embedding
    assert plain == pytest.approx(one, abs=1e-6)
    _, body = worker.ask("POST", "/v1/embeddings", {"input": "a", "encoding_format": "base64"})
    encoded = base64.b64decode(json.loads(body)["data"][0]["embedding"])
    assert list(struct.unpack(f"<{DIMENSIONS}f", encoded)) == pytest.approx(plain, abs=1e-6)


def test_errors_have_openai_s_form(start: Start) -> None:
    worker = start().ready()
    asked = {
        ("POST", "/v1/chat/completions", b"{bad"): (400, "invalid_json", None),
        ("POST", "/v1/chat/completions", b"{}"): (400, "invalid_request", "messages"),
        ("POST", "/v1/embeddings", b'{"input": 5}'): (400, "invalid_request", "input"),
        ("GET", "/v1/nothing", None): (404, "unknown_route", None),
        ("GET", "/v1/chat/completions", None): (405, "method_not_allowed", None),
    }
    for request, (status, code, param) in asked.items():
        answered, body = worker.ask(*request)
        error = json.loads(body)["error"]
        assert (answered, error["code"], error["param"]) == (status, code, param)
        assert error["message"]
    with pytest.raises(openai.BadRequestError, match="`messages`"):
        worker.openai().chat.completions.create(model="m", messages=[])


def test_everything_but_health_needs_the_token(start: Start) -> None:
    worker = start(token="secret").ready()
    for method, path, body in (
        *(("GET", "/metrics", None), ("GET", "/v1/models", None), ("GET", "/nothing", None)),
        *(("POST", "/v1/chat/completions", HELLO), ("POST", "/v1/embeddings", {"input": "a"})),
        *(("POST", "/tokenize", {"content": "a"}), ("POST", "/apply-template", HELLO)),
    ):
        status, text = worker.ask(method, path, body, token="wrong")
        assert (status, json.loads(text)["error"]["code"]) == (401, "invalid_api_key")
        assert worker.ask(method, path, body)[0] in (200, 404)
    assert worker.ask("GET", "/health", token="wrong")[0] == 200


def test_while_it_loads_it_says_so_and_then_it_serves(start: Start) -> None:
    worker = start("--load-s", "1")
    eventually("it listens", lambda: worker.status_of("/health"))
    assert worker.status_of("/health") == 503
    for path in ("/v1/chat/completions", "/v1/chat/completions/input_tokens"):
        status, body = worker.ask("POST", path, HELLO)
        assert (status, json.loads(body)["error"]["code"]) == (503, "model_loading")
    worker.ready()
    assert worker.ask("POST", "/v1/chat/completions", HELLO)[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_answer(start: Start, stream: bool) -> None:
    worker = start(*SLOW).ready()
    connection = worker.open("POST", "/v1/chat/completions", {**HELLO, "stream": stream})
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    eventually("tokens are made", lambda: worker.figure("tokens_predicted_total") > 0)
    assert worker.figure("requests_processing") == 1
    leave(connection)
    eventually("the slot is free", lambda: worker.figure("requests_processing") == 0)
    made = worker.figure("tokens_predicted_total")
    assert made < 10_000
    # A further answer of known length is all that is counted from now on.
    worker.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
    assert worker.figure("tokens_predicted_total") == made + 2


def test_answers_are_made_side_by_side_and_counted(start: Start) -> None:
    worker = start(*SLOW).ready()
    connections = [worker.open("POST", "/v1/completions", {"prompt": "a b"}) for _ in range(5)]
    eventually("all five are worked on", lambda: worker.figure("requests_processing") == 5)
    assert worker.figure("requests_deferred") == 0
    assert worker.figure("prompt_tokens_total") == 10
    for connection in connections:
        leave(connection)
    eventually("none is left", lambda: worker.figure("requests_processing") == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_running_answers_and_the_process(start: Start, number: signal.Signals) -> None:
    worker = start(*SLOW).ready()
    stream = worker.open("POST", "/v1/chat/completions", {**HELLO, "stream": True}).getresponse()
    assert stream.readline().startswith(b"data: ")
    blocking = worker.open("POST", "/v1/chat/completions", HELLO)
    eventually("both are worked on", lambda: worker.figure("requests_processing") == 2)
    assert worker.stop(number) == 0
    *_, last, nothing = stream.read().decode().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_unloading"
    assert nothing == ""
    response = blocking.getresponse()
    assert response.status == 503
    assert json.loads(response.read())["error"]["code"] == "model_unloading"


def test_a_signal_ends_a_load(start: Start) -> None:
    worker = start("--load-s", "3600")
    eventually("it listens", lambda: worker.status_of("/health") == 503)
    assert worker.stop() == 0


def test_a_load_that_fails_says_why_last(start: Start) -> None:
    worker = start("--fail", "the model is made of cheese")
    assert worker.ended() == 1
    assert worker.last_line == "the model is made of cheese"
