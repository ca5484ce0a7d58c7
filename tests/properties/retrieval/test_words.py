"""How texts become words: whatever is written, and however it is encoded."""

# ruff: noqa: RUF001 - letters of other scripts look alike
from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from retrieval.vector_store.bm25 import Bm25Encoder
from retrieval.vector_store.tokenizer import Bm25Options, has_words, list_grams, list_loose_forms, split_text

ENCODER = Bm25Encoder(Bm25Options())
SCRIPTS = "aZéßøñğ ЖёΑάשָлمَहिंबাกั๋ພမြក្ស한글字漢かガー゛12３٣.,-_'’\u00ad\u200b"
TEXTS = st.text(st.one_of(st.sampled_from(SCRIPTS), st.characters(exclude_categories=["Cs", "Cn"])), max_size=40)


@given(st.text(max_size=60))
def test_any_text_has_words_or_none(text: str) -> None:
    words, runs = split_text(text)
    assert all(words)
    assert all(run and all(run) and all(map(list_grams, [run])) for run in runs)
    assert has_words(text) == bool(words or runs)
    for word in words:
        assert all(form and form != word for form in list_loose_forms(word))


@given(TEXTS)
def test_a_text_and_its_normal_forms_have_the_same_words(text: str) -> None:
    for form in ("NFC", "NFD"):
        assert split_text(unicodedata.normalize(form, text)) == split_text(text)


@given(st.text(st.sampled_from("aZéßøñЖёΑάשम한字かＡ"), max_size=30))
def test_capitals_and_compatible_letters_have_the_same_words(text: str) -> None:
    assert split_text(text.upper()) == split_text(text.casefold()) == split_text(text)
    assert split_text(unicodedata.normalize("NFKD", text)) == split_text(text)


@given(TEXTS, TEXTS)
def test_what_a_space_separates_is_read_by_itself(one: str, other: str) -> None:
    both, first, second = split_text(f"{one} . {other}"), split_text(one), split_text(other)
    assert both == (first.words + second.words, first.runs + second.runs)


def test_a_name_with_digits_finds_itself_alone() -> None:
    numbers = range(60)
    stored = {each: {*ENCODER.encode_passage(f"everywhere v{each} c{each}e{each}").indices} for each in numbers}
    for each in numbers:
        for name in (f"v{each}", f"c{each}e{each}"):
            asked = {*ENCODER.encode_query(name).indices}
            assert [number for number in numbers if asked & stored[number]] == [each], name


@given(TEXTS)
def test_a_passage_is_found_by_its_own_words_and_by_nothing_without_words(text: str) -> None:
    stored, asked = ENCODER.encode_passage(text), ENCODER.encode_query(text)
    assert bool(stored.indices) == bool(asked.indices) == has_words(text)
    assert len({*stored.indices}) == len(stored.indices)
    assert all(value > 0 for value in (*stored.values, *asked.values))
    assert not has_words(text) or {*stored.indices} & {*asked.indices}
