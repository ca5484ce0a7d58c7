"""Validation of merged declarations: models (by the definition class of each one's backend), keys, tools and MCP
servers. Pure. Reports every problem, and never shows a value that may be a secret, such as one of `headers` or `env`.

A definition that names a `source` and no `model_path` is validated with a path that stands for the files
(`placeholder_path`). Once the models folder has them, the real path takes its place; until then, the model waits for
its download.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from contract.desired import Definition, ModelName
from contract.keys import KeyDefinition, KeyName
from contract.model_reference import (
    HeadReference,
    HubReference,
    InvalidReferenceError,
    LocalReference,
    ModelReference,
    UrlReference,
    parse_reference,
)
from contract.status import Problem
from contract.tools import BUILTIN_TOOLS, REPLICA_PREFIX, SEPARATOR, McpServer, ServerName, ToolLimits
from controller.artifacts.heads import ArtifactError
from controller.artifacts.model_roots import ModelRoots, path_below, plain_path
from controller.artifacts.read import list_gguf_models, locate_path
from controller.config.messages import explain_errors, kind_of, meant_branch, shown_value, suggest_name
from controller.config.yaml12 import Listing, SourcePlace, Table, is_null, known_part, place_of, to_plain_value
from controller.engines import BACKEND_OF_SUFFIX, ENGINES, resolve_backend
from controller.engines.base import Engine
from controller.engines.options import Paths, list_paths

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


PROJECTOR_FIELD: Final = "llama_server_mmproj"
"""Field of a definition that takes the multimodal projector of a source, where the definition names none."""
_GGUF_REPO: Final = re.compile(r"(^|[-_.])gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlacedSource:
    """Where the files of a source are: paths below the first models folder."""

    model_path: str
    projector: str | None = None
    """None: the source has no multimodal projector."""


def canonical_source(text: str) -> str | None:
    """Return a source in its canonical form; None: it is no reference of a model."""
    try:
        return str(parse_reference(text))
    except InvalidReferenceError:
        return None


def placeholder_path(reference: ModelReference) -> str:
    """Return the path that stands for the files of a source until it is known which they are. Its suffix is that of the
    files, where the reference tells it: `.gguf` for a quantisation, a repository whose name ends with `gguf`, and a
    registry."""
    path = named_path(reference)
    if path is not None:
        return path
    if isinstance(reference, HubReference):
        if reference.quantisation is not None:
            return f"{reference.repo}/{reference.quantisation}.gguf"
        return f"{reference.repo}/model.gguf" if _GGUF_REPO.search(reference.repo) else reference.repo
    if isinstance(reference, UrlReference):
        return f"url/{reference.url.partition('?')[0].rpartition('/')[2]}"
    if isinstance(reference, LocalReference):
        return f"local/{reference.path.rpartition('/')[2]}"
    if isinstance(reference, HeadReference):
        return reference.path
    return f"{reference.name}/{reference.tag}.gguf"


def named_path(reference: ModelReference) -> str | None:
    """Return the path that the files of a source will have below the models folder, where the reference tells; None:
    the source decides."""
    if isinstance(reference, HubReference) and reference.path is not None:
        return f"{reference.repo}/{reference.path}"
    return None


def list_sources(definitions: Iterable[Definition]) -> frozenset[str]:
    """Return the sources of the definitions, in their canonical form. Definitions without a source, or with one that is
    no reference of a model, are left out."""
    return frozenset(source for each in definitions if (source := definition_source(each)) is not None)


def definition_source(definition: Definition) -> str | None:
    """Return the source of a definition in its canonical form; None: it names none, or one that is no reference of a
    model."""
    return None if definition.source is None else canonical_source(definition.source)


def place_source(
    definition: Definition, raw_fields: Mapping[str, Any], sources: Mapping[str, PlacedSource]
) -> tuple[Definition, str | None]:
    """Return the definition with the paths of its source, and the source that is still to be downloaded. Paths that
    `raw_fields`, the fields as declared, name themselves stay: a model with a `model_path` of its own waits for no
    download. `sources`: the files that are here, by source in its canonical form. None in place of the source: nothing
    is to be downloaded."""
    source = definition_source(definition)
    if source is None or raw_fields.get("model_path") is not None:
        return definition, None
    placed = sources.get(source)
    if placed is None:
        return definition, source
    update: dict[str, str] = {"model_path": placed.model_path}
    takes_projector = PROJECTOR_FIELD in type(definition).model_fields and PROJECTOR_FIELD not in raw_fields
    if placed.projector is not None and takes_projector:
        update[PROJECTOR_FIELD] = placed.projector
    return definition.model_copy(update=update), None


class PathRefusedError(ValueError):
    """The declared path cannot be used. The message says why, without the name of the field."""


def normalize_model_path(declared_path: str, roots: ModelRoots) -> str:
    """Return the canonical form of a declared path: `~` expanded, without `.` and doubled slashes. `roots` are
    absolute. The disk is not read: the file need not exist.

    A path is relative where it is declared so, or lies below the first models folder; else it is absolute. Therefore
    adding a models folder changes no existing path, and no spec hash.

    Raises:
        PathRefusedError: the path holds `..` or unprintable characters, leads out of the models folders, names one of
            these itself, begins with a `~` that cannot be expanded, or is a relative path that would begin with `~`.
    """
    if not declared_path.isprintable():
        raise PathRefusedError("a path holds printable characters only")
    if ".." in declared_path.split("/"):
        raise PathRefusedError("a path may not hold `..`")
    path = _expand_home(declared_path, roots)
    if not path.startswith("/"):
        path = posixpath.normpath(path) if path else "."
        if path == ".":
            raise PathRefusedError("names no file or folder below the models folder")
        return _refuse_tilde(path)
    for folder in roots.folders:
        inner = path_below(path, folder)
        if inner is not None and inner != ".":
            return _refuse_tilde(inner) if folder == roots.first else plain_path(path)
    if any(path_below(path, folder) == "." for folder in roots.folders):
        raise PathRefusedError("names no file or folder below the models folder")
    raise PathRefusedError(f"`{declared_path}` lies outside {roots.describe()}{_advise(path, roots)}")


def _expand_home(declared_path: str, roots: ModelRoots) -> str:
    if not declared_path.startswith("~"):
        return declared_path
    user, _, rest = declared_path[1:].partition("/")
    if user:
        raise PathRefusedError("`~` is your own home folder alone; write the absolute path of another's")
    if roots.home is None:
        raise PathRefusedError("`~` stands for nothing, because HOME is not set; write the absolute path")
    return f"{roots.home}/{rest}"


def _refuse_tilde(relative_path: str) -> str:
    """Return the path. Read again, one with `~` at its beginning would name another file: one below the home folder."""
    if relative_path.startswith("~"):
        name = relative_path.partition("/")[0]
        raise PathRefusedError(f"`{name}` in the models folder cannot be named, because `~` is your home: rename it")
    return relative_path


def _advise(path: str, roots: ModelRoots) -> str:
    # A URL is given no advice: it may hold a password, which is masked only in the form in which it was written.
    advice = None if "://" in path else roots.advise_adding(PurePath(plain_path(path)))
    return f": {advice}" if advice is not None else ""


_MODEL_NAME: TypeAdapter[str] = TypeAdapter(ModelName)


@dataclass(frozen=True, slots=True)
class ValidatedModels:
    """Result of the validation of all models. Where there are `problems`, the other fields are incomplete and must not
    be used."""

    definitions: Mapping[str, Definition]
    """Definitions by model name. `backend` is always set, and model paths are canonical (`normalize_model_path`)."""
    declared_models: Mapping[str, Mapping[str, Any]]
    """Fields as declared, by model name, merged and without nulls."""
    problems: Sequence[Problem]


def validate_models(models: Table, roots: ModelRoots) -> ValidatedModels:
    """Validate every model of the merged `models` table; a model that is null counts as not declared. `roots` are
    absolute; absolute model paths must lie below one of them. Never raises: every fault is a problem of the result."""
    definitions: dict[str, Definition] = {}
    declared_models: dict[str, Mapping[str, Any]] = {}
    problems: list[Problem] = []
    for name, entry in models.iterate_entries():
        if not isinstance(entry.node, Table):
            message = "a model's definition is a mapping of fields"
            if name in _list_known_fields():
                message = f"`{name}` is a field: indent it below the name of its model"
            problems.append(_problem(entry.place, message, "models", name))
            continue
        check = _ModelValidator("models", name, entry.place, entry.node, roots)
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


def _problem(place: SourcePlace, message: str, *path: str | int) -> Problem:
    return Problem(file=place.file, line=place.line, field=field_name(path), message=message)


class _Validator:
    """Validator of one declaration below a top-level key of the files."""

    def __init__(self, key: str, name: str, place: SourcePlace, table: Table) -> None:
        """`key`: the top-level key. `place`: that of the name."""
        self.key, self.name, self.place, self.table = key, name, place, table
        self.values = _values(table)
        self.problems: list[Problem] = []

    def add_problem(self, message: str, *path: str | int) -> None:
        """Add a problem of the field at `path`, or of the declaration where `path` is empty."""
        is_written = bool(path) and path[0] in self.table.entries
        place = place_of(self.table, path) if is_written else self.place
        self.problems.append(_problem(place, message, self.key, self.name, *path))

    def check_name(self, names: TypeAdapter[str]) -> None:
        """Add the problems of the name."""
        try:
            names.validate_python(self.name)
        except ValidationError as error:
            for each in error.errors(include_url=False):
                self.add_problem(f"the name {explain_errors(each)}")

    def list_items(self, field: str) -> list[Any]:
        """Return the items of a field; empty where it is no list."""
        value = self.values.get(field)
        return value if isinstance(value, list) else []


class _ModelValidator(_Validator):
    """Validator of one model."""

    def __init__(self, key: str, name: str, place: SourcePlace, table: Table, roots: ModelRoots) -> None:
        super().__init__(key, name, place, table)
        self.roots = roots

    def run(self) -> Definition | None:
        """Return the definition. None means that there are problems."""
        self.check_name(_MODEL_NAME)
        for name, place in ((self.name, ()), *((each, ("aliases",)) for each in self.list_items("aliases"))):
            if isinstance(name, str) and name.startswith(REPLICA_PREFIX):
                self.add_problem(f"`{name}`: names that begin with `{REPLICA_PREFIX}` are those of MCP servers", *place)
        values = {**self.values}
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
            if resolved_backend is None and isinstance(path, str) and self.is_gguf_folder(path):
                # The model alone is refused when it is to start, in words that name the files; all others go on.
                resolved_backend = BACKEND_OF_SUFFIX[".gguf"]
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

    def is_gguf_folder(self, path: str) -> bool:
        """Return whether a model path leads to a folder that has GGUF files. Looks at the disk."""
        try:
            folder = locate_path(self.roots, path).path
            return folder.is_dir() and bool(list_gguf_models(folder))
        except (ArtifactError, OSError, ValueError):
            return False

    def check_common_fields(self, values: Mapping[str, Any]) -> None:
        """Check what does not depend on the backend: the common fields, and fields that no backend has."""
        fields = Definition.model_fields
        self.parse_definition(
            Definition, {key: value for key, value in values.items() if key in fields and key != "backend"}
        )
        known_fields = _list_known_fields()
        for key in values:
            if key not in known_fields:
                self.add_problem(f"unknown field{suggest_name(key, known_fields)}", key)

    def parse_definition(
        self, definition_class: type[Definition], values: Mapping[str, Any], engine: Engine[Any] | None = None
    ) -> Definition | None:
        """Return the values as an instance of `definition_class`. None means that there are problems. With `engine`, an
        unknown field is explained by the backends that have it."""
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


def _list_known_fields() -> set[str]:
    """Return the fields of the definitions of all backends."""
    return {each for engine in ENGINES.values() for each in engine.definition.model_fields}


def _describe_unknown_field(key: str, engine: Engine[Any]) -> str:
    owners = [each.name for each in ENGINES.values() if key in each.definition.model_fields]
    if owners:
        return f"belongs to backend {' and '.join(owners)}; this model's backend is {engine.name}"
    return f"unknown field{suggest_name(key, engine.definition.model_fields)}"


def locate_problem(
    errors: Sequence[ErrorDetails], table: Table
) -> Iterator[tuple[tuple[str | int, ...], Sequence[ErrorDetails]]]:
    """Yield the errors of one validation with pydantic, grouped by the path in `table` that they are about: each path
    with the errors that one message should explain together. pydantic reports every branch of a union. Of these, only
    the branch that fits the value's type is kept, or the first error of each where none fits."""
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
                message = f"alias `{alias}` is already {alias_owners[alias]}"
                yield _problem(item.place, message, "models", name, "aliases", index)
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
            yield _problem(entry.place, message, "models", name, "role")
        owners.setdefault(role, name)


