"""Embeddings through a gateway, by the `openai` package, from every kind of engine that makes them."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import math
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from controller.engines import ENGINES
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import needed, started
from tests.support.ports import free_port
from tests.support.require import require
from tests.support.worker_process import Worker
from worker.clockwork import make_model
from worker.engines.stub import DIMENSIONS

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
OWN = {"stub": DIMENSIONS}
"""Length of an engine's vectors; the demo model's elsewhere."""
SHORT = 16
TEXTS = ["The quick brown fox", "jumps over a lazy dog", "The quick brown fox"]
Embed = Callable[..., Awaitable[CreateEmbeddingResponse]]


def worker(folder: Path, kind: str, *flags: str) -> Worker:
    port = free_port()
    args = ("--host", "127.0.0.1", "--port", str(port), "--served-name", "inner", *flags)
    return Worker(folder / f"{kind}.log", port, kind, *args, token=TOKEN, env={"ROUNDHOUSE_ENGINE_TOKEN": TOKEN})


@pytest.fixture(scope="module", params=["embedded", "binary", "llama_cpp", "stub"])
def kind(request: pytest.FixtureRequest) -> str:
    made: str = request.param
    if made == "llama_cpp":
        available = importlib.util.find_spec("llama_cpp") is not None
        require("llama_cpp", available, "llama-cpp-python is not installed (extra `llama-cpp`)")
    elif made != "stub":
        needed("embedded" if made == "embedded" else "binary")
    return made


@pytest.fixture(scope="module")
def engine(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("engine")
    make_model(folder / "m.gguf")
    if kind == "stub":
        made = worker(folder, "stub")
    elif kind == "llama_cpp":
        made = worker(folder, "llama_cpp", "--model", str(folder / "m.gguf"), "--embedding")
    else:
        flags = ("--embeddings", "--pooling", "mean")
        made = started(
            "embedded" if kind == "embedded" else "binary", folder, "m", folder / "m.gguf", *flags, token=TOKEN
        )
    with made:
        yield made.ready()


@pytest.fixture
async def gateway(kind: str, engine: Worker) -> AsyncIterator[GatewayHarness]:
    """A gateway that knows the engine as `fixed`, and as `matryoshka`, which may be shortened."""
    backend = {"embedded": "llama_server", "binary": "llama_server"}.get(kind, kind)
    known: dict[str, Any] = {
        "token": TOKEN,
        "served_name": "inner",
        "apis": ("/v1/embeddings", "/tokenize"),
        "takes_dimensions": ENGINES[backend].takes_dimensions,
    }
    urls = [f"http://127.0.0.1:{engine.port}"]
    async with gateway_harness() as built:
        await built.publish(route("fixed", urls, **known), route("matryoshka", urls, shortens_embeddings=True, **known))
        yield built


@pytest.fixture(params=["sync", "async"])
async def embed(gateway: GatewayHarness, request: pytest.FixtureRequest) -> AsyncIterator[Embed]:
    """The SDK's method, unmodified; the one that blocks in a thread of its own."""
    options: dict[str, Any] = {"base_url": f"{gateway.url}/v1", "api_key": "none", "max_retries": 0}
    if request.param == "async":
        async with openai.AsyncOpenAI(**options) as client:
            yield client.embeddings.create
    else:
        with openai.OpenAI(**options) as blocking:
            yield lambda **fields: asyncio.to_thread(blocking.embeddings.create, **fields)


def vectors(answer: CreateEmbeddingResponse) -> list[list[float]]:
    """In the order of the inputs. Base64 that was asked for in words is left to the caller by the SDK."""
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    given: list[Any] = [item.embedding for item in answer.data]
    return [list(array("f", base64.b64decode(each))) if isinstance(each, str) else each for each in given]


def same(one: list[float], other: list[float]) -> bool:
    """As float32 has them. llama.cpp's last bits depend on what else is in a batch."""
    return len(one) == len(other) and all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(one, other, strict=True))


def alike(some: list[list[float]], others: list[list[float]]) -> bool:
    return len(some) == len(others) and all(map(same, some, others))


async def test_one_and_many_as_base64_and_as_floats(embed: Embed, engine: Worker, kind: str) -> None:
    told = json.loads(engine.request("POST", "/v1/embeddings", {"input": TEXTS, "encoding_format": "float"})[1])
    own = [item["embedding"] for item in told["data"]]
    for encoding in (openai.omit, "base64", "float"):  # the SDK asks for base64 where nothing is said
        many = vectors(await embed(model="fixed", input=TEXTS, encoding_format=encoding))
        assert alike(many, own)
        assert same(many[0], many[2])
        assert not same(many[0], many[1])
        one = await embed(model="fixed", input=TEXTS[1], encoding_format=encoding)
        assert same(vectors(one)[0], own[1])
        assert one.usage.prompt_tokens == one.usage.total_tokens > 0
    assert len(own[0]) == OWN.get(kind, 128)
    assert all(math.isclose(math.hypot(*each), 1.0, abs_tol=1e-5) for each in own)


async def test_fewer_dimensions_where_the_model_may_be_shortened(embed: Embed, kind: str) -> None:
    whole = vectors(await embed(model="matryoshka", input=TEXTS))
    for encoding in (openai.omit, "float"):
        short = vectors(await embed(model="matryoshka", input=TEXTS, dimensions=SHORT, encoding_format=encoding))
        for vector, beginning in zip(short, (each[:SHORT] for each in whole), strict=True):
            length = math.hypot(*beginning)
            assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5)
            assert same([number * length for number in vector], beginning)
    own = OWN.get(kind, 128)
    assert alike(vectors(await embed(model="matryoshka", input=TEXTS, dimensions=own)), whole)
    with pytest.raises(openai.BadRequestError, match=f"at most {own}") as caught:
        await embed(model="matryoshka", input=TEXTS, dimensions=own + 1)
    assert (caught.value.code, caught.value.param) == ("dimensions_unsupported", "dimensions")


async def test_no_other_dimensions_than_its_own_elsewhere(embed: Embed, kind: str) -> None:
    own = OWN.get(kind, 128)
    plain = vectors(await embed(model="fixed", input="a"))
    assert alike(vectors(await embed(model="fixed", input="a", dimensions=own)), plain)
    for dimensions in (SHORT, own + 1):
        with pytest.raises(openai.BadRequestError, match=f"gives embeddings of {own}") as caught:
            await embed(model="fixed", input="a", dimensions=dimensions)
        assert caught.value.code == "dimensions_unsupported"


async def test_tokens_in_place_of_a_text(gateway: GatewayHarness, embed: Embed) -> None:
    tokens = (await gateway.post("/tokenize", model="fixed", content=TEXTS[0], add_special=True)).body["tokens"]
    by_text = vectors(await embed(model="fixed", input=TEXTS[0]))
    assert alike(vectors(await embed(model="fixed", input=tokens)), by_text)
    assert alike(vectors(await embed(model="fixed", input=[tokens, tokens])), by_text * 2)


async def test_nulls_and_further_fields_do_no_harm_and_tokens_are_counted(gateway: GatewayHarness) -> None:
    used = 0
    for fields in ({"encoding_format": None, "dimensions": None, "user": "u"}, {"dimensions": SHORT}):
        reply = await gateway.post("/v1/embeddings", model="matryoshka", input=TEXTS, **fields)
        assert reply.status == 200, reply.text
        used += reply.body["usage"]["prompt_tokens"]
    assert f'roundhouse_gateway_tokens_total{{direction="in",model="matryoshka"}} {used:.1f}' in await gateway.metrics()
