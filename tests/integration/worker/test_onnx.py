"""ONNX Runtime's vectors, of a real worker and of the gateway in front of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import gateway_harness
from tests.support.onnx_models import VOCABULARY, WIDTH, token_vectors, unit, write_model, write_vocabulary
from tests.support.worker_engines import TOKEN, start
from tests.support.worker_process import Worker

pytestmark = pytest.mark.engines

TEXTS = ["hello world", "the foxes jump!"]
VECTORS = [unit(token_vectors(each).mean(0)) for each in ("[CLS] hello world [SEP]", "[CLS] the fox ##es jump ! [SEP]")]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder: Path = tmp_path_factory.mktemp("onnx")
    write_vocabulary(folder / "words-vocab.txt")
    write_model(folder / "words.onnx")
    with start("onnx", folder / "log", "--model", str(folder / "words.onnx"), token=TOKEN) as running:
        yield running.ready()


def close(data: Any, expected: Any = VECTORS) -> bool:
    return bool(np.allclose([each.embedding for each in data], expected, atol=1e-6))


def test_tokens_are_the_text_that_they_stand_for(worker: Worker) -> None:
    words = VOCABULARY.index("hello"), VOCABULARY.index("world")
    answer = worker.openai().embeddings.create(model="any", input=[words, (VOCABULARY.index("[CLS]"), *words)])
    assert close(answer.data, [VECTORS[0]] * 2)
    status, body = worker.request("POST", "/v1/embeddings", {"input": [VOCABULARY.index("[SEP]")]})
    assert (status, json.loads(body)["error"]["param"]) == (400, "input"), "which is no text"


async def test_onnx_serves_through_the_gateway(worker: Worker) -> None:
    capabilities = ENGINES["onnx"].derive_capabilities(
        ENGINES["onnx"].definition.model_validate({"model_path": "m.onnx"})
    )
    async with (
        gateway_harness() as gateway,
        openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        common: dict[str, Any] = {"token": TOKEN, "apis": ("/v1/embeddings",), "capabilities": capabilities}
        urls = [f"http://127.0.0.1:{worker.port}"]
        await gateway.publish(route("demo", urls, **common), route("short", urls, shortens_embeddings=True, **common))
        for encoding in (None, "float"):
            fields: Any = {"encoding_format": encoding} if encoding else {}
            answer = await client.embeddings.create(model="demo", input=TEXTS, **fields)
            assert close(answer.data)
            assert (answer.model, [each.index for each in answer.data]) == ("demo", [0, 1])
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (11, 11)
            short = await client.embeddings.create(model="short", input=TEXTS, dimensions=2, **fields)
            assert close(short.data, [unit(each[:2]) for each in VECTORS])
        whole = await client.embeddings.create(model="demo", input=TEXTS, dimensions=WIDTH)
        assert close(whole.data)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="demo", input=TEXTS, dimensions=2)
        assert caught.value.code == "dimensions_unsupported"
        with pytest.raises(openai.InternalServerError, match="does not offer /v1/chat/completions"):
            await client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "a"}])
