"""Questions with known answers, made of documents by rule. Pure, but for the choice by a seed.

Each question has exactly one document that answers it, so a search is right when it finds that one. `headings` asks by
a heading that only one document has. `paraphrases` asks by the first sentence of a paragraph, with other words for as
many as the rules know (words that the document does not have), in another order, and without code. `code words` asks by
an identifier, an option or a constant that only one document has. `mixed` has as many of each.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.synonyms import SYNONYMS

HEADINGS, PARAPHRASES, CODE_WORDS, MIXED = "headings", "paraphrases", "code words", "mixed"
_HEADING: Final = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
_WORD: Final = re.compile(r"[A-Za-z][a-z]+(?:-[a-z]+)*")
_CODE: Final = re.compile(
    r"(?<![\w/.-])(?:--[a-z][a-z0-9]+(?:-[a-z0-9]+)*|[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+|[a-z]+(?:[A-Z][a-z]+)+)(?![\w/-])"
)
_RUN: Final = re.compile(r"[\w-]+")
_SENTENCE: Final = re.compile(r"[A-Z][^.!?:;|<>\n]{40,220}\.(?=\s|$)")
_CODE_QUESTIONS: Final = ("{}", "what does {} do", "{} meaning", "how to use {}")
_FEWEST_REPLACED: Final = 3
_LEAST_REPLACED: Final = 0.5
"""Of the words of a sentence that are no stop words."""
_STOP_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be been being but by can could did do does each for from had has have how if in into is it
        its may might must no not of on only or other our same shall should so some such than that the their them then
        there these they this those to too was we were what when where which while who will with would you your
        """,
    )
)


@dataclass(frozen=True, slots=True)
class Question:
    """A search, and the document that it must find."""

    text: str
    document: str


def make_question_sets(documents: Mapping[str, str], seed: int, count: int) -> dict[str, list[Question]]:
    """Return up to `count` questions per set, at most one per document and set. `documents`: id to Markdown."""
    chance = random.Random(seed)
    sets = {
        HEADINGS: _ask_by_headings(documents, chance),
        PARAPHRASES: _ask_by_paraphrases(documents, chance),
        CODE_WORDS: _ask_by_code_words(documents, chance),
    }
    for questions in sets.values():
        chance.shuffle(questions)
        del questions[count:]
    share = min(count // len(sets), *map(len, sets.values()))
    return {**sets, MIXED: [question for questions in sets.values() for question in questions[:share]]}


def _ask_by_headings(documents: Mapping[str, str], chance: random.Random) -> list[Question]:
    found = {
        name: sorted({each.strip(" \u00b6") for each in _HEADING.findall(text)}) for name, text in documents.items()
    }
    uses = Counter(each.lower() for headings in found.values() for each in {each.lower() for each in headings})
    questions = []
    for name, headings in found.items():
        own = [each for each in headings if uses[each.lower()] == 1 and 3 <= len(_WORD.findall(each)) <= 12]
        if own:
            questions.append(Question(chance.choice(own).strip(" \u00b6"), name))
    return questions


def _ask_by_paraphrases(documents: Mapping[str, str], chance: random.Random) -> list[Question]:
    found = {name: list(dict.fromkeys(_SENTENCE.findall(text))) for name, text in documents.items()}
    uses = Counter(each for sentences in found.values() for each in sentences)
    questions = []
    for name, sentences in found.items():
        known = {word.lower() for word in _WORD.findall(documents[name])}
        own = [sentence for sentence in sentences if uses[sentence] == 1]
        made = [each for sentence in own if (each := _paraphrase(sentence, known, chance)) is not None]
        if made:
            questions.append(Question(chance.choice(made), name))
    return questions


def _paraphrase(sentence: str, known: set[str], chance: random.Random) -> str | None:
    """Say a sentence otherwise; None where too few of its words have another one. `known`: words of its document."""
    words = [word.lower() for word in _WORD.findall(_CODE.sub(" ", sentence))]
    others = [word if word in _STOP_WORDS else _replace(word, known, chance) for word in words]
    replaced = sum(other != word for other, word in zip(others, words, strict=True))
    own = sum(word not in _STOP_WORDS for word in words)
    if replaced < _FEWEST_REPLACED or replaced < _LEAST_REPLACED * own:
        return None
    middle = len(others) // 2
    return " ".join([*others[middle:], *others[:middle]])


def _replace(word: str, known: set[str], chance: random.Random) -> str:
    for ending in ("", "s", "ed", "d", "ing"):
        stem = word.removesuffix(ending)
        if word.endswith(ending) and stem in SYNONYMS:
            others = [each for each in SYNONYMS[stem] if not any(each + end in known for end in ("", "s", "ed", "d"))]
            return chance.choice(others) if others else word
    return word


def _ask_by_code_words(documents: Mapping[str, str], chance: random.Random) -> list[Question]:
    found = {name: sorted({each for each in _CODE.findall(text) if len(each) > 5}) for name, text in documents.items()}
    uses = _count_documents(documents, found)
    questions = []
    for name, codes in found.items():
        own = [each for each in codes if uses[each] == 1]
        if own:
            questions.append(Question(chance.choice(_CODE_QUESTIONS).format(chance.choice(own)), name))
    return questions


def _count_documents(documents: Mapping[str, str], found: Mapping[str, Sequence[str]]) -> Counter[str]:
    """In how many documents each code word is, in small letters or capitals."""
    codes: dict[str, set[str]] = {}
    for each in {code for found_codes in found.values() for code in found_codes}:
        codes.setdefault(each.lower(), set()).add(each)
    uses: Counter[str] = Counter()
    for text in documents.values():
        for word in set(_RUN.findall(text.lower())):
            uses.update(codes.get(word, ()))
    return uses
