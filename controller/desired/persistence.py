"""What the desired state keeps over restarts: `memory.json`, held in memory and written at each change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from controller.storage.state_dir import StateDir, StoredState

log = logging.getLogger(__name__)

Change = Mapping[str, object]
"""New values of fields of `StoredState`, by field name."""

STORED_FIELD_WORDS: Final[Mapping[str, str]] = {
    "paused": "whether it is paused",
    "declarations": "models and keys that operators declared",
    "overrides": "loads, unloads and resets by operators",
    "demand": "which models requests asked for",
    "rested": "which models made room for others",
    "loaded_once": "which models were loaded before",
    "ready_since": "since when replicas are ready",
    "first_declared_at": "when models were declared",
    "attempts": "which names replicas had",
}
"""Fields of `StoredState`, in the words of `list_unsaved`."""
_RULING_FIELDS: Final = ("overrides", "demand", "rested", "paused")
"""Fields that the desired state is resolved from."""


class StatePersistence:
    """The stored state of one controller. A change is in force at once, whether or not it could be written.

    A write that failed is tried again by the next `update_state`, which each round calls.
    """

    def __init__(self, store: StateDir) -> None:
        """Read the state that the last controller stored; defaults where there is none.

        Raises StateError where the stored file is damaged, cannot be read, or is of a newer version.
        """
        self._store = store
        self._written_state = store.load_memory()
        self._is_writable = True
        self.state: StoredState = self._written_state
        """The state in force."""
        self.ruling_changes = 0
        """Counts the changes of fields that the desired state is resolved from."""

    def update_state(self, change: Change) -> None:
        """Set fields of the state, all in one write, and count a change of ruling fields in `ruling_changes`. Blocks
        for the write.

        A write that fails raises nothing: the first of several in a row is logged, `list_unsaved` names what is not on
        disk, and the next call writes it again. Where nothing differs from what is on disk, nothing is written.
        `change` is not validated.
        """
        before, self.state = self.state, self.state.model_copy(update=dict(change))
        self.ruling_changes += any(getattr(before, each) != getattr(self.state, each) for each in _RULING_FIELDS)
        if self.state == self._written_state:
            return
        try:
            self._store.save_memory(self.state)
        except OSError as error:
            if self._is_writable:
                log.warning("the controller's memory is not stored, so a restart would not know it: %s", error)
            self._is_writable = False
        else:
            self._written_state, self._is_writable = self.state, True

    def list_unsaved(self) -> list[str]:
        """Return a phrase for each part of the state that is not on disk yet (see `STORED_FIELD_WORDS`). Empty:
        everything is on disk."""
        before, now = self._written_state, self.state
        return [words for name, words in STORED_FIELD_WORDS.items() if getattr(before, name) != getattr(now, name)]
