"""Combines what the files declare with what operators declared at run time. Pure.

Files win: a name that the files declare is theirs, and the runtime declaration of that name has no effect. A runtime
declaration with a problem, such as an alias that a model of the files has, or a field that no request may set, is left
out, and takes nothing else with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState
from controller.config.keys import validate_keys
from controller.config.mcp_replicas import with_server_replicas
from controller.config.parse import redact_problems
from controller.config.request_fields import RequestRules, list_declared_names
from controller.config.tree import SourcePlace, Table, with_place
from controller.config.validate import field_name, validate_models
from controller.schema.declarations import DeclarationKind, RuntimeDeclaration, RuntimeDeclarations
from controller.schema.desired import Definition
from controller.schema.keys import KeyDefinition
from controller.schema.status import Problem

PLACE: Final = SourcePlace("runtime declarations")
"""What problems name in place of a file."""


@dataclass(frozen=True, slots=True)
class CombinedDeclarations:
    """What is declared, by files and at run time together, and why runtime declarations are left out. `state` has a
    definition for each MCP server that the controller runs, too."""

    state: DebouncedState
    """The files' state with the runtime declarations that are in force, and with a definition for each MCP server that
    the controller runs."""
    runtime_models: frozenset[str] = frozenset()
    """Names of the models in force that the files do not declare."""
    problems: tuple[Problem, ...] = ()
    """Why runtime declarations are left out, with secrets masked."""


@dataclass(frozen=True, slots=True)
class CheckedDeclaration:
    """The result of checking a proposed runtime declaration by its text, before any path is looked up."""

    problems: tuple[Problem, ...]
    """Why it cannot be in force, with secrets masked; empty: it can."""
    paths: tuple[tuple[str, str], ...] = ()
    """Field, as problems name it, and value of each path that must lead into a models folder once symbolic links are
    resolved. Empty where there are problems."""


@dataclass(slots=True)
class _Combination:
    """The declarations put together so far. Models and keys are added one by one."""

    rules: RequestRules
    """What the fields of runtime declarations may say."""
    definitions: dict[str, Definition]
    declared_models: dict[str, Mapping[str, Any]]
    keys: dict[str, KeyDefinition]
    declared_keys: dict[str, Mapping[str, Any]]
    problems: list[Problem] = field(default_factory=list)


def combine_declarations(
    files: DebouncedState,
    declarations: RuntimeDeclarations,
    roots: ModelRoots,
    trusted: frozenset[str] = frozenset(),
) -> CombinedDeclarations:
    """Return what files and runtime declarations declare together. A runtime declaration of a name that the files
    declare has no effect; one with a problem is left out, and its problems are in the result. `roots` are absolute;
    `trusted` names the fields that runtime declarations may give any valid value. Never raises."""
    if not declarations.models and not declarations.keys:
        return CombinedDeclarations(with_server_replicas(files))
    result = _Combination(
        request_rules(files, declarations, roots, trusted),
        dict(files.definitions),
        dict(files.declared_models),
        dict(files.keys),
        dict(files.declared_keys),
    )
    for name, declaration in declarations.models.items():
        if name not in files.definitions:
            _add_model(result, name, declaration.fields)
    for name, declaration in declarations.keys.items():
        if name not in files.keys:
            _add_key(result, name, declaration.fields)
    state = replace(
        files,
        definitions=result.definitions,
        declared_models=result.declared_models,
        keys=result.keys,
        declared_keys=result.declared_keys,
    )
    runtime_models = frozenset(result.definitions.keys() - files.definitions.keys())
    return CombinedDeclarations(with_server_replicas(state), runtime_models, redact_problems(result.problems))


def request_rules(
    files: DebouncedState, declarations: RuntimeDeclarations, roots: ModelRoots, trusted: frozenset[str]
) -> RequestRules:
    """Return what the fields of runtime declarations may say beside these files and declarations. `roots` are
    absolute."""
    sources = [each.fields.get("source") for each in declarations.models.values()]
    return RequestRules(roots, trusted, list_declared_names(files.definitions.values(), sources))


def check_declaration(
    files: DebouncedState,
    declarations: RuntimeDeclarations,
    kind: DeclarationKind,
    name: str,
    roots: ModelRoots,
    trusted: frozenset[str] = frozenset(),
) -> CheckedDeclaration:
    """Return what the runtime declaration of this kind and name, which `declarations` contains, is worth beside the
    other declarations. `roots` and `trusted`: see `combine_declarations`. Never raises."""
    prefix = field_name((kind, name))
    combined = combine_declarations(files, declarations, roots, trusted)
    problems = tuple(each for each in combined.problems if _is_below(each.field, prefix, kind))
    definition = combined.state.definitions.get(name)
    if problems or kind == "keys" or definition is None:
        return CheckedDeclaration(problems)
    rules = request_rules(files, declarations, roots, trusted)
    # Of the definition, whose paths have `~` expanded.
    values = {each: getattr(definition, each) for each in combined.state.declared_models[name]}
    paths = rules.list_bounded_paths(type(definition), values)
    return CheckedDeclaration((), tuple((field_name((kind, name, each)), path) for each, path in paths))


def list_superseded(files: DebouncedState, declarations: RuntimeDeclarations) -> dict[DeclarationKind, list[str]]:
    """Return, by kind, the names of the runtime declarations that have no effect any more, because the files declare
    the same name. A name that the files are about to lose does not count."""
    return {
        "models": [name for name in declarations.models if name in files.definitions and name not in files.missing],
        "keys": [name for name in declarations.keys if name in files.keys and files.keyless_since is None],
    }


def put_declaration(
    declarations: RuntimeDeclarations, kind: DeclarationKind, name: str, declaration: RuntimeDeclaration
) -> RuntimeDeclarations:
    """Return the declarations with this one, in place of an earlier one of that kind and name."""
    declared = declarations.models if kind == "models" else declarations.keys
    return declarations.model_copy(update={kind: {**declared, name: declaration}})


def drop_declarations(
    declarations: RuntimeDeclarations, names: Mapping[DeclarationKind, list[str]]
) -> RuntimeDeclarations:
    """Return the declarations without those names. Names that are not declared are ignored."""
    return RuntimeDeclarations(
        models=_without(declarations.models, names.get("models", [])),
        keys=_without(declarations.keys, names.get("keys", [])),
    )


def _without(declared: Mapping[str, RuntimeDeclaration], names: list[str]) -> dict[str, RuntimeDeclaration]:
    return {name: each for name, each in declared.items() if name not in names}


def _is_below(problem_field: str | None, prefix: str, kind: DeclarationKind) -> bool:
    # A key's name that looks like a secret is not told: its problem has the field `keys` alone.
    return problem_field == kind or (
        problem_field is not None
        and (problem_field == prefix or problem_field.startswith((f"{prefix}.", f"{prefix}[")))
    )


def _table_of(kind: DeclarationKind, name: str, fields: Mapping[str, Any]) -> Table:
    table = with_place({kind: {name: dict(fields)}}, PLACE)
    assert isinstance(table, Table)
    return table


def _add_model(result: _Combination, name: str, fields: Mapping[str, Any]) -> None:
    models = _table_of("models", name, fields).get("models")
    assert isinstance(models, Table)
    validated = validate_models(models, result.rules.roots)
    problems = list(validated.problems)
    definition = validated.definitions.get(name)
    if definition is not None:
        refusals = result.rules.find_refusals(type(definition), validated.declared_models[name])
        problems += [_problem(reason, "models", name, each) for each, reason in refusals]
        problems += _find_clashes(result.definitions, name, definition)
    if problems or definition is None:
        result.problems += problems
        return
    result.definitions[name] = definition
    result.declared_models[name] = validated.declared_models[name]


def _find_clashes(others: Mapping[str, Definition], name: str, definition: Definition) -> Iterator[Problem]:
    """Yield a problem for the model's name, each of its aliases and its role that another model has."""
    owners = {alias: f"an alias of model {other}" for other, each in others.items() for alias in each.aliases}
    owners |= {other: f"the name of model {other}" for other in others}
    if name in owners:
        yield _problem(f"`{name}` is already {owners[name]}", "models", name)
    for index, alias in enumerate(definition.aliases):
        if alias in owners:
            yield _problem(f"alias `{alias}` is already {owners[alias]}", "models", name, "aliases", index)
    if definition.role is not None:
        for other, each in others.items():
            if each.role == definition.role:
                yield _problem(f"model {other} has the role `{definition.role}` already", "models", name, "role")


def _problem(message: str, *path: str | int) -> Problem:
    return Problem(file=PLACE.file, line=None, field=field_name(path), message=message)


def _add_key(result: _Combination, name: str, fields: Mapping[str, Any]) -> None:
    # With the other keys, because two keys of one secret, or of one tenant with two weights, are a problem.
    others = {other: dict(each) for other, each in result.declared_keys.items()}
    table = with_place({"keys": {**others, name: dict(fields)}}, PLACE)
    assert isinstance(table, Table)
    validated = validate_keys(table)
    if validated.problems or name not in validated.definitions:
        result.problems += validated.problems
        return
    result.keys[name] = validated.definitions[name]
    result.declared_keys[name] = validated.declared_keys[name]
