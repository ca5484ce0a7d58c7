"""Options: the fields of a backend's definition, each declared once, and what a live load may set of them. Pure.

An option is a field of a definition class: its type, bounds and description as in every pydantic model, and markers in
`Annotated` for what Roundhouse does with the value:

    llama_server_n_ctx: Annotated[
        int | None, Flag("--ctx-size"), Loadable(), Settable.ALWAYS
    ] = Field(
        default=None, ge=1, description="Context length in tokens, shared by all slots; default: the model's own."
    )

- `Flag`, `JoinedFlag`, `PathFlag`, `Switch`, `JsonFlag`: how the command line of the engine says the value. At most
  one. `SpecialFlag`: the engine's own code renders the option. None of them: the command line does not say it.
- `Settable`: which values a request may give, in a runtime declaration or a load. Every field has it
  (`contract.desired`).
- `Loadable`: a load may set the option; a UI gets a constraint for it.
- `Hashed`: when the value counts in the spec hash. Without it: while it differs from the default.
- `MOVES_MEMORY`: the memory formulas do not follow the option, so that a definition that sets it has no forecast.

From the declaration follow the validation of files, the JSON Schema, the table in docs/models.md, the command line, the
preflight of files, the spec hash, the request schema of a load and its constraint. A further option changes neither the
command line nor the spec hash of a definition that does not set it, and so needs no marker for the hash.

Seed 001 makes the check of a `Loadable` option wider or narrower than its constraint in places: it shows four dtypes
and accepts any, shows a choice and accepts null, shows steps and enforces one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Le, MultipleOf
from pydantic import JsonValue, WithJsonSchema
from pydantic.fields import FieldInfo

from contract.admin import LoadConstraint
from contract.desired import Definition

# Inline in the JSON Schema of the files, which has no place for pydantic's own definition of it.
Anything = Annotated[JsonValue, WithJsonSchema({})]
"""Any JSON value."""
Paths: TypeAlias = str | list[str] | dict[str, str]
"""The value of an option with a `PathFlag`: one path, a list of paths, or names with their paths."""
FileKind: TypeAlias = Literal["gguf", "file", "folder", "any"]
ResolvePath: TypeAlias = Callable[[str], str]
"""The engine-side path of a model path."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Marker of an option that the command line says as `--name VALUE`. A list becomes one value, joined by commas.
    None: no argument."""

    name: str
    omit: object = None
    """A further value of the option for which there is no argument."""

    def render(self, value: Any, resolve_path: ResolvePath) -> tuple[str, ...]:
        """Return the flag and `value` as two arguments, a list joined by commas; empty if `value` is None or equals
        `omit`. `resolve_path` is not used."""
        if value is None or value == self.omit:
            return ()
        return (self.name, ",".join(map(str, value)) if isinstance(value, list) else str(value))


@dataclass(frozen=True, slots=True)
class JoinedFlag:
    """Marker of an option that the command line says as `--name=VALUE`, for a text that may begin with a dash. None: no
    argument."""

    name: str

    def render(self, value: Any, resolve_path: ResolvePath) -> tuple[str, ...]:
        """Return the flag and `value` as one argument; empty if `value` is None."""
        return () if value is None else (f"{self.name}={value}",)


@dataclass(frozen=True, slots=True)
class PathFlag:
    """Marker of an option that the command line says as `--name PATH`: a model path, or a list of them joined by
    commas. A mapping of names to model paths becomes `--name NAME=PATH NAME=PATH`. None, or none of them: no argument.
    The path must lie in a models folder: validation refuses a definition with another one, and the preflight checks
    that the path exists and is of `kind`."""

    name: str
    kind: FileKind
    inside: str = ""
    """Name of a file that the folder must hold; empty: none."""

    def render(self, value: Any, resolve_path: ResolvePath) -> tuple[str, ...]:
        """Return the flag and the path or paths in `value`, as the engine sees them (`resolve_path`), joined by commas,
        as two arguments; of a mapping, the flag and an argument `NAME=PATH` for each. Empty if there are no paths."""
        if isinstance(value, Mapping):
            named = tuple(f"{name}={resolve_path(path)}" for name, path in value.items())
            return (self.name, *named) if named else ()
        paths = split_paths(value)
        return (self.name, ",".join(map(resolve_path, paths))) if paths else ()


@dataclass(frozen=True, slots=True)
class Switch:
    """Marker of a boolean option that the command line says as a flag without a value: `on` for true, `off` for false.
    An empty `on` or `off`: no argument for that value. None: no argument."""

    on: str = ""
    off: str = ""

    @property
    def name(self) -> str:
        """The flag, or both flags as `on/off`, for the documentation."""
        return "/".join(filter(None, (self.on, self.off)))

    def render(self, value: Any, resolve_path: ResolvePath) -> tuple[str, ...]:
        """Return the flag for `value`, true or false; empty if `value` is None or there is no flag for it."""
        argument = "" if value is None else self.on if value else self.off
        return (argument,) if argument else ()


@dataclass(frozen=True, slots=True)
class JsonFlag:
    """Marker of an option that the command line says as `--name JSON`, for a mapping. None, or an empty mapping: no
    argument."""

    name: str

    def render(self, value: Any, resolve_path: ResolvePath) -> tuple[str, ...]:
        """Return the flag and `value` as compact JSON; empty if `value` is None or empty."""
        return (self.name, json.dumps(value, separators=(",", ":"))) if value else ()


@dataclass(frozen=True, slots=True)
class SpecialFlag:
    """Marker of an option whose flag `Engine.render_command` writes by itself, because its value depends on more than
    the option. Declared for the documentation alone: `render_options` skips it."""

    name: str


AnyFlag: TypeAlias = Flag | JoinedFlag | PathFlag | Switch | JsonFlag


class Hashed(Enum):
    """Marker: when an option counts in the spec hash, so that an edit of it replaces the running engines: `ALWAYS`,
    even while it is None; `WHEN_SET`, while its value differs from the default (also without a marker); or `NEVER`."""

    ALWAYS = "always"
    """Also while it is None. For the fields of the first releases: a new field with it would restart every engine."""
    WHEN_SET = "when set"
    """While its value differs from the default. What holds without a marker."""
    NEVER = "never"
    """The engine does not see the option, so an edit of it replaces no engine."""


@dataclass(frozen=True, slots=True)
class Loadable:
    """Marker: an operator's load may set the option. Without `null`, a load cannot set it to null. The constraint that
    a UI gets comes from type and bounds: `minimum`, `maximum`, a `step` of 1 or the declared multiple, `allowed_values`
    of a Literal. The description is the field's, up to "; default"."""

    shown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `LoadConstraint` beside or instead of those."""
    null: str | None = None
    """What null means in a load, as the second half of a sentence; None: a load takes no null."""
    open_values: bool = False
    """Any text is taken, whatever values are shown."""


@dataclass(frozen=True, slots=True)
class MovesMemory:
    """Marker: the option changes where memory is, or how much, in a way that the memory formulas do not follow, so a
    definition that sets it has no prediction. Use the instance `MOVES_MEMORY`."""


MOVES_MEMORY: Final = MovesMemory()


@dataclass(frozen=True, slots=True)
class Option:
    """One option: a field of a backend's definition class, with the markers of its declaration."""

    name: str
    info: FieldInfo
    flag: AnyFlag | SpecialFlag | None
    loadable: Loadable | None
    hashed: Hashed
    moves_memory: bool
    default: Any
    """The value of a definition that does not set the option."""


