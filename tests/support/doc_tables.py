"""The tables of docs/{models,tools,keys,settings,errors,fields,cli}.md as the code says them.

`python -m tests.support.doc_tables` prints those of the other pages, to be pasted; with `--write` it writes those of
docs/models.md, docs/tools.md, docs/settings.md, docs/errors.md and docs/fields.md anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cli.output import ExitCode
from contract.desired import Definition, Settable
from contract.errors import ERROR_CODES
from contract.keys import KeyDefinition
from contract.tools import BUILTIN_TOOLS, FetchTool, FolderTool, McpServer, ToolLimits, WriteTool
from controller.config.runtime_declarations import read_markers
from controller.engines import ENGINES
from controller.engines.base import Engine
from controller.engines.options import LoadField, Option, PathFlag, list_options
from controller.settings import ControllerSettings
from gateway.protocols.api_matrix import offered_paths, serving_option
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import AS_CHAT, OURS, REQUEST_FIELDS
from gateway.settings import GatewaySettings
from retrieval.settings import RetrievalSettings
from tests.fakes.fake_controller import route
from transfers.settings import TransfersSettings

_NEEDED: dict[str, dict[str, Any]] = {"openai_remote": {"base_url": "http://x/v1"}, "stub": {}}
_ANY = InferenceRequest(b"{}", {}, "m", stream=False, wants_usage=False)


def native_apis(backend: str, **fields: Any) -> tuple[str, ...]:
    """What an engine of such a definition speaks itself."""
    needed = _NEEDED.get(backend, {"model_path": "m.gguf"})
    definition = ENGINES[backend].definition.model_validate({"backend": backend, **needed, **fields})
    return ENGINES[backend].list_apis(definition)


def modes() -> list[tuple[str, ...]]:
    """Backend, and the field that makes it serve something else than text."""
    found: list[tuple[str, ...]] = []
    for name, engine in ENGINES.items():
        if name != "openai_remote":
            fields = [field for field in engine.definition.model_fields if field.endswith(("_embedding", "_reranking"))]
            found += [(name,), *((name, field) for field in fields)]
    return found


def api_rows() -> list[str]:
    """Models, what is passed through, what is translated: one row for all backends and modes that have the same."""
    names: dict[tuple[str, str], list[str]] = {}
    for backend, *mode in modes():
        model = route("m", apis=native_apis(backend, **dict.fromkeys(mode, True))).model_copy(
            update={"backend": backend}
        )
        passed: list[str] = []
        translated: list[str] = []
        for path in offered_paths(model):
            way = serving_option(path, _ANY, model)
            (passed if way.target is None else translated).append(f"`{path}`")
        name = f"`{backend}`" + "".join(f" with `{field}`" for field in mode)
        names.setdefault((", ".join(passed), ", ".join(translated)), []).append(name)
    return [f"| {', '.join(same)} | {passed} | {translated} |" for (passed, translated), same in names.items()]


DOCS = Path(__file__).parents[2] / "docs"
FIELDS = "| field | type | default | what it says |"
COMMON_FIELDS = "| field | type (default) | what it says |"
OPTIONS = "| option, flag | type (default) | what it says |"
LIMITS = "| by request | fields |"
LOADS = "| fields | take |"
SAME_OPTIONS = {"vllm": "vllm_serve"}
"""Backends without a table of their own: every option of theirs is in the table of the other one."""
SHARED_SETTINGS = "| variable | read by | default | what it says |"
SETTINGS: dict[str, type[BaseModel]] = {
    "controller": ControllerSettings,
    "gateway": GatewaySettings,
    "retrieval": RetrievalSettings,
    "transfers": TransfersSettings,
}
"""The programs' settings, by program."""
ERRORS = "| code | status | retry | meaning | what to do |"
RETRY = {True: "later", False: "no", None: ""}


