"""How often each replica was started: what makes its name one attempt's for ever."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

MOST_KEYS: Final = 1000
"""Replicas whose own numbers are kept: each edit of a model makes another."""


class AttemptNumbers(BaseModel):
    """The highest attempt of each replica, by what `ReplicaKey.text` says. Never changed; a change makes another.

    A replica whose number was dropped counts on from the highest number that was ever dropped.
    """

    model_config = ConfigDict(frozen=True)

    highest: dict[str, int] = {}
    """The replica that was started last is the last one."""
    dropped: int = 0

    def highest_of(self, key: str) -> int:
        """A number that no attempt of the replica exceeded; 0: it was never started."""
        return self.highest.get(key, self.dropped)

    def with_attempt(self, key: str, attempt: int) -> AttemptNumbers:
        """Return a copy in which `attempt` is recorded for the replica `key`. A lower number changes nothing."""
        if attempt <= self.highest_of(key):
            return self
        highest = {each: number for each, number in self.highest.items() if each != key} | {key: attempt}
        dropped = self.dropped
        while len(highest) > MOST_KEYS:
            dropped = max(dropped, highest.pop(next(iter(highest))))
        return AttemptNumbers(highest=highest, dropped=dropped)
