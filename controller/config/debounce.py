"""Decides which declarations of the files are in force: when new ones take effect, and the last valid ones on disk.

A model that vanished from the files is removed only after two agreeing reads at least `CONFIRM_S` apart, because a
git checkout removes files for a moment. The same holds for an MCP server, for `discover`, and for the removal of all
keys, because without keys everybody has access. Every other change takes effect at once. A read with problems agrees
with nothing: the declarations in force stay, and the count of agreeing reads starts again.

The last valid ones stay in force while the files are broken, also at the start of the controller.

`<state folder>/desired.json` holds the merged fields as declared, so that a newer version validates them again. It is
replaced atomically and readable by its owner alone (`env` and `headers` may hold secrets).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from common.atomic_write import write_atomic
from contract.desired import Definition
from contract.keys import KeyDefinition
from contract.status import SCHEMA_VERSION
from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import ParsedFolder, redact_problems
from controller.config.validate import DeclaredTools, validate_keys, validate_models, validate_tools
from controller.config.yaml12 import SourcePlace, Table, with_place

CONFIRM_S: Final = 2.0
"""Minimum seconds between two reads that confirm a removal."""


@dataclass(frozen=True, slots=True)
class DebouncedState:
    """The declarations in force, and those that are about to be removed. Immutable; each read of the files makes a new
    one (`debounce`)."""

    definitions: Mapping[str, Definition]
    """Validated definitions by model name, those of missing models included."""
    declared_models: Mapping[str, Mapping[str, Any]]
    """Fields as declared, by the name of each model in force. For a missing model, as last declared."""
    missing: Mapping[str, float] = field(default_factory=dict)
    """Models in force that the last read did not have, with the Unix time of the first read without them."""
    wake_at: float | None = None
    """Unix time by which the files must be read again to confirm a removal. None means that nothing waits for that."""
    keys: Mapping[str, KeyDefinition] = field(default_factory=dict)
    """Validated keys by name."""
    declared_keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields as declared, by the name of each key in force. For missing keys, as last declared."""
    keyless_since: float | None = None
    """Unix time of the first read without any key, while the previous keys are still in force. None means that the read
    keys are in force."""
    tools: DeclaredTools = field(default_factory=DeclaredTools)
    """Tools and MCP servers, missing servers included."""
    missing_servers: Mapping[str, float] = field(default_factory=dict)
    """MCP servers in force that the last read did not have, with the Unix time of the first read without them."""
    discover: bool = False
    """Whether every model file that no declaration names is a model."""
    undiscovered_since: float | None = None
    """Unix time of the first read without `discover`, while it is still in force. None: what was read is in force."""


def debounce(previous: DebouncedState | None, parsed: ParsedFolder, now: float) -> DebouncedState | None:
    """Return the declarations in force after one more read of the files at Unix time `now`. `previous` is what the last
    call returned; None before the first. Files with problems change nothing, but restart the confirmation of removals.
    None means that no valid files were ever read. That is not the same as no models: nothing may be planned."""
    if not parsed.is_valid:
        if previous is None:
            return None
        return DebouncedState(
            previous.definitions,
            previous.declared_models,
            keys=previous.keys,
            declared_keys=previous.declared_keys,
            tools=previous.tools,
            discover=previous.discover,
        )
    if previous is None:
        return settled_state(parsed)
    missing_since = _missing_since(previous.definitions, parsed.definitions, previous.missing, now)
    missing_servers = _missing_since(previous.tools.servers, parsed.tools.servers, previous.missing_servers, now)
    leaving_definitions = {name: previous.definitions[name] for name in missing_since}
    keyless_since = _keyless_since(previous, parsed, now)
    undiscovered_since = _since(previous.undiscovered_since, now) if previous.discover and not parsed.discover else None
    key_source = parsed if keyless_since is None else previous
    missing_times = [
        *missing_since.values(),
        *missing_servers.values(),
        *(each for each in (keyless_since, undiscovered_since) if each is not None),
    ]
    return DebouncedState(
        _without_conflicts(parsed.definitions, leaving_definitions),
        {**parsed.declared_models, **{name: previous.declared_models[name] for name in missing_since}},
        missing_since,
        min(missing_times) + CONFIRM_S if missing_times else None,
        key_source.keys,
        key_source.declared_keys,
        keyless_since,
        _with_servers(parsed.tools, previous.tools, missing_servers),
        missing_servers,
        parsed.discover or undiscovered_since is not None,
        undiscovered_since,
    )


def settled_state(parsed: ParsedFolder) -> DebouncedState:
    """Return the state in force if nothing but these files was ever read. `parsed` must be valid."""
    return DebouncedState(
        parsed.definitions,
        parsed.declared_models,
        keys=parsed.keys,
        declared_keys=parsed.declared_keys,
        tools=parsed.tools,
        discover=parsed.discover,
    )


