"""Who writes into which conversation now: one response at a time. Pure.

The locks are in memory: one gateway at a time has the database, and a response that a killed gateway was making adds
nothing to its conversation.
"""

from __future__ import annotations

from typing import Protocol

from gateway.storage.conversations.errors import conversation_locked


class LockHolder(Protocol):
    """A response that is being made in a conversation."""

    @property
    def response_id(self) -> str:
        """Its id."""

    def store_outcome(self) -> None:
        """Store it and release its lock, if it is known by now what became of it."""


class ConversationLocks:
    """By tenant and id, so that nobody finds out about another tenant's conversations."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, str], LockHolder] = {}

    def acquire(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Lock a conversation. Raises RoundhouseError `conversation_locked`."""
        self.require_free(tenant, conversation_id)
        self._holders[tenant, conversation_id] = holder

    def release(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Unlock a conversation, if it is `holder` that has locked it."""
        if self._holders.get((tenant, conversation_id)) is holder:
            del self._holders[tenant, conversation_id]

    def require_free(self, tenant: str, conversation_id: str) -> None:
        """Raises RoundhouseError `conversation_locked`: a response is being made in it. One whose end is known is
        stored first: what its client was told, others may count on."""
        holder = self._holders.get((tenant, conversation_id))
        if holder is not None:
            holder.store_outcome()
            holder = self._holders.get((tenant, conversation_id))
        if holder is not None:
            raise conversation_locked(conversation_id, holder.response_id)
