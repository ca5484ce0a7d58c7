"""Merge of several files: mappings are merged deeply, lists are replaced, null removes a key. Pure.

`merge_tables` is associative: merging neighbours first gives the same as merging file by file. For that, two things
stay in the result until the end: a null that has removed a key, and the mark that a mapping has replaced something else
(`Table.is_replacement`), so that an earlier mapping does not show through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controller.config.tree import Entry, Node, Table


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
