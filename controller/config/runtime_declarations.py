"""Combines what the files declare with what operators declare at run time and what is discovered, of which the marker
`Settable` of each field says what a request may set; and makes models of MCP servers with a command. Pure.

A request is a runtime declaration, its dry run, or a load. Where a path leads once symbolic links are resolved is not
seen here: `controller.desired.file_source` looks.

Files win: a name that the files declare is theirs, and the runtime declaration of that name has no effect. A runtime
declaration with a problem, such as an alias that a model of the files has, or a field that no request may set, is
left out, and takes nothing else with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from contract.declarations import DeclarationKind, RuntimeDeclaration, RuntimeDeclarations
from contract.desired import Definition, Settable
from contract.keys import KeyDefinition
from contract.model_reference import HubReference, InvalidReferenceError, RegistryReference, parse_reference
from contract.status import Problem
from contract.tools import replica_model
from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import DebouncedState
from controller.config.parse import redact_problems
from controller.config.validate import (
    PathRefusedError,
    field_name,
    normalize_model_path,
    validate_keys,
    validate_models,
)
from controller.config.yaml12 import SourcePlace, Table, with_place
from controller.engines.mcp import McpBridge, McpBridgeDefinition
from controller.engines.options import Flag

TRUSTED_VARIABLE: Final = "ROUNDHOUSE_TRUSTED_DECLARATIONS"
"""Environment variable of the setting that lists the fields which requests may give any valid value."""
_GPU: Final = re.compile(r"\d{1,2}|(GPU|MIG)-[A-Za-z0-9/-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RequestRules:
    """The rules by which one controller refuses fields of requests: its models folders, and the fields and names that
    are trusted. `roots` are absolute."""

    roots: ModelRoots
    trusted: frozenset[str] = frozenset()
    """Names of the fields that a request may give any valid value."""
    declared_names: frozenset[str] = frozenset()
    """Names that `Settable.IN_MODELS_FOLDER_OR_DECLARED` allows: see `list_declared_names`."""

    def find_refusals(self, definition_class: type[Definition], values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the name of each field whose value a request may not give, and why, with what to do instead, as the
        second half of a sentence. `values` have passed the validation of `definition_class`; null counts as not
        given, and names that the class does not have are ignored."""
        markers = read_markers(definition_class)
        for name, value in values.items():
            if value is None or name in self.trusted or name not in markers:
                continue
            reason = self._find_reason(markers[name], value) or _find_argument(definition_class, name, value)
            if reason is not None:
                yield name, f"{reason}: declare it in the desired-state files, or list `{name}` in {TRUSTED_VARIABLE}"

    def list_bounded_paths(
        self, definition_class: type[Definition], values: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield the field and the value of each path that must lead into a models folder, as `values` have it. Values
        that `find_refusals` refuses may be among them."""
        for name, marker in read_markers(definition_class).items():
            value = values.get(name)
            if name in self.trusted or value is None:
                continue
            if marker is Settable.IN_MODELS_FOLDER:
                yield from ((name, path) for path in _list_texts(value))
            elif marker is Settable.IN_MODELS_FOLDER_OR_DECLARED and value not in self.declared_names:
                yield name, value

    def _find_reason(self, marker: Settable, value: Any) -> str | None:
        match marker:
            case Settable.FROM_FILES:
                return "a request may not set it"
            case Settable.HUB_REFERENCE:
                return None if _is_hub_reference(value) else "a request may name a model of the hub (`hf:`, `ollama:`)"
            case Settable.HOST_GPUS:
                names = value if isinstance(value, list) else []
                wrong = next((each for each in names if not _GPU.fullmatch(str(each))), None)
                return None if wrong is None else f"{wrong!r:.100} is neither the index nor the UUID of a GPU"
            case Settable.IN_MODELS_FOLDER_OR_DECLARED:
                return self._find_undeclared(value)
            case Settable.ALWAYS | Settable.IN_MODELS_FOLDER:
                return None

    def _find_undeclared(self, value: str) -> str | None:
        if value in self.declared_names:
            return None
        if not value.startswith("/"):
            return (
                "a request may give an absolute path in a models folder, or the `USER/REPO` of a declared model's "
                "`source`"
            )
        try:
            normalize_model_path(value, self.roots)
        except PathRefusedError as error:
            return str(error)
        return None


@cache
def read_markers(definition_class: type[Definition]) -> Mapping[str, Settable]:
    """Return the marker `Settable` of each field, by the field's name. Raises ValueError for a field that does not have
    exactly one."""
    markers: dict[str, Settable] = {}
    for name, info in definition_class.model_fields.items():
        found = [each for each in info.metadata if isinstance(each, Settable)]
        if len(found) != 1:
            raise ValueError(f"{definition_class.__name__}.{name} has {len(found)} markers `Settable`, and needs one")
        markers[name] = found[0]
    return markers


def list_declared_names(definitions: Iterable[Definition], sources: Iterable[object] = ()) -> frozenset[str]:
    """Return the names that `Settable.IN_MODELS_FOLDER_OR_DECLARED` allows beside paths: the `USER/REPO` of each hub
    reference among the `source` of `definitions` and `sources`, without quantisation and revision, and, as they are
    written, the values that `definitions` give the fields with that marker, paths too. Of `sources`, what is no
    reference to the hub is left out."""
    names: set[str] = set()
    texts = [*sources]
    for each in definitions:
        texts.append(each.source)
        markers = read_markers(type(each))
        names.update(
            value
            for name, marker in markers.items()
            if marker is Settable.IN_MODELS_FOLDER_OR_DECLARED and (value := getattr(each, name)) is not None
        )
    for text in texts:
        try:
            reference = parse_reference(text) if isinstance(text, str) else None
        except InvalidReferenceError:
            continue
        if isinstance(reference, HubReference):
            names.add(reference.repo)
    return frozenset(names)


def _is_hub_reference(text: str) -> bool:
    reference = parse_reference(text)  # validated
    return isinstance(reference, HubReference) or (isinstance(reference, RegistryReference) and reference.host is None)


def _find_argument(definition_class: type[Definition], name: str, value: Any) -> str | None:
    """Return why a text may not be an argument of its own: many parsers take one with a dash for another option."""
    is_argument = any(isinstance(each, Flag) for each in definition_class.model_fields[name].metadata)
    if is_argument and any(each.startswith("-") for each in _list_texts(value)):
        return "a request may give no text that begins with a dash"
    return None


def _list_texts(value: Any) -> list[str]:
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


_FIELDS: Final[Mapping[str, str]] = {
    "command": "mcp_command",
    "network": "mcp_network",
    "mounts": "mcp_mounts",
    "image": "image",
    "env": "env",
}
"""Field of a server that its replica depends on, to the field of the definition."""


def with_server_replicas(state: DebouncedState) -> DebouncedState:
    """Return the state with a definition for each MCP server that has a command, named by `replica_model`, among
    `definitions` and `declared_models`. Without such a server, that is the state itself."""
    declared = declare_replicas(state.tools.declared_servers)
    if not declared:
        return state
    return replace(
        state,
        definitions={**state.definitions, **define_replicas(declared)},
        declared_models={**state.declared_models, **declared},
    )


def declare_replicas(declared_servers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the fields of a definition for each declared server that has a command, by the name that `replica_model`
    makes of the server's. `declared_servers`: declared fields by server name."""
    return {
        replica_model(name): {
            "backend": McpBridge.name,
            **{own: fields[each] for each, own in _FIELDS.items() if each in fields},
        }
        for name, fields in declared_servers.items()
        if fields.get("command") is not None
    }


def define_replicas(declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Definition]:
    """Return the definitions, by the same names, of what `declare_replicas` returned. Raises pydantic's ValidationError
    where its servers were not valid."""
    return {name: McpBridgeDefinition.model_validate(fields) for name, fields in declared.items()}


PLACE: Final = SourcePlace("runtime declarations")
"""What problems name in place of a file."""
LEFT_OUT: Final = "left-out"
"""Name of the key that is in force where every declared key is left out: without keys, everybody would be let in."""
_UNKNOWN_KEY: Final = KeyDefinition(sha256="0" * 64)
"""A key of which nobody can know the secret."""


@dataclass(frozen=True, slots=True)
class CombinedDeclarations:
    """What is declared, by files and at run time together, and why runtime declarations are left out."""

    state: DebouncedState
    """The files' state with the runtime declarations that are in force, and with a definition for each MCP server that
    the controller runs."""
    runtime_models: frozenset[str] = frozenset()
    """Names of the models in force that only a runtime declaration declares."""
    discovered_models: frozenset[str] = frozenset()
    """Names of the models in force that nobody declares: their files lie in a models folder."""
    problems_of: Mapping[tuple[DeclarationKind, str], tuple[Problem, ...]] = field(default_factory=dict)
    """Why runtime declarations are left out, with secrets masked, by kind and name."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why runtime declarations are left out, with secrets masked."""
        return tuple(problem for problems in self.problems_of.values() for problem in problems)


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
    problems_of: dict[tuple[DeclarationKind, str], tuple[Problem, ...]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Name and alias to the words for what has it already."""
    roles: dict[str, str] = field(default_factory=dict)
    """Role to the model that has it."""

    def __post_init__(self) -> None:
        for name, definition in self.definitions.items():
            self.note_names(name, definition)

    def note_names(self, name: str, definition: Definition) -> None:
        """Note the names and the role of a model, which no later one may have."""
        for alias in definition.aliases:
            self.owners.setdefault(alias, f"an alias of model {name}")
        self.owners[name] = f"the name of model {name}"
        if definition.role is not None:
            self.roles.setdefault(definition.role, name)


def combine_declarations(
    files: DebouncedState,
    declarations: RuntimeDeclarations,
    roots: ModelRoots,
    trusted: frozenset[str] = frozenset(),
    discovered: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> CombinedDeclarations:
    """Return what files and runtime declarations declare together. A runtime declaration of a name that the files
    declare has no effect; one with a problem is left out, and its problems are in the result. Where that leaves no key
    of those that are declared, there is one that nobody can show (`LEFT_OUT`). `roots` are absolute; `trusted` names
    the fields that runtime declarations may give any valid value. Never raises.

    `discovered`: fields, by name, of the models that are there without a declaration. They count where the files say
    `discover`; one whose file or name a declaration has, or that is not valid, is left out without a problem."""
    discovered = discovered if files.discover else {}
    if not declarations.models and not declarations.keys and not discovered:
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
    _add_keys(result, {name: each.fields for name, each in declarations.keys.items() if name not in files.keys})
    runtime_models = frozenset(result.definitions.keys() - files.definitions.keys())
    problems_of = {owner: redact_problems(problems) for owner, problems in result.problems_of.items()}
    named = {each.model_path for each in result.definitions.values()}
    for name, fields in discovered.items():
        if fields.get("model_path") not in named:
            _add_model(result, name, fields)
    state = replace(
        files,
        definitions=result.definitions,
        declared_models=result.declared_models,
        keys=result.keys,
        declared_keys=result.declared_keys,
    )
    discovered_models = frozenset(result.definitions.keys() - files.definitions.keys() - runtime_models)
    return CombinedDeclarations(with_server_replicas(state), runtime_models, discovered_models, problems_of)


def request_rules(
    files: DebouncedState, declarations: RuntimeDeclarations, roots: ModelRoots, trusted: frozenset[str]
) -> RequestRules:
    """Return the rules for the fields of runtime declarations, beside these files and declarations. `roots` are
    absolute; `trusted` names the fields that may have any valid value."""
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
    """Check the runtime declaration of this kind and name, which `declarations` must contain, beside the files and the
    other declarations. Return its problems; without problems, the paths that the caller must still look up. `roots` are
    absolute; `trusted` names the fields that may have any valid value. Never raises."""
    combined = combine_declarations(files, declarations, roots, trusted)
    problems = combined.problems_of.get((kind, name), ())
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
    # Last: where it clashes with another one, it is the one that is left out and has the problem.
    others = {other: each for other, each in declared.items() if other != name}
    return declarations.model_copy(update={kind: {**others, name: declaration}})


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


def _add_model(result: _Combination, name: str, fields: Mapping[str, Any]) -> None:
    models = with_place({name: dict(fields)}, PLACE)
    assert isinstance(models, Table)
    validated = validate_models(models, result.rules.roots)
    problems = list(validated.problems)
    definition = validated.definitions.get(name)
    if definition is not None:
        refusals = result.rules.find_refusals(type(definition), validated.declared_models[name])
        problems += [_problem(reason, "models", name, each) for each, reason in refusals]
        problems += _find_clashes(result, name, definition)
    if problems or definition is None:
        result.problems_of["models", name] = tuple(problems)
        return
    result.note_names(name, definition)
    result.definitions[name] = definition
    result.declared_models[name] = validated.declared_models[name]


def _find_clashes(others: _Combination, name: str, definition: Definition) -> Iterator[Problem]:
    """Yield a problem for the model's name, each of its aliases and its role that another model has."""
    if name in others.owners:
        yield _problem(f"`{name}` is already {others.owners[name]}", "models", name)
    for index, alias in enumerate(definition.aliases):
        if alias in others.owners:
            yield _problem(f"alias `{alias}` is already {others.owners[alias]}", "models", name, "aliases", index)
    if definition.role is not None and (other := others.roles.get(definition.role)) is not None:
        yield _problem(f"model {other} has the role `{definition.role}` already", "models", name, "role")


def _problem(message: str, *path: str | int) -> Problem:
    return Problem(file=PLACE.file, line=None, field=field_name(path), message=message)


def _add_keys(result: _Combination, declared: Mapping[str, Mapping[str, Any]]) -> None:
    table = with_place({"keys": {name: dict(fields) for name, fields in declared.items()}}, PLACE)
    assert isinstance(table, Table)
    validated = validate_keys(table, result.keys)
    for name, problems in validated.problems_of.items():
        result.problems_of["keys", name] = tuple(problems)
    valid_names = [name for name in validated.definitions if name not in validated.problems_of]
    result.keys |= {name: validated.definitions[name] for name in valid_names}
    result.declared_keys |= {name: validated.declared_keys[name] for name in valid_names}
    if declared and not result.keys:
        result.keys[LEFT_OUT] = _UNKNOWN_KEY
