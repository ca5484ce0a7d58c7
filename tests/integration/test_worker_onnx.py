"""ONNX Runtime in a real worker, and the gateway in front of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support.onnx_models import WIDTH, token_vectors, unit, write_model, write_vocabulary
from tests.support.worker_process import Worker, eventually, free_port, leave

Start = Callable[..., Worker]
TEXTS = ["hello world", "the foxes jump!"]
VECTORS = [unit(token_vectors(each).mean(0)) for each in ("[CLS] hello world [SEP]", "[CLS] the fox ##es jump ! [SEP]")]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    workers: list[Worker] = []
    write_vocabulary(tmp_path / "words-vocab.txt")
    write_model(tmp_path / "words.onnx")

    def started(*flags: str, token: str | None = None, path: Path = tmp_path / "words.onnx") -> Worker:
        port = free_port()
        args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "words", "--model", str(path))
        env = {"ROUNDHOUSE_ENGINE_TOKEN": token} if token else {}
        log = tmp_path / f"{len(workers)}.log"
        workers.append(Worker(log, port, "onnx", *args, *flags, token=token, env=env))
        return workers[-1]

    yield started
    for worker in workers:
        worker.__exit__()


def close(data: Any, expected: Any = VECTORS) -> bool:
    return bool(np.allclose([each.embedding for each in data], expected, atol=1e-6))


def test_exact_vectors_through_the_openai_sdk(start: Start) -> None:
    worker = start("--threads", "1", token="secret").ready()
    client = worker.openai()
    for encoding in (None, "float"):  # the SDK asks for base64 unless told otherwise
        fields: Any = {"encoding_format": encoding} if encoding else {}
        answer = client.embeddings.create(model="any", input=TEXTS, **fields)
        assert close(answer.data)
        assert (answer.model, [each.index for each in answer.data]) == ("words", [0, 1])
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (11, 11)
    assert worker.figure("prompt_tokens_total") == 22
    assert close(client.embeddings.create(model="any", input=TEXTS[0]).data, VECTORS[:1])
    for path in ("/v1/chat/completions", "/v1/completions"):
        status, body = worker.ask("POST", path, {"messages": [{"role": "user", "content": "a"}], "prompt": "a"})
        assert (status, json.loads(body)["error"]["code"]) == (501, "not_supported")
    assert worker.stop() == 0


def test_a_client_that_leaves_stops_the_work_on_its_texts(start: Start) -> None:
    worker = start("--threads", "1").ready()
    texts = ["hello " * 510] * 4_000
    connection = worker.open("POST", "/v1/embeddings", {"input": texts})
    eventually("the first batch is done", lambda: worker.figure("prompt_tokens_total") > 0)
    leave(connection)
    eventually("nothing runs", lambda: worker.figure("requests_processing") == 0)
    assert worker.figure("prompt_tokens_total") < 512 * len(texts)
    assert close(worker.openai().embeddings.create(model="any", input=TEXTS).data)


def _no_tokenizer(folder: Path) -> None:
    (folder / "words-vocab.txt").unlink()


def _no_onnx(folder: Path) -> None:
    (folder / "words.onnx").write_text("no model")


def _images(folder: Path) -> None:
    write_model(folder / "words.onnx", names=("pixel_values",))


@pytest.mark.parametrize(
    ("spoil", "line", "verdict"),
    [
        (_no_tokenizer, "no tokenizer beside PATH: put its tokenizer.json", "no tokenizer beside the model"),
        (_no_onnx, "ONNX Runtime cannot load PATH: it is not an ONNX file", "not an ONNX file"),
        (_images, "the model has an input `pixel_values`; an embedding model has", "not an embedding model"),
    ],
)
def test_a_model_that_cannot_be_served(
    start: Start, tmp_path: Path, spoil: Callable[[Path], None], line: str, verdict: str
) -> None:
    spoil(tmp_path)
    worker = start()
    assert worker.ended() == 1
    assert worker.last_line.startswith(line.replace("PATH", str(tmp_path / "words.onnx")))
    said = ENGINES["onnx"].explain(1, worker.log)
    assert said is not None
    assert (said.message, said.permanent) == (verdict, True)


def test_without_its_extra(start: Start, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ModuleNotFoundError(\"No module named 'onnxruntime'\")")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        worker = start()
        assert worker.ended() == 1
    assert worker.last_line == "ONNX Runtime cannot be used: No module named 'onnxruntime' (it is the extra `onnx`)"
    said = ENGINES["onnx"].explain(1, worker.log)
    assert said is not None
    assert said.permanent


async def test_through_the_gateway(start: Start) -> None:
    worker = start(token="secret").ready()
    capabilities = ENGINES["onnx"].capabilities(ENGINES["onnx"].definition.model_validate({"model_path": "m.onnx"}))
    async with (
        gateway_harness() as here,
        openai.AsyncOpenAI(base_url=here.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        common: dict[str, Any] = {"token": "secret", "apis": ("/v1/embeddings",), "capabilities": capabilities}
        urls = [f"http://127.0.0.1:{worker.port}"]
        await here.publish(route("words", urls, **common), route("short", urls, shortens_embeddings=True, **common))
        for encoding in (None, "float"):
            fields: Any = {"encoding_format": encoding} if encoding else {}
            answer = await client.embeddings.create(model="words", input=TEXTS, **fields)
            assert close(answer.data)
            assert answer.model == "words"
            short = await client.embeddings.create(model="short", input=TEXTS, dimensions=2, **fields)
            assert close(short.data, [unit(each[:2]) for each in VECTORS])
        whole = await client.embeddings.create(model="words", input=TEXTS, dimensions=WIDTH)
        assert close(whole.data)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="words", input=TEXTS, dimensions=2)
        assert caught.value.code == "dimensions_unsupported"
        with pytest.raises(openai.InternalServerError, match="does not offer /v1/chat/completions"):
            await client.chat.completions.create(model="words", messages=[{"role": "user", "content": "a"}])
