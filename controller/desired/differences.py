"""Differences between two declared states, field by field, and between two versions of Roundhouse (`roundhouse
upgrade --check`). Pure.

A mapping such as `env` is compared key by key, so that a difference names `env.HF_TOKEN`. Secrets are masked on both
sides: a changed secret reads `***` before and after. Of API keys, tools and MCP servers only the names of changed
fields are given.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from contract.admin import FieldChange, KeyChange, ToolChange
from controller.config.validate import DeclaredTools
from controller.engines import REPLICA_ENGINES, spec_hash
from controller.redaction import collect_secrets, mask_fields
from controller.state import DesiredModel

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


@dataclass(frozen=True, slots=True)
class UpgradeChange:
    """One difference that an upgrade to this version makes. `message`: what changes, in words for the operator."""

    kind: Literal["engine", "setting", "state", "file"]
    subject: str
    """The name of the model, environment variable or file."""
    message: str
    is_obstacle: bool = False
    """True: this version does not start, or does not work, before it is resolved."""


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A running engine, as the running version reports it. `spec_hash` is the spec hash of the definition that the
    engine was started with."""

    model: str
    spec_hash: str
    is_outdated: bool = False
    """True: the running version would replace it as well."""


def list_engine_changes(
    desired_models: Mapping[str, DesiredModel], replicas: Iterable[RunningReplica]
) -> list[UpgradeChange]:
    """List one change of kind `engine` for each model of which this version would restart engines, in name order. The
    message says how many and why. `desired_models`: resolved by this version. Engines of undeclared models are left
    out, and so are those that the running version would replace as well (`is_outdated`)."""
    running_hashes: dict[str, list[str]] = {}
    for replica in replicas:
        if not replica.is_outdated:
            running_hashes.setdefault(replica.model, []).append(replica.spec_hash)
    changes: list[UpgradeChange] = []
    for name, hashes in sorted(running_hashes.items()):
        model = desired_models.get(name)
        other_hashes = [each for each in hashes if model is not None and each != model.spec_hash]
        if model is not None and other_hashes:
            count = len(other_hashes)
            engines = "1 engine would be restarted" if count == 1 else f"{count} engines would be restarted"
            reasons = sorted({_explain_hash(model, each) for each in other_hashes})
            changes.append(UpgradeChange("engine", name, f"{engines}: {'; '.join(reasons)}"))
    return changes


def _explain_hash(model: DesiredModel, running_hash: str) -> str:
    """Explain why a running engine's spec hash differs from the one that this version computes for the model."""
    current_version = REPLICA_ENGINES[model.backend].render_version
    for version in range(current_version - 1, 0, -1):
        if spec_hash(model.definition, model.image, model.name, render_version=version) == running_hash:
            return f"{model.backend} is started otherwise (render_version {version}, now {current_version})"
    if model.image is not None and model.definition.image is None:
        return f"another default image (now {model.image}), or other fields count for {model.backend}"
    return f"other fields count for {model.backend}, or the files were edited and nothing has applied it yet"


def list_setting_changes(variables: Iterable[str], known_variables: Iterable[str]) -> list[UpgradeChange]:
    """List, in name order, those of the environment variables `variables` that this version does not read. The changes
    have kind `setting`, and no change is an obstacle."""
    known_names = sorted(known_variables)
    changes: list[UpgradeChange] = []
    for name in sorted(set(variables)):
        if name not in known_names:
            hint = f"; there is {close_name}" if (close_name := _find_close_name(name, known_names)) else ""
            changes.append(UpgradeChange("setting", name, f"this version does not read it{hint}"))
    return changes


def _find_close_name(name: str, known_names: Iterable[str]) -> str | None:
    # All begin alike, which makes no two of them alike.
    ends = {known_name.partition("_")[2]: known_name for known_name in known_names}
    close_ends = difflib.get_close_matches(name.partition("_")[2], ends, n=1, cutoff=0.8)
    return ends[close_ends[0]] if close_ends else None


def list_schema_changes(found_versions: Mapping[str, int], known_versions: Mapping[str, int]) -> list[UpgradeChange]:
    """List, in name order, the files of the state folder whose schema_version is not the one that this version writes.
    Both mappings take a file name to a schema_version; a name missing from `known_versions` raises KeyError. Each such
    file is an obstacle."""
    changes: list[UpgradeChange] = []
    for name, version in sorted(found_versions.items()):
        known = known_versions[name]
        if version > known:
            message = f"a newer Roundhouse wrote it (schema_version {version}); this version reads up to {known}"
        elif version < known:
            message = (
                f"a Roundhouse of before 0.1.0 wrote it (schema_version {version}, this version reads {known}): "
                "stay with that one, or move the file away"
            )
        else:
            continue
        changes.append(UpgradeChange("state", name, message, is_obstacle=True))
    return changes