SECRET_PREFIX: Final = "rh-"  # noqa: S105 - the prefix of every secret
"""Prefix of every secret that `roundhouse key new` makes."""

_KEY_NAME: Final[TypeAdapter[str]] = TypeAdapter(KeyName)
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
    problems_of: Mapping[str, Sequence[Problem]] = field(default_factory=dict)
    """The problems of single keys, by key name. Those of keys without a problem can be used."""


def validate_keys(merged_table: Table, others: Mapping[str, KeyDefinition] = MappingProxyType({})) -> ValidatedKeys:
    """Validate every key of the merged files, beside `others`, which are valid, by name. Files without `keys`, or with
    an empty mapping, declare none. Never raises: every fault is a problem of the result, and no message shows a
    secret."""
    entry = merged_table.entries.get("keys")
    if entry is None or is_null(entry.node):
        return ValidatedKeys()
    if not isinstance(entry.node, Table):
        message = f"must map names to keys, is {kind_of(to_plain_value(entry.node))}"
        return ValidatedKeys(problems=[_problem(entry.place, message, "keys")])
    checks = [_KeyValidator(name, each.place, each.node) for name, each in entry.node.iterate_entries()]
    definitions = {check.name: definition for check in checks if (definition := check.run()) is not None}
    _compare_keys([(check, definitions[check.name]) for check in checks if check.name in definitions], others)
    return ValidatedKeys(
        definitions,
        {check.name: check.values for check in checks if check.name in definitions},
        [problem for check in checks for problem in check.problems],
        {check.name: check.problems for check in checks if check.problems},
    )


