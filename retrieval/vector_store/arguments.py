"""Checks of what callers pass to a vector store, the same for both stores."""

from __future__ import annotations

import math
import re
import uuid
from array import array
from collections.abc import Sequence
from typing import Final

from retrieval.vector_store.base import CollectionMismatchError, CollectionSpec, Point

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