def rows_of(page: str, heading: str) -> list[str]:
    """The rows of the first table below a heading of a page, without its own two header rows."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/{page} has no heading {heading!r}"
    return [line for line in found.group(1).splitlines() if line.startswith("|")][2:]


def rows_within(page: str) -> list[str]:
    return [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| `")]


def field_rows(definition: type[BaseModel]) -> list[str]:
    """One row per field: name, type, default, description."""
    schemas: dict[str, Any] = definition.model_json_schema()["properties"]
    return [
        row(f"`{name}`", type_words(schemas[name]), default_words(info), info.description or "")
        for name, info in definition.model_fields.items()
    ]


def common_field_rows() -> list[str]:
    """One row per field that all definitions have: name, type and default, description."""
    schemas: dict[str, Any] = Definition.model_json_schema()["properties"]
    return [
        row(f"`{name}`", with_default(type_words(schemas[name]), info), info.description or "")
        for name, info in Definition.model_fields.items()
    ]


def tool_rows() -> list[str]:
    """One row per built-in tool: name, and the fields that it has besides those of every tool."""
    return [
        row(f"`{name}`", ", ".join(f"`{each}`" for each in own_fields(tool)) or "none")
        for name, tool in BUILTIN_TOOLS.items()
    ]


def own_fields(declaration: type[ToolLimits]) -> list[str]:
    return [name for name in declaration.model_fields if name not in ToolLimits.model_fields]


def own_field_rows(*declarations: type[ToolLimits]) -> list[str]:
    """One row per field that not every tool and server has: name, type, default, description."""
    rows = [
        line
        for each in declarations
        for name, line in zip(each.model_fields, field_rows(each), strict=True)
        if name in own_fields(each)
    ]
    return list(dict.fromkeys(rows))


def option_rows(definition: type[Definition]) -> list[str]:
    """One row per option of a backend: name and flag, type and default, description."""
    schemas: dict[str, Any] = definition.model_json_schema()["properties"]
    return [
        row(
            f"`{option.name}`" + ("" if option.flag is None else f" `{option.flag.name}`"),
            with_default(option_type(option, schemas[option.name]), option.info),
            option.info.description or "",
        )
        for option in list_options(definition)
    ]


def with_default(words: str, info: FieldInfo) -> str:
    """A field's type with its default in parentheses; the type alone where there is no fixed default."""
    default = default_words(info)
    return f"{words} ({default})" if default else words


def limit_rows() -> list[str]:
    """One row per limit that a request has: its words, and the fields of all definitions that have it."""
    found = {marker: dict[str, None]() for marker in Settable}
    for definition in (Definition, *(engine.definition for engine in ENGINES.values())):
        for name, marker in read_markers(definition).items():
            found[marker][name] = None
    return [
        row(marker.value, ", ".join(f"`{name}`" for name in names))
        for marker, names in found.items()
        if marker is not Settable.ALWAYS
    ]


def option_type(option: Option, schema: dict[str, Any]) -> str:
    """An option's type and bounds; model paths are told apart from other texts."""
    words = type_words(schema)
    return words.replace("string", "path") if isinstance(option.flag, PathFlag) else words


def shared_setting_rows() -> list[str]:
    """One row per setting that several programs read: variable, programs, default, description."""
    return [
        row(f"`ROUNDHOUSE_{name.upper()}`", ", ".join(readers), _defaults(readers), _description(readers))
        for name, readers in _readers().items()
        if len(readers) > 1
    ]


def setting_rows(settings: type[BaseModel]) -> list[str]:
    """One row per setting that no other program reads: variable, default, description."""
    readers = _readers()
    return [
        row(f"`ROUNDHOUSE_{name.upper()}`", default_words(info), info.description or "")
        for name, info in settings.model_fields.items()
        if len(readers[name]) == 1
    ]


