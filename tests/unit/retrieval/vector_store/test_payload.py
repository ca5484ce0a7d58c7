"""What is stored with a vector, the filters over it, and how texts become words."""

# ruff: noqa: RUF001 - letters of other scripts look alike
from __future__ import annotations

from typing import Any

import pytest
from qdrant_edge import Language

from contract.documents import LANGUAGES
from retrieval.filters import parse_filter
from retrieval.vector_store.base import Point, SearchScope
from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.payload import make_attribute_filter, make_payload, make_search_filter
from retrieval.vector_store.tokenizer import (
    Bm25Options,
    dump_options,
    has_words,
    list_grams,
    load_options,
    split_text,
)


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
    assert set(LANGUAGES) == known | {"auto", "none"}
    for language in LANGUAGES:
        assert Bm25Encoder(Bm25Options(language)).encode_passage("qdrant").indices
        if language != "auto":
            assert Bm25Encoder(Bm25Options(language, version=1)).encode_passage("qdrant").indices


def found(passage: str, query: str, options: Bm25Options | None = None) -> float:
    """The score of the passage, were all words as rare."""
    encoder = Bm25Encoder(options or Bm25Options())
    stored, asked = encoder.encode_passage(passage), encoder.encode_query(query)
    weights = dict(zip(stored.indices, stored.values, strict=True))
    return sum(weights.get(each, 0) * value for each, value in zip(asked.indices, asked.values, strict=True))


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [("english", "houses", "house"), ("german", "Häuser", "Haus"), ("french", "maisons", "maison")],
)
def test_forms_of_a_word_are_one_word_in_its_language_alone(language: str, one: str, other: str) -> None:
    assert found(one, one, Bm25Options(language)) >= found(one, other, Bm25Options(language)) > 0
    assert found(one, other, Bm25Options("none")) == 0 < found(one, one, Bm25Options("none"))


@pytest.mark.parametrize(
    ("passage", "query"),
    [
        ("Die Häuser stehen in der Stadt.", "Haus"),
        ("Los niños corren por las calles de la ciudad.", "calle"),
        ("Les chevaux sont dans les écuries de la ferme.", "écurie"),
        ("The houses are in the town.", "house"),
        ("Müze pazartesi günleri kapalıdır. Biletler gişeden alınır.", "bilet"),
        ("Билеты можно купить на сайте.", "билет"),
        ("Τα σπίτια είναι κλειστά.", "σπίτι"),
        ("Music: Билеты, houses.", "билет house"),
    ],
)
def test_each_text_has_the_stems_of_its_own_language(passage: str, query: str) -> None:
    assert found(passage, query) > 0


@pytest.mark.parametrize("query", ["the", "der", "to be or not to be", "the who", "и"])
def test_stop_words_are_left_out_unless_there_is_nothing_else(query: str) -> None:
    assert found(query, query) > 0
    assert found(f"{query} x", "zebra") == 0
    assert found("The rest of it is in the yard.", "the coal") == 0


