"""Bodies of Jina and of Cohere, what an engine is asked of them, and what it answers in their forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocols.common.request import InferenceRequest, parse_request
from gateway.protocols.rerank import RERANK, RERANK_V2, RerankDialect
from tests.fakes.fake_controller import route
from tests.support.outcomes import error_of, present, refusal

MODEL = route("m", served_name="inner")
PLAIN: dict[str, Any] = {"query": "q", "documents": ["a", "b", "c"]}
OBJECTS = [{"text": "a", "id": 7}, "b", {"text": "", "title": "T"}]
SCORED = {
    "model": "inner",
    "object": "list",
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
    "results": [
        {"index": 1, "relevance_score": -1.5},
        {"index": 2, "relevance_score": 4},
        {"index": 0, "relevance_score": 0.5},
    ],
}
TOKENS = {"input_tokens": 9, "output_tokens": 0}


def checked(dialect: RerankDialect = RERANK, **fields: Any) -> InferenceRequest:
    request = parse_request(json.dumps({"model": "alias", **fields}).encode(), may_stream=False)
    request.id = "req-1"
    dialect.check_request(request, MODEL)
    return request


def sent(dialect: RerankDialect = RERANK, **fields: Any) -> Any:
    return json.loads(dialect.engine_body(checked(dialect, **fields), MODEL, as_stream=False))


def given(told: Any, dialect: RerankDialect = RERANK, **fields: Any) -> Any:
    translate = present(dialect.get_body_converter(checked(dialect, **fields)))
    return json.loads(translate(json.dumps(told).encode()))


def test_the_engine_is_sent_all_of_the_texts_and_nothing_else() -> None:
    asked = {**PLAIN, "top_n": 1, "return_documents": True, "max_chunks_per_doc": 3, "user": "u", "priority": None}
    assert sent(**asked) == {"model": "inner", **PLAIN, "max_chunks_per_doc": 3, "user": "u"}
    assert sent(RERANK_V2, **PLAIN, max_tokens_per_doc=9) == {"model": "inner", **PLAIN, "max_tokens_per_doc": 9}
    assert sent(**PLAIN, texts=["x"]) == {"model": "inner", **PLAIN}
    assert sent(query="q", documents=OBJECTS)["documents"] == ["a", "b", ""]
    documents = [{"text": "a", "title": "T"}, "b", {"text": "c"}]
    asked = sent(query="q", documents=documents, rank_fields=["title", "text"])
    assert asked == {"model": "inner", "query": "q", "documents": ["T\na", "b", "c"]}


def test_jinas_answer_has_what_coheres_clients_read() -> None:
    assert given(SCORED, **PLAIN) == {
        "id": "req-1",
        "results": [
            {"index": 2, "relevance_score": 4},
            {"index": 0, "relevance_score": 0.5},
            {"index": 1, "relevance_score": -1.5},
        ],
        "meta": {"api_version": {"version": "1"}, "tokens": TOKENS},
        "object": "list",
        "model": "inner",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    asked = {**PLAIN, "top_n": 2, "return_documents": True, "rank_fields": ["x"]}
    assert given(SCORED, RERANK_V2, **asked) == {
        "id": "req-1",
        "results": [{"index": 2, "relevance_score": 4}, {"index": 0, "relevance_score": 0.5}],
        "meta": {"api_version": {"version": "2"}, "tokens": TOKENS},
    }


def test_results_have_documents_only_where_they_were_requested() -> None:
    made = given(SCORED, query="q", documents=OBJECTS, return_documents=True)
    assert [result["document"] for result in made["results"]] == [OBJECTS[2], OBJECTS[0], {"text": "b"}]
    assert "document" not in given(SCORED, **PLAIN, return_documents=False)["results"][0]


def test_what_the_engine_adds_of_its_own_is_not_taken_for_the_clients_document() -> None:
    told = {"results": [{"index": 0, "relevance_score": 1, "document": {"text": "x", "multi_modal": None}}]}
    assert given(told, **PLAIN)["results"] == [{"index": 0, "relevance_score": 1}]


def test_what_the_engine_does_not_tell_is_not_made_up() -> None:
    made = given({"results": SCORED["results"]}, **PLAIN)
    assert "usage" not in made
    assert made["model"] == "alias"
    assert made["meta"] == {"api_version": {"version": "1"}}


def test_equal_scores_keep_the_clients_order() -> None:
    results = [{"index": index, "relevance_score": 0.5} for index in (2, 0, 1)]
    assert [result["index"] for result in given({"results": results}, **PLAIN, top_n=2)["results"]] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"query": value}, "query") for value in (None, "", {"text": "q"})),
        *(({"documents": value}, "documents") for value in (None, "a", list[Any]())),
        *(({"documents": value}, "documents[1]") for value in (["a", 5], ["a", None])),
        ({"documents": [{"image": "x"}]}, "documents[0]"),
        ({"documents": [{"text": 5}]}, "documents[0].text"),
        ({"documents": [{"text": "a"}], "rank_fields": ["title"]}, "documents[0]"),
        ({"documents": [{"title": {}}], "rank_fields": ["title"]}, "documents[0].title"),
        *(({"rank_fields": value}, "rank_fields") for value in ("text", list[Any]())),
        ({"rank_fields": ["text", 5]}, "rank_fields[1]"),
        *(({"top_n": value}, "top_n") for value in (0, -1, "1", True)),
        ({"return_documents": "yes"}, "return_documents"),
        ({"max_chunks_per_doc": 0}, "max_chunks_per_doc"),
        ({"max_tokens_per_doc": 1.5}, "max_tokens_per_doc"),
    ],
)
def test_what_is_wrong_is_refused_at_its_place(fields: dict[str, Any], param: str) -> None:
    assert refusal(lambda: checked(**PLAIN | fields)) == ("invalid_request", param)


def test_the_second_version_takes_texts_alone() -> None:
    error = error_of(lambda: checked(RERANK_V2, query="q", documents=["a", {"text": "b"}]))
    assert error.param == "documents[1]"
    assert "must be a string;" in error.message


@pytest.mark.parametrize(
    "told",
    [
        *([], {"results": None}, {"results": []}, {"results": [3]}, {"results": [{"index": 0}]}),
        *({"results": [{"index": 0, "relevance_score": score}]} for score in (None, True)),
        *({"results": [{"index": index, "relevance_score": 1.0}]} for index in (3, -1, "0")),
        {"results": [{"index": 0, "relevance_score": 1.0}, {"index": 1}]},
    ],
)
def test_what_is_no_ranking_of_the_documents_is_the_engines_failure(told: Any) -> None:
    assert error_of(lambda: given(told, **PLAIN)).entry.code == "engine_disconnected"
