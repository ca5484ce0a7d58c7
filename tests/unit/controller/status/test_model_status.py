"""What clients and operators are told, which state may follow which, and what the gateway is given."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from contract.keys import Key
from contract.routing import ModelRoute, RoutingTable, Stamp
from contract.status import ModelState, ModelStatus
from contract.tools import McpServerRoute, ToolRoute
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.openai_remote import OpenAIRemoteDefinition
from controller.engines.stub import StubDefinition
from controller.model_status import assess_models, explain_vram_gap
from controller.observe.gateway_hub import GatewayHub
from controller.planning.actions import Blocked, Plan
from controller.planning.plan import plan
from controller.routing_table import build_routes
from controller.state import (
    AppliedFigures,
    DesiredModel,
    DesiredState,
    Draining,
    Failure,
    Health,
    ObservedReplica,
    ObservedState,
    OpKind,
    PendingOp,
    Phase,
    PreflightKey,
    PreflightResult,
    ReplicaId,
    ReplicaKey,
    Requirement,
    Sleep,
    StartFailure,
    Statement,
)
from controller.state_machine import LEGAL, next_state, publishable_statuses

NOW = 1_000.0
MODEL = DesiredModel(
    "m", StubDefinition(backend="stub", aliases=["em"]), "stub", "new", 2, Statement("load", 5.0, "loaded"), 3.0
)
OK = {PreflightKey("m", "new"): PreflightResult(True, NOW)}


def _replica(index: int, health: Health = Health.READY, spec: str = "new", **fields: Any) -> ObservedReplica:
    ready = NOW - 1 if health is not Health.STARTING else None
    values: dict[str, Any] = {
        "health": health, "ready_since": ready, "base_url": f"http://127.0.0.1:{9000 + index}", "started_at": NOW - 2
    }  # fmt: skip
    replica_id = ReplicaId("m", index, spec)
    return ObservedReplica(replica_id, f"rh-{spec}-{index}", Phase.RUNNING, NOW - 3, **(values | fields))


def _status(observed: ObservedState, model: DesiredModel = MODEL) -> ModelStatus:
    desired = DesiredState(1, {model.name: model})
    [status] = assess_models(desired, observed, plan(desired, observed, NOW))
    return status


def _route(
    observed: ObservedState, model: DesiredModel = MODEL, made: Plan | None = None, **longest_tokens: int
) -> ModelRoute:
    """What the gateway is given of the model."""
    desired = DesiredState(1, {model.name: model})
    statuses = assess_models(desired, observed, made or plan(desired, observed, NOW))
    [route] = build_routes(desired, observed, statuses, lambda name: f"token of {name}", longest_tokens=longest_tokens)
    return route


def _seen(*replicas: ObservedReplica, **fields: Any) -> ObservedState:
    return ObservedState(NOW, replicas, preflights=OK, **fields)


def test_all_or_nothing_until_first_loaded_then_one_is_enough() -> None:
    half = (_replica(0), _replica(1, Health.STARTING))
    assert _status(_seen(*half)).state is ModelState.LOADING
    assert _status(_seen(*half, loaded_once=frozenset("m"))).state is ModelState.LOADED
    assert _status(_seen(_replica(0), _replica(1))).state is ModelState.LOADED


def test_loading_only_during_an_attempt() -> None:
    failure = Failure(2, NOW - 1, "boom", NOW + 5)
    failures = {ReplicaKey("m", index, "new"): failure for index in (0, 1)}
    failed = _status(_seen(failures=failures))
    assert (failed.state, failed.last_error, failed.retry_at) == (ModelState.FAILED, "boom", NOW + 5)
    pending = {"x": PendingOp(OpKind.START, ReplicaId("m", 0, "new"))}
    assert _status(_seen(pending=pending), replace(MODEL, replicas=1)).state is ModelState.LOADING


def test_a_model_that_does_not_fit_has_failed_and_says_why() -> None:
    status = _status(_seen(), replace(MODEL, replicas=1, gpu_count=2))
    assert status.state is ModelState.FAILED
    assert status.last_error == "needs 2 GPUs, this host has none"


def test_unloading_until_the_last_engine_is_gone() -> None:
    unloaded = replace(MODEL, replicas=0)
    assert _status(_seen(_replica(0, draining=Draining(NOW, False))), unloaded).state is ModelState.UNLOADING
    assert _status(_seen(), unloaded).state is ModelState.UNLOADED


def test_a_model_sleeps_once_nothing_of_it_is_awake_or_changing() -> None:
    rest = replace(MODEL, replicas=0, demand_replicas=2)
    asleep = [
        _replica(index, Health.SLEEPING, sleep=Sleep({}, {}, since=NOW - 9, wake_s=0.5 + index)) for index in (0, 1)
    ]
    awake = _replica(2, sleep=Sleep({}, {}))
    status = _status(_seen(*asleep), rest)
    assert (status.state, status.wake_s) == (ModelState.SLEEPING, 1.5)
    assert [each.phase for each in status.replicas] == ["sleeping", "sleeping"]
    assert _status(_seen(*asleep, awake), rest).state is ModelState.UNLOADING
    for kind in (OpKind.SLEEP, OpKind.WAKE, OpKind.STOP):
        pending = {asleep[0].name: PendingOp(kind, asleep[0].id)}
        assert _status(_seen(*asleep, pending=pending), rest).state is ModelState.UNLOADING, kind
    assert _status(_seen(replace(asleep[0], fault="no"), asleep[1]), rest).state is ModelState.SLEEPING
    assert _status(_seen(replace(asleep[0], fault="no")), rest).state is ModelState.UNLOADED
    assert _status(_seen(awake), rest).wake_s is None


def test_a_wake_is_a_load() -> None:
    asleep = _replica(0, Health.SLEEPING, sleep=Sleep({}, {}, since=NOW - 9))
    pending = {asleep.name: PendingOp(OpKind.WAKE, asleep.id)}
    failures = {asleep.id.key: Failure(1, NOW - 9, "boom", NOW + 5)}
    wanted = replace(MODEL, replicas=1)
    assert _status(_seen(asleep, pending=pending, failures=failures), wanted).state is ModelState.LOADING
    assert _status(_seen(asleep, failures=failures), wanted).state is ModelState.FAILED


def test_a_failed_replacement_leaves_the_model_loaded_and_shows_the_error() -> None:
    failures = {ReplicaKey("m", 0, "new"): Failure(1, NOW, "bad argument", None)}
    old = (_replica(0, spec="old"), _replica(1, spec="old"))
    status = _status(_seen(*old, failures=failures, loaded_once=frozenset("m")))
    assert (status.state, status.last_error) == (ModelState.LOADED, "bad argument")
    assert all(replica.outdated for replica in status.replicas)


def test_a_model_that_is_no_longer_declared_is_unloading() -> None:
    observed = _seen(_replica(0))
    [status] = assess_models(DesiredState(1, {}), observed, plan(DesiredState(1, {}), observed, NOW))
    assert (status.state, status.wanted_replicas) == (ModelState.UNLOADING, 0)


def test_only_ready_and_undrained_replicas_are_routed_to_with_their_tokens() -> None:
    replicas = (_replica(0), _replica(1, Health.FAILING), _replica(2, draining=Draining(NOW, None)))
    route = _route(_seen(*replicas, _replica(3, base_url=None), loaded_once=frozenset("m")))
    [endpoint] = route.endpoints
    assert (endpoint.replica, endpoint.base_url) == ("rh-new-0", "http://127.0.0.1:9000")
    assert endpoint.token is not None
    assert endpoint.token.get_secret_value() == "token of rh-new-0"
    assert "token of" not in repr(route)
    assert (route.state, route.aliases, route.created) == (ModelState.LOADED, ("em",), 3), "as old as its declaration"


def test_a_route_tells_which_room_its_model_waits_for_and_nothing_else_that_blocks_it() -> None:
    waits, busy = Blocked("m", 1, "waiting for room: a is ending"), Blocked("m", 0, "GPU 0 is busy with /srv/x")
    for blocked, reason in (((busy, waits), waits.reason), ((busy,), None), ((replace(waits, failed=True),), None)):
        assert _route(_seen(), made=Plan(1, blocked=blocked)).reason == reason, blocked


def test_a_route_tells_how_its_replicas_came_up() -> None:
    replica = replace(_replica(0), created_at=NOW - 9, ready_since=NOW - 5.5)
    failed = {replica.id.key: (StartFailure("exit code 1", 0.25),)}
    [endpoint] = _route(_seen(replica, loaded_once=frozenset("m"), start_failures=failed)).endpoints
    attempts = [(each.result, each.duration_ms) for each in endpoint.attempts]
    assert attempts == [("failed: exit code 1", 250), ("ok", 3500)]


@pytest.mark.parametrize(("told", "length"), [((4096, 2048), 2048), ((4096, None), 4096), ((None, None), 8192)])
def test_the_context_length_is_what_every_engine_takes_or_what_is_declared(
    told: tuple[int | None, ...], length: int
) -> None:
    definition = LlamaServerDefinition(model_path="m.gguf", llama_server_n_ctx=8192, matryoshka=True)
    model = replace(MODEL, definition=definition, backend="llama_server")
    figures = (AppliedFigures(context_length=each) for each in told)
    route = _route(_seen(*(_replica(index, figures=each) for index, each in enumerate(figures))), model)
    assert (route.context_length, route.shortens_embeddings, route.thinking_control) == (length, True, None)
    assert not route.takes_dimensions
    assert _route(_seen(), model).context_length == 8192


def test_what_an_engine_applied_otherwise_is_told_with_both_values() -> None:
    definition = LlamaServerDefinition(model_path="m.gguf", llama_server_n_ctx=8192)
    model = replace(MODEL, definition=definition, backend="llama_server", replicas=3)
    current = _replica(0, figures=AppliedFigures(context_length=4096, slots=4))
    old = _replica(1, spec="old", figures=AppliedFigures(context_length=512))
    status = _status(_seen(current, old, _replica(2)), model)
    assert status.drift == ["llama_server_n_ctx is declared as 8192, and rh-new-0 reports 4096"]


@pytest.mark.parametrize(
    ("told", "spec_hash", "length"),
    [((4096, 4096), "new", 13), ((4096, 2048), "new", None), ((4096, None), "new", None), ((4096, 4096), "old", None)],
)
def test_a_token_s_length_is_told_where_every_engine_is_known_to_be_alike(
    told: tuple[int | None, ...], spec_hash: str, length: int | None
) -> None:
    model = replace(MODEL, definition=LlamaServerDefinition(model_path="m.gguf"), backend="llama_server")
    first, second = (_replica(index, figures=AppliedFigures(context_length=each)) for index, each in enumerate(told))
    observed = _seen(first, replace(second, id=replace(second.id, spec_hash=spec_hash)))
    route = _route(observed, model, m=13)
    assert (len(route.endpoints), route.longest_token) == (2, length)
    assert _route(observed, model).longest_token is None


@pytest.mark.parametrize(("told", "expected"), [((False, False), False), ((False, True), True)])
def test_what_one_replicas_chat_template_refuses_holds_for_the_model(told: tuple[bool, ...], expected: bool) -> None:
    observed = _seen(*(_replica(index, system_first=each) for index, each in enumerate(told)))
    assert _route(observed).system_first is expected


def test_a_remote_is_as_well_as_its_last_answer() -> None:
    definition = OpenAIRemoteDefinition(
        backend="openai_remote", base_url="https://x.example/v1", remote_model="there", thinking_modes=["disabled"],
        thinking_field="thinking", remote_fields=["top_k"],
    )  # fmt: skip
    remote = DesiredModel("m", definition, "openai_remote", "h", 1, Statement("file", 5.0, "enabled"), runs=False)
    assert _status(ObservedState(NOW), remote).state is ModelState.LOADING
    down = _status(ObservedState(NOW, remotes={"m": "no route"}), remote)
    assert (down.state, down.last_error, down.retry_at) == (ModelState.FAILED, "no route", None)
    away = _status(ObservedState(NOW, remotes={"m": "no route"}, remote_retry_at={"m": NOW + 2}), remote)
    assert (away.state, away.retry_at) == (ModelState.FAILED, NOW + 2)
    well = ObservedState(NOW, remotes={"m": None})
    status = _status(well, remote)
    assert (status.state, status.loaded_replicas) == (ModelState.LOADED, 1)
    route = _route(well, remote)
    assert route.takes_dimensions
    [endpoint] = route.endpoints
    assert (route.served_name, endpoint.base_url, endpoint.api_prefix) == ("there", "https://x.example/v1", "")
    assert (route.thinking_control, route.context_length) == ("thinking", None)
    assert route.extra_fields == ("top_k",)


def test_a_vram_mib_that_is_far_from_what_was_seen_is_said_with_both_figures() -> None:
    model = replace(MODEL, gpu_count=1, vram_mib=8000)
    seen = {"m": Requirement(9000, 50, observed_per_gpu_mib=9000)}
    status = _status(ObservedState(NOW, requirements=seen), model)
    assert "declares 8000 MiB of each GPU, and a replica was seen to take 9000" in (status.vram_warning or "")
    about_right = {"m": Requirement(8100, 50, observed_per_gpu_mib=8100)}
    assert _status(ObservedState(NOW, requirements=about_right), model).vram_warning is None
    predicted = {"m": Requirement(9000, 50)}
    assert _status(ObservedState(NOW, requirements=predicted), model).vram_warning is None


DECLARED = replace(MODEL, gpu_count=1, vram_mib=8000)


def test_a_declared_vram_mib_that_is_about_right_is_not_spoken_of() -> None:
    assert [explain_vram_gap(DECLARED, mib) for mib in (None, 0, 7201, 8000, 8799)] == [None] * 5
    assert explain_vram_gap(replace(DECLARED, vram_mib=None), 9120) is None
    assert explain_vram_gap(replace(DECLARED, gpu_count=0), 9120) is None


def test_a_tenth_more_or_less_is_said_with_both_figures() -> None:
    more, less = explain_vram_gap(DECLARED, 9120), explain_vram_gap(DECLARED, 4000)
    assert more == (
        "`vram_mib` declares 8000 MiB of each GPU, and a replica was seen to take 9120, 14% more: raise it, or its "
        "next load may find too little memory"
    )
    assert less == (
        "`vram_mib` declares 8000 MiB of each GPU, and a replica was seen to take 4000, 50% less: a lower one leaves "
        "room for others"
    )
    assert explain_vram_gap(DECLARED, 7200) is not None
    assert explain_vram_gap(DECLARED, 8800) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("unloaded", "loading"),
        ("loading", "loaded"),
        ("loading", "failed"),
        ("failed", "loading"),
        ("loaded", "unloading"),
        ("unloading", "unloaded"),
    ],
)
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("unloading", "sleeping"),
        ("sleeping", "loading"),
        ("sleeping", "unloading"),
        ("sleeping", "unloaded"),
    ],
)
def test_the_steps_of_a_sleep_are_one_step(before: str, after: str) -> None:
    assert next_state(ModelState(before), ModelState(after)) is ModelState(after)


def test_what_sleeps_is_loaded_before_it_serves_and_unloads_before_it_sleeps() -> None:
    assert next_state(ModelState.SLEEPING, ModelState.LOADED) is ModelState.LOADING
    assert next_state(ModelState.LOADED, ModelState.SLEEPING) is ModelState.UNLOADING


def test_what_is_loaded_never_seems_unloaded_without_an_unload() -> None:
    assert next_state(ModelState.LOADED, ModelState.UNLOADED) is ModelState.UNLOADING
    assert next_state(ModelState.UNLOADED, ModelState.LOADED) is ModelState.LOADING
    assert next_state(ModelState.UNLOADED, ModelState.FAILED) is ModelState.LOADING
    assert next_state(ModelState.LOADING, ModelState.UNLOADED) is ModelState.UNLOADING


def test_a_first_look_is_published_as_it_is() -> None:
    assert next_state(None, ModelState.FAILED) is ModelState.FAILED


def test_each_model_goes_its_own_way() -> None:
    status = _status(_seen())
    true = [status.model_copy(update={"name": name, "state": ModelState.LOADED}) for name in "abc"]
    shown = publishable_statuses({"a": ModelState.LOADED, "b": ModelState.UNLOADED}, true)
    assert [status.state for status in shown] == [ModelState.LOADED, ModelState.LOADING, ModelState.LOADED]


# The table


def test_a_change_of_keys_or_tools_alone_is_a_new_table() -> None:
    hub = GatewayHub("i", 3, wake=lambda: None, clock=lambda: 0.0)
    route, key = _route(_seen()), Key(name="ci", sha256="a" * 64, tenant="ci")
    tool, server = ToolRoute(name="calculate"), McpServerRoute(name="a", url="https://a/")
    missing = server.model_copy(update={"url": None})
    hub.replace_permissions((key,), (), ())
    first = hub.table
    assert first is None, "keys alone make none"
    stamps = [
        hub.publish_table((route,), keys, tools, servers).seq
        for keys, tools, servers in (
            ((key,), (), ()),
            ((key,), (), ()),
            ((key.model_copy(update={"weight": 2.0}),), (), ()),
            ((), (), ()),
            ((), (tool,), (server,)),
            ((), (tool,), (server,)),
            ((), (tool,), (missing,)),
            ((), (), (missing,)),
        )
    ]
    assert stamps == [1, 1, 2, 3, 4, 4, 5, 6]
    hub.replace_permissions((key,), (), ())
    assert hub.table is not None
    assert (hub.table.stamp, hub.table.models, hub.table.keys) == (Stamp(epoch=3, seq=7), (route,), (key,))
    assert (hub.table.tools, hub.table.mcp_servers) == ((), ())
    assert RoutingTable.model_validate_json(hub.table.model_dump_json()) == hub.table