class _KeyValidator(_Validator):
    """Validator of one key."""

    def __init__(self, name: str, place: SourcePlace, node: object) -> None:
        self._is_table = isinstance(node, Table)
        super().__init__("keys", name, place, node if isinstance(node, Table) else Table({}))

    def run(self) -> KeyDefinition | None:
        """Return the definition. None means that there are problems."""
        if _SECRET.fullmatch(self.name):
            # Not with `add_problem`, which would show the secret as the key's name.
            message = "a key's name looks like a secret here, and names are shown in headers and logs"
            self.problems.append(_problem(self.place, message, "keys"))
            return None
        if not self._is_table:
            self.add_problem("a key is a mapping of fields, `sha256` among them")
            return None
        self.check_name(_KEY_NAME)
        for index, model in enumerate(self.list_items("models")):
            if isinstance(model, str) and _PATTERN.fullmatch(model) is None:
                self.add_problem(
                    f"no model can have such a name: {_show_value(model)}; `*` stands for any text", "models", index
                )
        for index, tool in enumerate(self.list_items("tools")):
            if isinstance(tool, str) and (tool_problem := _explain_tool(tool)) is not None:
                self.add_problem(tool_problem, "tools", index)
        definition = self._parse_definition()
        return None if self.problems else definition

    def _parse_definition(self) -> KeyDefinition | None:
        expires = self.values.get("expires")
        if expires is not None and not (isinstance(expires, str) and _DATE.fullmatch(expires)):
            # pydantic would read a number as Unix time: 20270131 lies in 1970.
            self.add_problem(_date_words(expires), "expires")
        try:
            return KeyDefinition.model_validate(self.values)
        except ValidationError as error:
            for path, errors in locate_problem(error.errors(include_url=False), self.table):
                told_field = self.problems[-1].field if self.problems else None
                if path[:1] != ("expires",) or told_field != field_name(("keys", self.name, "expires")):
                    self.add_problem(self._describe_errors(errors), *path)
            return None

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


