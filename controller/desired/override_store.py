"""Loads and unloads by operators: which of them stand, and which an edit of the files ends."""

from __future__ import annotations

from controller.config.debounce import DebouncedState
from controller.desired.persistence import Change, StatePersistence
from controller.desired.resolve import surviving_override
from controller.schema.override import Override, ended_fields


class OverrideStore:
    """The overrides in the stored state, at most one for each model: loads and unloads by operators.

    `DesiredStateSource` uses it. It holds no state of its own besides `persistence`.
    """

    def __init__(self, persistence: StatePersistence) -> None:
        self._persistence = persistence

    def get_override(self, name: str, in_force: DebouncedState | None) -> Override | None:
        """Return the override that stands for a model, without parameters that no longer fit the declared state
        `in_force` or were edited since. None: there is none, edits have ended all of it, or the model is not
        declared."""
        override = self._persistence.state.overrides.get(name)
        if override is None or in_force is None or name not in in_force.declared_models:
            return None
        return surviving_override(override, in_force.definitions[name], in_force.declared_models[name])

    def put_override(self, override: Override) -> Change:
        """Return the change of the stored state that sets this override in place of the model's earlier one.

        Nothing is changed: the caller gives the result to `StatePersistence.update_state`.
        """
        return {"overrides": {**self._persistence.state.overrides, override.model: override}}

    def drop_override(self, name: str) -> bool:
        """Remove a model's override at once, so that demand and the files decide again. Return whether there was one;
        an unknown model has none. Blocks for a write to the state folder; a failed write raises nothing."""
        overrides = self._persistence.state.overrides
        if name not in overrides:
            return False
        self._persistence.update_state({"overrides": {key: each for key, each in overrides.items() if key != name}})
        return True

    def end_edited(self, state: DebouncedState) -> tuple[Change, dict[str, list[str]]]:
        """Return the change of the stored state that ends what an edit ended, and by model the names of what ended (see
        `ended_fields`). Models of which nothing ended are left out; the override of a removed model ends.

        `state` is in force since the edit. Nothing is changed: the caller gives the change to
        `StatePersistence.update_state`. From then on what has ended stays ended, even if the edit is taken back.
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
