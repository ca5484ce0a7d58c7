"""What a point carries beside its vectors, the same in every store. Pure.

Attributes lie below `meta`, so that no filter of a client can name the other fields. Strings and booleans are both
stored as marked strings, because Qdrant Edge takes a boolean that is asked for as the number 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from retrieval.filters import Scalar
from retrieval.vector_store.base import AttributeValue, Point

TENANT: Final = "tenant"
SPACE: Final = "space"
VERSION: Final = "version"
ORDINAL: Final = "ordinal"
META: Final = "meta"
_STRING: Final = "="
_BOOLEAN: Final = "!"


def build_payload(point: Point) -> dict[str, Any]:
    """Return the payload of a point."""
    return {
        TENANT: point.tenant,
        SPACE: point.space,
        VERSION: point.version,
        ORDINAL: point.ordinal,
        META: _encode_attributes(point.attributes),
    }


def attribute_path(key: str) -> str:
    """Return the JSON path of an attribute, whose name `retrieval.filters.KEY` allows: such names have no quotes."""
    return f'{META}."{key}"'


def encode_scalar(value: Scalar) -> str | int | float:
    """Return a value as it is stored and asked for: a marked string, or the number."""
    if isinstance(value, bool):
        return f"{_BOOLEAN}{value}"
    return f"{_STRING}{value}" if isinstance(value, str) else value


def _encode_attributes(attributes: Mapping[str, AttributeValue]) -> dict[str, Any]:
    return {
        key: [encode_scalar(each) for each in value] if isinstance(value, list) else encode_scalar(value)
        for key, value in attributes.items()
    }
