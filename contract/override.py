"""Overrides: an operator's load or unload of a model at runtime, with parameters. Never written back to the files.

An override holds a digest of each definition field that it replaces, as declared at that time. If the field is edited
in the files later, the files win: an edit of a parameter ends that parameter, an edit of `enabled` or `replicas` ends
the whole override.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

STATEMENT_FIELDS = ("enabled", "replicas")
"""Definition fields whose edit ends an override as a whole."""


def field_digest(value: object) -> str:
    """Return a short digest of a field's declared value (16 hex digits). It is the same in every process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Override(BaseModel):
    """An operator's load or unload of one model, in force until the next one or until an edit ends it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    action: Literal["load", "unload"]
    at: float = Field(description="Unix time in seconds.")
    actor: str = Field(default="operator", description="Who loaded or unloaded the model.")
    hold: bool = Field(
        default=True,
        description="For `unload`: whether requests cannot load an `autoload` model again until the next load or edit.",
    )
    replicas: int | None = Field(
        default=None, ge=1, description="For `load`: number of replicas of this load; null: as the definition says."
    )
    params: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="For `load`: definition fields to override. A key that is present overrides the definition, "
        "also with a null value.",
    )
    digests: dict[str, str] = Field(
        default_factory=dict,
        description="Maps a definition field to a digest of its value in the files at the time of the load or unload.",
    )

    @classmethod
    def from_statement(cls, declared_fields: Mapping[str, Any], **statement: Any) -> Override:
        """Create an override with the fields in `statement`, and with digests of the fields that it replaces.

        `declared_fields` are the fields of the model's definition as the files declare them now; a field that is not
        declared counts as None. `statement` has any fields of `Override` but `digests`. Raises pydantic's
        ValidationError for others.
        """
        digest_names = [*STATEMENT_FIELDS, *statement.get("params", {})]
        return cls(digests={name: field_digest(declared_fields.get(name)) for name in digest_names}, **statement)

    def drop_edited_fields(self, declared_fields: Mapping[str, Any]) -> Override | None:
        """Return the override without the parameters whose fields were edited since; None if an edit ended it all.

        `declared_fields` are the fields of the model's definition as the files declare them now.
        """
        if any(self._is_edited(declared_fields, name) for name in STATEMENT_FIELDS):
            return None
        kept_params = {name: value for name, value in self.params.items() if not self._is_edited(declared_fields, name)}
        return self if kept_params == self.params else self.model_copy(update={"params": kept_params})

    def _is_edited(self, declared_fields: Mapping[str, Any], name: str) -> bool:
        return name in self.digests and self.digests[name] != field_digest(declared_fields.get(name))


class Evicted(BaseModel):
    """Why and when an `autoload` model was evicted: to make room, or because it was idle. The next request ends it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: float = Field(description="Unix time in seconds.")
    reason: str


def restate_override(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Return whether an edit of the files changes `enabled` or `replicas` of a model. Such an edit must end the model's
    override, demand and eviction, which the caller does.

    `before`, `after`: fields of the model's definition as the files declare them before and after the edit; None: the
    model is not declared, and the result is False. A field that is not declared counts as None, not as its default.
    """
    if before is None or after is None:
        return False
    return any(before.get(field) != after.get(field) for field in STATEMENT_FIELDS)


def ended_fields(before: Override, remainder: Override | None) -> list[str]:
    """Return what an edit ended of the override `before`.

    `remainder`: what is left of the override (see `drop_edited_fields`). None means that all of it ended; the result is
    then `["load"]` or `["unload"]`. Otherwise the result has the names of the load's parameters that ended, sorted.
    """
    return [before.action] if remainder is None else sorted(before.params.keys() - remainder.params.keys())


def is_whole_statement(ended_names: Sequence[str]) -> bool:
    """Return whether `ended_names`, a result of `ended_fields`, means that the whole override ended."""
    return list(ended_names) in (["load"], ["unload"])
