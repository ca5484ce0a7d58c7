"""The tree of a conversation against a plain dict: items added anywhere, deleted, moved to, in any order, over
restarts."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from controller.schema.errors import RoundhouseError
from gateway.protocols.responses.conversation_items import BranchStart
from gateway.storage.conversations.records import (
    BranchEnd,
    ConversationChange,
    ConversationTurn,
    ItemListForm,
    NewItem,
    encode_items,
)
from gateway.storage.database import StateDatabase
from gateway.storage.pagination import ListQuery
from gateway.storage.responses.records import HistoryBounds
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from tests.support.stored import MIB, Clock, message, opened, rid

ID = "conv_a"
NAMES = [f"i{number}" for number in range(12)]
MOST_ITEMS = 5
BOUNDS = HistoryBounds(MIB, items=MOST_ITEMS)
WHOLE = ListQuery(limit=1000, is_ascending=True)
Parents = dict[str, str | None]
"""Each item's parent, in the order in which the items were added."""
Placed = tuple[str, BranchStart | None]
"""A new item, and where it begins a branch; None: it follows the one before it."""
names = st.sampled_from(NAMES)
starts = st.none() | st.builds(BranchStart, st.none() | names)
added_items = st.lists(st.tuples(names, starts), max_size=5, unique_by=lambda each: each[0])


def made(name: str, start: BranchStart | None = None) -> NewItem:
    """A message that says its name."""
    [item] = encode_items([message(name, f"says {name}")])
    return item._replace(start=start)


def placed(parents: Parents, items: list[Placed], first: str | None) -> Parents | None:
    """The tree with new items, of which each follows the one before it or the item that it names; None: one of these is
    not there."""
    after, last = dict(parents), first
    if first is not None and first not in parents:
        return None
    for name, start in items:
        parent = last if start is None else start.parent_id
        if parent is not None and parent not in after:
            return None
        last = name
        after.setdefault(name, parent)
    return after


def depth(parents: Parents, name: str | None) -> int:
    """Number of items of the branch that ends with an item."""
    return 0 if name is None else 1 + depth(parents, parents[name])


class Trees(RuleBasedStateMachine):
    """One conversation, and what it should hold: each item's parent, in the order of creation, and the active item."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rh"))
        self.database: StateDatabase = opened(self.folder, Clock())
        self.parents: Parents = {}
        self.active: str | None = None

    def teardown(self) -> None:
        self.database.close()

    def branch(self, last: str | None) -> list[str]:
        """Names of the branch that ends with an item, the first one first."""
        found = []
        while last is not None:
            found.append(last)
            last = self.parents[last]
        return found[::-1]

    @initialize(items=added_items)
    def create(self, items: list[Placed]) -> None:
        """The first items come with the conversation."""
        self.check_adding(items, None, is_new=True)

    @rule(items=added_items, start=starts)
    def add(self, items: list[Placed], start: BranchStart | None) -> None:
        """A client adds items."""
        self.check_adding(items, start)

    def check_adding(self, items: list[Placed], start: BranchStart | None, *, is_new: bool = False) -> None:
        """All items are added, or none where the model says that one cannot be."""
        first = self.active if start is None else start.parent_id
        after = placed(self.parents, items, first)
        if after is None:
            expected = "conversation_item_not_found"
        elif any(name in self.parents or depth(after, name) > MOST_ITEMS for name, _ in items):
            expected = "invalid_request"
        else:
            expected = ""
        encoded = [made(*each) for each in items]
        conversations, told = self.database.conversations, ""
        try:
            with self.database.transaction():
                if is_new:
                    conversations.create("t", ID, {}, encoded, None, BOUNDS)
                else:
                    shown = conversations.add_items("t", ID, encoded, start, BOUNDS)
                    assert after is not None
                    assert [each["parent_id"] for each in shown] == [after[name] for name, _ in items]
        except RoundhouseError as error:
            told = error.entry.code
        assert told == expected
        if after is not None and not expected and items:
            self.parents, self.active = after, items[-1][0]
        elif is_new and expected:
            with self.database.transaction():
                conversations.create("t", ID, {}, [])

    @rule(name=names)
    def answer(self, name: str) -> None:
        """A response adds an item below the active one; an item whose id is taken gets another one."""
        if name in self.parents:
            return
        self.database.save_objects(ConversationTurn(rid("x"), ID, "t", "m", (made(name),)))
        self.parents[name], self.active = self.active, name

    @rule(name=names)
    def delete(self, name: str) -> None:
        """What followed the item follows its parent."""
        with self.refused_unless(name in self.parents), self.database.transaction():
            self.database.conversations.delete_item("t", ID, name)
        if name not in self.parents:
            return
        parent = self.parents.pop(name)
        self.parents = {each: parent if old == name else old for each, old in self.parents.items()}
        self.active = parent if self.active == name else self.active

    @rule(name=st.none() | names)
    def move(self, name: str | None) -> None:
        """Exactly that item is active then."""
        change = ConversationChange(active_item=BranchEnd(name))
        is_there = name is None or name in self.parents
        with self.refused_unless(is_there), self.database.transaction():
            assert self.database.conversations.update("t", ID, change).active_item == name
        self.active = name if is_there else self.active

    @staticmethod
    def refused_unless(is_there: bool) -> AbstractContextManager[Any]:
        """A context in which an item that is not there is refused."""
        return nullcontext() if is_there else pytest.raises(RoundhouseError, match="not found in conversation")

    @rule()
    def restart(self) -> None:
        """Another gateway opens the file."""
        self.database.close()
        self.database = opened(self.folder, Clock())

    @invariant()
    def holds_what_it_should(self) -> None:
        """The whole tree, the active branch, and each branch that a response would be made from."""
        conversations = self.database.conversations
        found = conversations.find("t", ID)
        if found is None:
            return  # not created yet
        assert (found.active_item, found.item_count) == (self.active, len(self.parents))
        tree = conversations.list_items("t", ID, WHOLE, ItemListForm(has_all_branches=True))["data"]
        assert [(item["id"], item["parent_id"]) for item in tree] == list(self.parents.items())
        active = conversations.list_items("t", ID, WHOLE)["data"]
        assert [item["id"] for item in active] == self.branch(self.active)
        for name in self.parents:
            loaded = present(conversations.load_until("t", ID, name))
            assert [item["id"] for item in loaded] == self.branch(name)
        [outlines] = self.database._db.execute("SELECT count(*) FROM item_outlines").fetchone()
        assert outlines == len(self.parents)


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=campaign_count(40, 5_000), stateful_step_count=20, deadline=None)
