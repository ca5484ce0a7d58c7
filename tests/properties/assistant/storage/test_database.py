"""Stored responses and trees of conversations against plain dicts: whatever happens in any order, over restarts."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assistant.storage.conversation_records import (
    BranchEnd,
    ConversationChange,
    ConversationTurn,
    ItemListForm,
    NewItem,
    encode_items,
)
from assistant.storage.database import StateDatabase
from assistant.storage.pagination import ListQuery
from assistant.storage.records import CONTINUABLE, RUNNING, History, HistoryBounds
from assistant.storage.table_file import DatabaseFullError
from contract.errors import RoundhouseError
from gateway.protocols.responses.items import BranchStart
from tests.support.campaign import campaign_count
from tests.support.outcomes import present
from tests.support.stored import HOUR, MIB, Clock, iid, message, opened, response, rid, stored

TENANTS = ("t", "u")
STATUSES = ("completed", "completed", "completed", "incomplete", "failed", "cancelled", "queued")
MAX_MIB = 1.0
NAMES = 8
names = st.integers(0, NAMES - 1)
tenants = st.sampled_from((*TENANTS, TENANTS[0]))


@dataclass
class Kept:
    """What the model knows of a response."""

    tenant: str
    previous: str | None
    status: str
    used_at: float
    order: int


def history_or_code(database: StateDatabase, tenant: str, name: int | str) -> History | str:
    """What is continued, or the code of the refusal."""
    try:
        return database.load_history(tenant, rid(str(name)), (), HistoryBounds(4 * MIB))
    except RoundhouseError as error:
        return error.entry.code


class Responses(RuleBasedStateMachine):
    """The database, and what it should hold. Names are reused, as ids never are: what is there is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="rh"))
        self.clock = Clock()
        self.database = opened(self.folder, self.clock, max_mib=MAX_MIB)
        self.kept: dict[str, Kept] = {}
        self.saves = 0

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    # The model

    def there(self, tenant: str, name: str) -> Kept | None:
        found = self.kept.get(name)
        is_there = found is not None and found.tenant == tenant and found.used_at >= self.clock.now - HOUR
        return found if is_there else None

    def chain(self, tenant: str, name: str | None) -> list[str]:
        """The newest first."""
        links: list[str] = []
        while name is not None and self.there(tenant, name) is not None and name not in links:
            links.append(name)
            name = self.kept[name].previous
        return links

    def leads_to(self, previous: int | None, name: int) -> bool:
        """Whether what is continued would continue `name`."""
        at = None if previous is None else str(previous)
        while at is not None and at != str(name):
            found = self.kept.get(at)
            at = None if found is None else found.previous
        return at is not None

    def use(self, links: list[str]) -> None:
        for name in links:
            self.kept[name].used_at = max(self.kept[name].used_at, self.clock.now)

    # What happens

    @initialize()
    def begin_with_some(self) -> None:
        for name, previous in ((0, None), (1, 0), (2, 1), (3, 1), (4, None)):
            self.save(name, previous, "t", "completed", 10)

    @rule(name=names, previous=st.none() | names, tenant=tenants, status=st.sampled_from(STATUSES))
    def save_little(self, name: int, previous: int | None, tenant: str, status: str) -> None:
        self.save(name, previous, tenant, status, 10)

    @rule(name=names, previous=names, size=st.sampled_from((100_000, 200_000, 300_000, 2_000_000)))
    def save_much(self, name: int, previous: int, size: int) -> None:
        self.save(name, previous, "t", "completed", size)

    def save(self, name: int, previous: int | None, tenant: str, status: str, size: int) -> None:
        self.clock.now += 1
        if self.leads_to(previous, name):
            return  # a new response continues older ones, never itself
        before = dict(self.kept)
        made = stored(
            str(name), None if previous is None else str(previous), tenant=tenant, status=status, question="x" * size
        )
        try:
            self.database.save_objects(made)
        except DatabaseFullError:
            running = [each for each in self.kept if each != str(name) and self.kept[each].status in RUNNING]
            assert size > MAX_MIB * MIB or running
            assert self.names_there() == set(before)
            return
        self.kept.pop(str(name), None)
        self.use(self.chain(tenant, None if previous is None else str(previous)))
        self.evict()
        self.saves += 1
        self.kept[str(name)] = Kept(tenant, made.previous_id and str(previous), status, self.clock.now, self.saves)

    def evict(self) -> None:
        """Forget what the database has forgotten, which must be what was used longest ago."""
        gone = set(self.kept) - self.names_there()
        assert all(self.kept[name].status not in RUNNING for name in gone)
        over = [name for name, each in self.kept.items() if each.status not in RUNNING]
        in_turn = sorted(over, key=lambda name: (self.kept[name].used_at, self.kept[name].order))
        assert set(in_turn[: len(gone)]) == gone
        for name in gone:
            del self.kept[name]

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def continue_one_of_them(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.kept)))
        self.continue_it(name, self.kept[name].tenant)

    @rule(name=names, tenant=tenants)
    def continue_any(self, name: int, tenant: str) -> None:
        self.continue_it(name, tenant)

    def continue_it(self, name: int | str, tenant: str) -> None:
        self.clock.now += 1
        links = self.chain(tenant, str(name))
        is_whole = bool(links) and self.kept[links[-1]].previous is None
        has_answer = bool(links) and self.kept[links[0]].status in CONTINUABLE
        found = history_or_code(self.database, tenant, name)
        if isinstance(found, str):
            assert found == ("invalid_request" if links and not has_answer else "previous_response_not_found")
            assert not (is_whole and has_answer)
            return
        assert is_whole
        assert has_answer
        expected = []
        for link in reversed(links):
            expected.append(iid(link, "in"))
            if self.kept[link].status in CONTINUABLE:
                expected.append(iid(link, "out"))
        assert [item["id"] for item in found.items] == expected
        self.use(links)

    @rule(name=names, tenant=tenants)
    def refer(self, name: int, tenant: str) -> None:
        found = self.database.load_history(tenant, None, (iid(str(name), "in"),), HistoryBounds(4 * MIB))
        is_there = self.there(tenant, str(name)) is not None
        assert list(found.referenced_items) == ([iid(str(name), "in")] if is_there else [])
        if is_there:
            self.use([str(name)])

    @rule(name=names, tenant=tenants)
    def delete(self, name: int, tenant: str) -> None:
        is_there = self.there(tenant, str(name)) is not None
        assert self.database.delete_response(tenant, rid(str(name))) is is_there
        if is_there:
            del self.kept[str(name)]

    @rule(minutes=st.sampled_from((1, 20, 20, 61)))
    def pass_time(self, minutes: int) -> None:
        self.clock.now += minutes * 60

    @rule()
    def sweep(self) -> None:
        while self.database.sweep_expired():
            pass
        for name, each in list(self.kept.items()):
            if each.used_at < self.clock.now - HOUR and each.status not in RUNNING:
                del self.kept[name]
        assert self.names_there() == set(self.kept)

    @rule()
    def restart(self) -> None:
        self.database.close()
        self.database = opened(self.folder, self.clock, max_mib=MAX_MIB)
        for each in self.kept.values():
            each.status = "failed" if each.status in RUNNING else each.status

    # What always holds

    def names_there(self) -> set[str]:
        """Swept or not."""
        rows = self.database._db.execute("SELECT id FROM responses").fetchall()
        known = {rid(str(name)): str(name) for name in range(NAMES)}
        return {known[name] for (name,) in rows}

    @invariant()
    def everything_is_found_by_its_tenant_alone(self) -> None:
        for name in map(str, range(NAMES)):
            for tenant in TENANTS:
                found = self.database.find_response(tenant, rid(str(name)))
                known = self.there(tenant, name)
                assert (found is None) is (known is None), (name, tenant)
                if found is not None and known is not None:
                    assert found.response["status"] == known.status
                    if known.status not in ("queued", "failed"):
                        assert found.response == response(name, known.previous, known.status)

    @invariant()
    def it_is_known_when_each_was_used(self) -> None:
        rows = self.database._db.execute("SELECT id, used_at FROM responses").fetchall()
        assert dict(rows) == {rid(name): each.used_at for name, each in self.kept.items()}

    @invariant()
    def it_is_bounded_and_sound(self) -> None:
        assert self.database.count_stored().bytes <= MAX_MIB * MIB
        assert self.database._db.execute("PRAGMA foreign_key_check").fetchall() == []