def _readers() -> dict[str, dict[str, FieldInfo]]:
    """The programs that read each setting, with its field there."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for program, settings in SETTINGS.items():
        for name, info in settings.model_fields.items():
            found.setdefault(name, {})[program] = info
    return found


def _defaults(readers: dict[str, FieldInfo]) -> str:
    """The default of the first program, and those of others where they differ."""
    first, *others = readers.items()
    different = [f"{name}: {default_words(info)}" for name, info in others if not _is_same(info, first[1])]
    return "; ".join([default_words(first[1]), *different])


def _is_same(info: FieldInfo, other: FieldInfo) -> bool:
    return default_words(info).lower() == default_words(other).lower()


def _description(readers: dict[str, FieldInfo]) -> str:
    descriptions = {info.description for info in readers.values()}
    assert len(descriptions) == 1, f"one setting, described in several ways: {descriptions}"
    return descriptions.pop() or ""


def backend_line(engine: Engine[Any]) -> str:
    """What holds for a backend where its definition says nothing."""
    ready = f"ready within {engine.start_timeout_s:g} s" if engine.runs else "nothing is started"
    return f"Where the definition says nothing: `target_inflight` {engine.default_target_inflight}, {ready}."


def load_rows() -> list[str]:
    """Fields of a load, and their values: one row for all fields that have the same."""
    names: dict[str, dict[str, None]] = {}
    for engine in ENGINES.values():
        for field in engine.load_fields:
            names.setdefault(load_words(field), {})[f"`{field.name}`"] = None
    return [row(", ".join(same), words) for words, same in names.items()]


def load_words(field: LoadField) -> str:
    limits, kind = field.constraint, {int: "integer", float: "number", str: "text"}[value_type(field)]
    words = f"`{limits.format}`" if kind == "text" and limits.format and not limits.examples else kind
    if kind == "text" and limits.allowed_values is not None:
        words = ", ".join(f"`{each}`" for each in limits.allowed_values) + (" or another" if field.open_values else "")
    words = f"{words} {bound_words(limits.minimum, None, limits.maximum)}".rstrip()
    words += f" in steps of {limits.step}" if field.step_binds else ""
    return words + (", or null" if field.takes_null else "")


def exit_rows() -> list[str]:
    return [row(f"`{code.value}`", code.name.lower(), code.meaning) for code in ExitCode]


def error_types() -> list[str]:
    return list(dict.fromkeys(entry.type for entry in ERROR_CODES.values()))


def error_rows(error_type: str) -> list[str]:
    """One row per error code of a type: code, status, whether a retry may succeed, meaning, what to do."""
    return [
        row(f"`{entry.code}`", str(entry.status), RETRY[entry.retry], entry.meaning, " ".join(entry.next_steps))
        for entry in ERROR_CODES.values()
        if entry.type == error_type
    ]


PAGE_WIDTH = 120
PAGE_STEPS = Path(__file__).parents[2] / "web/src/api/error_steps.json"


def page_steps_text() -> str:
    """The steps of error codes that the page has words of its own for, by code, as JSON in the page's format."""
    entries = []
    for code, entry in ERROR_CODES.items():
        if entry.page_steps is not None:
            steps = [json.dumps(step, ensure_ascii=False) for step in entry.page_steps]
            line = f'  "{code}": [{", ".join(steps)}]'
            lines = "".join(f"    {step},\n" for step in steps).removesuffix(",\n")
            entries.append(line if len(line) < PAGE_WIDTH else f'  "{code}": [\n{lines}\n  ]')
    return "{\n" + ",\n".join(entries) + "\n}\n"


EFFECTS = "| field | here | what it does, or why not |"


def effect_rows(api: str) -> list[str]:
    """One row per field of an API's requests: whether it is served, refused or harmless, and what it does."""
    rows = []
    for name, field in REQUEST_FIELDS[api].items():
        backends = sorted(field.refused - {OURS, AS_CHAT})
        is_served = api in ("chat", "completions", "embeddings") and OURS not in field.refused
        by = [*(f"`{each}`" for each in backends), *(["engines that only chat"] if AS_CHAT in field.refused else [])]
        here = "harmless" if field.harmless else "served" if is_served or not field.refused else "refused"
        words = f"{here}; refused by {', '.join(by)}" if by and here == "served" else here
        rows.append(row(f"`{name}`", words, field.note))
    return rows


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def default_words(info: FieldInfo) -> str:
    """The default as it is written in a file or a variable; empty where there is none, or none that is fixed."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, (list, tuple, dict)):
        return ", ".join(f"`{each}`" for each in value) or "empty"
    return f"`{value}`"


def type_words(schema: dict[str, Any]) -> str:
    """A field's type and bounds."""
    branches = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return " or ".join(_one_type(each) for each in branches)


