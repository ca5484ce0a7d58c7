"""Reads the files of the desired-state folder, merges them, and validates them to definitions. One problem makes the
whole set of files invalid. `yaml12` parses the YAML and knows the lines.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from contract.desired import Definition
from contract.keys import KeyDefinition
from contract.status import Problem
from controller.artifacts.model_roots import ModelRoots
from controller.config.messages import kind_of, suggest_name
from controller.config.validate import DeclaredTools, validate_keys, validate_models, validate_tools
from controller.config.yaml12 import Table, is_null, merge_all, read_document, to_plain_value
from controller.redaction import mask_text

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""File name suffixes of desired-state files."""
LAST: Final = "local"
"""Files with this stem are merged after all others."""
SCHEMA_FILE: Final = "schema.json"
"""Name of the JSON Schema in the folder. It is for editors and declares nothing."""
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a desired-state file. A larger one is a problem."""


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """Content of the folder's files at one reading. With problems the content of the folder is unknown, which is not
    the same as empty."""

    folder: str
    """Path of the folder as the operator gave it. Problems name files below it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def path_of(self, name: str) -> str:
        """Return the path of a file of the folder, by its name, as problems show it."""
        return str(Path(self.folder) / name)


def is_read(name: str) -> bool:
    """Return whether a file of this name belongs to the desired state: it ends with `.yaml`, `.yml` or `.json` in
    any case, is not hidden (does not begin with a dot), and is not `schema.json`."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".") and name != SCHEMA_FILE


def merge_order(name: str) -> tuple[bool, str]:
    """Return the sort key that puts names of files in merge order: by name, but `local.yaml`, `local.yml` and
    `local.json` after all others."""
    return (name.rpartition(".")[0] == LAST, name)


def read_folder(path: Path) -> FolderSnapshot:
    """Read every desired-state file directly in the folder, of at most 4 MiB (MAX_FILE_BYTES) each. Subfolders are left
    out. Blocks. Never raises: what cannot be read is a problem of the snapshot."""
    folder = str(path)
    try:
        names = sorted((entry.name for entry in path.iterdir() if is_read(entry.name)), key=merge_order)
    except OSError as error:
        message = f"the desired-state folder cannot be read: {error.strerror or error}"
        return FolderSnapshot(folder, problems=(Problem(file=folder, message=message),))
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            content = _read_file(path / name)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            problems.append(Problem(file=str(path / name), message=message))
            continue
        if content is not None:
            files[name] = content
    return FolderSnapshot(folder, files, tuple(problems))


def _read_file(path: Path) -> bytes | None:
    """Return the content, or None for a folder. Raises OSError, also for a dangling symbolic link, which should be a
    file."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES // 1024**2} MiB")
    return path.read_bytes()


ROUTE_ENDINGS: Final = ("/status", "/benchmark")
"""What follows a model's name in paths of the gateway below `/v1/models/`."""


def find_name_warnings(definitions: Mapping[str, Definition]) -> list[tuple[str, str]]:
    """Return pairs of a model's name and a warning, in order of model names, for each name and alias that ends with
    `/status` or `/benchmark`: its path in the API is also that of another model's status or benchmark."""
    return [
        (model, _describe_hidden_route(name, ending))
        for model, definition in sorted(definitions.items())
        for name in (model, *definition.aliases)
        for ending in ROUTE_ENDINGS
        if name.endswith(ending)
    ]


def _describe_hidden_route(name: str, ending: str) -> str:
    other = name.removesuffix(ending)
    return (
        f"`{name}` ends with `{ending}`, so `GET /v1/models/{name}` answers this model, and a model `{other}` could "
        f"not be asked for its {ending[1:]} there: choose another name"
    )


DISCOVER: Final = "discover"
"""Key that says whether every model file in the models folders is a model."""
TOP_LEVEL: Final = ("models", "keys", "tools", "mcp_servers", DISCOVER)
"""Keys that a file may have at its top level."""


