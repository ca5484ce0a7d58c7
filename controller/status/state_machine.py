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


def next_state(published: ModelState | None, true: ModelState) -> ModelState:
    """The next state to publish on the shortest legal way to the true one; nothing published yet: the true one."""
    if published is None or published is true or true in LEGAL[published]:
        return true
    reached: dict[ModelState, ModelState] = {}
    edge = [(step, step) for step in sorted(LEGAL[published])]
    while true not in reached:
        for state, first in edge:
            reached.setdefault(state, first)
        passed = [(state, first) for state, first in edge if state in PASSING]
        edge = [(after, first) for state, first in passed for after in sorted(LEGAL[state]) if after not in reached]
    return reached[true]


def in_step(published: Mapping[str, ModelState], statuses: Iterable[ModelStatus]) -> tuple[ModelStatus, ...]:
    """The statuses with the states that may be published now."""
    return tuple(
        status
        if (state := next_state(published.get(status.name), status.state)) is status.state
        else status.model_copy(update={"state": state})
        for status in statuses
    )