TestResponses = Responses.TestCase
TestResponses.settings = settings(max_examples=campaign_count(15, 600), stateful_step_count=40)


ID = "conv_a"
ITEM_NAMES = [f"i{number}" for number in range(12)]
MOST_ITEMS = 5
BOUNDS = HistoryBounds(MIB, items=MOST_ITEMS)
WHOLE = ListQuery(limit=1000, is_ascending=True)
Parents = dict[str, str | None]
"""Each item's parent, in the order in which the items were added."""
Placed = tuple[str, BranchStart | None]
"""A new item, and where it begins a branch; None: it follows the one before it."""
item_names = st.sampled_from(ITEM_NAMES)
starts = st.none() | st.builds(BranchStart, st.none() | item_names)
added_items = st.lists(st.tuples(item_names, starts), max_size=5, unique_by=lambda each: each[0])


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

    @rule(name=item_names)
    def answer(self, name: str) -> None:
        """A response adds an item below the active one; an item whose id is taken gets another one."""
        if name in self.parents:
            return
        self.database.save_objects(ConversationTurn(rid("x"), ID, "t", "m", (made(name),)))
        self.parents[name], self.active = self.active, name

    @rule(name=item_names)
    def delete(self, name: str) -> None:
        """What followed the item follows its parent."""
        with self.refused_unless(name in self.parents), self.database.transaction():
            self.database.conversations.delete_item("t", ID, name)
        if name not in self.parents:
            return
        parent = self.parents.pop(name)
        self.parents = {each: parent if old == name else old for each, old in self.parents.items()}
        self.active = parent if self.active == name else self.active

    @rule(name=st.none() | item_names)
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
            loaded = present(conversations.load_until("t", ID, name)).items
            assert [item["id"] for item in loaded] == self.branch(name)
        [outlines] = self.database._db.execute("SELECT count(*) FROM item_outlines").fetchone()
        assert outlines == len(self.parents)


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=campaign_count(40, 5_000), stateful_step_count=20, deadline=None)