@dataclass(frozen=True, slots=True)
class ParsedFolder:
    """Declarations of one read of the folder. With problems it declares nothing, and the last valid declarations stay
    in force."""

    definitions: Mapping[str, Definition] = field(default_factory=dict)
    """Validated definitions by model name."""
    declared_models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields as declared, by model name, merged and without nulls. Overrides digest them, and the last good state has
    them."""
    keys: Mapping[str, KeyDefinition] = field(default_factory=dict)
    """Validated keys by name."""
    declared_keys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields as declared, by key name."""
    tools: DeclaredTools = field(default_factory=DeclaredTools)
    """Tools and MCP servers."""
    discover: bool = False
    """Whether every model file that no declaration names is a model."""
    problems: tuple[Problem, ...] = ()
    """Problems of the files, with secrets masked."""
    digest: str = ""
    """Digest of the declarations. Layout, comments and distribution over files do not count. Empty with problems."""

    @property
    def is_valid(self) -> bool:
        """Whether the declarations may take effect: there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Document:
    """One file of a snapshot as read, before it is merged with the others. Immutable, so that an unchanged file's
    document can be used again."""

    content: bytes
    table: Table | None
    """None: the file could not be read to its end."""
    problems: tuple[Problem, ...]
    """What is wrong with the file by itself. They may show secrets."""


def read_documents(
    snapshot: FolderSnapshot, known: Mapping[str, Document] = MappingProxyType({})
) -> dict[str, Document]:
    """Parse each file of the snapshot, and return the documents by path (`FolderSnapshot.path_of`), in merge order.
    Never raises: faults are problems of the document, which may show secrets until `parse_documents` masks them. A
    document of `known` is used again for a file with the same path and bytes: parsing is most of the work of
    `parse_folder`, and depends on nothing else."""
    documents: dict[str, Document] = {}
    for name, content in snapshot.files.items():
        path = snapshot.path_of(name)
        document = known.get(path)
        if document is None or document.content != content:
            table, problems = read_document(path, content)
            unknown_keys = _unknown_keys(table) if table is not None else ()
            document = Document(content, table, (*problems, *unknown_keys))
        documents[path] = document
    return documents


def list_places(documents: Iterable[Document]) -> dict[str, str]:
    """Return where documents, in merge order, declare models and keys: `models.NAME` or `keys.NAME` to `file:line`,
    that of the last file which names it. Files that cannot be read are left out."""
    places: dict[str, str] = {}
    for table in (each.table for each in documents):
        for kind in ("models", "keys"):
            entry = None if table is None else table.entries.get(kind)
            if entry is not None and isinstance(entry.node, Table):
                for name, each in entry.node.iterate_entries():
                    places[f"{kind}.{name}"] = f"{each.place.file}:{each.place.line}"
    return places


def parse_folder(snapshot: FolderSnapshot, roots: ModelRoots) -> ParsedFolder:
    """Parse, merge and validate the files of a snapshot. `roots` are absolute. Never raises: every fault is a problem
    of the result, with secrets masked."""
    return parse_documents(snapshot, read_documents(snapshot), roots)


def parse_documents(snapshot: FolderSnapshot, documents: Mapping[str, Document], roots: ModelRoots) -> ParsedFolder:
    """Merge and validate documents that `read_documents` returned for this snapshot. `roots` are absolute. Never
    raises: every fault is a problem of the result, with secrets masked. With a problem the result declares nothing."""
    read_problems = [*snapshot.problems, *(problem for each in documents.values() for problem in each.problems)]
    tables = [each.table for each in documents.values() if each.table is not None]
    if snapshot.problems or len(tables) < len(snapshot.files):
        # Part of what is declared is unknown: what the rest lacks may stand there.
        return ParsedFolder(problems=redact_problems(read_problems))
    merged_table = merge_all(tables)
    models = _find_models(snapshot, merged_table)
    if isinstance(models, Problem):
        return ParsedFolder(problems=redact_problems((*read_problems, models)))
    validated_models = validate_models(models, roots)
    keys, tools = validate_keys(merged_table), validate_tools(merged_table)
    discover = _read_discover(merged_table)
    problems = [*validated_models.problems, *keys.problems, *tools.problems]
    if isinstance(discover, Problem):
        problems.append(discover)
    if read_problems or problems or isinstance(discover, Problem):
        order = {snapshot.path_of(name): index for index, name in enumerate(snapshot.files)}
        # What could not be read may be why the rest looks wrong.
        in_order = [
            sorted(group, key=lambda each: (order[each.file], each.line or 0)) for group in (read_problems, problems)
        ]
        return ParsedFolder(problems=redact_problems([*in_order[0], *in_order[1]]))
    digest = digest_of(validated_models.declared_models, keys.declared_keys, tools.declared, discover)
    return ParsedFolder(
        validated_models.definitions,
        validated_models.declared_models,
        keys.definitions,
        keys.declared_keys,
        tools.declared,
        discover,
        digest=digest,
    )


def digest_of(
    declared_models: Mapping[str, Mapping[str, Any]],
    keys: Mapping[str, Mapping[str, Any]],
    tools: DeclaredTools,
    discover: bool = False,
) -> str:
    """Return a digest of declared models, keys, tools and MCP servers: 64 bits as 16 hex digits, equal in every
    process."""
    # Without tools and discovery the digest is the one of versions that had none.
    content = [declared_models, keys, *([tools.declared] if tools.declared else []), *([DISCOVER] if discover else [])]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _unknown_keys(table: Table) -> Iterator[Problem]:
    for key, entry in table.entries.items():
        if key not in TOP_LEVEL:
            message = f"unknown key{suggest_name(key, TOP_LEVEL)}"
            yield Problem(file=entry.place.file, line=entry.place.line, field=key, message=message)


def _read_discover(merged_table: Table) -> bool | Problem:
    entry = merged_table.entries.get(DISCOVER)
    if entry is None or is_null(entry.node):
        return False
    value = to_plain_value(entry.node)
    if isinstance(value, bool):
        return value
    message = f"must be true or false, is {kind_of(value)}"
    return Problem(file=entry.place.file, line=entry.place.line, field=DISCOVER, message=message)


def _find_models(snapshot: FolderSnapshot, merged_table: Table) -> Table | Problem:
    entry = merged_table.entries.get("models")
    if not snapshot.files:
        kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        return Problem(file=snapshot.folder, message=f"the folder holds no desired-state file ({kinds})")
    if entry is None:
        message = "no file has the key `models`; `models: {}` declares that there are none"
        return Problem(file=snapshot.folder, message=message)
    location = {"file": entry.place.file, "line": entry.place.line, "field": "models"}
    if is_null(entry.node):
        return Problem(**location, message="is empty here, which would remove every model; write `models: {}` for that")
    if not isinstance(entry.node, Table):
        return Problem(**location, message=f"must map names to definitions, is {kind_of(to_plain_value(entry.node))}")
    return entry.node


def redact_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems with secrets in their messages masked, in the same order. Every reader of files returns only
    such problems."""
    return tuple(each.model_copy(update={"message": mask_text(each.message)}) for each in problems)
