"""Chooses the engine slot of each request, so that sessions keep the cache of their slots. Pure: `now` is monotonic
seconds.

For engines whose requests may name their slot (llama-server's `id_slot`). Left to itself, the engine gives a request
the slot that was used longest ago, and so the cache of a session that pauses to the next stranger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.admission.prefix_affinity import PrefixAffinity

PROTECTED_S: Final = 900.0
"""Seconds by which a slot that a session holds counts as used later than it was, when a request without a session needs
a slot."""
_PREFIXES_PER_SLOT: Final = 64
_NEVER: Final = float("-inf")


class Placement(NamedTuple):
    """The engine's slot that `EngineSlots` chose for a request, counted from 0. `evicted_session`: key of another
    session that has lost the slot, and its cache, to this request; None: there is none."""

    slot: int
    evicted_session: bytes | None
    """Key of another session that held the slot until now, and has lost its cache; None: no other session held it."""


class EngineSlots:
    """The slots of one replica whose requests name their slot; one per `SessionPlacement`.

    A slot is busy, or idle with the cache of the request that used it last.
    """

    __slots__ = ("_affinity", "_busy", "_holders", "_used_at", "unplaced_count")

    def __init__(self, count: int, unplaced_count: int) -> None:
        """`count`: slots of the engine. `unplaced_count`: requests inside whose slots are not known."""
        self._busy = [False] * count
        self._holders: list[bytes | None] = [None] * count
        """By slot: key of the session whose cache the slot has; None: no session holds the slot."""
        self._used_at = [_NEVER] * count
        self._affinity: PrefixAffinity[int] = PrefixAffinity(_PREFIXES_PER_SLOT * count)
        """Maps beginnings of requests without a session to the slots that served them."""
        self.unplaced_count = unplaced_count
        """Requests inside whose slots are not known; counted by `SessionPlacement`. While there are any, no slot is
        known to be idle."""

    def place_session(self, key: bytes, held_slot: int | None, now: float) -> Placement | None:
        """Choose and occupy a slot for a turn of the session `key`, which holds the slot from now on.

        Returns None, and changes nothing, if no slot is known to be idle. Call `release` when the request is out. If
        the result names an `evicted_session`, the caller drops that session: another one holds its slot now.

        `held_slot`: the slot that the session holds so far, taken again if it is idle; None: the session holds none. If
        the session gets another slot, it still holds `held_slot` too, until the caller calls `give_up` for that slot.
        `now`: monotonic seconds.
        """
        if self.unplaced_count:
            return None
        slot = held_slot if held_slot is not None and not self._busy[held_slot] else self._find_session_slot()
        return None if slot is None else self._occupy(slot, key, now)

    def place_stranger(self, prefix: Sequence[int], now: float) -> Placement | None:
        """Choose and occupy a slot for a request without a session; no session holds the slot from now on.

        Returns None, and changes nothing, if no slot is known to be idle. Call `release` when the request is out. If
        the result names an `evicted_session`, the caller drops that session: it has lost its slot.

        `prefix`: see `prefix_affinity.prefix_keys`. `now`: monotonic seconds.
        """
        slot = None if self.unplaced_count else self._find_stranger_slot(prefix)
        if slot is None:
            return None
        self._affinity.record_request(prefix, slot)
        return self._occupy(slot, None, now)

    def release(self, slot: int, now: float) -> None:
        """Mark a slot that `place_session` or `place_stranger` occupied as idle. The session that holds the slot keeps
        it. `now`: monotonic seconds, from now on the time of the slot's last use. Whether the slot is occupied is not
        checked."""
        self._busy[slot] = False
        self._used_at[slot] = now

    def give_up(self, slot: int) -> None:
        """Take the slot from the session that holds it, because the session was dropped or moved.

        Does nothing if no session holds the slot.
        """
        self._holders[slot] = None

    def _occupy(self, slot: int, key: bytes | None, now: float) -> Placement:
        earlier_key = self._holders[slot]
        self._busy[slot] = True
        self._used_at[slot] = now
        self._holders[slot] = key
        return Placement(slot, earlier_key if earlier_key != key else None)

    def _idle_slots(self) -> list[int]:
        return [slot for slot, is_busy in enumerate(self._busy) if not is_busy]

    def _find_session_slot(self) -> int | None:
        """Return the last slot that no session holds, because llama-server clears the first idle ones when its cache is
        full; else the one whose session has paused for longest."""
        idle_slots = self._idle_slots()
        free_slots = [slot for slot in idle_slots if self._holders[slot] is None]
        return max(free_slots) if free_slots else min(idle_slots, key=self._used_at.__getitem__, default=None)

    def _find_stranger_slot(self, prefix: Sequence[int]) -> int | None:
        idle_slots = self._idle_slots()
        for slot in self._affinity.matching_replicas(prefix):
            if slot in idle_slots and self._holders[slot] is None:
                return slot
        return min(idle_slots, key=self._keep_until, default=None)

    def _keep_until(self, slot: int) -> float:
        return self._used_at[slot] + (0.0 if self._holders[slot] is None else PROTECTED_S)
