"""One response at a time in a conversation, or at a place of it that the response names."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.responses.conversation_items import BranchStart
from gateway.storage.conversations.locks import ConversationLocks


class Holder:
    """A response; once it is over, a look stores it and unlocks."""

    def __init__(self, locks: ConversationLocks, name: str) -> None:
        self.locks = locks
        self.response_id = name
        self.is_over = False

    def store_outcome(self) -> None:
        if self.is_over:
            self.locks.release("t", "conv_a", self)


def test_the_second_waits_for_the_first() -> None:
    locks = ConversationLocks()
    first, second = Holder(locks, "resp_1"), Holder(locks, "resp_2")
    locks.acquire("t", "conv_a", first)
    with pytest.raises(RoundhouseError, match="resp_1") as caught:
        locks.acquire("t", "conv_a", second)
    assert caught.value.entry.code == "conversation_locked"
    locks.release("t", "conv_a", second)
    with pytest.raises(RoundhouseError):
        locks.require_free("t", "conv_a")
    locks.acquire("u", "conv_a", second)
    locks.acquire("t", "conv_b", second)
    first.is_over = True
    locks.acquire("t", "conv_a", second)
    locks.release("t", "conv_a", second)
    locks.require_free("t", "conv_a")


def is_locked(locks: ConversationLocks, start: BranchStart | None = None) -> bool:
    """Whether the conversation, or that place of it, is locked."""
    try:
        locks.require_free("t", "conv_a", start)
    except RoundhouseError:
        return True
    return False


def is_end_locked(locks: ConversationLocks) -> bool:
    """Whether the end of the active branch must not be moved."""
    try:
        locks.require_free_end("t", "conv_a")
    except RoundhouseError:
        return True
    return False


def test_responses_that_follow_different_items_are_made_at_once() -> None:
    locks = ConversationLocks()
    one, two, plain = Holder(locks, "resp_1"), Holder(locks, "resp_2"), Holder(locks, "resp_3")
    at_a, at_root = BranchStart("a"), BranchStart(None)
    locks.acquire("t", "conv_a", one, at_a)
    locks.acquire("t", "conv_a", two, at_root)
    assert locks.find_response("t", "conv_a") == "resp_1"
    for start, is_taken in ((at_a, True), (at_root, True), (BranchStart("b"), False), (None, True)):
        assert is_locked(locks, start) is is_taken, start
    assert not is_end_locked(locks), "neither continues the active branch"
    one.is_over = True
    assert not is_locked(locks, at_a)
    assert locks.find_response("t", "conv_a") == "resp_2"
    two.is_over = True
    locks.acquire("t", "conv_a", plain)
    assert is_locked(locks, BranchStart("b"))
    assert is_end_locked(locks)
    locks.release("t", "conv_a", plain)
    assert not is_end_locked(locks)
    assert locks.find_response("t", "conv_a") is None
    assert locks._locks == {}, "nothing is kept of a conversation without a lock"
