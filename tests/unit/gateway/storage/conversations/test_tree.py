"""Where new items stand in a tree, and how long its branches become."""

from __future__ import annotations

import pytest

from gateway.protocols.responses.conversation_items import BranchStart
from gateway.storage.conversations.records import NewItem
from gateway.storage.conversations.tree import (
    BranchSize,
    Link,
    find_outer_parents,
    longest_branch,
    measure_branches,
    parents_of,
)

ROOT = BranchStart(None)
STORED = [Link("c", "b", 4), Link("a", None, 1), Link("b", "a", 2), Link("x", None, 8)]


def new(item_id: str, start: BranchStart | None = None, size: int = 1) -> NewItem:
    return NewItem(item_id, b"." * size, start=start)


@pytest.mark.parametrize(
    ("items", "first", "parents", "outer"),
    [
        ([], "z", [], {}),
        ([new("a"), new("b")], None, [None, "a"], {}),
        ([new("a"), new("b")], "z", ["z", "a"], {"z": "parent_id"}),
        ([new("a", ROOT), new("b", ROOT), new("c")], "z", [None, None, "b"], {}),
        ([new("a", BranchStart("z")), new("b", BranchStart("y")), new("c", BranchStart("z"))], None,
         ["z", "y", "z"], {"z": "items[0].parent_id", "y": "items[1].parent_id"}),
        ([new("a"), new("b", BranchStart("c")), new("c", BranchStart("a"))], None,
         [None, "c", "a"], {"c": "items[1].parent_id"}),
        ([new("a", BranchStart("a"))], None, ["a"], {"a": "items[0].parent_id"}),
    ],
)  # fmt: skip
def test_what_new_items_follow(
    items: list[NewItem], first: str | None, parents: list[str | None], outer: dict[str, str]
) -> None:
    assert parents_of(items, first) == parents
    assert find_outer_parents(items, parents) == outer


def test_branches_are_measured_to_the_items_that_are_wanted() -> None:
    assert measure_branches(STORED, ["c", "b", "x", "gone"]) == {
        "c": BranchSize(3, 7),
        "b": BranchSize(2, 3),
        "x": BranchSize(1, 8),
    }
    assert measure_branches(STORED, []) == {}


def test_the_longest_branch_counts_items_and_bytes_each_for_itself() -> None:
    stored = measure_branches(STORED, ["c", "x"])
    items = [new("d", size=1), new("e", BranchStart("x"), size=9), new("f", BranchStart("c"), size=2)]
    assert longest_branch(items, ["c", "x", "c"], stored) == BranchSize(4, 17)
    assert longest_branch(items[:2], ["c", "x"], stored) == longest_branch(items[1::-1], ["x", "c"], stored)
    assert longest_branch([], [], {}) == BranchSize(0, 0)
    assert longest_branch([new("d"), new("e")], [None, "d"], {}) == BranchSize(2, 2)
