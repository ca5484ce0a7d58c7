"""Locks of conversations: only one response at a time may add items to a conversation. Pure.

The locks are in memory only: one gateway at a time has the database, and a response that was being made when its
gateway was killed adds nothing to its conversation.
"""

from __future__ import annotations

from typing import Protocol

from gateway.storage.conversations.errors import conversation_locked


class LockHolder(Protocol):
    """A response that adds its items to a conversation at its end, and so holds the conversation's lock until then."""

    @property
    def response_id(self) -> str:
        """Id of the response."""

    def store_outcome(self) -> None:
        """If the response has ended, store it and release its lock; otherwise do nothing."""


class ConversationLocks:
    """The locks of all conversations of a gateway, by tenant and conversation id. Belongs to the event loop.

    No method waits. A conversation need not exist to be locked.
    """

    def __init__(self) -> None:
        self._holders: dict[tuple[str, str], LockHolder] = {}

    def acquire(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Lock a conversation for the response `holder`, which must call `release` at its end. A holder before it that
        has ended is stored first, which releases its lock.

        Raises:
            RoundhouseError: `conversation_locked` if a running response holds the lock, even if it is `holder`.
        """
        self.require_free(tenant, conversation_id)
        self._holders[tenant, conversation_id] = holder

    def release(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Unlock a conversation if `holder` holds its lock; otherwise do nothing."""
        if self._holders.get((tenant, conversation_id)) is holder:
            del self._holders[tenant, conversation_id]

    def find_response(self, tenant: str, conversation_id: str) -> str | None:
        """Return the id of the response that is being made in a conversation; None: none is.

        A holder that has ended is stored first, because its client may know its end already.
        """
        holder = self._holders.get((tenant, conversation_id))
        if holder is not None:
            holder.store_outcome()
            holder = self._holders.get((tenant, conversation_id))
        return None if holder is None else holder.response_id

    def require_free(self, tenant: str, conversation_id: str) -> None:
        """Check that no response is being made in a conversation, as `find_response` finds it.

        Raises:
            RoundhouseError: `conversation_locked` if a response that has not ended holds the lock.
        """
        response_id = self.find_response(tenant, conversation_id)
        if response_id is not None:
            raise conversation_locked(conversation_id, response_id)
