"""Facts of a model's files, as the formulas of memory need them. Values only; sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LONGEST_SHOWN: Final = 100
"""Characters of a file's own text in an error."""

Scalar = int | float | bool | str
Field = Scalar | tuple[int | float | bool, ...]


class ArtifactError(ValueError):
    """A file that is not what it should be: what is wrong, in words."""


def show_text(text: str) -> str:
    """A text out of somebody's file as it may stand in an error: short, and without what a terminal or an encoder takes
    amiss (control characters, lone surrogates, marks that turn the direction)."""
    shown = text if text.isprintable() else ascii(text[:LONGEST_SHOWN])
    return shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + "..."


@dataclass(frozen=True, slots=True)
class Gguf:
    """A GGUF file, or a split set of them."""

    size: int
    """Of all its files."""
    architecture: str
    fields: Mapping[str, Field]
    """Metadata by full key. Texts in arrays (the vocabulary), long texts and long arrays are left out."""
    blocks: tuple[int, ...]
    """Weights of each block (`blk.N.`)."""
    embedding: int
    """The table of token embeddings."""
    output: int
    """`output*`: the last matrix and its norm."""
    rest: int
    vocabulary: int
    """Tokens."""
    has_tied_embeddings: bool
    """The embeddings are the output matrix, too."""
    longest_token: int | None = None
    """Bytes that the longest token of its vocabulary stands for; None: see `vocabulary`."""

    @property
    def weights(self) -> int:
        """Of all tensors."""
        return sum(self.blocks) + self.embedding + self.output + self.rest

    def get_number(self, name: str, default: int | None = None) -> int | None:
        """A whole number below the architecture's prefix; of an array, its largest."""
        return max(self.get_numbers(name), default=default)

    def get_numbers(self, name: str) -> tuple[int, ...]:
        """One whole number, or one for each block; empty: there is none."""
        value = self.fields.get(f"{self.architecture}.{name}")
        values = value if isinstance(value, tuple) else (value,)
        return tuple(int(each) for each in values if isinstance(each, int) and each >= 0)


@dataclass(frozen=True, slots=True)
class HfFolder:
    """A folder in the manner of the Hugging Face hub: `config.json` beside weights."""

    size: int
    config: Mapping[str, object]
    """Of the text model, where the folder's holds several."""
    weights: Mapping[str, int]
    """By the type of their elements, in lower case as safetensors says it (`bf16`); `` where only sizes are known."""
    longest_token: int | None = None
    """As a GGUF file's, by its `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class Ct2:
    """A CTranslate2 model."""

    size: int
    matrices: Mapping[str, int]
    """Bytes by type of the elements (`f32`, `i8`)."""
    vectors: Mapping[str, int]
    """Likewise: biases, norms, scales."""
    longest_token: int | None = None
    """As a GGUF file's, by its `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class SizedArtifact:
    """A file or folder of which only the size is known."""

    size: int


@dataclass(frozen=True, slots=True)
class UnreadArtifact:
    """It could not be read, or is not what its name says."""

    reason: str
    size: int | None = None


Artifact = Gguf | HfFolder | Ct2 | SizedArtifact | UnreadArtifact


def longest_token_at(path: str, artifacts: Mapping[str, Artifact]) -> int | None:
    """Bytes that the longest token of the model at `path` stands for; None: it is not known."""
    artifact = artifacts.get(path)
    return artifact.longest_token if isinstance(artifact, Gguf | HfFolder | Ct2) else None
