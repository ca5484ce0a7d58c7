"""When what the files say comes into force. Pure: `now` is an argument.

A model that vanished from the files is gone only after two agreeing reads at least `CONFIRM_S` apart, since a git
checkout removes files for a moment. So does the end of all keys, since without keys everybody is let in. Everything
else comes into force at once. A read with problems agrees with nothing: what was in force stays, and the count of
agreeing reads begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from controller.config.parse import ParsedFolder
from controller.schema.desired import Definition
from controller.schema.keys import KeyDefinition

CONFIRM_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class DebouncedState:
    """The definitions in force, and what is about to leave them."""

    definitions: Mapping[str, Definition]
    declared_models: Mapping[str, Mapping[str, Any]]
    """Per model in force what the files say or last said."""
    missing: Mapping[str, float] = field(default_factory=dict)
    """Models still in force that the last read did not have, with the Unix time of the first such read."""
    wake_at: float | None = None
    """When to read again at the latest, to confirm what is missing."""
    keys: Mapping[str, KeyDefinition] = field(default_factory=dict)
    declared_keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per key in force what the files say or last said."""
    keyless_since: float | None = None
    """Unix time of the first read that had no keys, while keys are still in force."""


def debounce(previous: DebouncedState | None, parsed: ParsedFolder, now: float) -> DebouncedState | None:
    """What is in force after this read. None: nothing was ever known, which is not "no models": plan nothing."""
    if not parsed.is_valid:
        if previous is None:
            return None
        return DebouncedState(
            previous.definitions, previous.declared_models, keys=previous.keys, declared_keys=previous.declared_keys
        )
    if previous is None:
        return DebouncedState(
            parsed.definitions, parsed.declared_models, keys=parsed.keys, declared_keys=parsed.declared_keys
        )
    missing_since: dict[str, float] = {}
    for name in previous.definitions:
        first_missing_at = previous.missing.get(name, now)
        # A clock that was set back must not keep a model for ever.
        first_missing_at = min(first_missing_at, now)
        if name not in parsed.definitions and now - first_missing_at < CONFIRM_S:
            missing_since[name] = first_missing_at
    leaving_definitions = {name: previous.definitions[name] for name in missing_since}
    keyless_since = _keyless_since(previous, parsed, now)
    key_source = parsed if keyless_since is None else previous
    missing_times = [*missing_since.values(), *([] if keyless_since is None else [keyless_since])]
    return DebouncedState(
        _without_conflicts(parsed.definitions, leaving_definitions),
        {**parsed.declared_models, **{name: previous.declared_models[name] for name in missing_since}},
        missing_since,
        min(missing_times) + CONFIRM_S if missing_times else None,
        key_source.keys,
        key_source.declared_keys,
        keyless_since,
    )


def _keyless_since(previous: DebouncedState, parsed: ParsedFolder, now: float) -> float | None:
    """Since when the files have no keys while those of before still rule; None: what the files say rules."""
    if parsed.keys or not previous.keys:
        return None
    since = now if previous.keyless_since is None else min(previous.keyless_since, now)
    return since if now - since < CONFIRM_S else None


def _without_conflicts(
    file_definitions: Mapping[str, Definition], leaving_definitions: Mapping[str, Definition]
) -> Mapping[str, Definition]:
    """Both together. A renamed model often keeps its old name as an alias: for a moment nobody may answer to it twice.

    A name of the files wins over an alias of a leaving model; a leaving model's own name wins over an alias.
    """
    taken_names = {
        *file_definitions,
        *(alias for definition in file_definitions.values() for alias in definition.aliases),
    }
    definitions = {
        name: _without_aliases(definition, leaving_definitions.keys()) for name, definition in file_definitions.items()
    }
    leaving_aliases: set[str] = set()
    for name, definition in leaving_definitions.items():
        definitions[name] = _without_aliases(definition, taken_names | leaving_aliases | leaving_definitions.keys())
        leaving_aliases.update(definition.aliases)
    return definitions


def _without_aliases(definition: Definition, refused_names: Set[str]) -> Definition:
    aliases = [alias for alias in definition.aliases if alias not in refused_names]
    return definition if aliases == definition.aliases else definition.model_copy(update={"aliases": aliases})
