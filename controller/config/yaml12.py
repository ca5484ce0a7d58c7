"""Desired-state files as text and as trees, in which every value has its file and line: parsed as YAML 1.2 (core
schema) or JSON, merged, and written. Pure.

ruamel.yaml yields the events. Their meaning is decided here, so that `on`, `yes` and `2026-01-01` are strings, a
duplicate key is an error with a line, and no file can cause unbounded recursion or memory use. Problems name keys and
never values, because this module does not know which values are secrets.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any, Final, TypeAlias

from pydantic import JsonValue
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingEndEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from contract.status import Problem

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"
"""A value of a file without its place. Keys are strings; floats are finite."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """File and line of a value. `line` counts from 1; None means that the value comes from no text file."""

    file: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A string, number, boolean or null. None is null."""

    value: str | int | float | bool | None
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of the files, with the place of its beginning."""

    items: tuple[Node, ...]
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a table with its value. `place` is the place of the key."""

    place: SourcePlace
    node: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with string keys, in the order of the file, with the place of its beginning."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    place: SourcePlace = SourcePlace("")
    is_replacement: bool = False
    """True where the mapping has replaced a value that was no mapping, so that no earlier mapping shows through (see
    `merge_tables`)."""

    def get(self, key: str) -> Node | None:
        """Return the value of a key, which may be a null (`is_null`). None means that the key is absent."""
        entry = self.entries.get(key)
        return entry.node if entry is not None else None

    def iterate_entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield the entries whose value is not null."""
        return ((key, entry) for key, entry in self.entries.items() if not is_null(entry.node))


Node: TypeAlias = Scalar | Listing | Table


def is_null(node: Node) -> bool:
    """Return whether the node is a null, which removes its key where files are merged."""
    return isinstance(node, Scalar) and node.value is None


def to_plain_value(node: Node) -> Plain:
    """Return the value without places, as new lists and dicts. Keys with null are left out; nulls in lists stay."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Listing):
        return [to_plain_value(item) for item in node.items]
    return {key: to_plain_value(entry.node) for key, entry in node.iterate_entries()}


def with_place(value: Plain, place: SourcePlace) -> Node:
    """Return the tree of a plain value, in which every node has the same place. The reverse of `to_plain_value`."""
    if isinstance(value, list):
        return Listing(tuple(with_place(item, place) for item in value), place)
    if isinstance(value, dict):
        return Table({key: Entry(place, with_place(each, place)) for key, each in value.items()}, place)
    return Scalar(value, place)


def place_of(table: Table, path: Sequence[str | int]) -> SourcePlace:
    """Return the place of the key or list item at `path`, or of the deepest one on the way that exists; the table's own
    place where not even its first step does. Never raises."""
    node: Node = table
    place = table.place
    for step in path:
        if isinstance(node, Table) and isinstance(step, str) and step in node.entries:
            place, node = node.entries[step].place, node.entries[step].node
        elif isinstance(node, Listing) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
            place = node.place
        else:
            break
    return place


