"""The memory of a conversation that a loop of tools keeps, in the budget for large request bodies."""

from __future__ import annotations

from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.large_body import LARGE_BYTES
from gateway.server.body_budget import BodyBudget

COPIES: Final = 2
"""How often a loop has its conversation in memory: decoded, from its beginning to its end, and as the body of a
round."""
_MIB: Final = 1024 * 1024


class LoopMemory:
    """The bytes that one loop of tools holds of the gateway's budget for request bodies: `COPIES` times the size of its
    conversation; nothing for a conversation of `LARGE_BYTES` (256 KiB) at most. Call `give_back` when the loop ends."""

    __slots__ = ("_budget", "_held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        """Hold nothing yet."""
        self._budget = budget
        self._held_bytes = 0

    def hold(self, size: int) -> None:
        """Hold room for a conversation of `size` bytes as JSON, at once. It may have grown since the last call; what is
        held never shrinks.

        Raises:
            RoundhouseError: `tool_rounds_full`: the loops of the gateway would hold too much together. What is held
                already stays held.
        """
        more = COPIES * size - self._held_bytes
        if size <= LARGE_BYTES or more <= 0:
            return
        if not self._budget.hold(more):
            most = self._budget.max_held_bytes / COPIES / _MIB
            message = (
                f"The conversation has {size / _MIB:.1f} MiB, and those of all responses whose tools the gateway runs "
                f"may have {most:.1f} MiB together."
            )
            raise RoundhouseError("tool_rounds_full", message)
        self._held_bytes += more

    def give_back(self) -> None:
        """Give back all that is held, and so let in bodies that wait for room. May be called repeatedly."""
        held_bytes, self._held_bytes = self._held_bytes, 0
        if held_bytes:
            self._budget.give_back(held_bytes)
