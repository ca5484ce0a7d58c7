"""Validation of the `tools` and `mcp_servers` of the files. Pure. Reports every problem, and never shows a value of
`headers` or `env`, which may be a secret."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from controller.config.messages import explain_errors, kind_of, suggest_name
from controller.config.tree import SourcePlace, Table, is_null, place_of, to_plain_value
from controller.config.validate import field_name, locate_problem
from controller.schema.status import Problem
from controller.schema.tools import BUILTIN_TOOLS, McpServer, ServerName, ToolLimits

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SERVER_NAME: Final[TypeAdapter[str]] = TypeAdapter(ServerName)
_SERVER_NAME_WORDS: Final = (
    "must begin with a lower-case letter or a digit and hold only lower-case letters, digits and -"
)
TOOLS: Final = "tools"
SERVERS: Final = "mcp_servers"

DeclaredFields = Mapping[str, Mapping[str, Any]]
"""Fields as declared, by name, merged and without nulls."""
T = TypeVar("T", bound=ToolLimits)


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """The built-in tools and MCP servers that the desired-state files declare, validated. Empty: none are declared."""

    tools: Mapping[str, ToolLimits] = field(default_factory=dict)
    """Enabled built-in tools by name."""
    declared_tools: DeclaredFields = field(default_factory=dict)
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    """MCP servers by name."""
    declared_servers: DeclaredFields = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, DeclaredFields]:
        """Fields as declared, by top-level key (`tools`, `mcp_servers`) and name. Keys that declare nothing are left
        out."""
        declared = {TOOLS: self.declared_tools, SERVERS: self.declared_servers}
        return {key: fields for key, fields in declared.items() if fields}


@dataclass(frozen=True, slots=True)
class ValidatedTools:
    """Result of the validation of all tools and MCP servers. Where there are `problems`, `declared` is incomplete and
    must not be used."""

    declared: DeclaredTools = field(default_factory=DeclaredTools)
    """What is declared. Incomplete where there are problems, and then not to be used."""
    problems: Sequence[Problem] = ()


def validate_tools(merged_table: Table) -> ValidatedTools:
    """Validate every tool and MCP server of the merged files; one that is null counts as not declared. Never raises:
    every fault is a problem of the result, and no message shows a header's or a variable's value."""
    tools = _Section[ToolLimits](merged_table, TOOLS, BUILTIN_TOOLS.get, _explain_tool_name)
    servers = _Section[McpServer](merged_table, SERVERS, lambda _: McpServer, _explain_server_name)
    tools.run()
    servers.run()
    declared = DeclaredTools(tools.definitions, tools.declared, servers.definitions, servers.declared)
    return ValidatedTools(declared, [*tools.problems, *servers.problems])


def _explain_tool_name(name: str) -> str | None:
    if name in BUILTIN_TOOLS:
        return None
    hint = suggest_name(name, BUILTIN_TOOLS) or f"; there are {', '.join(BUILTIN_TOOLS)}"
    return f"there is no such built-in tool{hint}"


def _explain_server_name(name: str) -> str | None:
    try:
        _SERVER_NAME.validate_python(name)
    except ValidationError as error:
        [problem] = error.errors(include_url=False)
        is_pattern = problem["type"] == "string_pattern_mismatch"
        return f"the name {_SERVER_NAME_WORDS if is_pattern else explain_errors(problem)}"
    return None


class _Section(Generic[T]):
    """Validator of one top-level key that maps names to declarations."""

    def __init__(
        self,
        merged_table: Table,
        key: str,
        class_of: Callable[[str], type[T] | None],
        explain_name: Callable[[str], str | None],
    ) -> None:
        """`class_of` returns the class of a declaration by its name; None: no declaration has such a name.
        `explain_name` returns what is wrong with a name; None: nothing is."""
        self._entry = merged_table.entries.get(key)
        self._key = key
        self._class_of = class_of
        self._explain_name = explain_name
        self.definitions: dict[str, T] = {}
        self.declared: dict[str, Mapping[str, Any]] = {}
        self.problems: list[Problem] = []

    def run(self) -> None:
        """Fill the definitions, the declared fields and the problems. Call once."""
        entry = self._entry
        if entry is None or is_null(entry.node):
            return
        if not isinstance(entry.node, Table):
            message = f"must map names to declarations, is {kind_of(to_plain_value(entry.node))}"
            self._add_problem(message, entry.place)
            return
        for name, each in entry.node.iterate_entries():
            if (name_problem := self._explain_name(name)) is not None:
                self._add_problem(name_problem, each.place, name)
            elif not isinstance(each.node, Table):
                self._add_problem("is a mapping of fields; `{}` declares none of them", each.place, name)
            else:
                self._validate_declaration(name, each.place, each.node)

    def _add_problem(self, message: str, place: SourcePlace, *path: str | int) -> None:
        field_path = field_name((self._key, *path))
        self.problems.append(Problem(file=place.file, line=place.line, field=field_path, message=message))

    def _validate_declaration(self, name: str, place: SourcePlace, table: Table) -> None:
        declaration_class = self._class_of(name)
        assert declaration_class is not None
        values = to_plain_value(table)
        assert isinstance(values, dict)
        try:
            self.definitions[name] = declaration_class.model_validate(values)
            self.declared[name] = values
        except ValidationError as error:
            for path, message in _explain_declaration(declaration_class, error.errors(include_url=False), table):
                is_written = bool(path) and path[0] in table.entries
                self._add_problem(message, place_of(table, path) if is_written else place, name, *path)


def _explain_declaration(
    declaration_class: type[ToolLimits], errors: Sequence[ErrorDetails], table: Table
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path and the message of each problem of a declaration."""
    for path, same_place in locate_problem(errors, table):
        first = same_place[0]
        name = str(path[0]) if path else ""
        if first["type"] == "extra_forbidden":
            yield path, f"unknown field{suggest_name(str(path[-1]), declaration_class.model_fields)}"
        elif name == "write":
            yield path, "must be `true`: whoever declares the tool permits writing, which nothing else does"
        elif name == "hosts" and first["type"] == "string_pattern_mismatch":
            yield (
                path,
                "must be the name of a host in lower case; `*.` at its beginning stands for every "
                "subdomain, and else a port may follow",
            )
        elif name == "folder" and first["type"] in ("string_pattern_mismatch", "string_too_short"):
            yield path, "must be the absolute path of a folder below the root"
        else:
            words = ", or ".join(explain_errors(each) for each in same_place)
            yield path or _mentioned_field(first, table), words


def _mentioned_field(error: ErrorDetails, table: Table) -> tuple[str, ...]:
    """Return the first declared field that is named in an error about the whole declaration."""
    names = error["msg"].split("`")[1::2]
    return tuple(name for name in names if name in table.entries)[:1]
