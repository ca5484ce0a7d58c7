"""How the words of a collection are made and weighed. Pure, and without Qdrant's code, which only `bm25` loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from contract.documents import LANGUAGES


@dataclass(frozen=True, slots=True)
class Bm25Options:
    """How the words of texts and queries are made, and weighed. A collection keeps those that it was created with.
    Raises ValueError for an unknown language, and for numbers out of their ranges."""

    language: str = "english"
    """Of stop words and stems, one of `LANGUAGES`; `none`: there are neither."""
    k: float = 1.2
    """How much further occurrences of a word in a text count, from 0: nothing."""
    b: float = 0.75
    """How much the length of a text counts, from 0 to 1."""
    average_length: float = 256.0
    """Words of a text of average length, above 0. A fixed number: no store counts it."""

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"unknown language of words {self.language!r:.80}")
        if not (self.k >= 0 and 0 <= self.b <= 1 and self.average_length > 0):
            raise ValueError(f"numbers of BM25 are out of their ranges: {asdict(self)}")


def dump_options(options: Bm25Options) -> dict[str, Any]:
    """Return the options as a dictionary by field name, which JSON can hold; `load_options` reads it."""
    return asdict(options)


def load_options(value: Mapping[str, Any] | None) -> Bm25Options:
    """Return the options that `dump_options` returned; None: the collection is older than the options, which were the
    defaults then. Raises TypeError or ValueError for anything else."""
    return Bm25Options() if value is None else Bm25Options(**value)
