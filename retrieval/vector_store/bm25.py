"""Sparse vectors for BM25, with one dimension per form of a word, alike for both stores. Stems and stop words are
Qdrant Edge's own."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from qdrant_edge import Bm25, Bm25Config, DisabledStemmer, SparseVector, StopwordsSet, TokenizerType

from contract.documents import NO_LANGUAGE
from retrieval.vector_store.tokenizer import (
    Bm25Options,
    find_script,
    list_grams,
    list_languages,
    list_languages_by_letters,
    list_loose_forms,
    split_text,
)

_WITHOUT_SPACES: Final = ("chinese", "japanese")
_CACHED: Final = 16_384
"""Words of which stems and stop words are kept, some 20 MiB."""
_LONGEST: Final = 64
"""Characters of a word that may have a stem."""
_LOOSE: Final = 0x8000_0000
"""The highest bit of a number, which marks a loose form."""
_DETECTED_FROM: Final = 0.1
"""Part of a text's words that must speak for another language than the likeliest; stop words alone are 0.15 to 0.5 of
prose."""
_FEWEST_SIGNS: Final = 2
"""Words that must: the name of a module may be a stop word somewhere."""

_FORM_WEIGHT: Final = 0.5
"""In a query, of the word as it is, and of its stem: who has both has 1. With the stem alone, or with as much for the
stems of all languages, the campaign `retrieval_quality` found less (nDCG@10 of mixed questions by words: 0.78; 0.75;
0.71)."""
_OTHER_WEIGHT: Final = 0.1
"""Of stems in other languages than the query's, which is often too short to tell."""
_LOOSE_WEIGHT: Final = 0.25
_MOST_ASKED: Final = 400
"""Different words of a query that are searched: each costs time here and in the store."""
_MOST_VARIED: Final = 40
"""Of these, searched loosely and in other languages, too: 2 to 80 numbers per word."""


class _Traits(NamedTuple):
    """What is known of a word without its text: its script, the languages in which it is a stop word, and these and
    those whose alphabets it speaks for."""

    script: str
    stop_languages: frozenset[str]
    signs: tuple[str, ...]


