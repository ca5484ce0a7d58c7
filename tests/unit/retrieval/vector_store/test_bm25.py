"""How texts become words."""

from __future__ import annotations

import pytest
from qdrant_edge import Language

from retrieval.schema.languages import LANGUAGES
from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.bm25_options import Bm25Options, dump_options, load_options


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
