"""Which state may follow which, and the way from any published state to any true one."""

from __future__ import annotations

from itertools import product

import pytest

from controller.schema.status import ModelState, ModelStatus, StatementView
from controller.status.state_machine import LEGAL, next_state, publishable_statuses

SEED = [
    ("unloaded", "loading"),
    ("loading", "loaded"),
    ("loading", "failed"),
    ("failed", "loading"),
    ("loaded", "unloading"),
    ("unloading", "unloaded"),
]
"""The transitions that seed 001 names."""


@pytest.mark.parametrize(("before", "after"), SEED)
def test_the_transitions_of_the_seed_are_one_step(before: str, after: str) -> None:
    assert next_state(ModelState(before), ModelState(after)) is ModelState(after)


@pytest.mark.parametrize(("published", "true"), list(product(ModelState, ModelState)))
def test_every_step_is_legal_and_the_truth_is_reached(published: ModelState, true: ModelState) -> None:
    state, steps = published, 0
    while state is not true:
        after = next_state(state, true)
        assert after in LEGAL[state], f"{state} -> {after}"
        assert after is true or after in (ModelState.LOADING, ModelState.UNLOADING), "that would be a lie"
        state, steps = after, steps + 1
        assert steps < len(ModelState), "goes in a circle"


def test_what_is_loaded_never_seems_unloaded_without_an_unload() -> None:
    assert next_state(ModelState.LOADED, ModelState.UNLOADED) is ModelState.UNLOADING
    assert next_state(ModelState.UNLOADED, ModelState.LOADED) is ModelState.LOADING
    assert next_state(ModelState.UNLOADED, ModelState.FAILED) is ModelState.LOADING
    assert next_state(ModelState.LOADING, ModelState.UNLOADED) is ModelState.UNLOADING


def test_a_first_look_is_published_as_it_is() -> None:
    assert next_state(None, ModelState.FAILED) is ModelState.FAILED


def _status(name: str, state: ModelState) -> ModelStatus:
    statement = StatementView(kind="file", since=0.0, reason="")
    return ModelStatus(
        name=name, backend="stub", state=state, wanted_replicas=1, loaded_replicas=0, statement=statement
    )


def test_each_model_goes_its_own_way() -> None:
    true = [_status("a", ModelState.LOADED), _status("b", ModelState.LOADED), _status("c", ModelState.LOADED)]
    shown = publishable_statuses({"a": ModelState.LOADED, "b": ModelState.UNLOADED}, true)
    assert [status.state for status in shown] == [ModelState.LOADED, ModelState.LOADING, ModelState.LOADED]
