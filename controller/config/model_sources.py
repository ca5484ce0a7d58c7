"""Puts the files that a model's `source` names in the place of its paths. Pure.

A definition that names a `source` and no `model_path` is validated with a path that stands for the files
(`placeholder_path`). Once the models folder has them, the real path takes its place; until then, the model waits for
its download.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from common.model_reference import (
    HubReference,
    InvalidReferenceError,
    LocalReference,
    ModelReference,
    UrlReference,
    parse_reference,
)
from controller.schema.desired import Definition

PROJECTOR_FIELD: Final = "llama_server_mmproj"
"""Field of a definition that takes the multimodal projector of a source, where the definition names none."""
_GGUF_REPO: Final = re.compile(r"(^|[-_.])gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlacedSource:
    """Where the files of a source are: paths below the first models folder."""

    model_path: str
    projector: str | None = None
    """None: the source has no multimodal projector."""


def canonical_source(text: str) -> str | None:
    """Return a source in its canonical form; None: it is no reference of a model."""
    try:
        return str(parse_reference(text))
    except InvalidReferenceError:
        return None


def placeholder_path(reference: ModelReference) -> str:
    """Return the path that stands for the files of a source until it is known which they are. Its suffix is that of the
    files, where the reference tells it: `.gguf` for a quantisation, a repository whose name ends with `gguf`, and a
    registry."""
    path = named_path(reference)
    if path is not None:
        return path
    if isinstance(reference, HubReference):
        if reference.quantisation is not None:
            return f"{reference.repo}/{reference.quantisation}.gguf"
        return f"{reference.repo}/model.gguf" if _GGUF_REPO.search(reference.repo) else reference.repo
    if isinstance(reference, UrlReference):
        return f"url/{reference.url.partition('?')[0].rpartition('/')[2]}"
    if isinstance(reference, LocalReference):
        return f"local/{reference.path.rpartition('/')[2]}"
    return f"{reference.name}/{reference.tag}.gguf"


def named_path(reference: ModelReference) -> str | None:
    """Return the path that the files of a source will have below the models folder, where the reference tells; None:
    the source decides."""
    if isinstance(reference, HubReference) and reference.path is not None:
        return f"{reference.repo}/{reference.path}"
    return None


def list_sources(definitions: Iterable[Definition]) -> frozenset[str]:
    """Return the sources of the definitions, in their canonical form. Definitions without a source, or with one that is
    no reference of a model, are left out."""
    return frozenset(source for each in definitions if (source := definition_source(each)) is not None)


def definition_source(definition: Definition) -> str | None:
    """Return the source of a definition in its canonical form; None: it names none, or one that is no reference of a
    model."""
    return None if definition.source is None else canonical_source(definition.source)


def place_source(
    definition: Definition, raw_fields: Mapping[str, Any], sources: Mapping[str, PlacedSource]
) -> tuple[Definition, str | None]:
    """Return the definition with the paths of its source, and the source that is still to be downloaded.

    Paths that `raw_fields`, the fields as declared, name themselves stay: a model with a `model_path` of its own waits
    for no download. `sources`: the files that are here, by source in its canonical form. None in place of the source:
    nothing is to be downloaded.
    """
    source = definition_source(definition)
    if source is None or raw_fields.get("model_path") is not None:
        return definition, None
    placed = sources.get(source)
    if placed is None:
        return definition, source
    update: dict[str, str] = {"model_path": placed.model_path}
    takes_projector = PROJECTOR_FIELD in type(definition).model_fields and PROJECTOR_FIELD not in raw_fields
    if placed.projector is not None and takes_projector:
        update[PROJECTOR_FIELD] = placed.projector
    return definition.model_copy(update=update), None
