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
    def from_statement(cls, declared_fields: Mapping[str, Any], **statement: Any) -> Override:
        """An override that remembers what `declared_fields` (the definition's fields) says now."""
        digest_names = [*STATEMENT_FIELDS, *statement.get("params", {})]
        return cls(digests={name: field_digest(declared_fields.get(name)) for name in digest_names}, **statement)

    def drop_edited_fields(self, declared_fields: Mapping[str, Any]) -> Override | None:
        """What is left of the statement under the definition as it is now; None when an edit ended it."""
        if any(self._is_edited(declared_fields, name) for name in STATEMENT_FIELDS):
            return None
        kept_params = {name: value for name, value in self.params.items() if not self._is_edited(declared_fields, name)}
        return self if kept_params == self.params else self.model_copy(update={"params": kept_params})

    def _is_edited(self, declared_fields: Mapping[str, Any], name: str) -> bool:
        return name in self.digests and self.digests[name] != field_digest(declared_fields.get(name))


class Evicted(BaseModel):
    """An `autoload` model that was unloaded for others' sake, or for want of use, until the next request for it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float = Field(description="Unix time in seconds.")
    reason: str


def restate_override(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether an edit changes whether, or how often, a declared model runs: that ends what somebody asked for."""
    if before is None or after is None:
        return False
    return any(before.get(field) != after.get(field) for field in STATEMENT_FIELDS)


def ended_fields(before: Override, remainder: Override | None) -> list[str]:
    """What is gone of a statement of which `remainder` is left: `load` or `unload`, all of it; or fields of a load,
    sorted.
    """
    return [before.action] if remainder is None else sorted(before.params.keys() - remainder.params.keys())


def is_whole_statement(ended_names: Sequence[str]) -> bool:
    """Whether what `ended` says is a whole statement."""
    return list(ended_names) in (["load"], ["unload"])
