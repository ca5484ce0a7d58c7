"""The campaign `retrieval_quality` with a small corpus of made documents, and a fake that knows what words mean."""

from __future__ import annotations

import random
from pathlib import Path

from retrieval.parsing.pool import ParserPool
from retrieval.vector_store.edge.store import EdgeStore
from tests.fakes.fake_meaning import FakeMeaning
from tests.support.retrieval_harness import retrieval_harness
from tests.support.retrieval_quality import (
    CODE_WORDS,
    HEADINGS,
    MIXED,
    PARAPHRASES,
    Quality,
    add_documents,
    find_misses,
    make_question_sets,
    measure_quality,
)
from tests.support.synonyms import SYNONYMS


def make_documents(count: int) -> dict[str, str]:
    """Documents of sentences whose words have synonyms, each with a heading and an option of its own."""
    chance, words = random.Random(1), sorted(SYNONYMS)
    documents = {}
    for number in range(count):
        topic = " ".join(chance.sample(words, 3))
        sentences = [f"The {' '.join(chance.sample(words, 9))} of it." for _ in range(3)]
        documents[f"page{number}"] = f"# About {topic}\n\n{' '.join(sentences)} Set option_{number}_x for it.\n"
    return documents


async def test_hybrid_searches_find_what_either_mode_finds(tmp_path: Path) -> None:
    documents = make_documents(40)
    sets = make_question_sets(documents, seed=1, count=18)
    expected = {HEADINGS: 18, PARAPHRASES: 18, CODE_WORDS: 18, MIXED: 18}
    assert {name: len(questions) for name, questions in sets.items()} == expected
    async with retrieval_harness(
        tmp_path,
        store=await EdgeStore.open(tmp_path / "edge"),
        models=FakeMeaning(),  # type: ignore[arg-type] # another client
        parser=ParserPool(),
        retrieval_embedding_model="meaning",
    ) as harness:
        assert await add_documents(harness, documents) == {"ready": 40}
        found = await measure_quality(harness, sets)
    assert found[CODE_WORDS]["sparse"].recall_5 > found[CODE_WORDS]["dense"].recall_5
    assert found[PARAPHRASES]["dense"].recall_5 > found[PARAPHRASES]["sparse"].recall_5
    assert found[MIXED]["hybrid"].recall_5 >= max(found[MIXED][mode].recall_5 for mode in ("sparse", "dense"))


def test_what_misses_its_aim_is_said() -> None:
    def modes(sparse: float, dense: float, hybrid: float) -> dict[str, Quality]:
        figures = {"sparse": sparse, "dense": dense, "hybrid": hybrid}
        return {mode: Quality(figure, figure, figure) for mode, figure in figures.items()}

    assert find_misses({"a": modes(0.9, 0.5, 0.9), MIXED: modes(0.8, 0.7, 0.85)}, MIXED) == []
    assert find_misses({"a": modes(0.9, 0.5, 0.88), MIXED: modes(0.8, 0.7, 0.82)}, MIXED) == [
        "a: hybrid is 0.978 of the better single mode, and must be 0.99",
        f"{MIXED}: hybrid is 1.025 of the better single mode, and must be 1.05",
    ]