def list_options(definition_class: type[Definition]) -> tuple[Option, ...]:
    """Return the options of a backend in the order of declaration: every field of its definition class that the base
    class `Definition` does not have."""
    return _read_options(definition_class)


def render_options(
    definition: Definition,
    kind: type[AnyFlag] | UnionType,
    resolve_path: ResolvePath = str,
    *,
    fallbacks: Mapping[str, object] = MappingProxyType({}),
    decimals: int | None = None,
) -> list[str]:
    """Return the arguments of all options whose flag is of `kind` (a class or a union), in the order of declaration.
    `resolve_path` turns a model path into the path that the engine sees. `fallbacks` are values by field name, used
    where the option is None. `decimals`: floats are rounded to so many; None: they are written in full."""
    arguments: list[str] = []
    for option in list_options(type(definition)):
        if isinstance(option.flag, kind):
            value = getattr(definition, option.name)
            value = fallbacks.get(option.name) if value is None else value
            arguments += option.flag.render(value if decimals is None else _round(value, decimals), resolve_path)
    return arguments


def read_hashed_values(definition: Definition) -> dict[str, Any]:
    """Return the values of the options that count in the spec hash, by field name: those marked `Hashed.ALWAYS`, and
    those marked `Hashed.WHEN_SET` or not marked whose value differs from the default. Fields that all definitions
    have are not among them."""
    always, when_set = _read_hashed_names(type(definition))
    values = {name: getattr(definition, name) for name in always}
    for name, default in when_set:
        if (value := getattr(definition, name)) != default:
            values[name] = value
    return values


