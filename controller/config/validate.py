"""Validation of merged models, by the definition class of each model's backend. Pure. Reports every problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from common.model_reference import InvalidReferenceError, parse_reference
from controller.artifacts.model_roots import ModelRoots
from controller.config.messages import explain_errors, meant_branch, suggest_name
from controller.config.model_sources import placeholder_path
from controller.config.paths import PathRefusedError, normalize_model_path
from controller.config.tree import Listing, SourcePlace, Table, known_part, place_of, to_plain_value
from controller.engines import ENGINES, resolve_backend
from controller.engines.base import Engine
from controller.engines.options import Paths, list_paths
from controller.schema.desired import Definition, ModelName
from controller.schema.status import Problem
from controller.schema.tools import REPLICA_PREFIX

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_NAME: TypeAdapter[str] = TypeAdapter(ModelName)


@dataclass(frozen=True, slots=True)
class ValidatedModels:
    """Result of the validation of all models. Where there are `problems`, the other fields are incomplete and must not
    be used."""

    definitions: Mapping[str, Definition]
    """Definitions by model name. `backend` is always set, and model paths are canonical (`normalize_model_path`)."""
    declared_models: Mapping[str, Mapping[str, Any]]
    """Fields as declared, by model name, merged and without nulls."""
    problems: Sequence[Problem]
    """Problems of the models. Where there are any, the other fields are incomplete and must not be used."""


def validate_models(models: Table, roots: ModelRoots) -> ValidatedModels:
    """Validate every model of the merged `models` table; a model that is null counts as not declared. `roots` are
    absolute; absolute model paths must lie below one of them. Never raises: every fault is a problem of the result."""
    definitions: dict[str, Definition] = {}
    declared_models: dict[str, Mapping[str, Any]] = {}
    problems: list[Problem] = []
    for name, entry in models.iterate_entries():
        if not isinstance(entry.node, Table):
            message = "a model's definition is a mapping of fields"
            field_path = field_name(("models", name))
            problems.append(Problem(file=entry.place.file, line=entry.place.line, field=field_path, message=message))
            continue
        check = _ModelValidator(name, entry.place, entry.node, roots)
        definition = check.run()
        problems += check.problems
        if definition is not None:
            definitions[name] = definition
            declared_models[name] = _values(entry.node)
    problems += _alias_problems(models)
    problems += _role_problems(models)
    return ValidatedModels(definitions, declared_models, problems)


def _values(table: Table) -> Mapping[str, Any]:
    values = to_plain_value(table)
    assert isinstance(values, dict)
    return values


def field_name(path: Iterable[str | int]) -> str:
    """Return a path as problems show it: names joined by dots, and the numbers of list items, from 0, in brackets
    (`models.chat.aliases[1]`)."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


