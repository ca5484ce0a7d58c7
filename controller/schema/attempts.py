"""Attempt numbers of replicas, which make sure that no two starts ever get the same replica name."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

MOST_KEYS: Final = 1000
"""Replica keys whose own numbers are kept. It is bounded because each edit of a model creates new replica keys."""


class AttemptNumbers(BaseModel):
    """The highest attempt number of each replica key (`ReplicaKey.text`). Immutable; `with_attempt` returns a copy.

    A replica key whose number was dropped goes on from the highest number that was ever dropped.
    """

    model_config = ConfigDict(frozen=True)

    highest: dict[str, int] = {}
    """Replica key to its highest attempt number, in the order of the last starts, oldest first."""
    dropped: int = 0
    """The highest number that was dropped to keep at most `MOST_KEYS`; 0: none was."""

    def highest_of(self, key: str) -> int:
        """Return a number that no attempt of the replica key has exceeded, so that the next number is free.

        It is the highest attempt number of a known key, `dropped` for any other. 0 means that it was never started.
        """
        return self.highest.get(key, self.dropped)

    def with_attempt(self, key: str, attempt: int) -> AttemptNumbers:
        """Return a copy in which `attempt` is recorded for the replica `key`.

        Returns the object itself if `attempt` is not higher than `highest_of(key)`. If more than 1,000 (`MOST_KEYS`)
        keys are recorded, the key whose last start is longest ago is dropped.
        """
        if attempt <= self.highest_of(key):
            return self
        highest = {each: number for each, number in self.highest.items() if each != key} | {key: attempt}
        dropped = self.dropped
        while len(highest) > MOST_KEYS:
            dropped = max(dropped, highest.pop(next(iter(highest))))
        return AttemptNumbers(highest=highest, dropped=dropped)