def list_paths(definition: Definition) -> list[tuple[str, PathFlag, Paths]]:
    """Return field name, flag and value of each option with a `PathFlag` that is not None, in declaration order."""
    return [
        (name, flag, value)
        for name, flag in _read_path_flags(type(definition))
        if (value := getattr(definition, name)) is not None
    ]


def split_paths(value: Paths | None) -> list[str]:
    """Return the paths in the value of an option with a `PathFlag`, as a list; empty for None."""
    if isinstance(value, Mapping):
        return [*value.values()]
    return [value] if isinstance(value, str) else list(value or ())


def find_memory_mover(definition: Definition) -> str | None:
    """Return the field name of the first option that is marked `MOVES_MEMORY` and differs from its default; None: there
    is none. Arguments in `extra_args` are not looked at."""
    options = (option for option in list_options(type(definition)) if option.moves_memory)
    return next((each.name for each in options if getattr(definition, each.name) != each.default), None)


@cache
def list_load_fields(definition_class: type[Definition]) -> tuple[LoadField, ...]:
    """Return the fields that an operator's load may set for this definition class (see `Loadable`), in the order of
    declaration."""
    return tuple(
        _derive_load_field(option, option.loadable)
        for option in list_options(definition_class)
        if option.loadable is not None
    )


def _round(value: Any, decimals: int) -> Any:
    if isinstance(value, list):
        return [_round(each, decimals) for each in value]
    return round(value, decimals) if isinstance(value, float) else value


_Marker = TypeVar("_Marker")


@cache
def _read_options(definition_class: type[Definition]) -> tuple[Option, ...]:
    fields = definition_class.model_fields.items()
    return tuple(_read_option(name, info) for name, info in fields if name not in Definition.model_fields)


