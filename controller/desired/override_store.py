"""Loads and unloads by operators: which of them stand, and which an edit of the files ends."""

from __future__ import annotations

from controller.config.debounce import DebouncedState
from controller.desired.persistence import Change, StatePersistence
from controller.desired.resolve import surviving_override
from controller.schema.override import Override, ended_fields


class OverrideStore:
    """The override of each model, by model name. It is part of the stored state."""

    def __init__(self, persistence: StatePersistence) -> None:
        self._persistence = persistence

    def get_override(self, name: str, in_force: DebouncedState | None) -> Override | None:
        """The override that stands for a model, without fields that no longer fit the declared state `in_force`; None:
        there is none, or the model is not declared."""
        override = self._persistence.state.overrides.get(name)
        if override is None or in_force is None or name not in in_force.declared_models:
            return None
        return surviving_override(override, in_force.definitions[name], in_force.declared_models[name])

    def put_override(self, override: Override) -> Change:
        """Return the change of the stored state that sets this override in place of the model's earlier one."""
        return {"overrides": {**self._persistence.state.overrides, override.model: override}}

    def drop_override(self, name: str) -> bool:
        """Remove a model's override, so that the files rule again. Returns whether there was one."""
        overrides = self._persistence.state.overrides
        if name not in overrides:
            return False
        self._persistence.update_state({"overrides": {key: each for key, each in overrides.items() if key != name}})
        return True

    def end_edited(self, state: DebouncedState) -> tuple[Change, dict[str, list[str]]]:
        """Return the change of the stored state that ends what an edit ended, and by model the names of what ended (see
        `ended_fields`). What has ended stays ended, even if the edit is taken back. `state` is in force since the edit.
        """
        overrides: dict[str, Override] = {}
        ended_by_model: dict[str, list[str]] = {}
        for name, override in self._persistence.state.overrides.items():
            definition = state.definitions.get(name)
            kept_override = (
                surviving_override(override, definition, state.declared_models[name])
                if definition is not None
                else None
            )
            if kept_override is not None:
                overrides[name] = kept_override
            if ended_names := ended_fields(override, kept_override):
                ended_by_model[name] = ended_names
        return {"overrides": overrides}, ended_by_model
