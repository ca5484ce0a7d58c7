"""The calls that run at one MCP server: who waits for their end, and what the controller is told of its replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ReplicaLedger(Protocol):
    """Counts what is in flight at replicas of the controller, for the gateway's reports."""

    def enter_replica(self, model: str | None, replica: str, request_id: str) -> None:
        """Count a call at `replica` as in flight. `model` is None: the replica is an MCP server, which is no model."""

    def leave_replica(self, model: str | None, replica: str, request_id: str) -> None:
        """Count a call no more. Call once per `enter_replica`, with the same arguments; else raises KeyError."""

    def record_failure(self, replica: str) -> None:
        """Have the next report ask the controller to probe `replica`, which refused or broke a connection. Returns at
        once."""

    def record_answer(self, replica: str) -> None:
        """Forget the failures of `replica`, which has answered. Does nothing if there are none."""


class RunningCalls:
    """The calls that run over one connection. Used in the event loop.

    Where the controller runs the server, each call is in flight at its replica from `hold` on, so that a drain of the
    replica waits for the call.
    """

    def __init__(self, replica: str | None, ledger: ReplicaLedger) -> None:
        """`replica`: name of the server's replica; None: the controller does not run the server, and nothing is noted
        in `ledger`."""
        self._replica = replica
        self._ledger = ledger
        self._count = 0
        self._are_ended = asyncio.Event()
        self.is_closed = False
        """Whether `close` was called."""

    @contextmanager
    def hold(self, request_id: str) -> Iterator[None]:
        """Count one call as running within the context. `request_id`: of the request that the call belongs to, which
        may have several at a time."""
        self._count += 1
        if self._replica is not None:
            self._ledger.enter_replica(None, self._replica, request_id)
        try:
            yield
        finally:
            if self._replica is not None:
                self._ledger.leave_replica(None, self._replica, request_id)
            self._count -= 1
            self._note_end()

    def close(self) -> None:
        """Begin no further calls: `wait_ended` returns once those that run have ended. From now on, failures of the
        replica are not told: the controller ends it."""
        self.is_closed = True
        self._note_end()

    async def wait_ended(self) -> None:
        """Wait until `close` was called and no call runs any more."""
        await self._are_ended.wait()

    def record_failure(self) -> None:
        """Note that the server refused or broke a connection, so that the controller probes its replica at once. Does
        nothing where the controller does not run it, or after `close`."""
        if self._replica is not None and not self.is_closed:
            self._ledger.record_failure(self._replica)

    def record_answer(self) -> None:
        """Note that the server has answered: failures of its replica that were told before are forgotten."""
        if self._replica is not None:
            self._ledger.record_answer(self._replica)

    def _note_end(self) -> None:
        if self.is_closed and self._count == 0:
            self._are_ended.set()