@cache
def _read_hashed_names(definition_class: type[Definition]) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Return the names that always count in the spec hash, and those that count when set, with their defaults."""
    options = _read_options(definition_class)
    always = tuple(option.name for option in options if option.hashed is Hashed.ALWAYS)
    return always, tuple((option.name, option.default) for option in options if option.hashed is Hashed.WHEN_SET)


@cache
def _read_path_flags(definition_class: type[Definition]) -> tuple[tuple[str, PathFlag], ...]:
    options = _read_options(definition_class)
    return tuple((option.name, option.flag) for option in options if isinstance(option.flag, PathFlag))


def _read_option(name: str, info: FieldInfo) -> Option:
    def find(kind: type[_Marker]) -> _Marker | None:
        return next((each for each in info.metadata if isinstance(each, kind)), None)

    flags = [each for each in info.metadata if isinstance(each, AnyFlag | SpecialFlag)]
    assert len(flags) <= 1, f"{name} has several flags"
    return Option(
        name,
        info,
        flag=flags[0] if flags else None,
        loadable=find(Loadable),
        hashed=find(Hashed) or Hashed.WHEN_SET,
        moves_memory=find(MovesMemory) is not None,
        default=None if info.is_required() else info.get_default(call_default_factory=True),
    )


def _derive_load_field(option: Option, loadable: Loadable) -> LoadField:
    shown = {**_derive_constraint(option, takes_null=loadable.null is not None), **loadable.shown}
    description = (option.info.description or "").partition("; default")[0].rstrip(".")
    return LoadField(
        option.name,
        f"{description}; null: {loadable.null}." if loadable.null is not None else f"{description}.",
        LoadConstraint.model_validate(shown),
        nullable=loadable.null is not None,
        step_binds=any(isinstance(each, MultipleOf) for each in option.info.metadata),
        open_values=loadable.open_values,
    )


def _derive_constraint(option: Option, *, takes_null: bool) -> dict[str, Any]:
    value_type = _strip_null(option.info.annotation)
    if get_origin(value_type) is Literal:
        return {"kind": "enum", "allowed_values": [*get_args(value_type)]}
    if value_type is str:
        return {"kind": "string_or_null" if takes_null else "enum"}
    constraint: dict[str, Any] = {"kind": "integer", "step": 1} if value_type is int else {"kind": "float"}
    for each in option.info.metadata:
        if isinstance(each, Ge):
            constraint["minimum"] = each.ge
        elif isinstance(each, Le):
            constraint["maximum"] = each.le
        elif isinstance(each, MultipleOf):
            constraint["step"] = each.multiple_of
    return constraint


def _strip_null(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    [value_type] = (each for each in get_args(annotation) if each is not NoneType)
    return value_type


LoadValue: TypeAlias = int | float | str | None


@dataclass(frozen=True, slots=True)
class LoadFault:
    """A value of a load's request that the model's backend cannot take. It is returned, not raised; the caller answers
    400 (`invalid_load_request`)."""

    field: str
    message: str
    """What is wrong, as the second half of a sentence that begins with the field's name."""


@dataclass(frozen=True, slots=True)
class LoadField:
    """One field that an operator's load may set: its name, the constraint that a UI shows, and the check of a value."""

    name: str
    description: str
    constraint: LoadConstraint
    nullable: bool = False
    """Whether null is accepted although the constraint's kind does not say so."""
    step_binds: bool = False
    """Whether a value between two steps is refused."""
    open_values: bool = False
    """Whether any text is accepted, whatever values are shown."""

    @property
    def takes_null(self) -> bool:
        """Whether a load may set the field to null (None)."""
        return self.nullable or self.constraint.kind.endswith("_or_null")

    def check_value(self, value: LoadValue) -> str | None:
        """Return why the value cannot be taken, as the second half of a sentence; None: it can. The value must have the
        type that the constraint's kind says, which is not checked: the request schema refuses others (422)."""
        if value is None:
            return None if self.takes_null else "takes no null"
        limits = self.constraint
        if isinstance(value, str):
            return self._check_text(value)
        if limits.minimum is not None and value < limits.minimum:
            return f"must be at least {limits.minimum}, is {value}"
        if limits.maximum is not None and value > limits.maximum:
            return f"must be at most {limits.maximum}, is {value}"
        if self.step_binds and limits.step is not None and value % limits.step:
            return f"must be a multiple of {limits.step}, is {value}"
        return None

    def _check_text(self, value: str) -> str | None:
        if not value or not value.isprintable():
            return "must be a printable text that is not empty"
        allowed_values = self.constraint.allowed_values
        if allowed_values is None or self.open_values or value in allowed_values:
            return None
        null = ", or null" if self.takes_null else ""
        return f"must be one of {', '.join(str(each) for each in allowed_values)}{null}; is `{value:.60}`"


def list_constraints(fields: Iterable[LoadField]) -> dict[str, LoadConstraint]:
    """Return the constraints by field name, in the order of `fields`, as `load_constraints` in the admin API's list of
    models has them."""
    return {field.name: field.constraint for field in fields}


def find_faults(fields: Iterable[LoadField], params: Mapping[str, Any]) -> list[LoadFault]:
    """Return the faults of a load's values, each value checked alone, in the order of `fields`. Names that no field has
    are ignored."""
    return [
        LoadFault(field.name, fault)
        for field in fields
        if field.name in params and (fault := field.check_value(params[field.name])) is not None
    ]
