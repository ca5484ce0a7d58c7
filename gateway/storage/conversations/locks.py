"""Locks of conversations: one response at a time may write into a conversation. Pure.

The locks are in memory only: one gateway at a time has the database, and a response that was being made when its
gateway was killed adds nothing to its conversation.
"""

from __future__ import annotations

from typing import Protocol

from gateway.storage.conversations.errors import conversation_locked


class LockHolder(Protocol):
    """A response that is being made in a conversation."""

    @property
    def response_id(self) -> str:
        """The response's id."""

    def store_outcome(self) -> None:
        """Store the response and release its lock, if it has ended."""


class ConversationLocks:
    """The locks, by tenant and conversation id, so that no tenant learns of another's conversations."""

    def __init__(self) -> None:
        self._holders: dict[tuple[str, str], LockHolder] = {}

    def acquire(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Lock a conversation for the response `holder`.

        Raises:
            RoundhouseError: `conversation_locked` if another response holds the lock.
        """
        self.require_free(tenant, conversation_id)
        self._holders[tenant, conversation_id] = holder

    def release(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Unlock a conversation if `holder` has locked it; otherwise do nothing."""
        if self._holders.get((tenant, conversation_id)) is holder:
            del self._holders[tenant, conversation_id]

    def require_free(self, tenant: str, conversation_id: str) -> None:
        """Check that no response is being made in a conversation.

        A holder that has ended is stored first, because its client may know its end already.

        Raises:
            RoundhouseError: `conversation_locked`.
        """
        holder = self._holders.get((tenant, conversation_id))
        if holder is not None:
            holder.store_outcome()
            holder = self._holders.get((tenant, conversation_id))
        if holder is not None:
            raise conversation_locked(conversation_id, holder.response_id)