@dataclass
class _ModelValidator:
    """Validator of one model."""

    name: str
    place: SourcePlace
    """Place of the model's key."""
    table: Table
    roots: ModelRoots
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, message: str, *path: str | int) -> None:
        """Add a problem of the field at `path`, or of the model where `path` is empty."""
        is_written = bool(path) and path[0] in self.table.entries
        place = place_of(self.table, path) if is_written else self.place
        field_path = field_name(("models", self.name, *path))
        self.problems.append(Problem(file=place.file, line=place.line, field=field_path, message=message))

    def run(self) -> Definition | None:
        """Return the definition. None means that there are problems."""
        try:
            _NAME.validate_python(self.name)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                self.add_problem(f"the name {explain_errors(each)}")
        for name, place in ((self.name, ()), *((each, ("aliases",)) for each in self._aliases())):
            if name.startswith(REPLICA_PREFIX):
                self.add_problem(f"`{name}`: names that begin with `{REPLICA_PREFIX}` are those of MCP servers", *place)
        values = {**_values(self.table)}
        if isinstance(values.get("model_path"), str):
            values["model_path"] = self.normalize_path(values["model_path"], "model_path")
        source_path = self.find_source_path(values)
        if source_path is not None:
            values["model_path"] = source_path
        engine = self.find_engine(values)
        if engine is None:
            self.check_common_fields(values)
            return None
        definition = self.parse_definition(engine.definition, {**values, "backend": engine.name}, engine)
        if definition is None:
            return None
        if definition.source is not None and not engine.list_artifacts(definition):
            self.add_problem(f"the backend {engine.name} loads no files of a model, so that it has no source", "source")
            return None
        return self.with_normalized_paths(definition)

    def _aliases(self) -> list[str]:
        aliases = _values(self.table).get("aliases")
        return [each for each in aliases if isinstance(each, str)] if isinstance(aliases, list) else []

    def find_source_path(self, values: Mapping[str, Any]) -> str | None:
        """Return the path that stands for the files of `source`. None: the model names its path itself, or no source,
        or one that the definition class will refuse."""
        source = values.get("source")
        if not isinstance(source, str) or values.get("model_path") is not None:
            return None
        try:
            return placeholder_path(parse_reference(source))
        except InvalidReferenceError:
            return None

    def find_engine(self, values: Mapping[str, Any]) -> Engine[Any] | None:
        """Return the backend, as declared or as the model path implies. None means that there are problems."""
        declared_backend, path = values.get("backend"), values.get("model_path")
        if declared_backend is None:
            resolved_backend = resolve_backend(path if isinstance(path, str) else None)
            # A source that cannot be read is a problem of its own, which the check of the common fields tells.
            if resolved_backend is None and (path is not None or values.get("source") is None):
                backend_names = ", ".join(ENGINES)
                subject = "artifact" if values.get("source") is None else "source"
                self.add_problem(
                    f"the {subject} does not tell which backend serves it: set `backend` to one of {backend_names}"
                )
            return ENGINES[resolved_backend] if resolved_backend is not None else None
        if not isinstance(declared_backend, str):
            self.add_problem("must be a string", "backend")
        elif declared_backend not in ENGINES:
            hint = suggest_name(declared_backend, ENGINES) or f"; there are {', '.join(ENGINES)}"
            self.add_problem(f"unknown backend `{declared_backend}`{hint}", "backend")
        else:
            return ENGINES[declared_backend]
        return None

    def check_common_fields(self, values: Mapping[str, Any]) -> None:
        """Check what does not depend on the backend: the common fields, and fields that no backend has."""
        fields = Definition.model_fields
        self.parse_definition(
            Definition, {key: value for key, value in values.items() if key in fields and key != "backend"}
        )
        known_fields = {each for engine in ENGINES.values() for each in engine.definition.model_fields}
        for key in values:
            if key not in known_fields:
                self.add_problem(f"unknown field{suggest_name(key, known_fields)}", key)

    def parse_definition(
        self, definition_class: type[Definition], values: Mapping[str, Any], engine: Engine[Any] | None = None
    ) -> Definition | None:
        """Return the values as an instance of `definition_class`. None means that there are problems.

        With `engine`, an unknown field is explained by the backends that have it.
        """
        try:
            return definition_class.model_validate(values)
        except ValidationError as error:
            for path, errors in locate_problem(error.errors(include_url=False), self.table):
                if errors[0]["type"] == "extra_forbidden" and engine is not None:
                    self.add_problem(_describe_unknown_field(str(path[-1]), engine), *path)
                else:
                    self.add_problem(
                        ", or ".join(explain_errors(each) for each in errors),
                        *(path or self._mentioned_field(errors[0])),
                    )
            return None

    def _mentioned_field(self, error: ErrorDetails) -> tuple[str, ...]:
        """Return the first field that is named in an error about the whole definition."""
        words = error["msg"].replace(",", " ").replace("`", " ").split()
        return tuple(word for word in words if word in self.table.entries)[:1]

    def with_normalized_paths(self, definition: Definition) -> Definition | None:
        """Return the definition with the paths of all options in their one way of writing, or None with problems."""
        normalized_paths: dict[str, Paths] = {}
        for name, _, value in list_paths(definition):
            if isinstance(value, str):
                normalized_paths[name] = self.normalize_path(value, name)
            elif isinstance(value, dict):
                normalized_paths[name] = {key: self.normalize_path(path, name, key) for key, path in value.items()}
            else:
                paths = enumerate(value)
                normalized_paths[name] = [self.normalize_path(path, name, number) for number, path in paths]
        return definition.model_copy(update=normalized_paths) if not self.problems else None

    def normalize_path(self, declared_path: str, *place: str | int) -> str:
        """Return the path in its one way of writing; where it is refused, the path as declared, with a problem noted
        at `place` (a field, or a field and the number or name of its item)."""
        try:
            return normalize_model_path(declared_path, self.roots)
        except PathRefusedError as error:
            self.add_problem(str(error), *place)
            return declared_path


