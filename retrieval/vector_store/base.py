"""The protocol of vector stores, what passes through it, and the checks of it that both stores make.

A vector store holds copies: everything in it can be made again from the catalog. The catalog decides which versions of
documents are visible; a search names the versions that it must not see.
"""

from __future__ import annotations

import math
import re
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from retrieval.filters import Filter
from retrieval.vector_store.tokenizer import Bm25Options

AttributeValue = str | int | float | bool | list[str] | list[int] | list[float]


class VectorStoreError(Exception):
    """The store failed, and a later try may succeed: it is not reachable, it is busy, or the machine has no space. A
    write that failed may be applied in part. The text says what happened."""


class CollectionMismatchError(Exception):
    """A collection of that name exists with another dimension or other options of BM25. The text names both."""


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """A collection: the points of all tenants that have vectors of one embedding model, and words of one language."""

    name: str
    """1 to 100 characters of `a-z`, `0-9`, `-` and `_`."""
    dimension: int | None
    """Numbers per dense vector, at least 1; None: the collection has sparse vectors alone."""
    bm25: Bm25Options = field(default_factory=Bm25Options)


@dataclass(frozen=True, slots=True)
class Point:
    """One chunk of one version of a document, as it is stored."""

    id: str
    """A UUID. The same chunk of the same version always has the same id, so that a repeated upsert changes nothing."""
    tenant: str
    space: str
    """The vector store (`vs_...`) that the document belongs to; empty: the tenant's documents (`/v1/documents`)."""
    version: int
    """Number of the document's version in the catalog; unique over all documents."""
    ordinal: int
    """Position of the chunk in its version, from 0."""
    text: str
    """What BM25 reads: the chunk's text with its headings."""
    vector: Sequence[float] | None
    """The dense vector; None in a collection without a dimension, and for a point that dense searches do not find."""
    attributes: Mapping[str, AttributeValue]
    """What filters compare: the document's metadata."""


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Which points a search may return: those of one tenant, in these spaces, that match all fields."""

    tenant: str
    spaces: Sequence[str]
    """At least one."""
    filter: Filter | None
    """None: any attributes."""
    hidden_versions: frozenset[int]
    """Versions that are not visible: those being written, and those being deleted."""


@dataclass(frozen=True, slots=True)
class ScoredPoint:
    """A point that a search found."""

    version: int
    ordinal: int
    score: float
    """Higher is better. Dense: the cosine, from -1 to 1. Sparse: BM25, from 0, with no upper bound."""


class VectorStore(Protocol):
    """Stores points in collections, and searches them. `retrieval.__main__.open_vector_store` makes one.

    Every async method may raise VectorStoreError, and those that take `collection` raise KeyError where it does not
    exist. One program uses a store at a time. Methods may be called concurrently; writes of one collection are applied
    in the order of their calls. A write whose call is cancelled may still be carried out, in part or whole.
    """

    @property
    def kind(self) -> str:
        """`edge` or `server`, for status pages."""
        ...

    async def list_collections(self) -> Sequence[CollectionSpec]:
        """Return the collections that exist, sorted by name. Empty where the store is new, or was deleted. Raises
        VectorStoreError.

        A collection may cease to exist at any time, when the store finds that it is damaged: it must then be created
        and filled anew.
        """
        ...

    async def create_collection(self, spec: CollectionSpec) -> None:
        """Create an empty collection, with its indexes. Does nothing where it exists with the same spec.

        Raises:
            CollectionMismatchError: it exists with another dimension or other options of BM25.
            ValueError: the name is not 1 to 100 characters of `a-z`, `0-9`, `-` and `_`.
            VectorStoreError: the store failed. The caller repeats the call, which completes what was begun.
        """
        ...

    async def delete_collection(self, name: str) -> None:
        """Delete the collection with its points. Does nothing where there is none of that name. Raises
        VectorStoreError; `list_collections` then says whether it still exists."""
        ...

    async def upsert_points(self, collection: str, points: Sequence[Point]) -> None:
        """Write points; one with the id of a stored point replaces it. A search that begins after the return sees them.

        They are durable only after `flush_collection`.

        Raises:
            KeyError: the collection does not exist.
            ValueError: a vector has another dimension, is not wanted, or has a number that is no finite 32-bit float;
                an id is no UUID; a text is not valid Unicode (lone surrogates); or a number among the attributes is no
                finite 64-bit float. Nothing was written.
            VectorStoreError: the store failed. Some of the points may be written; the caller repeats the call.
        """
        ...

    async def flush_collection(self, collection: str) -> None:
        """Make all earlier writes durable, so that they survive a loss of power. Raises KeyError for an unknown
        collection, and VectorStoreError where the store fails.

        May take some tenths of a second, in which searches wait, so callers flush once for many documents. With a
        Qdrant server nothing is sent: its writes are as durable as the server makes them.
        """
        ...

    async def delete_versions(self, collection: str, versions: Sequence[int]) -> None:
        """Delete all points of these versions, durable after `flush_collection`. Versions without points are ignored.
        Raises KeyError for an unknown collection, and VectorStoreError, after which some points may be deleted."""
        ...

    async def read_vectors(self, collection: str, ids: Sequence[str]) -> Mapping[str, Sequence[float]]:
        """Return the dense vectors of stored points by their ids, scaled to length 1. Ids without a point, and points
        without a vector, are missing.

        Raises ValueError where the collection has no dense vectors, and for an id that is no UUID; KeyError for an
        unknown collection; and VectorStoreError.
        """
        ...

    async def search_dense(
        self, collection: str, vector: Sequence[float], scope: SearchScope, limit: int
    ) -> Sequence[ScoredPoint]:
        """Return up to `limit` points of the scope whose vectors are nearest to `vector` by cosine, best first.

        Raises KeyError for an unknown collection; ValueError where the collection has no dense vectors, or `vector`
        has another dimension or a number that is no finite 32-bit float; and VectorStoreError.
        """
        ...

    async def search_sparse(self, collection: str, text: str, scope: SearchScope, limit: int) -> Sequence[ScoredPoint]:
        """Return up to `limit` points of the scope that share words with `text`, by BM25, best first.

        How rare a word is counts over the points of the scope's tenant alone (in all spaces, and the hidden ones
        too), so that scores say nothing of other tenants' documents. Empty where `text` has no words. Raises KeyError
        for an unknown collection, ValueError for text that is not valid Unicode, and VectorStoreError.
        """
        ...

    async def count_points(self, collection: str, tenant: str | None = None) -> int:
        """Return the exact number of points, of hidden versions too: of one tenant, or of all where `tenant` is None.
        Raises KeyError for an unknown collection, and VectorStoreError."""
        ...

    async def optimize_collection(self, collection: str) -> None:
        """Build indexes for points that had none when the call began, and free the space of deleted points.

        Returns when that is done, which may take minutes. Searches and writes go on meanwhile, but writes pause briefly
        (0.5 s per GB). Does nothing where nothing was written since the last call, or the store does this by itself (a
        Qdrant server). Raises KeyError for an unknown collection, and VectorStoreError where it fails or `close` ends
        it; nothing is lost then.
        """
        ...

    async def close(self) -> None:
        """Write what is pending, give up an optimization under way, and close the store. No other method may be called
        afterwards."""
        ...


COLLECTION_NAME: Final = re.compile(r"[a-z0-9_-]{1,100}")


def check_name(name: str) -> None:
    """Raise ValueError for a name that is not 1 to 100 characters of `a-z`, `0-9`, `-` and `_`."""
    if not COLLECTION_NAME.fullmatch(name):
        raise ValueError(f"a collection's name must match {COLLECTION_NAME.pattern}, not {name!r:.120}")


def check_points(spec: CollectionSpec, points: Sequence[Point]) -> None:
    """Raise ValueError for a point that the collection cannot hold: its id is no UUID; its text, tenant, space or a
    string of its attributes is not valid Unicode; a number of its attributes is no finite 64-bit float; or its vector
    is not wanted, or refused by `check_vector`. An empty `points` is fine."""
    for point in points:
        uuid.UUID(point.id)
        check_text(point.text, point.tenant, point.space)
        _check_attributes(point)
        if spec.dimension is None:
            if point.vector is not None:
                raise ValueError(f"collection {spec.name} has no dense vectors, but point {point.id} has one")
        elif point.vector is not None:
            check_vector(spec, point.vector)


def check_ids(spec: CollectionSpec, ids: Sequence[str]) -> None:
    """Raise ValueError for an id that is no UUID, and for a collection without dense vectors."""
    if spec.dimension is None:
        raise ValueError(f"collection {spec.name} has no dense vectors")
    for each in ids:
        uuid.UUID(each)


def check_vector(spec: CollectionSpec, vector: Sequence[float]) -> None:
    """Raise ValueError for a vector of another dimension, with a number that is no finite 32-bit float, or for a
    collection without dense vectors."""
    if spec.dimension is None:
        raise ValueError(f"collection {spec.name} has no dense vectors")
    if len(vector) != spec.dimension:
        raise ValueError(f"a vector has dimension {len(vector)}, and collection {spec.name} {spec.dimension}")
    try:
        is_finite = all(map(math.isfinite, array("f", vector)))
    except OverflowError:  # an integer that no float holds
        is_finite = False
    if not is_finite:
        raise ValueError(f"a vector for collection {spec.name} has a number that is not finite")


def check_text(*texts: str) -> None:
    """Raise UnicodeEncodeError, a ValueError, for text that is not valid Unicode (lone surrogates)."""
    for text in texts:
        text.encode()


def _check_attributes(point: Point) -> None:
    for key, value in point.attributes.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                check_text(each)
            elif not _is_finite(each):
                raise ValueError(f"attribute {key!r:.80} of point {point.id} is no finite 64-bit float")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float holds
        return False


def check_existing(existing: CollectionSpec, wanted: CollectionSpec) -> None:
    """Raise CollectionMismatchError where an existing collection has another dimension, or other options of BM25, than
    is wanted. The names are not compared."""
    if existing.dimension != wanted.dimension:
        raise CollectionMismatchError(
            f"collection {wanted.name} exists with dimension {existing.dimension or 'none'}, "
            f"not {wanted.dimension or 'none'}"
        )
    if existing.bm25 != wanted.bm25:
        raise CollectionMismatchError(f"collection {wanted.name} exists with {existing.bm25}, not {wanted.bm25}")