def _compare_keys(keys: Sequence[tuple[_KeyValidator, KeyDefinition]], others: Mapping[str, KeyDefinition]) -> None:
    """Find problems between keys: the same secret twice, or different weights of one tenant. Of two keys that clash,
    the later one has the problem; one that has a problem clashes with none after it."""
    names = {key.sha256: name for name, key in others.items()}
    weights = {key.tenant or name: (name, key.weight) for name, key in others.items()}
    for check, key in keys:
        if (first_name := names.get(key.sha256)) is not None:
            check.add_problem(
                f"is also that of `{field_name(('keys', first_name))}`: every key has a secret of its own", "sha256"
            )
        tenant = key.tenant or check.name
        other, weight = weights.get(tenant, (check.name, key.weight))
        if weight != key.weight:
            check.add_problem(
                f"is {key.weight:g}, and {weight:g} in `{field_name(('keys', other))}`: both are of tenant {tenant}, "
                "which has one weight",
                "weight",
            )
        if not check.problems:
            names[key.sha256] = check.name
            weights.setdefault(tenant, (check.name, key.weight))


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
    declared_tools: DeclaredFields = field(default_factory=dict)
    servers: Mapping[str, McpServer] = field(default_factory=dict)
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
            self.problems.append(_problem(entry.place, message, self._key))
            return
        for name, each in entry.node.iterate_entries():
            if (name_problem := self._explain_name(name)) is not None:
                self.problems.append(_problem(each.place, name_problem, self._key, name))
            elif not isinstance(each.node, Table):
                message = "is a mapping of fields; `{}` declares none of them"
                self.problems.append(_problem(each.place, message, self._key, name))
            else:
                self._validate_declaration(_Validator(self._key, name, each.place, each.node))

    def _validate_declaration(self, check: _Validator) -> None:
        declaration_class = self._class_of(check.name)
        assert declaration_class is not None
        try:
            self.definitions[check.name] = declaration_class.model_validate(check.values)
            self.declared[check.name] = check.values
        except ValidationError as error:
            for path, message in _explain_declaration(declaration_class, error.errors(include_url=False), check.table):
                check.add_problem(message, *path)
            self.problems += check.problems


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