def _missing_since(
    previous: Iterable[str], parsed: Container[str], known: Mapping[str, float], now: float
) -> dict[str, float]:
    """Return the names of `previous` that the files do not have and that stay in force, with the time since which."""
    missing_since: dict[str, float] = {}
    for name in previous:
        # After the clock was set back, the stored time may lie in the future, and would keep the name forever.
        first_missing_at = min(known.get(name, now), now)
        if name not in parsed and now - first_missing_at < CONFIRM_S:
            missing_since[name] = first_missing_at
    return missing_since


def _with_servers(tools: DeclaredTools, previous: DeclaredTools, names: Iterable[str]) -> DeclaredTools:
    """Return the tools with those servers of `previous` in addition."""
    return replace(
        tools,
        servers={**tools.servers, **{name: previous.servers[name] for name in names}},
        declared_servers={**tools.declared_servers, **{name: previous.declared_servers[name] for name in names}},
    )


def _keyless_since(previous: DebouncedState, parsed: ParsedFolder, now: float) -> float | None:
    """Return since when the files have no keys while the previous keys stay in force. None means that the keys of the
    files are in force."""
    if parsed.keys or not previous.keys:
        return None
    return _since(previous.keyless_since, now)


def _since(known: float | None, now: float) -> float | None:
    """Return since when the files lack what stays in force for that; None: for `CONFIRM_S`, so that it goes. `known`:
    what the last read returned."""
    since = now if known is None else min(known, now)
    return since if now - since < CONFIRM_S else None


def _without_conflicts(
    file_definitions: Mapping[str, Definition], leaving_definitions: Mapping[str, Definition]
) -> Mapping[str, Definition]:
    """Combine the models of the files with those about to be removed, so that no name or alias belongs to two models. A
    renamed model often keeps its old name as an alias. A name in the files wins over an alias of a leaving model; a
    leaving model's own name wins over an alias."""
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


FILE_NAME: Final = "desired.json"


class LastGoodError(Exception):
    """The stored declarations exist and cannot be read, are not valid, or are of a newer version. The message is for
    the operator."""


class _LastGoodDocument(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    schema_version: int
    saved_at: float
    models: dict[str, dict[str, JsonValue]]
    keys: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    tools: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    mcp_servers: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    discover: bool = False


def save_last_good(
    state_folder: Path,
    declared_models: Mapping[str, Mapping[str, Any]],
    keys: Mapping[str, Mapping[str, Any]],
    now: float,
    tools: DeclaredTools | None = None,
    discover: bool = False,
) -> None:
    """Store the declared models, keys, tools and MCP servers, each by name with its fields, and whether models are
    discovered, in the state folder. `now` is Unix time. `tools` None: none. Blocks. Raises OSError (disk full, folder
    gone); the previous file then stays."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "saved_at": now,
        "models": declared_models,
        "keys": keys,
        **(tools.declared if tools is not None else {}),
        **({"discover": True} if discover else {}),
    }
    write_atomic(state_folder / FILE_NAME, json.dumps(content, ensure_ascii=False, indent=1).encode())


def load_last_good(state_folder: Path, roots: ModelRoots) -> DebouncedState | None:
    """Load the stored declarations and validate them as this version does. None means that none were ever stored.
    `roots` are absolute. Blocks. Raises LastGoodError where they cannot be read or are not valid; the caller goes on
    without them."""
    path = state_folder / FILE_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LastGoodError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        last_good = _LastGoodDocument.model_validate_json(content)
    except ValidationError as error:
        raise LastGoodError(f"{path}: not a stored state of Roundhouse: {error.errors()[0]['msg']}") from None
    if last_good.schema_version > SCHEMA_VERSION:
        raise LastGoodError(
            f"{path}: written by a newer Roundhouse (schema_version {last_good.schema_version}, this one reads up to "
            f"{SCHEMA_VERSION})"
        )
    document = {
        "models": last_good.models,
        "keys": last_good.keys,
        "tools": last_good.tools,
        "mcp_servers": last_good.mcp_servers,
    }
    table = with_place(document, SourcePlace(str(path)))  # type: ignore[arg-type] # JsonValue and Plain are the same values
    assert isinstance(table, Table)
    models = table.get("models")
    assert isinstance(models, Table)
    validated_models, keys, tools = validate_models(models, roots), validate_keys(table), validate_tools(table)
    if problems := (*validated_models.problems, *keys.problems, *tools.problems):
        raise LastGoodError("; ".join(str(problem) for problem in redact_problems(problems)))
    return DebouncedState(
        validated_models.definitions,
        validated_models.declared_models,
        keys=keys.definitions,
        declared_keys=keys.declared_keys,
        tools=tools.declared,
        discover=last_good.discover,
    )
