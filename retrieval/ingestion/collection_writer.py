"""Writes versions into a collection: reads their chunks, asks for embeddings, and upserts points, batch by batch."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from retrieval.catalog.chunks import find_twin, read_chunks
from retrieval.catalog.database import CatalogDatabase
from retrieval.catalog.records import Chunk, Collection, Version
from retrieval.catalog.versions import find_state, note_left_out
from retrieval.embedding import ModelClient, ModelRefusedError, Prefixes, TextTooLongError
from retrieval.ingestion.policies import BatchSize
from retrieval.parsing.chunking import halve_text
from retrieval.vector_store.base import Point, VectorStore

SPARSE_BATCH: Final = 256
"""Chunks of one write to a collection without vectors, where there is nothing to embed."""
MOST_HALVINGS: Final = 6
"""How often a text that is too long for the model is halved: down to an eighth of a usual context, for the largest
chunk."""
_IN_WORK: Final = ("embedding", "ready")


class VersionGoneError(Exception):
    """The version was replaced, deleted or cancelled before all its points were written. Points that were written stay,
    hidden from searches, until the version is garbage and the garbage collector removes it."""


class DimensionChangedError(Exception):
    """The embedding model answers vectors of another dimension than the collection has. The text says what to do."""


class CollectionWriter:
    """Embeds the chunks of versions, and writes them as points into a collection of the vector store. One object serves
    the whole program, so that the garbage collector knows which versions are being written; calls may run at once."""

    def __init__(
        self,
        catalog: CatalogDatabase,
        store: VectorStore,
        models: ModelClient,
        prefixes_of: Callable[[str], Prefixes],
        *,
        batch: int,
    ) -> None:
        """`prefixes_of`: called with the name of an embedding model, returns the prefixes of that model. `batch`: most
        texts of one request for embeddings."""
        self._catalog = catalog
        self._store = store
        self._models = models
        self._prefixes_of = prefixes_of
        self._largest = batch
        self._sizes: dict[str, BatchSize] = {}
        """By model."""
        self.versions_in_use: Counter[int] = Counter()
        """Numbers of the versions that `write_version` is at work on, each with the number of calls: the index may fill
        one collection and build another. The garbage collector leaves them alone."""
        self.points_written = 0
        """Points written since the start of the program, repeated ones included. Only rises."""

    async def write_version(
        self,
        collection: Collection,
        version: Version,
        on_progress: Callable[[int], None],
        source: Collection | None = None,
        *,
        leaves_out: bool = False,
    ) -> None:
        """Write all points of a version, which is `embedding` or `ready`; the caller flushes the collection. What an
        earlier try has written is written again. If another version has the same chunks (see `find_twin`), its vectors
        are taken from the collection, and only what the collection lacks is embedded. `source`: a collection of the
        same model, from which the version's own vectors are taken instead.

        A chunk that is too long for the model gets the mean vector of its parts. Where the model refuses even small
        parts, the chunk's point has no vector, so that searches find it by its words alone; the version's notice says
        of how many chunks that is true. With `leaves_out`, the same holds where it refuses a chunk for another reason.

        `on_progress` is called after each batch, with the number of chunks that are written so far.

        Raises:
            VersionGoneError: the version is in another state now, or deleted; some points may be written.
            ModelUnavailableError: the embedding model does not answer.
            ModelRefusedError: the embedding model refuses a chunk, whose ordinal the text has, for another reason than
                its length; or it does not answer vectors. Not with `leaves_out`.
            VectorStoreError: the vector store fails.
            KeyError: the vector store has no such collection.
            DimensionChangedError: the model's vectors have another dimension than the collection.
            sqlite3.Error: the catalog cannot be read or written.
        """
        self.versions_in_use[version.number] += 1
        try:
            twin: int | None = version.number
            if source is None:
                twin = await self._catalog.read(lambda db: find_twin(db, version.number))
            first = left_out = 0
            while chunks := await self._read_next(version.number, first, self._choose_size(collection.model)):
                vectors = await self._make_vectors(collection, chunks, twin, source or collection, leaves_out)
                _check_dimension(collection, vectors)
                points = [_point_of(version, chunk, vector) for chunk, vector in zip(chunks, vectors, strict=True)]
                await self._store.upsert_points(collection.name, points)
                self.points_written += len(points)
                first += len(chunks)
                left_out += sum(vector is None for vector in vectors) if collection.model is not None else 0
                on_progress(first)
            if left_out or version.notice is not None:
                notice = _describe_left_out(left_out, first)
                await self._catalog.write(lambda db: note_left_out(db, version.number, notice))
        finally:
            self.versions_in_use -= Counter((version.number,))  # without those that nobody uses any more

    async def _read_next(self, version: int, first: int, limit: int) -> list[Chunk]:
        state, chunks = await self._catalog.read(
            lambda db: (find_state(db, version), read_chunks(db, version, first=first, limit=limit))
        )
        if state not in _IN_WORK:
            raise VersionGoneError
        return chunks

    def _choose_size(self, model: str | None) -> int:
        return SPARSE_BATCH if model is None else self._size_of(model).size

    def _size_of(self, model: str) -> BatchSize:
        return self._sizes.setdefault(model, BatchSize(self._largest))

    async def _make_vectors(
        self,
        collection: Collection,
        chunks: Sequence[Chunk],
        twin: int | None,
        source: Collection,
        leaves_out: bool,
    ) -> Sequence[Sequence[float] | None]:
        if collection.model is None:
            return [None] * len(chunks)
        if twin is None:
            return await self._embed(collection.model, chunks, leaves_out)
        reused = await self._read_reusable(source, chunks, twin)
        missing = [chunk for chunk in chunks if chunk.ordinal not in reused]
        made = await self._embed(collection.model, missing, leaves_out) if missing else []
        vectors: dict[int, Sequence[float] | None] = {**reused}
        vectors |= dict(zip((chunk.ordinal for chunk in missing), made, strict=True))
        return [vectors[chunk.ordinal] for chunk in chunks]

    async def _read_reusable(
        self, collection: Collection, chunks: Sequence[Chunk], twin: int
    ) -> dict[int, Sequence[float]]:
        """Return the vectors of those chunks that a twin has in the collection, by ordinal. The twin may be replaced
        and removed meanwhile, or be missing in a collection that is being built, or have been cut by another version
        of Roundhouse, so that its chunks have other texts."""
        others = await self._catalog.read(lambda db: read_chunks(db, twin, first=chunks[0].ordinal, limit=len(chunks)))
        ids = {
            other.point_id: other.ordinal
            for chunk, other in zip(chunks, others, strict=False)
            if (chunk.ordinal, chunk.indexed_text) == (other.ordinal, other.indexed_text)
        }
        found = await self._store.read_vectors(collection.name, list(ids))
        return {ids[id_]: vector for id_, vector in found.items()}

    async def _embed(self, model: str, chunks: Sequence[Chunk], leaves_out: bool) -> list[Sequence[float] | None]:
        prefix, began = self._prefixes_of(model).passage, asyncio.get_running_loop().time()
        texts = [prefix + chunk.indexed_text for chunk in chunks]
        is_one_too_long = False
        try:
            vectors = await self._models.embed_texts(model, texts, is_background=True)
        except ModelRefusedError as error:
            is_one_too_long = isinstance(error, TextTooLongError)
            if len(chunks) == 1:
                try:
                    if is_one_too_long:
                        return [await self._embed_parts(model, chunks[0])]
                    raise _name_chunk(chunks[0], error) from None
                except ModelRefusedError:
                    if leaves_out:
                        return [None]
                    raise
        else:
            self._size_of(model).note_answer(len(chunks), asyncio.get_running_loop().time() - began)
            return list(vectors)
        middle = len(chunks) // 2
        halves = chunks[:middle], chunks[middle:]
        found = [vector for half in halves for vector in await self._embed(model, half, leaves_out)]
        if not is_one_too_long:
            # None of the texts is at fault: there were too many.
            self._size_of(model).note_refusal(len(chunks))
        return found

    async def _embed_parts(self, model: str, chunk: Chunk) -> Sequence[float] | None:
        """Return the mean vector of the parts of a chunk that is too long, which are halved until the model takes all
        of them; None: it does not take them after `MOST_HALVINGS`."""
        prefix, parts, size = self._prefixes_of(model).passage, [chunk.indexed_text], self._size_of(model).size
        for _ in range(MOST_HALVINGS):
            parts = [half for part in parts for half in halve_text(part) or (part,)]
            texts = [prefix + part for part in parts]
            vectors: list[Sequence[float]] = []
            try:
                for first in range(0, len(texts), size):
                    vectors += await self._models.embed_texts(model, texts[first : first + size], is_background=True)
            except TextTooLongError:
                continue
            except ModelRefusedError as error:
                raise _name_chunk(chunk, error) from None
            return _mean_of([(len(part), vector) for part, vector in zip(parts, vectors, strict=True)])
        return None


def _name_chunk(chunk: Chunk, error: ModelRefusedError) -> ModelRefusedError:
    return ModelRefusedError(f"chunk {chunk.ordinal}: {error}")


def _mean_of(found: Sequence[tuple[int, Sequence[float]]]) -> Sequence[float]:
    """Return the mean of the directions of vectors, of one dimension, by their weights: a vector of length 1, or the
    first one where they cancel each other out."""
    scaled = []
    for weight, vector in found:
        factor = weight / (math.hypot(*vector) or 1.0)
        scaled.append([factor * number for number in vector])
    total = [sum(numbers) for numbers in zip(*scaled, strict=False)]  # `_check_dimension` looks at the result
    length = math.hypot(*total)
    return [number / length for number in total] if length else found[0][1]


def _describe_left_out(left_out: int, total: int) -> str | None:
    """Return the notice of a version with `left_out` chunks of `total` without a vector; None: there are none."""
    if not left_out:
        return None
    return (
        f"{left_out} of {total} chunks are found by their words alone: the embedding model refuses them, or they are "
        "too long for it, also in small parts"
    )


def _check_dimension(collection: Collection, vectors: Sequence[Sequence[float] | None]) -> None:
    for vector in vectors:
        if vector is not None and len(vector) != collection.dimension:
            raise DimensionChangedError(
                f"{collection.model} answers {len(vector)} dimensions now, and the index has {collection.dimension}; "
                "`roundhouse rag reindex` builds it anew."
            )


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