class Bm25Encoder:
    """Makes sparse vectors with one dimension per form of a word.

    Points and queries of a collection must be encoded alike. The weights of a passage hold how often its words occur
    and how long it is; how rare a word is, the store counts at the search (the modifier `idf`). A word of a passage
    counts as it is, as its stem in the language of the passage, and loosely in the forms of `list_loose_forms`.
    """

    def __init__(self, options: Bm25Options) -> None:
        """Load stems and stop words, which are built into Qdrant Edge; no file is read."""
        self._options = options
        self._first_version = _make_first_version(options) if options.version == 1 else None
        self._languages = list_languages(options.language)
        self._plain = _make_stemmer(None)
        self._stemmers = {each: _make_stemmer(each) for found in self._languages.values() for each in found}
        self._number_of = lru_cache(2 * _CACHED)(self._make_number)
        self._numbers_of = lru_cache(_CACHED)(self._list_numbers)
        self._traits_of = lru_cache(_CACHED)(self._read_traits)

    def encode_passage(self, text: str) -> SparseVector:
        """Return the vector of a stored text; its `indices` are empty where the text has no words. Blocks, about 0.6 us
        per byte. Raises UnicodeEncodeError for text that is not valid Unicode."""
        if self._first_version is not None:
            return self._first_version.embed_document(text)
        text.encode()
        words, runs = split_text(text)
        counts = Counter(words)
        traits = {word: self._traits_of(word) for word in counts}
        languages = self._detect_languages(counts, traits)
        occurrences: dict[int, int] = {}
        length = 0.0
        for word, count in counts.items():
            language = languages.get(traits[word].script)
            for number in self._numbers_of(word, language):
                occurrences[number] = occurrences.get(number, 0) + count
            length += 0 if language in traits[word].stop_languages else count
        for run in runs:
            grams = list_grams(run)
            for gram in grams if grams == run else (*run, *grams):
                number = _number_of_gram(gram)
                occurrences[number] = occurrences.get(number, 0) + 1
            length += len(run) / 2
        options = self._options
        saturation = options.k * (1 - options.b + options.b * length / options.average_length)
        weights = [count * (options.k + 1) / (count + saturation) for count in occurrences.values()]
        return SparseVector(list(occurrences), weights)

    def encode_query(self, text: str) -> SparseVector:
        """Return the vector of a query; its `indices` are empty where `text` has no words. Stop words of its language
        are left out, unless there is nothing else. Of a long query the words at both ends are taken, at most
        `_MOST_ASKED`, and as many pairs of characters without spaces; other forms than the word and its stem are of
        `_MOST_VARIED` words, also at both ends. Raises UnicodeEncodeError for text that is not valid Unicode."""
        if self._first_version is not None:
            return self._first_version.embed_query(text)
        text.encode()
        words, runs = split_text(text)
        occurrences = Counter(words)
        counts = {word: occurrences[word] for word in _take_ends(words, _MOST_ASKED)}
        traits = {word: self._traits_of(word) for word in counts}
        detected = self._detect_languages(counts, traits)
        kept = [word for word, each in traits.items() if detected.get(each.script) not in each.stop_languages]
        weights: dict[int, float] = {}
        chosen = kept if kept or runs else [*counts]
        varied = {*_take_ends(chosen, _MOST_VARIED)}
        for word in chosen:
            script, is_varied = traits[word].script, word in varied
            for place, form in enumerate((word, *(list_loose_forms(word) if is_varied else ()))):
                weight = _LOOSE_WEIGHT if place else _FORM_WEIGHT
                plain, stem = self._number_of(form, None), self._number_of(form, detected.get(script))
                for number in {plain, stem}:
                    weights[number] = max(weights.get(number, 0), weight if plain != stem else 2 * weight)
                if not is_varied:
                    continue
                for number in {self._number_of(form, each) for each in self._languages.get(script, ())}:
                    weights.setdefault(number, _OTHER_WEIGHT)
                    weights.setdefault(number | _LOOSE, _LOOSE_WEIGHT)
                weights.setdefault(plain | _LOOSE, _LOOSE_WEIGHT)
        grams = [gram for run in runs for gram in list_grams(run)]
        weights |= {_number_of_gram(gram): 1.0 for gram in _take_ends(grams, _MOST_ASKED)}
        return SparseVector(list(weights), list(weights.values()))

    def _detect_languages(self, counts: Mapping[str, int], traits: Mapping[str, _Traits]) -> dict[str, str]:
        """Return the language of the words of each script: the one with the most stop words and letters of its own
        among them."""
        totals = dict.fromkeys(self._languages, 0)
        found: Counter[str] = Counter()
        for word, count in counts.items():
            script, _, signs = traits[word]
            totals[script] = totals.get(script, 0) + count
            for language in signs:
                found[language] += count
        detected = {}
        for script, languages in self._languages.items():
            best = max(languages, key=lambda each: found[each])
            is_sure = found[best] >= max(_FEWEST_SIGNS, _DETECTED_FROM * totals[script])
            detected[script] = best if is_sure else languages[0]
        return detected

    def _read_traits(self, word: str) -> _Traits:
        script = find_script(word)
        languages = self._languages.get(script, ()) if len(word) <= _LONGEST else ()
        stop_languages = frozenset(each for each in languages if not self._stemmers[each].embed_query(word).indices)
        return _Traits(script, stop_languages, (*stop_languages, *list_languages_by_letters(word)))

    def _list_numbers(self, word: str, language: str | None) -> tuple[int, ...]:
        loose = {self._number_of(form, language) | _LOOSE for form in list_loose_forms(word)}
        return (*{self._number_of(word, None), self._number_of(word, language)}, *loose)

    def _make_number(self, word: str, language: str | None) -> int:
        """Return the number of a word's stem; of the word itself where there is no language, it is a stop word, or it
        has digits: a stem of those is of another name (in Finnish, `v3` of `v33`)."""
        if len(word) > _LONGEST:
            return _number_of_gram(word)
        found: Sequence[int] = ()
        if language is not None and not any(map(str.isdigit, word)):
            found = self._stemmers[language].embed_query(word).indices
        return (found or self._plain.embed_query(word).indices or [_number_of_gram(word)])[0] & ~_LOOSE


def _take_ends(words: Sequence[str], most: int) -> list[str]:
    """Return different words in their order: all, or of many the first and the last ones, `most` together."""
    if len(different := [*dict.fromkeys(words)]) <= most:
        return different
    last = [*islice(dict.fromkeys(reversed(words)), most // 2)]
    return [*dict.fromkeys([*different[: most // 2], *reversed(last)])]


def _number_of_gram(text: str) -> int:
    return zlib.crc32(text.encode()) & ~_LOOSE


def _make_stemmer(language: str | None) -> Bm25:
    """Return what makes one number of one word, and none of a stop word; None: of every word as it is."""
    return Bm25(
        Bm25Config(
            tokenizer=TokenizerType.Whitespace,
            language=language,
            stopwords=StopwordsSet() if language is None else None,
            stemmer=DisabledStemmer() if language is None else None,
        )
    )


def _make_first_version(options: Bm25Options) -> Bm25:
    """Return what made the words of collections of version 1."""
    is_neutral = options.language == NO_LANGUAGE
    return Bm25(
        Bm25Config(
            k=options.k,
            b=options.b,
            avg_len=options.average_length,
            # The one with a dictionary, which leaves out numbers that stand alone.
            tokenizer=TokenizerType.Multilingual if options.language in _WITHOUT_SPACES else None,
            language=None if is_neutral else options.language,
            stopwords=StopwordsSet() if is_neutral else None,
            stemmer=DisabledStemmer() if is_neutral else None,
        )
    )
