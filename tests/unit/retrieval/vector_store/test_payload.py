"""What is stored with a vector, the filters over it, and how texts become words."""

from __future__ import annotations

from typing import Any

import pytest
from qdrant_edge import Language

from contract.documents import LANGUAGES
from retrieval.filters import parse_filter
from retrieval.vector_store.base import Point, SearchScope
from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.bm25_options import Bm25Options, dump_options, load_options
from retrieval.vector_store.payload import make_attribute_filter, make_payload, make_search_filter


def payload_of(**attributes: Any) -> dict[str, Any]:
    """The payload of a point with these attributes."""
    return make_payload(Point("id", "t", "vs_1", 7, 3, "text", None, attributes))


def term(value: str) -> dict[str, Any]:
    """The condition that a point has the term."""
    return {"key": "terms", "match": {"value": value}}


def test_a_payload_names_what_searches_select_by() -> None:
    assert payload_of() == {"tenant": "t", "space": "vs_1", "version": 7, "ordinal": 3}


def test_attributes_are_terms_and_numbers_and_never_fields() -> None:
    payload = payload_of(tenant="other", year=2024, draft=True, tags=["a", "b"], sizes=[1, 2.5])
    assert payload["tenant"] == "t"
    terms = "tenant=s:other year=n:2024.0 draft=b:true tags=s:a tags=s:b sizes=n:1.0 sizes=n:2.5"
    assert payload["terms"] == terms.split()
    assert payload["numbers"] == {"year": [2024], "sizes": [1, 2.5]}
    assert len(payload["ranks"]) == 3
    assert [type(each) for each in (*payload["numbers"]["year"], *payload["numbers"]["sizes"])] == [int, int, float]


def test_what_no_filter_can_ask_is_not_stored() -> None:
    payload = make_payload(Point("id", "t", "", 1, 0, "", None, {'a"b': "x", "a=b": 1, "long": "x" * 513, "empty": []}))
    assert payload.keys() == {"tenant", "space", "version", "ordinal"}


def test_an_integer_that_no_float_holds_is_refused() -> None:
    with pytest.raises(OverflowError):
        payload_of(huge=10**400)


def test_a_search_is_bound_to_its_tenant_and_spaces() -> None:
    assert make_search_filter(SearchScope("t", ["", "vs_1"], None, frozenset())) == {
        "must": [{"key": "tenant", "match": {"value": "t"}}, {"key": "space", "match": {"any": ["", "vs_1"]}}]
    }


def test_hidden_versions_and_filters_are_added() -> None:
    where = make_search_filter(SearchScope("t", [""], parse_filter({"lang": "en"}), frozenset({9, 3})))
    assert where["must"][2] == {"key": "terms", "match": {"value": "lang=s:en"}}
    assert where["must_not"] == [{"key": "version", "match": {"any": [3, 9]}}]


@pytest.mark.parametrize(
    ("asked", "condition"),
    [
        ({"lang": ["en", 1]}, {"key": "terms", "match": {"any": ["lang=s:en", "lang=n:1.0"]}}),
        ({"type": "ne", "key": "draft", "value": False}, {"must_not": [term("draft=b:false")]}),
        ({"a": -0.0}, term("a=n:0.0")),
        ({"type": "or", "filters": [{"a": "x"}, {"a": "y"}]}, {"should": [term("a=s:x"), term("a=s:y")]}),
    ],
)
def test_filters_become_conditions(asked: dict[str, Any], condition: dict[str, Any]) -> None:
    parsed = parse_filter(asked)
    assert parsed is not None
    assert make_attribute_filter(parsed) == condition


def test_a_comparison_of_order_has_an_index_to_begin_with_and_then_the_number_itself() -> None:
    parsed = parse_filter({"type": "gt", "key": "a b.c:d", "value": 2})
    assert parsed is not None
    ranks, numbers = make_attribute_filter(parsed)["must"]
    assert ranks["key"] == "ranks"
    assert 0 < ranks["range"]["gte"] < ranks["range"]["lte"] < 2**53
    assert numbers == {"key": 'numbers."a b.c:d"', "range": {"gt": 2.0}}


def test_the_languages_are_those_of_qdrant() -> None:
    known = {name.lower() for name in dir(Language) if name[0].isupper()}
    assert set(LANGUAGES) == known | {"none"}
    for language in LANGUAGES:
        assert Bm25Encoder(Bm25Options(language)).encode_passage("qdrant").indices


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [("english", "houses", "house"), ("german", "Häuser", "haus"), ("french", "maisons", "maison")],
)
def test_forms_of_a_word_are_one_word_in_its_language_alone(language: str, one: str, other: str) -> None:
    encoder, neutral = Bm25Encoder(Bm25Options(language)), Bm25Encoder(Bm25Options("none"))
    assert encoder.encode_query(one).indices == encoder.encode_query(other).indices
    assert neutral.encode_query(one).indices != neutral.encode_query(other).indices


def test_stop_words_are_left_out_but_without_a_language() -> None:
    assert Bm25Encoder(Bm25Options()).encode_query("the").indices == []
    assert Bm25Encoder(Bm25Options("german")).encode_query("der").indices == []
    neutral = Bm25Encoder(Bm25Options("none"))
    assert neutral.encode_query("The").indices == neutral.encode_query("the").indices != []


@pytest.mark.parametrize(
    ("language", "text"), [("chinese", "我喜欢在图书馆读书"), ("japanese", "図書館で本を読みます")]
)
def test_words_that_nothing_separates_are_found(language: str, text: str) -> None:
    assert len(Bm25Encoder(Bm25Options(language)).encode_passage(text).indices) > 2


def test_options_survive_json_and_their_absence_is_english() -> None:
    options = Bm25Options("german", 1.0, 0.5, 100)
    assert load_options(dump_options(options)) == options
    assert load_options(None) == Bm25Options("english", 1.2, 0.75, 256)


@pytest.mark.parametrize("change", [{"language": "klingon"}, {"k": -1}, {"b": 2}, {"average_length": 0}, {"colour": 1}])
def test_options_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        load_options(dump_options(Bm25Options()) | change)