def known_part(table: Table, path: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the longest beginning of `path` that exists in the table; empty if its first step does not."""
    node: Node = table
    for count, step in enumerate(path):
        if isinstance(node, Table) and isinstance(step, str) and step in node.entries:
            node = node.entries[step].node
        elif isinstance(node, Listing) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
        else:
            return tuple(path[:count])
    return tuple(path)


MAX_DEPTH: Final = 32
"""Maximum nesting of mappings and lists."""
MAX_NODES: Final = 200_000
"""Maximum number of values of a file after aliases are resolved: one alias may stand for many values."""

UNKNOWN_TAG: Final = "a tag that is not known here; a text that begins with ! is put in quotes"

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MAX_DIGITS = 18
_HANDLE = re.compile(r" '!\w[^']*'")
"""A tag handle in ruamel's messages. An unquoted text that begins with `!` looks like one."""
_STRING_TAGS = ("tag:yaml.org,2002:str", "!")
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!")


class _FileError(Exception):
    """The file cannot be parsed beyond this line."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


def read_document(file: str, content: bytes) -> tuple[Table | None, list[Problem]]:
    """Parse a file to its table, and the list of all problems. Never raises. The table is empty for a file of comments
    alone and for one that is no mapping, which is a problem. A table of None means that the file could not be read to
    its end, so that its declarations are unknown. `file` is the name in problems. No problem shows a value."""
    problems: list[Problem] = []
    try:
        text = _decode(content)
        node = _Composer(file, text, _LineIndex(text), problems).compose_document()
    except _FileError as error:
        problems.append(Problem(file=file, line=error.line, message=str(error)))
        return None, problems
    if isinstance(node, Table):
        return node, problems
    if node is not None and not is_null(node):
        message = "a file is a mapping whose keys are `models` and `keys`"
        problems.append(Problem(file=file, line=node.place.line, message=message))
    return Table(place=SourcePlace(file, 1)), problems


def _decode(content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _FileError(f"not UTF-8: byte 0x{content[error.start]:02x}", line) from None
    return text.removeprefix("\ufeff")


class _LineIndex:
    """Line numbers as editors count them. ruamel counts by YAML 1.1, where U+2028 also begins a line."""

    def __init__(self, text: str) -> None:
        self._ends = [index for index, char in enumerate(text) if char == "\n"]
        self._last = len(self._ends) + (0 if text.endswith("\n") else 1)

    def find_line(self, index: int) -> int:
        """Return the line of the character at `index`. The end of the text belongs to its last line."""
        return min(bisect.bisect_left(self._ends, index) + 1, max(1, self._last))


def _events(text: str, lines: _LineIndex) -> Iterator[Any]:
    """Yield ruamel's events. Every exception of ruamel becomes a `_FileError` with a line."""
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = lines.find_line(mark.index) if mark is not None else None
        raise _FileError(_syntax_words(error.problem, error.context), line) from None
    except ReaderError as error:
        raise _FileError(_character_words(error.character), lines.find_line(error.position)) from None
    except Exception as error:  # noqa: BLE001 - of other people's parser: whatever it raises, this file caused it
        raise _FileError(f"not YAML 1.2 ({type(error).__name__})", None) from None


def _character_words(character: object) -> str:
    code = character if isinstance(character, int) else ord(str(character)[:1])
    return f"character U+{code:04X} is not allowed"


def _syntax_words(problem: str | None, context: str | None) -> str:
    if problem is not None and "'\\t'" in problem:
        return "a tab; YAML indents with spaces"
    return "not YAML 1.2: " + ", ".join(_HANDLE.sub("", part) for part in (problem, context) if part)


@dataclass
class _Composer:
    """Builder of one document's tree from ruamel's events, for one use. Every method that reads raises `_FileError`
    where the file cannot be parsed further; what is only wrong becomes a problem."""

    file: str
    text: str
    lines: _LineIndex
    problems: list[Problem]
    anchors: dict[str, Node | None] = field(default_factory=dict)
    """Anchored nodes by name. None while the node is being read, so that an alias to itself is detected."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Number of values in each anchored node."""
    places: dict[int, SourcePlace] = field(default_factory=dict)
    """Line to its place, which all values of the line share."""
    depth: int = 0
    node_count: int = 0

    def compose_document(self) -> Node | None:
        """Return the root of the only document. None means that the file has no document."""
        root: Node | None = None
        document_count = 0
        events = _events(self.text, self.lines)
        for event in events:
            if isinstance(event, DocumentStartEvent):
                document_count += 1
                if document_count > 1:
                    raise _FileError("a second document begins; a file holds one", self.find_line(event))
                if event.version not in (None, (1, 2)):
                    self.add_problem(event, "files are read as YAML 1.2; leave the %YAML line out")
            elif isinstance(event, NodeEvent):
                root = self.compose_node(event, events)
        return root

    def find_line(self, event: Any) -> int:
        """Return the line of an event."""
        return self.lines.find_line(event.start_mark.index)

    def locate_event(self, event: Any) -> SourcePlace:
        """Return the place of an event."""
        line = self.find_line(event)
        place = self.places.get(line)
        if place is None:
            place = self.places[line] = SourcePlace(self.file, line)
        return place

    def add_problem(self, event: Any, message: str) -> None:
        """Add a problem at an event, and continue."""
        self.problems.append(Problem(file=self.file, line=self.find_line(event), message=message))

    def compose_node(self, event: Any, events: Iterator[Any]) -> Node:
        """Read one value with everything in it."""
        self.node_count += 1
        if self.node_count > MAX_NODES:
            raise _FileError(f"more than {MAX_NODES} values", self.find_line(event))
        if isinstance(event, AliasEvent):
            return self.resolve_alias(event)
        node_count_before = self.node_count
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        node = (
            self.compose_collection(event, events)
            if isinstance(event, CollectionStartEvent)
            else self.compose_scalar(event)
        )
        if event.anchor is not None:
            self.anchors[event.anchor] = node
            self.sizes[event.anchor] = self.node_count - node_count_before + 1
        return node

    def resolve_alias(self, event: Any) -> Node:
        """Return the node that an alias stands for."""
        if event.anchor not in self.anchors:
            raise _FileError(
                "an alias whose anchor does not stand before it; a text that begins with * is put in quotes",
                self.find_line(event),
            )
        target = self.anchors[event.anchor]
        if target is None:
            raise _FileError("an alias that stands within its own anchor", self.find_line(event))
        self.node_count += self.sizes[event.anchor]
        return target

    def compose_collection(self, event: Any, events: Iterator[Any]) -> Node:
        """Read a mapping or a list to its end."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _FileError(f"nested more than {MAX_DEPTH} levels deep", self.find_line(event))
        if event.tag is not None and event.tag not in _COLLECTION_TAGS:
            self.add_problem(event, UNKNOWN_TAG)
        is_list = isinstance(event, SequenceStartEvent)
        node: Node = self.compose_list(event, events) if is_list else self.compose_table(event, events)
        self.depth -= 1
        return node

    def compose_list(self, event: Any, events: Iterator[Any]) -> Listing:
        """Read a list to its end."""
        items: list[Node] = []
        for item in events:
            if isinstance(item, SequenceEndEvent):
                break
            items.append(self.compose_node(item, events))
        return Listing(tuple(items), self.locate_event(event))

    def compose_table(self, event: Any, events: Iterator[Any]) -> Table:
        """Read a mapping to its end. A duplicate key is a problem."""
        entries: dict[str, Entry] = {}
        for key_event in events:
            if isinstance(key_event, MappingEndEvent):
                break
            key_node = self.compose_node(key_event, events)
            value = self.compose_node(next(events), events)
            key = self.compose_key(key_event, key_node)
            if key is None:
                continue
            if key in entries:
                self.add_problem(key_event, f"`{key}` stands twice; it is first on line {entries[key].place.line}")
                continue
            place = self.locate_event(key_event) if isinstance(key_event, AliasEvent) else key_node.place
            entries[key] = Entry(place, value)
        return Table(entries, self.locate_event(event))

    def compose_key(self, event: Any, node: Node) -> str | None:
        """Return the key of an entry. None means that the key is no string, which is a problem."""
        if isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value == "<<" and event.style is None:
                self.add_problem(
                    event, "`<<` is not part of YAML 1.2; write the fields, or use an alias for a whole value"
                )
                return None
            return node.value
        quotes = ": put it in quotes" if isinstance(event, ScalarEvent) and event.value else ""
        self.add_problem(event, f"a key is a string{quotes}")
        return None

    def compose_scalar(self, event: Any) -> Scalar:
        """Read a scalar by the core schema. A quoted scalar, or one tagged `!!str`, is a string."""
        place = self.locate_event(event)
        text: str = event.value
        if event.style is not None or event.tag in _STRING_TAGS:
            return Scalar(self.join_surrogates(event, text), place)
        if event.tag is not None:
            self.add_problem(event, UNKNOWN_TAG)
        try:
            return Scalar(resolve_scalar(text), place)
        except ValueError as error:
            self.add_problem(event, str(error))
            return Scalar(None, place)

    def join_surrogates(self, event: Any, text: str) -> str:
        """Return the text with surrogate pairs of JSON joined to characters."""
        if not any("\ud800" <= char <= "\udfff" for char in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.add_problem(event, "half of a surrogate pair")
            return ""


def resolve_scalar(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar in YAML 1.2's core schema; a text that is nothing else is a string. Raises
    ValueError for an integer of more than 18 characters, and for a number that is not finite."""
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return match.group(1) is not None
    if _INT.fullmatch(text) or _BASED.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError("too large a number; a text of digits is put in quotes")
        return int(text, 0) if _BASED.fullmatch(text) else int(text)
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        number = math.inf if _NOT_FINITE.fullmatch(text) else float(text)
        if not math.isfinite(number):
            raise ValueError("not a finite number; a text that looks like one is put in quotes")
        return number
    return text


def merge_nodes(earlier: Node, later: Node) -> Node:
    """Return the merge of two values of the same key. Mappings are merged deeply; of other values, a null included,
    `later` wins. Neither is changed."""
    if not isinstance(later, Table) or later.is_replacement:
        return later
    if not isinstance(earlier, Table):
        return replace(later, is_replacement=True)
    return merge_tables(earlier, later)


def merge_tables(earlier: Table, later: Table) -> Table:
    """Return the merge of two mappings, value by value as `merge_nodes`. Neither is changed. A key that both have keeps
    its position, and has the file and line of the later one. A null of `later` stays as a null, which
    `Table.iterate_entries` and `to_plain_value` leave out."""
    entries = dict(earlier.entries)
    for key, entry in later.entries.items():
        earlier_entry = entries.get(key)
        entries[key] = (
            Entry(entry.place, merge_nodes(earlier_entry.node, entry.node)) if earlier_entry is not None else entry
        )
    return Table(entries, later.place, is_replacement=earlier.is_replacement)


def merge_all(tables: Iterable[Table]) -> Table:
    """Return the merge of any number of files in order, the last one strongest; an empty table for none. A key that a
    null has removed stays as a null, which `Table.iterate_entries` and `to_plain_value` leave out."""
    merged_table = Table()
    for table in tables:
        merged_table = merge_tables(merged_table, table)
    return merged_table


_NEVER_FOLDED = 2**31 - 1


def write_yaml(document: Mapping[str, JsonValue]) -> str:
    """Return the YAML 1.2 text of a document, with a line feed at its end and the keys in their order. `read_document`
    reads the same values from the text."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] # ruamel's own annotation says None
    yaml.allow_unicode = True
    yaml.width = _NEVER_FOLDED
    text = StringIO()
    yaml.dump(dict(document), text)
    return text.getvalue()