SAME = [
    ("Cafe\u0301 ole\u0301", "café olé"),
    ("Straße", "STRASSE"),
    ("Straße", "strasse"),
    ("Donau\u00addampf\u00adschiff", "Donaudampfschiff"),
    ("zero\u200bwidth", "zerowidth"),
    ("ＧＰＵ", "gpu"),
    ("ｻｰﾊﾞｰ", "サーバー"),
    ("o\ufb03ce", "OFFICE"),
    ("\u0f40\u0f71\u0f72", "\u0f40\u0f73"),  # Tibetan vowels, together and apart
    ("가", "\u1100\u1161"),
    ("ΟΔΌΣ", "οδός"),
    ("İstanbul", "istanbul"),
    ("\u0668\u0669", "89"),
    ("๒๕", "25"),
    ("Roundhouse™", "roundhouse"),
    ("كتـــاب", "كتاب"),
    ("①", "1"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_ways_to_write_the_same_letters_are_equal(one: str, other: str) -> None:
    assert split_text(one) == split_text(other) != ([], [])


@pytest.mark.parametrize(
    ("passage", "query"),
    [
        ("Köln", "koln"),
        ("koln", "Köln"),
        ("Köln", "Koeln"),
        ("Łódź", "lodz"),
        ("Smørrebrød", "smorrebrod"),
        ("ışık", "ISIK"),
        ("Αθήνα", "ΑΘΗΝΑ"),
        ("ёлка", "елка"),
        ("Bảo tàng", "bao tang"),
        ("שָׁלוֹם", "שלום"),
        ("المُعَلِّم", "معلم"),
        ("क़लम", "कलम"),
        ("המוזיאון", "מוזיאון"),
        ("والمتحف", "متحف"),
        ("المتحف", "متحف"),
    ],
)
def test_what_is_written_more_plainly_is_found_after_what_is_equal(passage: str, query: str) -> None:
    assert 0 < found(passage, query) < found(query, query) + found(passage, passage)
    assert found(passage, query) <= found(passage, passage)


@pytest.mark.parametrize(
    ("text", "words", "runs"),
    [
        ("GPU服务器 v2", ["gpu", "v2"], ["服务器"]),
        ("iPhone15を買った。2024年", ["iphone15", "2024"], ["を買った", "年"]),
        ("हिंदी में", ["हिंदी", "में"], []),
        ("তুমি", ["তুমি"], []),
        ("ซื้อตั๋ว 25 บาท", ["25"], ["ซื้อตั๋ว", "บาท"]),
        ("option_12_x", ["option", "12", "x"], []),
        ("l'été d’or", ["l", "été", "d", "or"], []),
        ("東京・大阪〜ー", [], ["東京", "大阪", "ー"]),
        ("… 😀 !? \ud800 \u0301", [], []),
        ("", [], []),
    ],
)
def test_a_text_is_cut_at_spaces_signs_and_between_scripts(text: str, words: list[str], runs: list[str]) -> None:
    split = split_text(text)
    assert (split.words, ["".join(run) for run in split.runs]) == (words, runs)
    assert has_words(text) == bool(words or runs)


def test_a_character_has_its_marks() -> None:
    [run] = split_text("ตั๋วน้ำ").runs
    assert run[:2] == ["ตั๋", "ว"]
    assert list_grams(run)[0] == "ตั๋ว"
    assert list_grams(["字"]) == ["字"]


@pytest.mark.parametrize(
    ("passage", "query"),
    [
        ("机器学习", "学"),
        ("책을 읽다", "책"),
        ("입장권은 온라인으로", "입장권"),
        ("ซื้อตั๋วออนไลน์", "ตั๋ว"),
        ("ພິພິທະພັນປິດ", "ພັນ"),
        ("សារមន្ទីរបិទ", "មន្ទីរ"),
        ("ပြတိုက်သည်", "တိုက်"),
        ("コンピューターを買う", "ｺﾝﾋﾟｭｰﾀ"),
    ],
)
def test_words_that_nothing_separates_are_found(passage: str, query: str) -> None:
    assert found(passage, query) > 0
    assert found(passage, "図") == 0


def test_a_long_word_has_no_stem_and_a_long_query_is_served() -> None:
    assert found("x" * 5000, "x" * 5000) > 0
    assert found("houses", " ".join(f"word{number}" for number in range(3000)) + " house") > 0


@pytest.mark.parametrize("words", ["wörter{}", "word{}", "字{}"])
def test_of_a_long_query_both_ends_are_searched(words: str) -> None:
    many = " ".join(words.format(number) for number in range(3000))
    asked = Bm25Encoder(Bm25Options()).encode_query(f"Züge {many} {'字' * 3000} Köln")
    assert len(asked.indices) < 1200
    for word in ("Züge", "zuge", "Köln", "koln"):
        assert found(word, f"Züge {many} Köln") > 0
    assert found("word1500", many) == 0


def test_options_survive_json_and_their_absence_is_the_english_of_the_first_version() -> None:
    options = Bm25Options("german", 1.0, 0.5, 100)
    assert load_options(dump_options(options)) == options
    assert load_options(None) == Bm25Options("english", 1.2, 0.75, 256, version=1)
    first = dump_options(options)
    del first["version"]
    assert load_options(first) == Bm25Options("german", 1.0, 0.5, 100, version=1)


def test_a_collection_of_the_first_version_keeps_its_words() -> None:
    first = Bm25Encoder(Bm25Options("english", version=1))
    assert first.encode_query("the houses").indices == first.encode_query("house").indices
    assert first.encode_query("the").indices == []


@pytest.mark.parametrize(
    "change",
    [
        {"language": "klingon"},
        {"k": -1},
        {"b": 2},
        {"average_length": 0},
        {"colour": 1},
        {"version": 99},
        {"language": "auto", "version": 1},
    ],
)
def test_options_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        load_options(dump_options(Bm25Options()) | change)
