"""How well searches find what is known to be there: real pages, a real embedding model, each mode."""

from __future__ import annotations

import asyncio
import tempfile
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from retrieval.parsing.pool import ParserPool
from retrieval.vector_store.edge.store import EdgeStore
from tests.bench.targets import CACHE
from tests.campaigns.record import Outcome, Table
from tests.support.minilm_model import NAME, PACKAGE, WEIGHTS_SHA256, ModelUnavailableError, prepare_minilm
from tests.support.retrieval_harness import retrieval_harness
from tests.support.retrieval_quality import (
    MIXED,
    PACKAGES,
    CachedModels,
    DocumentsUnavailableError,
    OnnxModels,
    Qualities,
    Question,
    add_documents,
    find_misses,
    load_documents,
    make_question_sets,
    measure_quality,
)

ABOUT = f"""
Pages of Debian's documentation packages, searched by questions whose one right document is known. Headings: one that
one document alone has. Paraphrases: sentences whose words are replaced by others that their document does not have, by
rule, in another order. Code words: identifiers and options that one document alone has. Mixed: as many of each.
Documents go through the whole program (parser, chunks, catalog, Qdrant Edge), with {NAME} (Apache-2.0; of
the package `{PACKAGE}`, weights SHA-256 `{WEIGHTS_SHA256[:16]}...`) in the engine of the backend `onnx`.
A search has ten hits; chunks of one document count as one. Hybrid must not be more than 1% below the better of both
others in any set, and at least 5% above it in the mixed one, by nDCG@10.
"""
QUESTIONS: Final = 600
"""Of each set."""
MAX_TOKENS: Final = 512
"""The model reads no more."""


def declare_options(parser: ArgumentParser) -> None:
    parser.add_argument("--chunk_tokens", type=int, help="largest chunk (default: the product's)")


def run(seed: int, chunk_tokens: int | None = None) -> Outcome:
    """Measure. The first run computes embeddings for some minutes; further ones read them from the cache.
    `chunk_tokens`: largest chunk; None: the product's default."""
    settings: dict[str, Any] = {} if chunk_tokens is None else {"retrieval_chunk_tokens": chunk_tokens}
    try:
        documents = load_documents(CACHE / "documents")
        with tempfile.TemporaryDirectory(prefix="rh-quality") as folder:
            return asyncio.run(_measure(Path(folder), documents, seed, settings))
    except (DocumentsUnavailableError, ModelUnavailableError) as error:
        return Outcome((), (str(error),))


async def _measure(folder: Path, documents: Mapping[str, str], seed: int, settings: Mapping[str, Any]) -> Outcome:
    model = prepare_minilm(CACHE / "minilm")
    cache = CACHE / "minilm" / "embeddings.db"
    engine = OnnxModels(model.onnx, model.tokenizer, MAX_TOKENS)
    sets = make_question_sets(documents, seed, QUESTIONS)
    with CachedModels(engine, cache, f"{WEIGHTS_SHA256} {MAX_TOKENS}") as models:
        async with retrieval_harness(
            folder,
            store=await EdgeStore.open(folder / "edge"),
            models=models,  # type: ignore[arg-type] # another client
            parser=ParserPool(),
            retrieval_embedding_model=NAME,
            **settings,
        ) as here:
            states = await add_documents(here, documents)
            qualities = await measure_quality(here, sets)
            chunks = here.retrieval.writer.points_written
    parked = states.get("failed", 0)
    failures = [f"{parked} documents were parked"] if parked else []
    tables = (_describe_corpus(documents, chunks, sets), *_tabulate(qualities))
    return Outcome(tables, (*failures, *find_misses(qualities, MIXED)))


def _describe_corpus(documents: Mapping[str, str], chunks: int, sets: Mapping[str, Sequence[Question]]) -> Table:
    rows: list[Sequence[object]] = [
        ("documents", f"{len(documents):,}"),
        ("characters", f"{sum(map(len, documents.values())):,}"),
        ("chunks", f"{chunks:,}"),
        ("packages", ", ".join(PACKAGES)),
    ]
    rows += [(f"questions, {name}", len(questions)) for name, questions in sets.items()]
    return Table("What is searched", ("", ""), rows)


def _tabulate(qualities: Qualities) -> list[Table]:
    rows = [
        (name, mode, f"{each.recall_5:.3f}", f"{each.mrr:.3f}", f"{each.ndcg_10:.3f}")
        for name, modes in qualities.items()
        for mode, each in modes.items()
    ]
    ratios = []
    for name, modes in qualities.items():
        singles = [modes["sparse"], modes["dense"]]
        hybrid = modes["hybrid"]
        ratios.append(
            (
                name,
                f"{hybrid.recall_5 / max(each.recall_5 for each in singles):.3f}",
                f"{hybrid.mrr / max(each.mrr for each in singles):.3f}",
                f"{hybrid.ndcg_10 / max(each.ndcg_10 for each in singles):.3f}",
            )
        )
    return [
        Table("Quality", ("set", "mode", "recall@5", "MRR", "nDCG@10"), rows),
        Table("Hybrid over the better of both others", ("set", "recall@5", "MRR", "nDCG@10"), ratios),
    ]
