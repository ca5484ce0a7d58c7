"""The stub as a real process: the wire, what a worker says while it loads, and how one that cannot start says so."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted_models import CHAT, USER, post
from tests.support.worker_engines import start
from tests.support.worker_process import Worker, eventually
from worker.__main__ import dispatch
from worker.engines.stub import TEXT

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with start("stub", tmp_path_factory.mktemp("stub") / "log") as running:
        yield running.ready()


def test_a_stream_on_the_wire(worker: Worker) -> None:
    sent = {"prompt": "x", "stream": True, "max_tokens": 2}
    response = worker.open("POST", "/v1/completions", sent).getresponse()
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.read().decode().split("\n\n")
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
    assert [each["text"] for each in choices] == ["This", " is", ""]
    assert events[-2:] == ["data: [DONE]", ""]


def test_words_are_its_tokens_in_llama_server_s_shapes(worker: Worker) -> None:
    assert post(worker)["choices"][0]["message"]["content"] == TEXT
    assert post(worker, "/tokenize", content="one two one") == {"tokens": [0, 1, 2]}
    pieces = [{"id": 1, "piece": " two"}, {"id": 0, "piece": "one"}]
    assert post(worker, "/tokenize", content=[1, "one"], with_pieces=True) == {"tokens": pieces}
    assert post(worker, "/detokenize", tokens=[0, 1, 2]) == {"content": "one two one"}
    assert post(worker, "/apply-template") == {"prompt": "hello"}


def test_while_it_loads_it_says_so_and_a_signal_ends_it(tmp_path: Path) -> None:
    with start("stub", tmp_path / "log", "--load-s", "3600") as loading:
        eventually("it listens", lambda: loading.status_of("/health"))
        assert loading.status_of("/health") == 503
        for path in (CHAT, f"{CHAT}/input_tokens"):
            status, body = loading.request("POST", path, {"messages": USER})
            assert (status, json.loads(body)["error"]["code"]) == (503, "model_loading")
        assert loading.stop() == 0


def test_a_load_takes_its_time_tells_how_far_it_is_and_may_fail(tmp_path: Path) -> None:
    flags = ("--load-s", "0.1", "--fail", "the model is made of cheese")
    with start("stub", tmp_path / "log", *flags) as failing:
        assert failing.ended() == 1
        assert failing.last_line == "the model is made of cheese"
        assert [line for line in failing.log.splitlines() if "%" in line] == [
            f"loading: {part} %" for part in range(10, 101, 10)
        ]


STUB = ("stub", "--host", "127.0.0.1", "--served-name", "demo", "--port")


def failed(tmp_path: Path, *args: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and last line of a worker that ends by itself."""
    with Worker(tmp_path / "log", 0, *args, env=env) as worker:
        return worker.ended(), worker.last_line


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, line = failed(tmp_path, *STUB, port)
    assert (code, line) == (3, f"port {port} on 127.0.0.1 is taken: stop what listens there, or choose another")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("vlm",), "python -m worker: error: argument engine: invalid choice: 'vlm'"),
        ((*STUB, "99999"), "python -m worker stub: error: argument --port: a port is a number from 1 to 65535"),
        ((*STUB, "8099", "--texts", "a"), "python -m worker stub: error: unrecognized arguments: --texts a"),
        (
            ("stub",),
            "python -m worker stub: error: the following arguments are required: --host, --port, --served-name",
        ),
    ],
)
def test_arguments_that_are_refused(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], line: str) -> None:
    with pytest.raises(SystemExit) as raised:
        dispatch(args)
    assert raised.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(line)


def test_bad_arguments_and_an_empty_token_end_the_process(tmp_path: Path) -> None:
    code, line = failed(tmp_path)
    assert (code, line) == (2, "python -m worker: error: the following arguments are required: engine")
    code, line = failed(tmp_path, *STUB, "8099", env={"ROUNDHOUSE_ENGINE_TOKEN": ""})
    assert code == 1
    assert line.startswith("ROUNDHOUSE_ENGINE_TOKEN is set and empty")
