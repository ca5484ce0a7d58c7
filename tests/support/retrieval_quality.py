"""How well a whole retrieval program finds the documents that answer known questions: documents, questions, embeddings,
measures.

Pure, but for the choice by a seed.

Each question has exactly one document that answers it, so a search is right when it finds that one. `headings` asks by
a heading that only one document has. `paraphrases` asks by the first sentence of a paragraph, with other words for as
many as the rules know (words that the document does not have), in another order, and without code. `code words` asks by
an identifier, an option or a constant that only one document has. `mixed` has as many of each.

The packages are fetched by `apt-get download` and unpacked, never installed. Their licences are free, and differ; none
of their text is kept in this repository.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import re
import sqlite3
import statistics
import subprocess
from argparse import ArgumentParser
from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retrieval.embedding import ModelClient
from retrieval.parsing.base import ParsingError, ParsingLimits
from retrieval.parsing.worker import extract_file
from tests.support.retrieval_harness import RetrievalHarness
from tests.support.synonyms import SYNONYMS
from tests.support.wait import until
from worker.engine import Job
from worker.engines import onnx
from worker.metrics import Counters


def recall(ranking: Sequence[str], relevant: Collection[str], depth: int) -> float:
    """Return the part of the relevant items that the first `depth` items have."""
    return len(set(ranking[:depth]) & set(relevant)) / len(relevant)


def reciprocal_rank(ranking: Sequence[str], relevant: Collection[str]) -> float:
    """Return 1 / the rank of the first relevant item; 0 where there is none. Its mean over questions is the MRR."""
    return next((1 / rank for rank, item in enumerate(ranking, start=1) if item in relevant), 0.0)


def ndcg(ranking: Sequence[str], relevant: Collection[str], depth: int) -> float:
    """Return the discounted gain of the first `depth` items over that of the best possible ranking (Järvelin and
    Kekäläinen, 2002): a relevant item at rank r gains 1 / log2(r + 1)."""
    gain = sum(1 / math.log2(rank + 1) for rank, item in enumerate(ranking[:depth], start=1) if item in relevant)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(depth, len(relevant)) + 1))
    return gain / best


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
        paraphrases = [each for sentence in own if (each := _paraphrase(sentence, known, chance)) is not None]
        if paraphrases:
            questions.append(Question(chance.choice(paraphrases), name))
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


PACKAGES: Final = (
    "apache2-doc",
    "apt-doc",
    "cmake-doc",
    "debian-faq",
    "debian-policy",
    "debmake-doc",
    "developers-reference",
    "git-doc",
    "postfix-doc",
    "postgresql-doc-15",
    "python-django-doc",
    "python3.11-doc",
    "sqlite3-doc",
)
PER_PACKAGE: Final = 450
SHORTEST, LONGEST = 800, 5_000
"""Characters of a document: longer ones would keep two cores busy for hours with embeddings."""
_OTHER_LANGUAGE: Final = re.compile(r"/(?!en/)[a-z]{2}(-[a-z]{2})?/")
_NO_ID: Final = re.compile(r"[^A-Za-z0-9._:-]")
_TEXTS: Final = "texts-1.json"


class DocumentsUnavailableError(Exception):
    """The packages cannot be had. The text says why."""


def load_documents(folder: Path) -> dict[str, str]:
    """Return documents, name to Markdown, always the same of the same packages. Fetches what is missing in `folder`.

    Raises:
        DocumentsUnavailableError: see there.
    """
    kept = folder / _TEXTS
    if not kept.exists():
        documents: dict[str, str] = {}
        for package in PACKAGES:
            documents |= _choose_pages(package, _unpack(package, folder))
        kept.write_text(json.dumps(_drop_equal(documents)))
    loaded: dict[str, str] = json.loads(kept.read_text())
    return loaded


def _unpack(package: str, folder: Path) -> Path:
    place = folder / package
    if place.exists():
        return place
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{package}.unfinished"
    try:
        if not any(archives.glob(f"{package}_*.deb")):
            subprocess.run(["apt-get", "download", package], cwd=archives, check=True, capture_output=True, text=True)
        [archive] = archives.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, unfinished], check=True, capture_output=True, text=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise DocumentsUnavailableError(f"{package}: {reason} (apt-get update helps perhaps)") from None
    unfinished.rename(place)
    return place


def _choose_pages(package: str, place: Path) -> dict[str, str]:
    """Up to `PER_PACKAGE` pages in English, by the hash of their names: of all parts of the package."""
    paths = [path for pattern in ("*.html", "*.html.en") for path in place.rglob(pattern) if path.is_file()]
    by_name = {
        _NO_ID.sub("_", ":".join([package, *path.relative_to(place).parts[3:]])): path  # below usr/share/doc
        for path in paths
        if not path.is_symlink() and not _OTHER_LANGUAGE.search(str(path))
    }
    chosen: dict[str, str] = {}
    for name in sorted(by_name, key=lambda each: hashlib.sha256(each.encode()).digest()):
        try:
            text = extract_file(by_name[name], "page.html", "text/html", ParsingLimits()).text
        except ParsingError:
            continue
        if SHORTEST <= len(text) <= LONGEST:
            chosen[name] = text
        if len(chosen) == PER_PACKAGE:
            break
    return chosen


def _drop_equal(documents: Mapping[str, str]) -> dict[str, str]:
    return dict({text: (name, text) for name, text in documents.items()}.values())


class CachedModels:
    """A `ModelClient` that asks another one for what the file does not have. Use it as a context manager."""

    def __init__(self, models: ModelClient, path: Path, weights: str) -> None:
        """`weights`: what tells the model's weights from those of others, such as their hash."""
        self._models = models
        self._weights = weights
        self._database = sqlite3.connect(path)
        self._database.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        self.computed = 0
        """Texts that the other one was asked for."""

    def __enter__(self) -> CachedModels:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        keys = [hashlib.sha256(f"{self._weights}\n{text}".encode()).digest() for text in texts]
        found = {key: vector for key in keys if (vector := self._read(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            vectors = await self._models.embed_texts(model, list(missing.values()), is_background=is_background)
            self.computed += len(vectors)
            found |= {key: array("f", vector) for key, vector in zip(missing, vectors, strict=True)}
            rows = [(key, found[key].tobytes()) for key in missing]
            self._database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
            self._database.commit()
        return [found[key].tolist() for key in keys]

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        return await self._models.rank_passages(model, query, passages)

    def _read(self, key: bytes) -> array[float] | None:
        row = self._database.execute("SELECT vector FROM vectors WHERE text = ?", (key,)).fetchone()
        return None if row is None else array("f", row[0])


class OnnxModels:
    """A `ModelClient` with one model of a worker's engine, for every name. One request at a time."""

    def __init__(self, model: Path, tokenizer: Path, max_tokens: int) -> None:
        """Load the model. Texts are cut after `max_tokens`. Raises LoadError."""
        parser = ArgumentParser()
        onnx.add_arguments(parser)
        flags = ["--model", str(model), "--tokenizer", str(tokenizer), "--max-tokens", str(max_tokens)]
        self._engine = onnx.create(parser.parse_args(flags))
        self._engine.load_model()
        self._counters = Counters()
        self._computing = asyncio.Lock()

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        async with self._computing:
            vectors = await asyncio.to_thread(self._engine.embed_texts, list(texts), Job(self._counters))
        return list(vectors)

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        raise NotImplementedError("it is no rerank model")


MODES: Final = ("sparse", "dense", "hybrid")
HITS: Final = 10
INGEST_LIMIT_S: Final = 7200.0


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over the questions of a set. Chunks of one document count as the document, at the place of its best."""

    recall_5: float
    mrr: float
    ndcg_10: float


Qualities = Mapping[str, Mapping[str, Quality]]
"""Set of questions to mode to its figures."""


async def add_documents(retrieval: RetrievalHarness, documents: Mapping[str, str]) -> dict[str, int]:
    """Add documents, name to Markdown, and wait until they are worked off. Return versions by state."""
    for name, text in documents.items():
        body = {"id": name, "text": text, "filename": "page.md"}
        answer = await retrieval.request("POST", "/v1/documents", body)
        assert answer.status_code in (200, 202), answer.text

    async def count_states() -> dict[str, int] | None:
        status = (await retrieval.request("GET", "/v1/retrieval", is_admin=True)).json()
        states: dict[str, int] = status["versions"]
        done = states.get("ready", 0) + states.get("failed", 0)
        return states if done == len(documents) else None

    counted: dict[str, int] = await until("the documents are worked off", count_states, INGEST_LIMIT_S)
    return counted


async def measure_quality(
    retrieval: RetrievalHarness, sets: Mapping[str, Sequence[Question]], **search: Any
) -> Qualities:
    """Ask all questions in all modes. `search`: further fields of each search."""
    return {
        name: {mode: await _measure_mode(retrieval, questions, mode, search) for mode in MODES}
        for name, questions in sets.items()
    }


async def _measure_mode(
    retrieval: RetrievalHarness, questions: Sequence[Question], mode: str, search: Mapping[str, Any]
) -> Quality:
    rankings = []
    for question in questions:
        hits = await retrieval.search(question.text, mode=mode, top_k=HITS, **search)
        rankings.append((list(dict.fromkeys(hit["document_id"] for hit in hits)), [question.document]))
    return Quality(
        statistics.fmean(recall(ranking, right, 5) for ranking, right in rankings),
        statistics.fmean(reciprocal_rank(ranking, right) for ranking, right in rankings),
        statistics.fmean(ndcg(ranking, right, 10) for ranking, right in rankings),
    )


def find_misses(qualities: Qualities, mixed: str) -> list[str]:
    """Return what hybrid searches miss of their aims, by nDCG@10: at most 1% below the better of both others in any
    set, at least 5% above it in the set `mixed`."""
    misses = []
    for name, modes in qualities.items():
        best = max(modes["sparse"].ndcg_10, modes["dense"].ndcg_10)
        ratio = modes["hybrid"].ndcg_10 / best
        least = 1.05 if name == mixed else 0.99
        if ratio < least:
            misses.append(f"{name}: hybrid is {ratio:.3f} of the better single mode, and must be {least}")
    return misses
