"""The stub as a real process: what is on the wire, byte by byte, and what a worker says while it loads."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted_models import CHAT, USER, post
from tests.support.worker_engines import start
from tests.support.worker_process import Worker, eventually
from worker.engines.stub import DIMENSIONS, TEXT

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with start("stub", tmp_path_factory.mktemp("stub") / "log") as running:
        yield running.ready()


def test_a_stream_on_the_wire(worker: Worker) -> None:
    asked = {"prompt": "x", "stream": True, "max_tokens": 2}
    response = worker.open("POST", "/v1/completions", asked).getresponse()
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


def test_embeddings_as_bytes(worker: Worker) -> None:
    plain = post(worker, "/v1/embeddings", input="a")["data"][0]["embedding"]
    encoded = base64.b64decode(
        post(worker, "/v1/embeddings", input="a", encoding_format="base64")["data"][0]["embedding"]
    )
    assert list(struct.unpack(f"<{DIMENSIONS}f", encoded)) == pytest.approx(plain, abs=1e-6)


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
