"""Differences between two declared states, model by model and field by field. Pure.

A mapping such as `env` is compared key by key, so that a difference names `env.HF_TOKEN`. Secrets are masked on both
sides: a changed secret reads `***` before and after. Of API keys, tools and MCP servers only the names of changed
fields are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from controller.config.tools import DeclaredTools
from controller.redaction.patterns import collect_secrets, mask_fields
from controller.schema.admin import FieldChange, KeyChange, ToolChange

Change = Literal["added", "removed", "edited"]
"""What happened to a declaration."""


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """One model that two declared states differ in. `fields` are in name order, with secrets masked; a value of None
    means not declared, or declared as null."""

    model: str
    change: Change
    fields: tuple[FieldChange, ...]


def diff_models(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[ModelEdit]:
    """Return the models that differ, in name order, with the fields that differ. `before` and `after`: declared fields
    by model name. An added or removed model lists all of its fields."""
    model_edits = []
    for model in sorted(before.keys() | after.keys()):
        old, new = before.get(model), after.get(model)
        if old is None and new is not None:
            model_edits.append(ModelEdit(model, "added", _diff_fields({}, new)))
        elif old is not None and new is None:
            model_edits.append(ModelEdit(model, "removed", _diff_fields(old, {})))
        elif old is not None and new is not None and old != new:
            model_edits.append(ModelEdit(model, "edited", _diff_fields(old, new)))
    return model_edits


def diff_keys(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[KeyChange]:
    """Return the API keys that differ, in name order, with the names of the fields that differ and never their values.
    `before` and `after`: declared fields by key name."""
    return [KeyChange(key=name, change=change, fields=fields) for name, change, fields in _diff_names(before, after)]


def diff_tools(before: DeclaredTools, after: DeclaredTools) -> list[ToolChange]:
    """Return the built-in tools, then the MCP servers that differ, each in name order, with the names of the fields
    that differ and never their values, which may hold secrets."""
    return [
        ToolChange(kind=kind, name=name, change=change, fields=fields)
        for kind, old, new in (
            ("tool", before.declared_tools, after.declared_tools),
            ("mcp_server", before.declared_servers, after.declared_servers),
        )
        for name, change, fields in _diff_names(old, new)
    ]


def _diff_names(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Change, list[str]]]:
    """Yield each declaration that differs: name, what happened to it, and the names of the fields that differ."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        change: Change = "added" if old is None else "removed" if new is None else "edited"
        old, new = old or {}, new or {}
        yield name, change, [each for each in sorted(old.keys() | new.keys()) if old.get(each) != new.get(each)]


def _diff_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    # A secret that moved to where it is not known as one is no less secret.
    secrets = collect_secrets(before) | collect_secrets(after)
    shown_before, shown_after = mask_fields(before, secrets), mask_fields(after, secrets)
    return tuple(
        change
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
        for change in _diff_field(name, before, after, shown_before, shown_after)
    )


def _diff_field(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    shown_before: Mapping[str, JsonValue],
    shown_after: Mapping[str, JsonValue],
) -> Iterator[FieldChange]:
    """Yield the change of one field, or of each changed key where the field is a mapping on both sides."""
    old, new = before.get(name, {}), after.get(name, {})
    view_old, view_new = shown_before.get(name, {}), shown_after.get(name, {})
    are_mappings = all(isinstance(each, Mapping) for each in (old, new, view_old, view_new))
    if not are_mappings or not (old or new):
        yield FieldChange(field=name, before=shown_before.get(name), after=shown_after.get(name))
        return
    assert isinstance(view_old, Mapping)
    assert isinstance(view_new, Mapping)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield FieldChange(field=f"{name}.{key}", before=view_old.get(key), after=view_new.get(key))
