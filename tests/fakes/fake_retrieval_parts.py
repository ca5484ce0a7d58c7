"""Fakes of what the retrieval program works with, with the real interfaces: the parser, the models behind the gateway,
the vector store."""

from __future__ import annotations

import asyncio
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.embedding import ModelRefusedError, ModelUnavailableError, TextTooLongError
from retrieval.filters import matches_filter
from retrieval.parsing.base import ChunkingOptions, ChunkSpan, ParsedDocument, ParsingError
from retrieval.vector_store.base import (
    CollectionMismatchError,
    CollectionSpec,
    Point,
    ScoredPoint,
    SearchScope,
    VectorStoreError,
)


@dataclass
class FakeParser:
    """Cuts text at empty lines. A text that begins with `bad` cannot be parsed."""

    parsed: list[str | None] = field(default_factory=list)

    async def parse_file(
        self, path: Path, *, filename: str | None, media_type: str | None, chunking: ChunkingOptions
    ) -> ParsedDocument:
        self.parsed.append(filename)
        text = path.read_bytes().decode()
        if text.startswith("bad"):
            raise ParsingError("document_malformed", "The document begins with bad.")
        chunks, start = [], 0
        for paragraph in text.split("\n\n"):
            end = start + len(paragraph.encode())
            if paragraph:
                chunks.append(ChunkSpan(start, end, paragraph, (), None))
            start = end + 2
        return ParsedDocument(text, media_type or "text/plain", chunks)

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class FakeModels:
    """Embeds a text as its counts of letters. `away`: no model answers; `refuses`: texts with this word are refused."""

    away: bool = False
    refuses: str | None = None
    most: int = 10_000
    """Texts that one request may have."""
    longest: int = 1_000_000
    """Characters that a text may have."""
    takes_no: str | None = None
    """Texts with this word are too long, whatever their length."""
    dimension: int = 26
    """Numbers per vector, at most 26."""
    requests: list[tuple[str, list[str], bool]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    """Where it is set, embeddings in the background wait for it, if one of their texts has the word `gated`."""
    gated: str = ""

    async def embed_texts(self, model: str, texts: Sequence[str], *, is_background: bool) -> list[Sequence[float]]:
        self.requests.append((model, list(texts), is_background))
        if is_background and self.gate is not None and any(self.gated in text for text in texts):
            await self.gate.wait()
        if self.away:
            raise ModelUnavailableError("no replica is loaded")
        if self.refuses is not None and any(self.refuses in text for text in texts):
            raise ModelRefusedError("the input is too long")
        if len(texts) > self.most:
            raise ModelRefusedError("the inputs are too many")
        if any(len(text) > self.longest or (self.takes_no or "\0") in text for text in texts):
            raise TextTooLongError(f"at most {self.longest} characters")
        letters = string.ascii_lowercase[: self.dimension]
        return [[1.0 + text.lower().count(letter) for letter in letters] for text in texts]

    async def rank_passages(self, model: str, query: str, passages: Sequence[str]) -> list[float]:
        if self.away:
            raise ModelUnavailableError("no replica is loaded")
        words = set(query.lower().split())
        return [float(len(words & set(passage.lower().split()))) for passage in passages]


@dataclass
class MemoryVectorStore:
    """Holds points in dictionaries. `fails` makes every call fail; `on_search` is called at each search."""

    collections: dict[str, tuple[CollectionSpec, dict[str, Point]]] = field(default_factory=dict)
    fails: bool = False
    on_search: Callable[[], None] = lambda: None
    on_upsert: Callable[[Sequence[Point]], None] = lambda _: None
    kind: str = "memory"

    def points(self, collection: str) -> dict[str, Point]:
        self._check()
        return self.collections[collection][1]

    async def list_collections(self) -> list[CollectionSpec]:
        self._check()
        return [self.collections[name][0] for name in sorted(self.collections)]

    async def create_collection(self, spec: CollectionSpec) -> None:
        self._check()
        found = self.collections.setdefault(spec.name, (spec, {}))
        if found[0] != spec:
            raise CollectionMismatchError(f"{found[0]} and {spec}")

    async def delete_collection(self, name: str) -> None:
        self._check()
        self.collections.pop(name, None)

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        self.on_upsert(points)
        self.points(collection).update({point.id: point for point in points})

    async def flush_collection(self, collection: str) -> None:
        self.points(collection)

    async def delete_versions(self, collection: str, versions: Sequence[int]) -> None:
        points = self.points(collection)
        for point in list(points.values()):
            if point.version in versions:
                del points[point.id]

    async def read_vectors(self, collection: str, ids: Sequence[str]) -> Mapping[str, Sequence[float]]:
        points = self.points(collection)
        found = {each: points[each].vector for each in ids if each in points}
        return {each: vector for each, vector in found.items() if vector is not None}

    async def search_dense(
        self, collection: str, vector: Sequence[float], scope: SearchScope, limit: int
    ) -> list[ScoredPoint]:
        found = self._search(collection, lambda point: _cosine(point.vector, vector), scope, limit)
        return [each for each in found if each.score > -2]

    async def search_sparse(self, collection: str, text: str, scope: SearchScope, limit: int) -> list[ScoredPoint]:
        words = _words(text)
        found = self._search(collection, lambda point: len(_words(point.text) & words), scope, limit)
        return [each for each in found if each.score]

    async def count_points(self, collection: str, tenant: str | None = None) -> int:
        return sum(tenant in (None, point.tenant) for point in self.points(collection).values())

    async def optimize_collection(self, collection: str) -> None:
        self.points(collection)

    async def close(self) -> None:
        """Nothing is open."""

    def _search(
        self, collection: str, score_of: Callable[[Point], float], scope: SearchScope, limit: int
    ) -> list[ScoredPoint]:
        self.on_search()
        found = [
            ScoredPoint(point.version, point.ordinal, score_of(point))
            for point in self.points(collection).values()
            if point.tenant == scope.tenant
            and point.space in scope.spaces
            and point.version not in scope.hidden_versions
            and matches_filter(scope.filter, point.attributes)
        ]
        return sorted(found, key=lambda each: (-each.score, each.version, each.ordinal))[:limit]

    def _check(self) -> None:
        if self.fails:
            raise VectorStoreError("the store is away")


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _cosine(one: Sequence[float] | None, other: Sequence[float]) -> float:
    if one is None:
        return -2.0  # below all others, and not found
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
