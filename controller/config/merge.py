"""Files over files: mappings deep-merged, lists replaced, null removes a key. Pure.

`merge` is associative: merging neighbours first, or one file after the other, gives the same. That needs two things to
stay visible until the end: a null that has removed a key, and that a mapping has replaced something that was no mapping
(`Table.is_replacement`), through which an earlier mapping must not show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controller.config.tree import Entry, Node, Table


def merge_nodes(earlier: Node, later: Node) -> Node:
    """What both say together; `later` has the last word."""
    if not isinstance(later, Table) or later.is_replacement:
        return later
    if not isinstance(earlier, Table):
        return replace(later, is_replacement=True)
    return merge_tables(earlier, later)


def merge_tables(earlier: Table, later: Table) -> Table:
    """Two mappings together. An entry of both is placed where the later one writes it."""
    entries = dict(earlier.entries)
    for key, entry in later.entries.items():
        earlier_entry = entries.get(key)
        entries[key] = (
            Entry(entry.place, merge_nodes(earlier_entry.node, entry.node)) if earlier_entry is not None else entry
        )
    return Table(entries, later.place, is_replacement=earlier.is_replacement)


def merge_all(tables: Iterable[Table]) -> Table:
    """Any number of files, the last one strongest."""
    merged_table = Table()
    for table in tables:
        merged_table = merge_tables(merged_table, table)
    return merged_table
