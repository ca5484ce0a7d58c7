"""The plan's invariants, from any observed state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.actions import Drain, Remove, Start, Stop, Undrain
from controller.plan import plan
from controller.state import Health, Phase
from tests.properties.strategies import NOW, worlds
from tests.support.world import World


def _assert_as_declared(world: World) -> None:
    """At rest every wanted replica that has room runs what is declared, and nothing else is there."""
    by_model: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for replica in world.replicas.values():
        assert replica.phase is Phase.RUNNING
        by_model[replica.id.model].append((replica.id.index, replica.id.spec_hash))
    assert set(by_model) <= set(world.desired.models)
    blocked = {(item.model, item.index) for item in world.plan().blocked}
    for model in world.desired.models.values():
        running = sorted(by_model[model.name])
        indices = [index for index, _ in running]
        assert len(set(indices)) == len(indices), f"two replicas at one index: {running}"
        for index in range(model.replicas):
            stuck_roll = any(item == (model.name, earlier) for earlier in range(index + 1) for item in blocked)
            assert (index, "new") in running or stuck_roll, f"{model.name}/{index} is neither there nor blocked"
        assert all(index < model.replicas for index in indices)


@settings(max_examples=3_000, deadline=None)
@given(worlds())
def test_repeated_apply_ends_in_an_empty_plan(world: World) -> None:
    world.converge()
    _assert_as_declared(world)


@settings(max_examples=3_000, deadline=None)
@given(worlds(), st.lists(st.integers(0, 8), max_size=8))
def test_killing_apply_after_any_prefix_still_converges(world: World, prefixes: list[int]) -> None:
    for prefix in prefixes:
        made = world.plan()
        world.apply(made.actions[:prefix])
        # A controller that died forgets operations and drains; engines, and what it stored, stay.
        world.pending.clear()
        world.preflights.clear()
        for name, replica in world.replicas.items():
            world.replicas[name] = replace(replica, draining=None)
        world.now += 0.5
    world.converge()
    _assert_as_declared(world)


@settings(max_examples=1_250, deadline=None)
@given(worlds())
def test_same_input_same_plan(world: World) -> None:
    observed = world.observed()
    shuffled = replace(observed, replicas=tuple(reversed(observed.replicas)))
    assert plan(world.desired, observed, NOW) == plan(world.desired, observed, NOW)
    assert plan(world.desired, observed, NOW).actions == plan(world.desired, shuffled, NOW).actions


@settings(max_examples=1_250, deadline=None)
@given(worlds())
def test_actions_name_only_what_was_observed_and_each_replica_once(world: World) -> None:
    made = world.plan()
    named = [action.name for action in made.actions if isinstance(action, Drain | Undrain | Stop | Remove)]
    assert len(named) == len(set(named))
    assert set(named) <= set(world.replicas)
    assert not set(named) & set(world.pending), "an operation is under way for it"
    starts = [(action.id.model, action.id.index) for action in made.actions if isinstance(action, Start)]
    assert len(starts) == len(set(starts))


@settings(max_examples=1_250, deadline=None)
@given(worlds())
def test_a_serving_replica_is_never_touched_for_a_replacement_that_was_not_checked(world: World) -> None:
    made = world.plan()
    for action in made.actions:
        if not isinstance(action, Drain | Stop):
            continue
        want = world.desired.models.get(action.id.model)
        replica = world.replicas[action.name]
        replaced = want is not None and action.id.index < want.replicas and action.id.spec_hash != want.spec_hash
        if not replaced or replica.health is not Health.READY or want is None:
            continue
        successors = [
            other
            for other in world.replicas.values()
            if (other.id.model, other.id.index, other.id.spec_hash) == (want.name, action.id.index, want.spec_hash)
            and other.health is Health.READY
        ]
        checked = world.preflights.get((want.name, want.spec_hash))
        assert successors or (checked is not None and checked.ok), f"{action} without a checked successor"


@settings(max_examples=1_250, deadline=None)
@given(worlds(), st.sampled_from(("a", "b")))
def test_a_broken_model_never_stops_the_others(world: World, broken: str) -> None:
    models = dict(world.desired.models)
    if broken in models:
        models[broken] = replace(models[broken], spec_hash="broken", gpu_count=0, vram_mib=None)
    others = {name: model for name, model in models.items() if name != broken}
    world.desired = replace(world.desired, models=models)
    world.broken_specs = frozenset({"broken"})
    for _ in range(60):
        made = world.plan()
        world.apply(made.actions)
        world.settle(made)
    for model in others.values():
        running = {r.id.index for r in world.replicas.values() if r.id.model == model.name and r.id.spec_hash == "new"}
        stuck = {item.index for item in world.plan().blocked if item.model == model.name}
        missing = set(range(model.replicas)) - running
        assert not missing or stuck