def _one_type(schema: dict[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        return f"list of {_many(schema['items'])}"
    if schema["type"] == "object":
        values = [*schema.get("patternProperties", {}).values()] or [schema["additionalProperties"]]
        return f"mapping of {_many(values[0])}"
    bounds = bound_words(schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum"))
    return f"{schema['type']} {bounds}".rstrip()


def bound_words(minimum: float | None, above: float | None, maximum: float | None) -> str:
    """Bounds of a number, such as `1..256`, `≥1`, `>0 ≤86400`; empty: none."""
    if minimum is not None and maximum is not None:
        return f"{minimum:.12g}..{maximum:.12g}"
    bounds = (("≥", minimum), (">", above), ("≤", maximum))
    return " ".join(f"{sign}{bound:.12g}" for sign, bound in bounds if bound is not None)


def _many(schema: Any) -> str:
    if not isinstance(schema, dict) or not schema:
        return "anything"
    if "enum" in schema:
        return type_words(schema)
    return f"{schema['type'] if 'type' in schema else type_words(schema)}s"


def _print(title: str, header: str, rows: Iterable[str]) -> None:
    columns = header.count("|") - 1
    print(f"\n## {title}\n\n{header}\n|{' --- |' * columns}", *rows, sep="\n")


def value_type(field: LoadField) -> type[int] | type[float] | type[str]:
    """The type of a load field's value that is not null."""
    kind = field.constraint.kind
    return int if kind.startswith("integer") else float if kind == "float" else str


def write_table(page: str, heading: str, header: str, rows: Iterable[str]) -> None:
    """Replace the first table below a heading of a page."""
    path = DOCS / page
    lines = path.read_text().splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if re.fullmatch(rf"#+ {re.escape(heading)}\n", line))
    first = next(number for number in range(start, len(lines)) if lines[number].startswith("|"))
    end = next((number for number in range(first, len(lines)) if not lines[number].startswith("|")), len(lines))
    columns = header.count("|") - 1
    table = [header, f"|{' --- |' * columns}", *rows]
    path.write_text("".join((*lines[:first], *(f"{line}\n" for line in table), *lines[end:])))


def write_models_page() -> None:
    """Write the tables of docs/models.md anew."""
    write_table("models.md", "Common fields", COMMON_FIELDS, common_field_rows())
    write_table("models.md", "What a request may give", LIMITS, limit_rows())
    for engine in ENGINES.values():
        if engine.name not in SAME_OPTIONS:
            write_table("models.md", engine.name, OPTIONS, option_rows(engine.definition))
    write_table("models.md", "What a load may set", LOADS, load_rows())
    write_table("models.md", "Which APIs a model has", "| model | passed through | translated |", api_rows())


def write_tools_page() -> None:
    """Write the tables of docs/tools.md anew."""
    write_table("tools.md", "Fields of every tool and server", FIELDS, field_rows(ToolLimits))
    write_table("tools.md", "Built-in tools", "| tool | its own fields |", tool_rows())
    write_table("tools.md", "Fields of built-in tools", FIELDS, own_field_rows(FetchTool, FolderTool, WriteTool))
    write_table("tools.md", "MCP servers", FIELDS, own_field_rows(McpServer))


def write_settings_page() -> None:
    """Write the tables of docs/settings.md anew."""
    write_table("settings.md", "Several programs", SHARED_SETTINGS, shared_setting_rows())
    for program, settings in SETTINGS.items():
        write_table(
            "settings.md", program.capitalize(), "| variable | default | what it says |", setting_rows(settings)
        )


def write_errors_page() -> None:
    """Write the tables of docs/errors.md and the page's own steps anew."""
    for each in error_types():
        write_table("errors.md", each, ERRORS, error_rows(each))
    PAGE_STEPS.write_text(page_steps_text(), encoding="utf-8")


def write_fields_page() -> None:
    """Write the tables of docs/fields.md anew."""
    for api in REQUEST_FIELDS:
        write_table("fields.md", api.capitalize(), EFFECTS, effect_rows(api))


def print_others() -> None:
    """Print what is pasted into the pages by hand."""
    for engine in ENGINES.values():
        print(f"\n{engine.name}: {backend_line(engine)}")
    _print("Fields", FIELDS, field_rows(KeyDefinition))
    _print("Exit codes", "| code | name | meaning |", exit_rows())


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write_models_page()
        write_tools_page()
        write_settings_page()
        write_errors_page()
        write_fields_page()
    else:
        print_others()
