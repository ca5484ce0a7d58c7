"""Immutable values of the files. Each value carries its file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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
    `merge`)."""

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
