"""Ends calls of the older generation of MCP clients, which cancel by a message of its own (`notifications/cancelled`).

Each message stands alone, and clients count their requests from the same number on. So the gateway gives each client
that shakes hands an id, which it does not keep: a client's later messages show it, and tell its calls from others'.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class CancelledByClientError(Exception):
    """Raised in a running call when its client sends `notifications/cancelled` for the call."""


class CallKey(NamedTuple):
    """Names one call of one client: no two running calls have the same key, unless a client uses an id twice."""

    caller: str | None
    """Name of the caller's key; None: no keys are declared."""
    session: str
    """The id that the client was given."""
    request: str | int
    """Id of the call's JSON-RPC request, which the client has chosen."""


def make_session_id() -> str:
    """Return a new id for a client, of 32 hexadecimal digits, which nobody can guess."""
    return uuid.uuid4().hex


class CancellableCalls:
    """The running calls that a message can end. One for a gateway; used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[CallKey, asyncio.Timeout] = {}

    @asynccontextmanager
    async def hold(self, key: CallKey | None) -> AsyncIterator[None]:
        """Let `cancel` end what runs within the context: it gets a CancelledError. None: no message can end it. Of two
        calls with the same key, which a client must not make, the later one can be ended.

        Raises:
            CancelledByClientError: when the context is left, if `cancel` was called with the key.
        """
        if key is None:
            yield
            return
        end = asyncio.timeout(None)
        try:
            async with end:
                self._running[key] = end
                try:
                    yield
                finally:
                    if self._running.get(key) is end:
                        del self._running[key]
        except TimeoutError:
            if end.expired():
                raise CancelledByClientError from None
            raise

    def cancel(self, key: CallKey) -> None:
        """End the running call with this key, and return before it has ended. Does nothing if there is none: it may
        have ended, or another gateway runs it."""
        end = self._running.get(key)
        if end is not None:
            end.reschedule(asyncio.get_running_loop().time())
