"""Attributes of documents. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from controller.schema.errors import RoundhouseError
from retrieval.filters import KEY, LONGEST_TEXT

MOST_ATTRIBUTES: Final = 64
MOST_LISTED: Final = 100


def check_metadata(metadata: Mapping[str, Any], field: str = "metadata") -> None:
    """Check that a client's metadata have at most `MOST_ATTRIBUTES` attributes, each with a name that matches `KEY` and
    a value that filters can compare: a string of at most `LONGEST_TEXT` characters, a finite number (an integer of 64
    bits), a boolean, or a list of at most `MOST_LISTED` such strings or such numbers, not mixed, perhaps empty.

    Raises:
        RoundhouseError: `invalid_request` for the first that is not, naming it as `field.NAME`.
    """
    if len(metadata) > MOST_ATTRIBUTES:
        raise _invalid(field, f"has more than {MOST_ATTRIBUTES} attributes")
    for key, value in metadata.items():
        where = f"{field}.{key}"[:100]
        if not KEY.fullmatch(key):
            raise _invalid(where, f"its name must match {KEY.pattern}")
        if isinstance(value, list):
            _check_list(value, where)
        elif not _is_text(value) and not _is_number(value) and not isinstance(value, bool):
            raise _invalid(where, f"must be {_EXPECTED}")


_EXPECTED: Final = (
    f"a string of at most {LONGEST_TEXT} characters, a finite number, a boolean, or a list of strings or of numbers"
)


def _check_list(values: list[Any], where: str) -> None:
    if len(values) > MOST_LISTED:
        raise _invalid(where, f"has more than {MOST_LISTED} values")
    if not all(map(_is_text, values)) and not all(map(_is_number, values)):
        raise _invalid(where, f"must be {_EXPECTED}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    # Qdrant's integers have 64 bits.
    return (isinstance(value, int) and -(2**63) <= value < 2**63) or (isinstance(value, float) and math.isfinite(value))


def _invalid(where: str, problem: str) -> RoundhouseError:
    return RoundhouseError("invalid_request", f"`{where}`: {problem}.", param=where)
