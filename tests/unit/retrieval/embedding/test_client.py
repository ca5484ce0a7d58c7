"""What the client makes of answers that a model should not give: none passes for vectors or a ranking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from retrieval.embedding import GatewayModelClient, ModelRefusedError, ModelUnavailableError

HUGE = "1" + "0" * 400
DEEP = "[" * 100_000
INDEXES = ["0.5", "2", "-1", "1", '"0"', "null", "NaN", "Infinity", HUGE]
"""JSON of an index that the first of two rows cannot have, beside another one with the index 1."""


@asynccontextmanager
async def client_of(answer: str) -> AsyncIterator[GatewayModelClient]:
    """A client whose gateway gives every request this answer."""

    async def reply(_: web.Request) -> web.Response:
        return web.Response(text=answer, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/{api}", reply)
    async with (
        TestServer(app, host="127.0.0.1") as server,
        GatewayModelClient(str(server.make_url("/")), lambda: "token", 8) as client,
    ):
        yield client


def ranking(*rows: tuple[str, str]) -> str:
    """The JSON of a ranking with these indexes and scores."""
    results = ", ".join(f'{{"index": {index}, "relevance_score": {score}}}' for index, score in rows)
    return f'{{"results": [{results}]}}'


def embeddings(*rows: tuple[str, str]) -> str:
    """The JSON of embeddings with these indexes and vectors."""
    data = ", ".join(f'{{"index": {index}, "embedding": {vector}}}' for index, vector in rows)
    return f'{{"data": [{data}]}}'


def _start_of(answer: str) -> str:
    return answer[:60]


async def test_scores_come_in_the_order_of_the_passages() -> None:
    async with client_of(ranking(("1", "0.5"), ("0", "-2"))) as client:
        assert await client.rank_passages("m", "q", ["a", "b"]) == [-2.0, 0.5]


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    async with client_of(embeddings(("1", "[3, 4]"), ("0", '"AACAPwAAAMA="'))) as client:
        assert await client.embed_texts("m", ["a", "b"], is_background=False) == [[1.0, -2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    "answer",
    [
        *(ranking(("0", score), ("1", "1")) for score in (HUGE, "NaN", "Infinity", "-Infinity", "1e999", "null", "[]")),
        *(ranking((index, "1"), ("1", "1")) for index in INDEXES),
        ranking(("0", "1")),
        ranking(("0", "1"), ("1", "1"), ("2", "1")),
        ranking(("0", "1"), ("1", "1"), ("1", "2")),
        '{"results": 2}',
        "{}",
    ],
    ids=_start_of,
)
async def test_an_answer_that_is_no_ranking_is_refused(answer: str) -> None:
    async with client_of(answer) as client:
        with pytest.raises(ModelRefusedError, match=r"^m answered no ranking"):
            await client.rank_passages("m", "q", ["a", "b"])


@pytest.mark.parametrize(
    "answer",
    [
        *(embeddings(("0", f"[1, {number}]"), ("1", "[1, 2]")) for number in (HUGE, "NaN", "Infinity", "1e39", "{}")),
        *(embeddings((index, "[1, 2]"), ("1", "[1, 2]")) for index in INDEXES),
        embeddings(("0", "[]"), ("1", "[]")),
        embeddings(("0", '"AACAPwA="'), ("1", "[1]")),
        embeddings(("0", "[1]")),
        embeddings(("0", "[1]"), ("1", "[1]"), ("1", "[2]")),
        embeddings(("0", "[1]"), ("1", "[1, 2]")),
        "{}",
    ],
    ids=_start_of,
)
async def test_an_answer_that_is_no_vectors_is_refused(answer: str) -> None:
    async with client_of(answer) as client:
        with pytest.raises(ModelRefusedError, match=r"^m answered (no vectors|vectors of several dimensions)"):
            await client.embed_texts("m", ["a", "b"], is_background=False)


@pytest.mark.parametrize("answer", ["no JSON", DEEP, "[]"], ids=_start_of)
async def test_an_answer_that_is_no_json_object_may_pass(answer: str) -> None:
    async with client_of(answer) as client:
        with pytest.raises(ModelUnavailableError):
            await client.rank_passages("m", "q", ["a"])