def _describe_unknown_field(key: str, engine: Engine[Any]) -> str:
    owners = [each.name for each in ENGINES.values() if key in each.definition.model_fields]
    if owners:
        return f"belongs to backend {' and '.join(owners)}; this model's backend is {engine.name}"
    return f"unknown field{suggest_name(key, engine.definition.model_fields)}"


def locate_problem(
    errors: Sequence[ErrorDetails], table: Table
) -> Iterator[tuple[tuple[str | int, ...], Sequence[ErrorDetails]]]:
    """Yield the errors of one validation with pydantic, grouped by the path in `table` that they are about: each path
    with the errors that one message should explain together.

    pydantic reports every branch of a union. Of these, only the branch that fits the value's type is kept, or the first
    error of each where none fits.
    """
    unions: dict[tuple[str | int, ...], dict[str, list[ErrorDetails]]] = {}
    for error in errors:
        known_path = known_part(table, error["loc"])
        if known_path == error["loc"] or error["type"] in ("missing", "extra_forbidden"):
            yield error["loc"], [error]
        else:
            unions.setdefault(known_path, {}).setdefault(str(error["loc"][len(known_path)]), []).append(error)
    for known_path, branches in unions.items():
        meant_errors = meant_branch(branches)
        if meant_errors is None:
            yield known_path, [errors[0] for errors in branches.values()]
        else:
            yield from (((*known_path, *error["loc"][len(known_path) + 1 :]), [error]) for error in meant_errors)


def _alias_problems(models: Table) -> Iterator[Problem]:
    """Yield a problem for each alias that is already a model's name or another model's alias."""
    alias_owners = {name: f"the name of model {name}" for name, _ in models.iterate_entries()}
    for name, entry in models.iterate_entries():
        aliases = entry.node.get("aliases") if isinstance(entry.node, Table) else None
        for index, item in enumerate(aliases.items if isinstance(aliases, Listing) else ()):
            alias = to_plain_value(item)
            if not isinstance(alias, str):
                continue
            if alias in alias_owners:
                field_path = field_name(("models", name, "aliases", index))
                message = f"alias `{alias}` is already {alias_owners[alias]}"
                yield Problem(file=item.place.file, line=item.place.line, field=field_path, message=message)
            else:
                alias_owners[alias] = f"an alias of model {name}"


def _role_problems(models: Table) -> Iterator[Problem]:
    """Yield a problem for each model whose role another one has."""
    owners: dict[str, str] = {}
    for name, entry in models.iterate_entries():
        node = entry.node.get("role") if isinstance(entry.node, Table) else None
        role = None if node is None else to_plain_value(node)
        if not isinstance(role, str):
            continue
        if role in owners:
            message = f"model {owners[role]} has the role `{role}` already"
            field_path = field_name(("models", name, "role"))
            yield Problem(file=entry.place.file, line=entry.place.line, field=field_path, message=message)
        owners.setdefault(role, name)
