"""Rankings through a gateway, from real llama-servers, in Jina's form and in both of Cohere's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, started
from tests.support.worker_process import Worker
from worker.clockwork import make_model

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
PATHS = ("/v1/rerank", "/rerank", "/v2/rerank")
QUERY = "a fox"
DOCUMENTS = ["a", "b", "The quick brown fox", "a fox", "", "jumps over a lazy dog"]


META = {"api_version": {"version": str}, "tokens": {"input_tokens": int, "output_tokens": int}}
"""Of Cohere's `ApiMeta`, what we have."""
FIRST = {
    "model": str,
    "object": str,
    "usage": {"total_tokens": int, "prompt_tokens": int},
    "results": [{"index": int, "relevance_score": float}],
    "id": str,
    "meta": META,
}
"""Jina's answer, with the `id` and `meta` of Cohere's `RerankResponse`."""
SECOND = {"id": str, "results": [{"index": int, "relevance_score": float}], "meta": META}
"""Cohere's `V2RerankResponse`."""


def form_of(value: Any, left_out: str = "") -> Any:
    """Types in place of values, of a list the form that all of its elements have."""
    if isinstance(value, dict):
        return {name: form_of(each, left_out) for name, each in value.items() if name != left_out}
    if isinstance(value, list):
        first, *others = [form_of(each, left_out) for each in value]
        assert others == [first] * len(others)
        return [first]
    return type(value)


@pytest.fixture(scope="module")
def engine(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A llama-server that ranks: by the demo model's whim, but always the same. It has no head for ranking, and of such
    a model llama.cpp reads all but the first score of a batch at the wrong place; with one slot, a batch is one."""
    folder = tmp_path_factory.mktemp("ranks")
    make_model(folder / "m.gguf")
    with started(kind, folder, "ranks", folder / "m.gguf", "--reranking", "--parallel", "1", token=TOKEN) as made:
        yield made.ready()


@pytest.fixture
async def gateway(engine: Worker) -> AsyncIterator[GatewayHarness]:
    definition = LlamaServerDefinition.model_validate({"model_path": "m.gguf", "llama_server_reranking": True})
    known: dict[str, Any] = {"token": TOKEN, "served_name": "inner-ranks", "apis": LlamaServer().list_apis(definition)}
    async with gateway_harness() as built:
        await built.publish(route("ranks", [f"http://127.0.0.1:{engine.port}"], **known))
        yield built


async def ranked(gateway: GatewayHarness, path: str = "/v1/rerank", **fields: Any) -> tuple[Any, str]:
    """The answer, which has the published form, and the request's id."""
    reply = await gateway.post(path, **{"model": "ranks", "query": QUERY, "documents": DOCUMENTS} | fields)
    own = "document" if fields.get("return_documents") else ""
    assert form_of(reply.success, own) == (SECOND if path == "/v2/rerank" else FIRST)
    return reply.body, reply.headers["x-request-id"]


@pytest.mark.parametrize("path", PATHS)
async def test_the_engines_scores_the_best_first(gateway: GatewayHarness, engine: Worker, path: str) -> None:
    own = json.loads(engine.request("POST", "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})[1])
    scores = {result["index"]: result["relevance_score"] for result in own["results"]}
    assert len(set(scores.values())) > 3, "the demo model tells documents apart"
    assert max(scores.values()) > 1, "logits, no probabilities"
    made, request_id = await ranked(gateway, path)
    assert made["id"] == request_id
    told = [(result["index"], result["relevance_score"]) for result in made["results"]]
    assert [index for index, _ in told] == sorted(scores, key=lambda index: (-scores[index], index))
    assert all(abs(score - scores[index]) < 1e-4 for index, score in told)
    assert made["meta"]["tokens"]["input_tokens"] == own["usage"]["total_tokens"]
    assert made["meta"]["api_version"]["version"] == ("2" if path == "/v2/rerank" else "1")


@pytest.mark.parametrize("path", PATHS)
async def test_as_many_as_asked_for(gateway: GatewayHarness, path: str) -> None:
    whole, _ = await ranked(gateway, path)
    for top_n in (1, 3, 99):
        made, _ = await ranked(gateway, path, top_n=top_n)
        assert [each["index"] for each in made["results"]] == [each["index"] for each in whole["results"]][:top_n]


async def test_documents_of_every_form_are_ranked_alike_and_come_back(gateway: GatewayHarness) -> None:
    plain, _ = await ranked(gateway)
    objects = [{"text": text, "n": number} if number % 2 else text for number, text in enumerate(DOCUMENTS)]
    made, _ = await ranked(gateway, documents=objects, return_documents=True, max_chunks_per_doc=10)
    assert [each["index"] for each in made["results"]] == [each["index"] for each in plain["results"]]
    for result in made["results"]:
        document = objects[result["index"]]
        assert result["document"] == (document if isinstance(document, dict) else {"text": document})
    titled = [{"title": text, "text": "x"} for text in DOCUMENTS]
    by_title, _ = await ranked(gateway, "/rerank", documents=titled, rank_fields=["title"])
    assert [each["index"] for each in by_title["results"]] == [each["index"] for each in plain["results"]]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"documents": []}, "documents"),
    ({"documents": ["a", 5]}, "documents[1]"),
    ({"query": None}, "query"),
    ({"top_n": -1}, "top_n"),
]


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_wrong_is_told_with_its_place(gateway: GatewayHarness, path: str) -> None:
    for fields, param in WRONG:
        body = {"model": "ranks", "query": QUERY, "documents": DOCUMENTS} | fields
        reply = await gateway.post(path, **body)
        assert (reply.status, reply.code, reply.error["param"]) == (400, "invalid_request", param), fields


async def test_tokens_are_counted(gateway: GatewayHarness) -> None:
    used = sum([(await ranked(gateway, path))[0]["meta"]["tokens"]["input_tokens"] for path in PATHS])
    assert f'roundhouse_gateway_tokens_total{{direction="in",model="ranks"}} {used:.1f}' in await gateway.metrics()
