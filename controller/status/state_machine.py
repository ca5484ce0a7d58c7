"""Which state may follow which. Pure.

What is observed may jump: between two looks an engine can fail, or a drain be revoked. What is published never does:
each round publishes at most one legal step towards what is true, and the next round the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from controller.schema.status import ModelState, ModelStatus

LEGAL: Final[Mapping[ModelState, frozenset[ModelState]]] = MappingProxyType(
    {
        # An engine that nobody wants can come to light, such as one whose start was under way when it was called off.
        ModelState.UNLOADED: frozenset({ModelState.LOADING, ModelState.UNLOADING}),
        ModelState.LOADING: frozenset({ModelState.LOADED, ModelState.FAILED, ModelState.UNLOADING}),
        # A model whose engines were lost loads again, or has failed.
        ModelState.LOADED: frozenset({ModelState.UNLOADING, ModelState.LOADING, ModelState.FAILED}),
        # An edit, or the way back to the files, can revoke an unload while engines still drain.
        ModelState.UNLOADING: frozenset({ModelState.UNLOADED, ModelState.LOADED, ModelState.LOADING}),
        ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.UNLOADING, ModelState.UNLOADED}),
    }
)
"""By state, those that may be published next (seed 001, DESIGN.md §3)."""

PASSING: Final = frozenset({ModelState.LOADING, ModelState.UNLOADING})
"""States that may be shown on the way to another. Nothing is called loaded, unloaded or failed that is not."""


def next_state(published: ModelState | None, true_state: ModelState) -> ModelState:
    """The next state to publish on the shortest legal way to the true one; nothing published yet: the true one."""
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
    """The statuses with the states that may be published now."""
    return tuple(
        status
        if (state := next_state(published.get(status.name), status.state)) is status.state
        else status.model_copy(update={"state": state})
        for status in statuses
    )
