"""What is written into the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from controller.schema.journal import EventKind


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Something that happened, before the journal gave it its id and time. Must hold no secret. `model` None: it is
    about no single model."""

    kind: EventKind
    actor: str
    """`files`, `controller`, `engine`, or who asked for it."""
    message: str
    """What happened, in words for the operator."""
    model: str | None = None
    """The model's own name; None: the entry is about no single model."""
    details: Mapping[str, JsonValue] = field(default_factory=dict)
