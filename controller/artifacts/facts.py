"""Facts about model files that the memory formulas need. Values only; sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LONGEST_SHOWN: Final = 100
"""Maximum number of characters of a file's own text in an error message."""

Scalar = int | float | bool | str
Field = Scalar | tuple[int | float | bool, ...]


class ArtifactError(ValueError):
    """A model's file or folder cannot be read, lies outside the models folders, is damaged, or is not what its name
    says. The message continues a sentence whose subject is the model's path; that of `read_custom_code` begins with a
    file's name instead."""


def show_text(text: str) -> str:
    """Return a text from a model file in a form that is safe in an error message: at most 100 characters
    (`LONGEST_SHOWN`) and `...`, and, where a character is not printable (control characters, lone surrogates, direction
    marks), all in ASCII with escapes and in quotes."""
    shown = text if text.isprintable() else ascii(text[:LONGEST_SHOWN])
    return shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + "..."


@dataclass(frozen=True, slots=True)
class Gguf:
    """Facts of a GGUF file, or of a split set of GGUF files. Sizes are in bytes."""

    size: int
    """Bytes of all files of the model."""
    architecture: str
    """`general.architecture`, the prefix of the architecture's own metadata keys."""
    fields: Mapping[str, Field]
    """Metadata by full key. Arrays of texts (the vocabulary), texts above 65,535 bytes and arrays above 4,096 elements
    are left out."""
    blocks: tuple[int, ...]
    """Bytes of the weights of each block (`blk.N.`), in order."""
    embedding: int
    """Bytes of the token embeddings."""
    output: int
    """Bytes of the tensors named `output*`: the output matrix and its norm."""
    rest: int
    """Bytes of all tensors that are neither in a block, nor embedding, nor output."""
    vocabulary: int
    """Number of tokens in the vocabulary; 0 means unknown."""
    has_tied_embeddings: bool
    """Whether the token embeddings also serve as the output matrix."""
    longest_token: int | None = None
    """Maximum number of text bytes that one token stands for. None means unknown: the tokenizer may not cover a text
    byte by byte (`controller.artifacts.vocabulary`)."""

    @property
    def weights(self) -> int:
        """Total size of all tensors in bytes."""
        return sum(self.blocks) + self.embedding + self.output + self.rest

    def get_number(self, name: str, default: int | None = None) -> int | None:
        """Return the integer of a metadata key, given without the architecture's prefix; of an array, the largest.
        Returns `default` where the key is missing or holds no integer of 0 or more. A boolean counts as 0 or 1."""
        return max(self.get_numbers(name), default=default)

    def get_numbers(self, name: str) -> tuple[int, ...]:
        """Return the integers of a metadata key, given without the architecture's prefix: the value itself, or the
        elements of an array in order, such as one per block. Negative integers are left out, so that the result may be
        shorter than the array; a boolean counts as 0 or 1. Empty where the key is missing or holds no integer."""
        value = self.fields.get(f"{self.architecture}.{name}")
        values = value if isinstance(value, tuple) else (value,)
        return tuple(int(each) for each in values if isinstance(each, int) and each >= 0)


@dataclass(frozen=True, slots=True)
class HfFolder:
    """Facts of a folder in the layout of the Hugging Face Hub: `config.json` beside weights. Sizes are in bytes."""

    size: int
    """Bytes of all files of the model."""
    config: Mapping[str, object]
    """`config.json`; where it describes several models, the fields of the text model override the others."""
    weights: Mapping[str, int]
    """Bytes of the weights by element type, in lower case as in safetensors (`bf16`). The key is empty where types are
    unknown."""
    longest_token: int | None = None
    """As `Gguf.longest_token`, from the folder's `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class Ct2:
    """Facts of a CTranslate2 model, from its `model.bin`. Sizes are in bytes."""

    size: int
    """Bytes of all files of the model."""
    matrices: Mapping[str, int]
    """Bytes of the weights with two or more dimensions, by element type (`f32`, `i8`)."""
    vectors: Mapping[str, int]
    """Bytes of all other weights (biases, norms, scales), by element type."""
    longest_token: int | None = None
    """As `Gguf.longest_token`, from the model's `tokenizer.json`."""


@dataclass(frozen=True, slots=True)
class SizedArtifact:
    """A model file or folder of a kind that is not read any further: only its size in bytes is known."""

    size: int
    """Bytes of all files of the model."""


@dataclass(frozen=True, slots=True)
class UnreadArtifact:
    """A model file or folder that cannot be read, or is not what its name says: the reason, and the size in bytes
    (None: unknown)."""

    reason: str
    """What is wrong: a sentence that begins with the file's name."""
    size: int | None = None
    """Bytes of all files of the model. None means unknown."""


Artifact = Gguf | HfFolder | Ct2 | SizedArtifact | UnreadArtifact


def longest_token_at(path: str, artifacts: Mapping[str, Artifact]) -> int | None:
    """Return the maximum number of text bytes, without white space, that one token of the model at `path`, a key of
    `artifacts`, stands for. None means unknown, also where there is no such artifact."""
    artifact = artifacts.get(path)
    return artifact.longest_token if isinstance(artifact, Gguf | HfFolder | Ct2) else None
