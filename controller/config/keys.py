"""Validation of the `keys` of the files. Pure. Reports every problem, and never shows a value that may be a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from controller.config.messages import explain_errors, kind_of, shown_value, suggest_name
from controller.config.tree import SourcePlace, Table, is_null, place_of, to_plain_value
from controller.config.validate import field_name, locate_problem
from controller.schema.keys import KeyDefinition, KeyName
from controller.schema.status import Problem
from controller.schema.tools import BUILTIN_TOOLS, SEPARATOR

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SECRET_PREFIX: Final = "rh-"  # noqa: S105 - the prefix of every secret
"""Prefix of every secret that `roundhouse key new` makes."""

_NAME: Final[TypeAdapter[str]] = TypeAdapter(KeyName)
_PATTERN: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}")
_TOOL: Final = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9_.*/-]{0,199}")
_SECRET: Final = re.compile(rf"{SECRET_PREFIX}[A-Za-z0-9_-]{{43}}")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d([Tt ].*)?")


@dataclass(frozen=True, slots=True)
class ValidatedKeys:
    """Result of the validation of all keys. Where there are `problems`, the other fields are incomplete and must not be
    used."""

    definitions: Mapping[str, KeyDefinition] = field(default_factory=dict)
    """Validated keys by name."""
    declared_keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields as declared, by key name, merged and without nulls."""
    problems: Sequence[Problem] = ()
    """Problems of the keys. Where there are any, the other fields are incomplete and must not be used."""


def validate_keys(merged_table: Table) -> ValidatedKeys:
    """Validate every key of the merged files. Files without `keys`, or with an empty mapping, declare none. Never
    raises: every fault is a problem of the result, and no message shows a secret."""
    entry = merged_table.entries.get("keys")
    if entry is None or is_null(entry.node):
        return ValidatedKeys()
    if not isinstance(entry.node, Table):
        message = f"must map names to keys, is {kind_of(to_plain_value(entry.node))}"
        return ValidatedKeys(
            problems=[Problem(file=entry.place.file, line=entry.place.line, field="keys", message=message)]
        )
    checks = [_KeyValidator(name, each.place, each.node) for name, each in entry.node.iterate_entries()]
    definitions = {check.name: definition for check in checks if (definition := check.run()) is not None}
    _compare_keys([(check, definitions[check.name]) for check in checks if check.name in definitions])
    return ValidatedKeys(
        definitions,
        {check.name: check.values for check in checks if check.name in definitions},
        [problem for check in checks for problem in check.problems],
    )


