"""The legal transitions between published model states. Pure.

The true state may jump between two observations: an engine fails, or a drain is revoked. The published state never
jumps; each round publishes at most one legal step towards the true state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from contract.status import ModelState, ModelStatus

LEGAL: Final[Mapping[ModelState, frozenset[ModelState]]] = MappingProxyType(
    {
        # To unloading: an unwanted engine can appear, such as one whose start was under way when it was called off.
        ModelState.UNLOADED: frozenset({ModelState.LOADING, ModelState.UNLOADING}),
        # To unloading: it is stopped for the room of others. To unloaded: it died asleep.
        ModelState.SLEEPING: frozenset({ModelState.LOADING, ModelState.UNLOADING, ModelState.UNLOADED}),
        ModelState.LOADING: frozenset({ModelState.LOADED, ModelState.FAILED, ModelState.UNLOADING}),
        # To loading or failed: the model's engines were lost.
        ModelState.LOADED: frozenset({ModelState.UNLOADING, ModelState.LOADING, ModelState.FAILED}),
        # To loaded or loading: an edit or a return to the files revokes an unload while engines still drain.
        ModelState.UNLOADING: frozenset(
            {ModelState.UNLOADED, ModelState.SLEEPING, ModelState.LOADED, ModelState.LOADING}
        ),
        ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.UNLOADING, ModelState.UNLOADED}),
    }
)
"""Published state to the states that may be published after it."""

PASSING: Final = frozenset({ModelState.LOADING, ModelState.UNLOADING})
"""States that may be published as a step towards another. The other states are published only while they are true."""


def next_state(published: ModelState | None, true_state: ModelState) -> ModelState:
    """Return the state to publish next: the first step of the shortest legal path (`LEGAL`) from `published` to
    `true_state`, with no states in between but those of `PASSING` (loading and unloading). `published` None means that
    nothing was published yet; then the result is the true state. If both are the same, so is the result."""
    if published is None or published is true_state or true_state in LEGAL[published]:
        return true_state
    first_steps: dict[ModelState, ModelState] = {}
    frontier = [(step, step) for step in sorted(LEGAL[published])]
    while true_state not in first_steps:
        for state, first_step in frontier:
            first_steps.setdefault(state, first_step)
        passing_edges = [(state, first_step) for state, first_step in frontier if state in PASSING]
        frontier = [
            (successor, first_step)
            for state, first_step in passing_edges
            for successor in sorted(LEGAL[state])
            if successor not in first_steps
        ]
    return first_steps[true_state]


def publishable_statuses(
    published: Mapping[str, ModelState], statuses: Iterable[ModelStatus]
) -> tuple[ModelStatus, ...]:
    """Return the statuses with each state replaced by the one that may be published now. `published` maps models to the
    states that were published last; a model that is missing there was never published. Where the result has another
    state than `statuses`, the caller must publish again soon: each call goes one step."""
    return tuple(
        status
        if (state := next_state(published.get(status.name), status.state)) is status.state
        else status.model_copy(update={"state": state})
        for status in statuses
    )
