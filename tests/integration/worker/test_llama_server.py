"""llama.cpp's own server, embedded through xllamacpp, as a real process on the demo model."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.engines import ENGINES
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.worker_process import Worker, alive, eventually, leave
from worker.clockwork import COMPLETION_TOKENS, SENTENCE, make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

Start = Callable[..., Worker]
LONG_CONTEXT = 131_072
MANY = 100_000
"""More tokens than this machine makes during a test."""


@pytest.fixture(scope="module", autouse=True)
def xllamacpp_is_there() -> None:
    available = importlib.util.find_spec("xllamacpp") is not None
    require("embedded", available, "xllamacpp is not installed (extra `embedded`)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "clockwork.gguf"
    make_model(path, context=LONG_CONTEXT)
    return path


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Iterator[Start]:
    workers: list[Worker] = []

    def started(*flags: str, token: str | None = None, path: Path = model, port: int | None = None) -> Worker:
        port = port or free_port()
        args = ("--model", str(path), "--port", str(port), "--alias", "demo", "--ctx-size", "2048", "--threads", "1")
        always = ("--fit", "off", "--metrics", "--slots", "--jinja", "--no-webui", "--parallel", "2", "--kv-unified")
        env = {"LLAMA_API_KEY": token} if token else {}
        log = tmp_path / f"{len(workers)}.log"
        workers.append(Worker(log, port, "llama_server", "--", *args, *always, *flags, token=token, env=env))
        return workers[-1]

    yield started
    for worker in workers:
        worker.__exit__()


def test_the_flags_arrive_at_llama_server(start: Start) -> None:
    worker = start().ready()
    slots = json.loads(worker.request("GET", "/slots")[1])
    assert [slot["n_ctx"] for slot in slots] == [2048, 2048]
    assert worker.figure("requests_processing") == 0
    assert worker.figure("tokens_predicted_total") == 0
    worker.request("POST", "/v1/completions", {"prompt": "<|assistant|>"})
    assert worker.figure("tokens_predicted_total") == COMPLETION_TOKENS


def test_equal_texts_have_equal_embeddings(start: Start) -> None:
    client = start("--embeddings", "--pooling", "mean").ready().openai()
    one, other, again = (item.embedding for item in client.embeddings.create(model="demo", input=["a", "b", "a"]).data)
    assert one == pytest.approx(again)
    assert one != pytest.approx(other)
    assert len(one) == 128


def test_without_cuda_it_refuses_gpus_and_the_refusal_is_understood(start: Start, model: Path) -> None:
    worker = start("--device", "CUDA0")
    assert worker.ended() == 1
    refusal = 'error while handling argument "--device": invalid device: CUDA0'
    assert worker.last_line == f"llama-server ended while loading {model}: {refusal}"
    verdict = ENGINES["llama_server"].explain_exit(1, worker.log)
    assert verdict is not None
    assert verdict.message.startswith("llama.cpp does not see its GPU")
    assert start("--device", "none").ready().figure("requests_processing") == 0


def test_a_draft_model_is_used(start: Start, model: Path) -> None:
    worker = start("--model-draft", str(model), "--spec-type", "draft-simple", "--spec-draft-n-max", "2").ready()
    chat = worker.openai().chat.completions.create(model="demo", messages=[{"role": "user", "content": "hello"}])
    assert chat.choices[0].message.content == SENTENCE
    drafts, accepted = (worker.figure(f"spec_decode_num_{name}_total") for name in ("draft_tokens", "accepted_tokens"))
    assert drafts == accepted > 0


def test_a_client_that_leaves_a_stream_stops_it(start: Start) -> None:
    worker = start("--ctx-size", str(LONG_CONTEXT)).ready()
    endless = {"prompt": "<|assistant|>", "max_tokens": MANY, "ignore_eos": True, "stream": True}
    connection = worker.open("POST", "/v1/completions", endless)
    assert connection.getresponse().readline().startswith(b"data: ")
    assert worker.figure("requests_processing") == 1
    leave(connection)
    eventually("the slot is free", lambda: worker.figure("requests_processing") == 0)
    assert 0 < worker.figure("tokens_predicted_total") < MANY


def test_a_client_that_leaves_a_blocking_request_stops_it(start: Start) -> None:
    worker = start("--ctx-size", str(LONG_CONTEXT)).ready()
    connection = worker.open(
        "POST", "/v1/completions", {"prompt": "<|assistant|>", "max_tokens": MANY, "ignore_eos": True}
    )
    eventually("it is worked on", lambda: "processing task" in worker.log)
    leave(connection)
    # llama.cpp looks after the client only when nothing else has happened for a second, so it must not be asked.
    eventually("it was cancelled", lambda: "cancel task" in worker.log)
    eventually("the slot is free", lambda: worker.figure("requests_processing") == 0)
    assert worker.figure("tokens_predicted_total") < MANY


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_work_running(start: Start, number: signal.Signals) -> None:
    worker = start("--ctx-size", str(LONG_CONTEXT)).ready()
    stream = {"prompt": "<|assistant|>", "max_tokens": MANY, "ignore_eos": True, "stream": True}
    connection = worker.open("POST", "/v1/completions", stream)
    assert connection.getresponse().readline().startswith(b"data: ")
    assert len(worker.family()) == 2
    assert worker.stop(number) == 0


def test_a_signal_ends_it_while_it_starts(start: Start) -> None:
    # Whatever it is doing: each start is stopped as soon as its log holds one line more than the one before was let.
    for lines in range(1, 8):
        worker = start()
        eventually("it says something", lambda worker=worker, lines=lines: worker.log.count("\n") >= lines)  # type: ignore[misc]
        assert worker.stop() == 0


def test_a_launcher_that_is_killed_leaves_no_server(start: Start) -> None:
    worker = start().ready()
    family = worker.family()
    assert worker.stop(signal.SIGKILL) == -signal.SIGKILL
    assert not any(map(alive, family))


def knows_that_it_serves(worker: Worker) -> bool:
    """Whether the launcher has word of that: a byte in a pipe, which it reads after the server's end. `/health` answers
    a moment before."""
    for descriptor in Path(f"/proc/{worker.process.pid}/fd").iterdir():
        if str(descriptor.readlink()).startswith("pipe:"):
            with os.fdopen(os.open(descriptor, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
                if struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))) == (1,):
                    return True
    return False


def test_a_server_that_is_killed_is_reported(start: Start) -> None:
    worker = start().ready()
    eventually("the launcher knows that it serves", lambda: knows_that_it_serves(worker))
    _, server = worker.family()
    server.kill()
    assert worker.ended() == 1
    assert worker.last_line == "llama-server was killed while serving: probably out of memory"


def test_a_port_that_is_taken(start: Start) -> None:
    first = start().ready()
    second = start(port=first.port)
    assert second.ended() == 3
    assert second.last_line.startswith(f"port {first.port} on 127.0.0.1 is taken")


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (("--control-vector", "x.gguf"), 2, r"the embedded llama-server does not take --control-vector"),
        (("--cache-type-k", "q9"), 2, r"--cache-type-k q9: it is one of f32, f16"),
        (("--mmproj", "/nowhere/p.gguf"), 1, r"^cannot open /nowhere/p.gguf: No such file or directory$"),
        (("--cache-type-v", "q8_0", "--flash-attn", "off"), 1, r"quantized V cache requires flash_attn"),
        (("--chat-template", "{% bad"), 1, r"^llama-server ended while loading .*gguf: .*Unknown statement: bad$"),
    ],
)
def test_a_start_that_cannot_be_says_why_last(start: Start, flags: tuple[str, ...], code: int, line: str) -> None:
    worker = start(*flags)
    assert worker.ended() == code
    assert re.search(line, worker.last_line), worker.log


def test_a_file_that_is_cut_off_is_named_as_such(start: Start, model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(model.read_bytes()[:300_000])
    worker = start(path=short)
    assert worker.ended() == 1
    assert "corrupted or incomplete" in worker.last_line
