"""What is written into the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from controller.schema.admin import EventKind


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Something that happened, before the journal gave it its id and time. Holds no secret."""

    kind: EventKind
    actor: str
    """`files`, `controller`, `engine`, or who asked for it."""
    message: str
    model: str | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)
