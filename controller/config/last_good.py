"""The last valid declarations on disk. They stay in force while the files are broken, also at the start of the
controller.

`<state folder>/desired.json` holds the merged fields as declared, so that a newer version validates them again. It is
replaced atomically and readable by its owner alone (`env` and `headers` may hold secrets).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from common.atomic_write import write_atomic
from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState
from controller.config.keys import validate_keys
from controller.config.parse import redact_problems
from controller.config.tools import DeclaredTools, validate_tools
from controller.config.tree import SourcePlace, Table, with_place
from controller.config.validate import validate_models
from controller.schema.status import SCHEMA_VERSION

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


def save_last_good(
    state_folder: Path,
    declared_models: Mapping[str, Mapping[str, Any]],
    keys: Mapping[str, Mapping[str, Any]],
    now: float,
    tools: DeclaredTools | None = None,
) -> None:
    """Store the declared models, keys, tools and MCP servers, each by name with its fields, in the state folder. `now`
    is Unix time. `tools` None: none. Blocks.

    Raises OSError (disk full, folder gone); the previous file then stays.
    """
    content = {
        "schema_version": SCHEMA_VERSION,
        "saved_at": now,
        "models": declared_models,
        "keys": keys,
        **(tools.declared if tools is not None else {}),
    }
    write_atomic(state_folder / FILE_NAME, json.dumps(content, ensure_ascii=False, indent=1).encode())


def load_last_good(state_folder: Path, roots: ModelRoots) -> DebouncedState | None:
    """Load the stored declarations and validate them as this version does. None means that none were ever stored.
    `roots` are absolute. Blocks.

    Raises LastGoodError where they cannot be read or are not valid; the caller goes on without them.
    """
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
    )
