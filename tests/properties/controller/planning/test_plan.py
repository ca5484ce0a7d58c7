"""The plan's invariants, from any observed state."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.engines.stub import StubDefinition
from controller.hosts import Gpu
from controller.planning.actions import Drain, Remove, Start, Stop, Undrain
from controller.planning.plan import plan
from controller.state import (
    DesiredModel,
    DesiredState,
    Exit,
    Health,
    ObservedReplica,
    Phase,
    PreflightKey,
    ReplicaId,
    Statement,
)
from tests.properties.strategies import NOW, TOTAL_MIB, worlds
from tests.support.campaign import campaign_count
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
        if not model.runs:
            assert not indices, f"{model.name} is served elsewhere"
            continue
        together = model.replicas > 1 and model.name not in world.loaded_once
        for index in range(model.replicas):
            # A roll stops at the first replica that cannot be replaced; a first load is all or nothing.
            reach = model.replicas if together else index + 1
            stuck_roll = any((model.name, other) in blocked for other in range(reach))
            assert (index, "new") in running or stuck_roll, f"{model.name}/{index} is neither there nor blocked"
        assert all(index < model.replicas for index in indices)


@settings(max_examples=campaign_count(60, 3_000))
@given(worlds())
def test_repeated_apply_ends_in_an_empty_plan(world: World) -> None:
    world.converge()
    _assert_as_declared(world)


@settings(max_examples=campaign_count(60, 3_000))
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


@settings(max_examples=campaign_count(25, 1_250))
@given(worlds())
def test_same_input_same_plan(world: World) -> None:
    observed = world.observed()
    shuffled = replace(observed, replicas=tuple(reversed(observed.replicas)))
    assert plan(world.desired, observed, NOW) == plan(world.desired, observed, NOW)
    assert plan(world.desired, observed, NOW).actions == plan(world.desired, shuffled, NOW).actions


@settings(max_examples=campaign_count(25, 1_250))
@given(worlds())
def test_actions_name_only_what_was_observed_and_each_replica_once(world: World) -> None:
    made = world.plan()
    named = [action.name for action in made.actions if isinstance(action, Drain | Undrain | Stop | Remove)]
    assert len(named) == len(set(named))
    assert set(named) <= set(world.replicas)
    assert not set(named) & set(world.pending), "an operation is under way for it"
    starts = [(action.id.model, action.id.index) for action in made.actions if isinstance(action, Start)]
    assert len(starts) == len(set(starts))


@settings(max_examples=campaign_count(25, 1_250))
@given(worlds())
def test_one_replica_per_gpu_loads_or_stops_at_a_time(world: World) -> None:
    unsettled: dict[str, set[str]] = defaultdict(set)
    for name, replica in world.replicas.items():
        alive = replica.phase is Phase.RUNNING or (replica.phase is Phase.CREATED and name in world.pending)
        if alive and (replica.ready_since is None or name in world.pending):
            for uuid in replica.claims:
                unsettled[uuid].add(name)
    moved: dict[str, set[str]] = defaultdict(set)
    for action in world.plan().actions:
        if isinstance(action, Start):
            touched, name = action.claims, str(action.id)
        elif isinstance(action, Stop) and action.failure is None:
            touched, name = world.replicas[action.name].claims, action.name
        else:
            continue
        for uuid in touched:
            moved[uuid].add(name)
            # Two that load at one time were never let in by a plan.
            assert len(unsettled[uuid]) > 1 or not unsettled[uuid] - {name}, f"{action} while {unsettled[uuid]} does"
    assert all(len(names) == 1 for uuid, names in moved.items() if len(unsettled[uuid]) <= 1)


@settings(max_examples=campaign_count(25, 1_250))
@given(worlds())
def test_a_serving_replica_is_never_touched_for_a_replacement_that_was_not_checked(world: World) -> None:
    made = world.plan()
    touched = {action.name for action in made.actions if isinstance(action, Drain | Stop)}
    for action in made.actions:
        if not isinstance(action, Drain | Stop):
            continue
        want = world.desired.models.get(action.id.model)
        replica = world.replicas[action.name]
        replaced = want is not None and action.id.index < want.replicas and action.id.spec_hash != want.spec_hash
        if not replaced or replica.health is not Health.READY or want is None or not want.runs:
            continue
        successors = [
            other
            for other in world.replicas.values()
            if (other.id.model, other.id.index, other.id.spec_hash) == (want.name, action.id.index, want.spec_hash)
            and other.health is Health.READY
        ]
        # Of two at one index, one is too many.
        successors += [
            other
            for name, other in world.replicas.items()
            if (other.id.model, other.id.index, other.health) == (want.name, action.id.index, Health.READY)
            and name not in touched | set(world.pending)
        ]
        checked = world.preflights.get(PreflightKey(want.name, want.spec_hash))
        assert successors or (checked is not None and checked.ok), f"{action} without a checked successor"


@settings(max_examples=campaign_count(25, 1_250))
@given(worlds(), st.sampled_from(("a", "b")))
def test_a_broken_model_never_stops_the_others(world: World, broken: str) -> None:
    models = dict(world.desired.models)
    if broken in models:
        models[broken] = replace(models[broken], spec_hash="broken", gpu_count=0, vram_mib=None)
    others = {name: model for name, model in models.items() if name != broken and model.runs}
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


@settings(max_examples=campaign_count(20, 600))
@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=12, max_size=40),
)
def test_a_roll_never_takes_the_last_replica_that_serves(
    count: int, gpu_count: int, fails: bool, luck: list[tuple[bool, bool]]
) -> None:
    """Whole GPUs, as many as replicas or fewer to spare; engines that load for a while, or fail; slow drains."""
    gpus = tuple(Gpu(f"GPU-{number}", number, "fake", TOTAL_MIB) for number in range(max(count, gpu_count)))
    statement = Statement("file", 0.0, "enabled")
    model = DesiredModel("m", StubDefinition(backend="stub"), "stub", "new", count, statement, gpu_count=1)
    olds = {
        f"old-{index}": ObservedReplica(
            ReplicaId("m", index, "old"), f"old-{index}", Phase.RUNNING, NOW - 9, NOW - 9, Health.READY, NOW - 8,
            "http://x", {gpus[index].uuid: TOTAL_MIB},
        )
        for index in range(count)
    }  # fmt: skip
    world = World(DesiredState(1, {"m": model}), NOW, olds, gpus=gpus, loaded_once=frozenset("m"))
    world.broken_specs = frozenset({"new"} if fails else ())
    for loads, drains in luck:
        world.apply(world.plan().actions)
        world.now += 1.0
        for name, replica in list(world.replicas.items()):
            if replica.health is Health.STARTING and loads:
                end = replace(replica, phase=Phase.EXITED, exit=Exit(1, log_tail="boom"))
                ready = replace(replica, health=Health.READY, ready_since=world.now)
                world.replicas[name] = end if fails else ready
            elif replica.draining is not None and drains:
                world.replicas[name] = replace(replica, draining=replace(replica.draining, idle=True))
        serving = [each for each in world.replicas.values() if each.health is Health.READY and each.draining is None]
        assert len(serving) >= count - 1, f"{len(serving)} of {count} serve"
