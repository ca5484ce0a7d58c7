"""Where new items stand in the tree of a conversation, and how long the branches through them become. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.storage.conversations.records import NewItem


class BranchSize(NamedTuple):
    """Length of the branch from the root to an item, the item included."""

    items: int
    bytes: int


class Link(NamedTuple):
    """An item of a conversation's tree: its id, its parent's (None: it begins a branch at the root) and its size, but
    not its content."""

    id: str
    parent_id: str | None
    bytes: int


def parents_of(items: Sequence[NewItem], first_parent: str | None) -> list[str | None]:
    """Return the id of each new item's parent; None: the item begins a branch at the root.

    An item without a parent of its own follows the item before it, the first one follows `first_parent`.
    """
    parent_ids = []
    last_id = first_parent
    for item in items:
        parent_ids.append(last_id if item.start is None else item.start.parent_id)
        last_id = item.id
    return parent_ids


def find_outer_parents(items: Sequence[NewItem], parent_ids: Sequence[str | None]) -> dict[str, str]:
    """Return the ids of parents that no earlier item of the same request has, so that the conversation must have them,
    each with the path in the request that names it first."""
    outer_parents: dict[str, str] = {}
    earlier_ids: set[str] = set()
    for index, (item, parent_id) in enumerate(zip(items, parent_ids, strict=True)):
        if parent_id is not None and parent_id not in earlier_ids:
            outer_parents.setdefault(parent_id, "parent_id" if item.start is None else f"items[{index}].parent_id")
        earlier_ids.add(item.id)
    return outer_parents


def measure_branches(links: Iterable[Link], wanted_ids: Iterable[str]) -> dict[str, BranchSize]:
    """Return the length of the branch that ends with each of the wanted items.

    `links` are items of a tree, in any order, among them every wanted one and all that precede it. Wanted ids that are
    not among them are left out of the result.
    """
    links_by_id = {link.id: link for link in links}
    sizes: dict[str | None, BranchSize] = {None: BranchSize(0, 0)}
    found = {}
    for wanted_id in wanted_ids:
        path = []
        item_id: str | None = wanted_id
        while item_id not in sizes and item_id in links_by_id:
            path.append(links_by_id[item_id])
            item_id = links_by_id[item_id].parent_id
        size = sizes.get(item_id, BranchSize(0, 0))
        for link in reversed(path):
            size = sizes[link.id] = BranchSize(size.items + 1, size.bytes + link.bytes)
        if wanted_id in links_by_id:
            found[wanted_id] = sizes[wanted_id]
    return found


def longest_branch(
    items: Sequence[NewItem], parent_ids: Sequence[str | None], outer_sizes: Mapping[str, BranchSize]
) -> BranchSize:
    """Return the most items and the most bytes that a branch through a new item has; each may be another branch's.

    `outer_sizes`: from `measure_branches`, for every parent that is no new item.
    """
    sizes = dict(outer_sizes)
    most_items = most_bytes = 0
    for item, parent_id in zip(items, parent_ids, strict=True):
        before = BranchSize(0, 0) if parent_id is None else sizes[parent_id]
        size = sizes[item.id] = BranchSize(before.items + 1, before.bytes + len(item.item))
        most_items, most_bytes = max(most_items, size.items), max(most_bytes, size.bytes)
    return BranchSize(most_items, most_bytes)
