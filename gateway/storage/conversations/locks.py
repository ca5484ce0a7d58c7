"""Locks of conversations: only one response at a time may add items at the same place of a conversation. Pure.

The locks are in memory only: one gateway at a time has the database, and a response that was being made when its
gateway was killed adds nothing to its conversation.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.protocols.responses.conversation_items import BranchStart
from gateway.storage.conversations.errors import conversation_locked


class LockHolder(Protocol):
    """A response that adds its items to a conversation when it ends, and so holds a lock in it until then."""

    @property
    def response_id(self) -> str:
        """Id of the response."""

    def store_outcome(self) -> None:
        """If the response has ended, store it and release its lock; otherwise do nothing."""


class ConversationLocks:
    """The locks of all conversations of a gateway, by tenant and conversation id. Belongs to the event loop.

    A response that names the item that it follows (a `BranchStart`) locks that place of the tree; one that continues
    the active branch locks the whole conversation. No method waits. A conversation need not exist to be locked.
    """

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], list[_Lock]] = {}

    def acquire(self, tenant: str, conversation_id: str, holder: LockHolder, start: BranchStart | None = None) -> None:
        """Lock a conversation, or with `start` that place of it, for the response `holder`, which must call `release`
        at its end. Responses that have ended are stored first, which releases their locks.

        Raises:
            RoundhouseError: `conversation_locked` as `require_free` does, even if `holder` itself holds the lock.
        """
        self.require_free(tenant, conversation_id, start)
        self._locks.setdefault((tenant, conversation_id), []).append(_Lock(holder, start))

    def release(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Release the lock that `holder` holds in a conversation, if it holds one."""
        locks = self._locks.get((tenant, conversation_id), [])
        locks[:] = [lock for lock in locks if lock.holder is not holder]
        if not locks:
            self._locks.pop((tenant, conversation_id), None)

    def find_response(self, tenant: str, conversation_id: str) -> str | None:
        """Return the id of the response that is being made in a conversation, of several the one that was begun first;
        None: none is."""
        return next((lock.holder.response_id for lock in self._find_held(tenant, conversation_id)), None)

    def require_free(self, tenant: str, conversation_id: str, start: BranchStart | None = None) -> None:
        """Check that no response is being made in a conversation; with `start`, none that continues the active branch
        or follows the same item.

        Raises:
            RoundhouseError: `conversation_locked` if there is such a response.
        """
        for lock in self._find_held(tenant, conversation_id):
            if start is None or lock.start is None or lock.start == start:
                raise conversation_locked(conversation_id, lock.holder.response_id)

    def require_free_end(self, tenant: str, conversation_id: str) -> None:
        """Check that no response that continues the active branch is being made in a conversation, so that the end of
        that branch may be moved. Raises RoundhouseError `conversation_locked` if there is one."""
        for lock in self._find_held(tenant, conversation_id):
            if lock.start is None:
                raise conversation_locked(conversation_id, lock.holder.response_id)

    def _find_held(self, tenant: str, conversation_id: str) -> list[_Lock]:
        """Return the locks of responses that are being made, oldest first. A response that has ended is stored first,
        because its client may know its end already."""
        for lock in list(self._locks.get((tenant, conversation_id), ())):
            lock.holder.store_outcome()
        return list(self._locks.get((tenant, conversation_id), ()))


class _Lock(NamedTuple):
    """A lock that a response holds in a conversation."""

    holder: LockHolder
    start: BranchStart | None
    """The place that it locks; None: the whole conversation."""
