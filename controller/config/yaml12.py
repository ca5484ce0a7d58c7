"""Parser of one file: YAML 1.2 (core schema) or JSON, to a tree in which every value has its line. Pure.

ruamel.yaml yields the events. Their meaning is decided here, so that `on`, `yes` and `2026-01-01` are strings, a
duplicate key is an error with a line, and no file can cause unbounded recursion or memory use. Problems name keys and
never values, because this module does not know which values are secrets.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

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

from controller.config.tree import Entry, Listing, Node, Scalar, SourcePlace, Table, is_null
from controller.schema.status import Problem

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
    alone and for one that is no mapping, which is a problem.

    A table of None means that the file could not be read to its end, so that its declarations are unknown. `file` is
    the name in problems. No problem shows a value.
    """
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