class _KeyValidator:
    """Validator of one key."""

    def __init__(self, name: str, place: SourcePlace, node: object) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self._place = place
        self._table = node if isinstance(node, Table) else None
        values = to_plain_value(self._table) if self._table is not None else {}
        assert isinstance(values, dict)
        self.values: dict[str, Any] = values

    def add_problem(self, message: str, *path: str | int) -> None:
        """Add a problem of the field at `path`, or of the key where `path` is empty."""
        is_written = self._table is not None and bool(path) and path[0] in self._table.entries
        place = place_of(self._table, path) if is_written and self._table is not None else self._place
        field_path = field_name(("keys", self.name, *path))
        self.problems.append(Problem(file=place.file, line=place.line, field=field_path, message=message))

    def run(self) -> KeyDefinition | None:
        """Return the definition. None means that there are problems."""
        if _SECRET.fullmatch(self.name):
            # Not with `add_problem`, which would show the secret as the key's name.
            message = "a key's name looks like a secret here, and names are shown in headers and logs"
            place = self._place
            self.problems.append(Problem(file=place.file, line=place.line, field="keys", message=message))
            return None
        if self._table is None:
            self.add_problem("a key is a mapping of fields, `sha256` among them")
            return None
        try:
            _NAME.validate_python(self.name)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                self.add_problem(f"the name {explain_errors(each)}")
        for index, model in enumerate(self._get_list("models")):
            if isinstance(model, str) and _PATTERN.fullmatch(model) is None:
                self.add_problem(
                    f"no model can have such a name: {_show_value(model)}; `*` stands for any text", "models", index
                )
        for index, tool in enumerate(self._get_list("tools")):
            if isinstance(tool, str) and (tool_problem := _explain_tool(tool)) is not None:
                self.add_problem(tool_problem, "tools", index)
        definition = self._parse_definition(self._table)
        return None if self.problems else definition

    def _get_list(self, name: str) -> list[Any]:
        value = self.values.get(name)
        return value if isinstance(value, list) else []

    def _parse_definition(self, table: Table) -> KeyDefinition | None:
        expires = self.values.get("expires")
        if expires is not None and not (isinstance(expires, str) and _DATE.fullmatch(expires)):
            # pydantic would read a number as Unix time: 20270131 lies in 1970.
            self.add_problem(_date_words(expires), "expires")
        try:
            return KeyDefinition.model_validate(self.values)
        except ValidationError as error:
            for path, errors in locate_problem(error.errors(include_url=False), table):
                if path[:1] != ("expires",) or not self.problems or self.problems[-1].field != self._field("expires"):
                    self.add_problem(self._describe_errors(errors), *path)
            return None

    def _field(self, name: str) -> str:
        return field_name(("keys", self.name, name))

    def _describe_errors(self, errors: Sequence[ErrorDetails]) -> str:
        name = str(errors[0]["loc"][0]) if errors[0]["loc"] else ""
        if errors[0]["type"] == "extra_forbidden":
            return f"unknown field{suggest_name(name, KeyDefinition.model_fields)}"
        if errors[0]["type"] == "missing":
            return "is required: `roundhouse key new` prints it"
        value = self.values.get(name)
        if name == "sha256":
            return _hash_words(value)
        if name == "expires":
            return _date_words(value)
        return ", or ".join(explain_errors(each, is_hidden=_is_our_secret(each["input"])) for each in errors)


def _explain_tool(name: str) -> str | None:
    """Return what is wrong with the name or pattern of a tool; None: nothing is. A server's tool may be unknown, since
    servers come and go; a built-in one may not."""
    if _TOOL.fullmatch(name) is None:
        return f"no tool can have such a name: {_show_value(name)}; `*` stands for any text"
    if "*" in name or SEPARATOR in name or name in BUILTIN_TOOLS:
        return None
    hint = suggest_name(name, BUILTIN_TOOLS) or f"; a tool of an MCP server is named `SERVER{SEPARATOR}TOOL`"
    return f"there is no built-in tool {_show_value(name)}{hint}"


def _is_our_secret(value: object) -> bool:
    return isinstance(value, str) and value.startswith(SECRET_PREFIX)


def _show_value(value: object) -> str:
    return kind_of(value) if _is_our_secret(value) else shown_value(value)


def _date_words(value: object) -> str:
    return f"must be a date such as 2027-01-31, or a moment such as 2027-01-31T18:00:00Z; is {_show_value(value)}"


def _hash_words(value: object) -> str:
    """Return what is wrong with a hash. The value may be the secret itself, so it is never shown."""
    if not isinstance(value, str):
        return f"must be 64 hex digits in quotes, is {kind_of(value)}"
    if _is_our_secret(value):
        return "looks like the secret itself: give its SHA-256, and best of a new one, for this one was written down"
    if re.fullmatch(r"[0-9A-Fa-f]{64}", value):
        return "must be in lower case"
    return f"must be the SHA-256 of the secret, 64 hex digits; is a string of {len(value)} characters"


def _compare_keys(keys: Sequence[tuple[_KeyValidator, KeyDefinition]]) -> None:
    """Find problems between keys: the same secret twice, or different weights of one tenant."""
    hashes: dict[str, str] = {}
    weights: dict[str, tuple[str, float]] = {}
    for check, key in keys:
        first_name = hashes.setdefault(key.sha256, check.name)
        if first_name != check.name:
            check.add_problem(
                f"is also that of `{field_name(('keys', first_name))}`: every key has a secret of its own", "sha256"
            )
        tenant = key.tenant or check.name
        other, weight = weights.setdefault(tenant, (check.name, key.weight))
        if weight != key.weight:
            check.add_problem(
                f"is {key.weight:g}, and {weight:g} in `{field_name(('keys', other))}`: both are of tenant {tenant}, "
                "which has one weight",
                "weight",
            )
