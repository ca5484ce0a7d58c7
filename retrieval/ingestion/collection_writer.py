"""Writes versions into a collection: reads their chunks, asks for embeddings, and upserts points, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from retrieval.catalog.chunks import read_chunks
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.records import Chunk, Collection, Version
from retrieval.catalog.versions import find_state
from retrieval.embedding.client import ModelClient, ModelRefusedError
from retrieval.embedding.prefixes import Prefixes
from retrieval.vector_store.base import Point, VectorStore

SPARSE_BATCH: Final = 256
"""Chunks that are written together where there is nothing to embed."""
_IN_WORK: Final = ("embedding", "ready")


class VersionGoneError(Exception):
    """The version was replaced or deleted while its points were written. The garbage collector removes them."""


class CollectionWriter:
    """Writes the points of versions. One object serves all writers of the program."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        store: VectorStore,
        models: ModelClient,
        prefixes_of: Callable[[str], Prefixes],
        *,
        batch: int,
    ) -> None:
        """`prefixes_of`: the prefixes of a model, by its name. `batch`: texts of one request for embeddings."""
        self._catalog = catalog
        self._store = store
        self._models = models
        self._prefixes_of = prefixes_of
        self._batch = batch
        self.versions_in_use: set[int] = set()
        """Versions whose points are being written now. Their points must not be removed before that has ended."""
        self.points_written = 0
        """Points written since the start."""

    async def write_version(self, collection: Collection, version: Version, on_progress: Callable[[int], None]) -> None:
        """Write all points of a version, durably. Repeats what an earlier try has written. `on_progress` is called
        with the number of chunks that are written.

        Raises:
            VersionGoneError: see there.
            ModelUnavailableError, ModelRefusedError: the embedding model fails; for one refused chunk, with its place.
            VectorStoreError: the store fails.
        """
        self.versions_in_use.add(version.number)
        try:
            first, batch = 0, SPARSE_BATCH if collection.model is None else self._batch
            while chunks := await self._read_next(version.number, first, batch):
                vectors = await self._embed(collection.model, chunks)
                points = [_point_of(version, chunk, vector) for chunk, vector in zip(chunks, vectors, strict=True)]
                await self._store.upsert_points(collection.name, points)
                self.points_written += len(points)
                first += len(chunks)
                on_progress(first)
            await self._store.flush_collection(collection.name)
        finally:
            self.versions_in_use.discard(version.number)

    async def _read_next(self, version: int, first: int, limit: int) -> list[Chunk]:
        state, chunks = await self._catalog.read(
            lambda db: (find_state(db, version), read_chunks(db, version, first=first, limit=limit))
        )
        if state not in _IN_WORK:
            raise VersionGoneError
        return chunks

    async def _embed(self, model: str | None, chunks: Sequence[Chunk]) -> Sequence[Sequence[float] | None]:
        if model is None:
            return [None] * len(chunks)
        prefix = self._prefixes_of(model).passage
        texts = [prefix + chunk.indexed_text for chunk in chunks]
        try:
            return await self._models.embed_texts(model, texts, is_background=True)
        except ModelRefusedError:
            if len(texts) == 1:
                raise
        vectors = []
        for chunk, text in zip(chunks, texts, strict=True):
            try:
                vectors += await self._models.embed_texts(model, [text], is_background=True)
            except ModelRefusedError as error:
                raise ModelRefusedError(f"chunk {chunk.ordinal}: {error}") from None
        return vectors


def _point_of(version: Version, chunk: Chunk, vector: Sequence[float] | None) -> Point:
    return Point(
        chunk.point_id,
        version.tenant,
        version.space,
        version.number,
        chunk.ordinal,
        chunk.indexed_text,
        vector,
        version.metadata,
    )
