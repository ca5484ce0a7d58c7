"""Values as the files declare them: every one remembers its file and line. Immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"
"""What a file can hold, without places. Keys are strings; floats are finite."""


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where a value was written. `line` counts from 1; None: not in a text file."""

    file: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Scalar:
    """A string, number or boolean; None is a null."""

    value: str | int | float | bool | None
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class Listing:
    """A list."""

    items: tuple[Node, ...]
    place: SourcePlace


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a table, and what it holds. `place` is the key's own."""

    place: SourcePlace
    node: Node


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with string keys, in the order of the file."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    place: SourcePlace = SourcePlace("")
    is_replacement: bool = False
    """True: it stands in place of something that was no mapping, so nothing earlier shows through (see `merge`)."""

    def get(self, key: str) -> Node | None:
        """What the key holds; None when it is absent."""
        entry = self.entries.get(key)
        return entry.node if entry is not None else None

    def iterate_entries(self) -> Iterator[tuple[str, Entry]]:
        """The entries that are left when nulls have removed theirs."""
        return ((key, entry) for key, entry in self.entries.items() if not is_null(entry.node))


Node: TypeAlias = Scalar | Listing | Table


def is_null(node: Node) -> bool:
    """Whether the node is a null, which removes the key that holds it."""
    return isinstance(node, Scalar) and node.value is None


def to_plain_value(node: Node) -> Plain:
    """The bare values. Keys whose value is null are left out; a null within a list stays."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Listing):
        return [to_plain_value(item) for item in node.items]
    return {key: to_plain_value(entry.node) for key, entry in node.iterate_entries()}


def with_place(value: Plain, place: SourcePlace) -> Node:
    """A tree of bare values, all of them at one place."""
    if isinstance(value, list):
        return Listing(tuple(with_place(item, place) for item in value), place)
    if isinstance(value, dict):
        return Table({key: Entry(place, with_place(each, place)) for key, each in value.items()}, place)
    return Scalar(value, place)


def place_of(table: Table, path: Sequence[str | int]) -> SourcePlace:
    """The line of the key (or list item) that `path` leads to, or of the last one on the way that exists."""
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
    """The part of `path` that exists."""
    node: Node = table
    for count, step in enumerate(path):
        if isinstance(node, Table) and isinstance(step, str) and step in node.entries:
            node = node.entries[step].node
        elif isinstance(node, Listing) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
        else:
            return tuple(path[:count])
    return tuple(path)
