"""Rankings in Jina's and Cohere's forms, whatever form the engine uses. Pure.

References: Jina's reranker API, Cohere's `POST /v1/rerank` and `POST /v2/rerank`.

Requests and answers are written anew, because engines agree on nothing but scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common import errors
from gateway.protocols.common.bodies import RERANK_FIELDS, drop_foreign_fields
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import (
    field_error,
    optional_count,
    optional_field,
    require_text,
    require_value,
)
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.request import InferenceRequest

Version = Literal[1, 2]
"""1: Jina's form, with which Cohere's v1 agrees; 2: Cohere's v2."""

_OURS: Final = ("model", "query", "documents", "top_n", "return_documents", "rank_fields", "texts")
"""Fields that are not passed on unchanged. `texts` would make llama-server answer in another form."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a request asks for: to rank documents by their relevance to a query. `top_n`: most results; None: all
    documents."""

    query: str
    documents: tuple[str | Fields, ...]
    """The documents as the client sent them. Not empty."""
    texts: tuple[str, ...]
    """The text of each document that is compared with the query."""
    top_n: int | None
    """Maximum number of results; None: all documents."""
    returns_documents: bool
    passed_fields: Fields
    """Fields for the engine, such as `max_tokens_per_doc`."""


def read_ranking(fields: Fields, version: Version) -> Ranking:
    """Return what the decoded fields of a request for a ranking ask for. `version` 1 is the form of Jina and of
    Cohere's v1, 2 that of Cohere's v2, which takes strings alone as documents, and never returns them. Raises
    RoundhouseError `invalid_request`."""
    documents = require_value(fields.get("documents"), list, "documents")
    if not documents:
        raise field_error("documents", "must not be empty")
    for name in ("max_chunks_per_doc", "max_tokens_per_doc"):
        optional_count(fields, name, 1)
    returns_documents = optional_field(fields, "return_documents", bool)
    names = _rank_fields(fields) if version == 1 else ()
    return Ranking(
        query=require_text(fields.get("query"), "query"),
        documents=tuple(documents),
        texts=tuple(_text_of(each, f"documents[{number}]", names) for number, each in enumerate(documents)),
        top_n=optional_count(fields, "top_n", 1),
        returns_documents=bool(returns_documents) and version == 1,
        passed_fields={name: value for name, value in fields.items() if name not in _OURS and value is not None},
    )


def write_request(ranking: Ranking) -> Fields:
    """Return the fields of the engine's request, without `model`: the documents' texts, the query, and the fields that
    are passed on. `top_n` is left out because some engines fail on values above the number of documents;
    `build_answer` applies it."""
    return {**ranking.passed_fields, "query": ranking.query, "documents": list(ranking.texts)}


def build_answer(ranking: Ranking, answer: Any, request_id: str, model: str, version: Version) -> Fields:
    """Return the client's answer: best document first, documents of equal score in the client's order, `top_n` at most.

    `answer` is the decoded answer of an engine; its scores are not changed, and documents that it leaves out are left
    out. `request_id` becomes the answer's id. `model` is the name to report if the engine names none; an answer of
    version 2 reports no name.

    Raises:
        RoundhouseError: `engine_disconnected`: the answer is no ranking of these documents, or ranks none.
    """
    scores = _scores(answer, len(ranking.documents))
    best_indexes = sorted(scores, key=lambda index: (-scores[index], index))[: ranking.top_n]
    results = [_result(ranking, index, scores[index]) for index in best_indexes]
    tokens = _tokens(answer.get("usage"))
    meta: Fields = {"api_version": {"version": str(version)}}
    if tokens is not None:
        meta["tokens"] = {"input_tokens": tokens, "output_tokens": 0}
    body: Fields = {"id": request_id, "results": results, "meta": meta}
    if version == 2:
        return body
    engine_model = answer.get("model")
    body |= {"object": "list", "model": engine_model if isinstance(engine_model, str) else model}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
    return body


def _rank_fields(fields: Fields) -> tuple[str, ...]:
    names = optional_field(fields, "rank_fields", list)
    if names is None:
        return ("text",)
    if not names:
        raise field_error("rank_fields", "must not be empty")
    return tuple(require_text(name, f"rank_fields[{number}]") for number, name in enumerate(names))


def _text_of(document: Any, place: str, names: tuple[str, ...]) -> str:
    """Return the text of a document. `names` are the fields of an object that are compared, in this order; empty: a
    document must be a string."""
    if isinstance(document, str):
        return document
    if not names:
        return require_value(document, str, place)
    present_names = [name for name in names if name in require_value(document, dict, place)]
    if not present_names:
        raise field_error(place, f"must be a string, or have {' or '.join(names)}")
    return "\n".join(require_value(document[name], str, f"{place}.{name}") for name in present_names)


def _scores(answer: Any, documents: int) -> dict[int, float]:
    """Return each document's score by the document's index."""
    results = answer.get("results") if isinstance(answer, dict) else None
    scores: dict[int, float] = {}
    for result in results if isinstance(results, list) else ():
        index, score = (result.get("index"), result.get("relevance_score")) if isinstance(result, dict) else (-1, None)
        if type(index) is not int or not 0 <= index < documents or isinstance(score, bool):
            return _no_ranking()
        if not isinstance(score, float | int):
            return _no_ranking()
        scores[index] = score
    return scores or _no_ranking()


def _no_ranking() -> NoReturn:
    raise RoundhouseError("engine_disconnected", "The engine failed: its answer is no ranking of the documents.")


def _result(ranking: Ranking, index: int, score: float) -> Fields:
    result: Fields = {"index": index, "relevance_score": score}
    if ranking.returns_documents:
        document = ranking.documents[index]
        result["document"] = {"text": document} if isinstance(document, str) else document
    return result


def _tokens(usage: Any) -> int | None:
    """Return the tokens that the engine counted, in the form of Jina's usage; None if it reports none."""
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if type(total) is int else None


class RerankDialect(JsonDialect):
    """Dialect of the rerank paths, in one of the two forms of the API (`Version`): 1 is Jina's and Cohere's v1, 2 is
    Cohere's v2. Requests and answers are written anew. `check_request` sets a request's `state` to the `Ranking` that
    it asks for; `engine_body` and `get_body_converter` need it."""

    def __init__(self, version: Version) -> None:
        self._version = version

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse an invalid request (`invalid_request`), and set `request.state` to its `Ranking` unless it is set."""
        super().check_request(request, route)
        if request.state is None:
            request.state = read_ranking(request.fields, self._version)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        fields = drop_foreign_fields(write_request(request.state), RERANK_FIELDS, route)
        return json_bytes(fields | {"model": route.served_name})

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        ranking: Ranking = request.state
        return lambda body: errors.encode_json(
            build_answer(ranking, errors.decode_json(body), request.id, request.model, self._version)
        )


RERANK: Final = RerankDialect(1)
RERANK_V2: Final = RerankDialect(2)
