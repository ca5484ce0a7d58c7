"""Runtime statements of an operator: load, unload, with sparse parameters. Never written back to the files.

A statement holds the digest of every definition field that it speaks over. When the file later says something else
there, the file speaks last: an edit of a parameter ends that parameter, an edit of `enabled` or `replicas` ends the
statement (DESIGN.md §3, "What is wanted").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

STATEMENT_FIELDS = ("enabled", "replicas")
"""Definition fields whose edit ends a load or unload statement as a whole."""


def field_digest(value: object) -> str:
    """A short digest of one field's declared value, stable across processes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Override(BaseModel):
    """One model's runtime statement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    action: Literal["load", "unload"]
    at: float = Field(description="Unix time in seconds.")
    actor: str = Field(default="operator", description="Who said it.")
    hold: bool = Field(default=True, description="unload: also holds against autoload until the next load or edit.")
    replicas: int | None = Field(default=None, ge=1, description="load: how many replicas, for this load only.")
    params: dict[str, JsonValue] = Field(
        default_factory=dict, description="load: sparse parameters. A present key rules even when its value is null."
    )
    digests: dict[str, str] = Field(default_factory=dict, description="Field to digest of its declared value then.")

    @classmethod
    def stating(cls, declared: Mapping[str, Any], **statement: Any) -> Override:
        """An override that remembers what `declared` (the definition's fields) says now."""
        spoken = [*STATEMENT_FIELDS, *statement.get("params", {})]
        return cls(digests={name: field_digest(declared.get(name)) for name in spoken}, **statement)

    def surviving(self, declared: Mapping[str, Any]) -> Override | None:
        """What is left of the statement under the definition as it is now; None when an edit ended it."""
        if any(self._edited(declared, name) for name in STATEMENT_FIELDS):
            return None
        kept = {name: value for name, value in self.params.items() if not self._edited(declared, name)}
        return self if kept == self.params else self.model_copy(update={"params": kept})

    def _edited(self, declared: Mapping[str, Any], name: str) -> bool:
        return name in self.digests and self.digests[name] != field_digest(declared.get(name))


class Rested(BaseModel):
    """An `autoload` model that was unloaded for others' sake, or for want of use, until the next request for it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float = Field(description="Unix time in seconds.")
    reason: str


def restated(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether an edit changes whether, or how often, a declared model runs: that ends what somebody asked for."""
    if before is None or after is None:
        return False
    return any(before.get(field) != after.get(field) for field in STATEMENT_FIELDS)


def ended(before: Override, left: Override | None) -> list[str]:
    """What is gone of a statement of which that is left: `load` or `unload`, all of it; or fields of a load, sorted."""
    return [before.action] if left is None else sorted(before.params.keys() - left.params.keys())


def is_whole(ends: Sequence[str]) -> bool:
    """Whether what `ended` says is a whole statement."""
    return list(ends) in (["load"], ["unload"])
