"""One response at a time in a conversation."""

from __future__ import annotations

import pytest

from controller.schema.errors import RoundhouseError
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
