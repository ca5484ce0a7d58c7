"""JSON Schema (draft 2020-12) of the desired-state files, for editors and for `roundhouse schema`. Pure.

A file may hold part of a definition, so the schema requires no field, and allows null for every field, which removes
it. Problems that only the merged files show (a missing `model_path`, an alias that is taken) are reported by
`roundhouse validate`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from contract.desired import Definition, ModelName
from contract.keys import KeyDefinition, KeyName
from contract.tools import BUILTIN_TOOLS, McpServer, ServerName
from controller.engines import BACKEND_OF_SUFFIX, ENGINES
from controller.engines.base import Engine

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def files_schema() -> Schema:
    """Return the JSON Schema of one desired-state file, as a new object."""
    return {
        "$schema": DIALECT,
        "title": "Roundhouse: desired state",
        "description": "One of the files of a desired-state folder. They are merged in name order, local.yaml last.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "models": {
                "description": "The models by public name. `{}` declares that there are none.",
                "type": "object",
                "propertyNames": TypeAdapter(ModelName).json_schema(),
                "additionalProperties": {"$ref": "#/$defs/model"},
            },
            "keys": {
                "description": "The keys by name. None at all: nobody needs one.",
                "type": ["object", "null"],
                "propertyNames": TypeAdapter(KeyName).json_schema(),
                "additionalProperties": {"$ref": "#/$defs/key"},
            },
            "tools": {
                "description": "The built-in tools that are enabled, by name. None at all: no tool is.",
                "type": ["object", "null"],
                "properties": {name: {"$ref": f"#/$defs/tool_{name}"} for name in BUILTIN_TOOLS},
                "additionalProperties": False,
            },
            "mcp_servers": {
                "description": "The MCP servers by name, whose tools are named `SERVER__TOOL`.",
                "type": ["object", "null"],
                "propertyNames": TypeAdapter(ServerName).json_schema(),
                "additionalProperties": {"$ref": "#/$defs/mcp_server"},
            },
            "discover": {
                "description": "Whether every model file in the models folders that no model names is an `autoload` "
                "model, under a name made from the file's; default: false.",
                "type": ["boolean", "null"],
            },
        },
        "$defs": {
            "model": _model_schema(),
            "key": _key_schema(),
            **{f"tool_{name}": _removable(f"The built-in tool {name}", each) for name, each in BUILTIN_TOOLS.items()},
            "mcp_server": _removable("An MCP server", McpServer),
            **{name: definition_schema(engine) for name, engine in ENGINES.items()},
            "any": _any_backend_schema(),
        },
    }


def schema_text() -> str:
    """Return the schema as JSON text with a final line break, as `schema.json` holds it."""
    return json.dumps(files_schema(), indent=2, ensure_ascii=False) + "\n"


def definition_schema(engine: Engine[Any]) -> Schema:
    """Return the JSON Schema of a model's definition for that backend. It refuses unknown fields, requires none, and
    allows null for each."""
    fields = {
        **_field_schemas(engine.definition),
        "backend": {"enum": [engine.name, None], "description": _description("backend")},
    }
    return _closed_object((engine.definition.__doc__ or "").strip(), fields)


def _model_schema() -> Schema:
    """Return the schema of a model: the fields of its backend where the file names one or `model_path` implies one,
    else those of all backends."""
    no_backend: Schema = {"backend": {"type": "null"}}
    backend_required = {"type": "object", "required": ["backend"]}
    cases: list[Schema] = [
        {"if": {**backend_required, "properties": {"backend": {"const": name}}}, "then": {"$ref": f"#/$defs/{name}"}}
        for name in ENGINES
    ]
    fallback: Schema = {"if": {"type": "object", "properties": no_backend}, "then": {"$ref": "#/$defs/any"}}
    for suffix, name in BACKEND_OF_SUFFIX.items():
        suffix_properties = {**no_backend, "model_path": {"type": "string", "pattern": _suffix_pattern(suffix)}}
        fallback = {
            "if": {"type": "object", "required": ["model_path"], "properties": suffix_properties},
            "then": {"$ref": f"#/$defs/{name}"},
            "else": fallback,
        }
    cases.append(fallback)
    backend = {"enum": [*ENGINES, None], "description": _description("backend")}
    return {
        "description": "A model's definition; null removes a model that an earlier file declares.",
        "type": ["object", "null"],
        "properties": {"backend": backend},
        "allOf": cases,
    }


def _key_schema() -> Schema:
    fields = _field_schemas(KeyDefinition)
    # `expires` may also be a bare date, which is not a `date-time`.
    del fields["expires"]["format"]
    key = _closed_object("A key; null removes one that an earlier file declares.", fields)
    return {**key, "type": ["object", "null"]}


def _removable(subject: str, declaration: type[BaseModel]) -> Schema:
    schema = _closed_object(f"{subject}; null removes one that an earlier file declares.", _field_schemas(declaration))
    return {**schema, "type": ["object", "null"]}


def _suffix_pattern(suffix: str) -> str:
    """Return a regular expression for the suffix in upper or lower case. Patterns in JSON Schema have no flag for
    that."""
    letters = "".join(f"[{each}{each.upper()}]" for each in suffix.removeprefix("."))
    return rf"\.{letters}$"


def _any_backend_schema() -> Schema:
    fields: Schema = {}
    for engine in ENGINES.values():
        for name, schema in _field_schemas(engine.definition).items():
            fields.setdefault(name, schema)
    # Some backends require `model_path` and others do not: take the common definition's schema.
    fields.update(_field_schemas(Definition))
    fields["backend"] = {"type": "null", "description": _description("backend")}
    return _closed_object("Part of a definition whose backend another file says.", fields)


def _closed_object(description: str, fields: Schema) -> Schema:
    return {"description": description, "type": "object", "properties": fields, "additionalProperties": False}


def _description(name: str) -> str:
    return Definition.model_fields[name].description or ""


def _field_schemas(definition: type[BaseModel]) -> Schema:
    properties: Schema = definition.model_json_schema()["properties"]
    return {name: _nullable(schema) for name, schema in properties.items()}


def _nullable(schema: Schema) -> Schema:
    """Return the schema of a field that also allows null, without titles."""
    schema = {key: value for key, value in schema.items() if key != "title" and (key, value) != ("default", None)}
    branches = [branch for branch in schema.pop("anyOf", [schema]) if branch != {"type": "null"}]
    if len(branches) > 1:
        return {"anyOf": [*branches, {"type": "null"}], **schema}
    # The field's own description and default override those of the branch.
    merged_schema = {**branches[0], **schema}
    if "const" in merged_schema:
        merged_schema["enum"] = [merged_schema.pop("const")]
    if "enum" in merged_schema:
        merged_schema["enum"] = [*merged_schema["enum"], None]
    if isinstance(merged_schema.get("additionalProperties"), dict):
        merged_schema["additionalProperties"] = _nullable(merged_schema["additionalProperties"])
    if "type" in merged_schema:
        merged_schema["type"] = [merged_schema["type"], "null"]
    return merged_schema
