"""Properties of choosing a replica, and of where a request is tried again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.schema.routing import Endpoint, RoutingTable, Stamp
from gateway.ledger import LEAVING_NAMED, Ledger
from gateway.retry import MAX_BREAKS, Tries, next_endpoint
from gateway.routing import Routes, pick
from tests.fakes.fake_controller import route

NAMES = [f"r{number}" for number in range(6)]
endpoint_sets = st.lists(st.sampled_from(NAMES), unique=True, min_size=1).map(
    lambda names: tuple(Endpoint(replica=name, base_url="http://e") for name in names)
)
counts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5))
turns = st.permutations(NAMES).map(lambda order: {name: turn for turn, name in enumerate(order)})


@given(endpoint_sets, counts, turns, st.sets(st.sampled_from(NAMES)))
def test_pick_is_least_inflight_then_longest_ago(
    endpoints: tuple[Endpoint, ...], inflight: dict[str, int], last: dict[str, int], avoid: set[str]
) -> None:
    chosen = pick(endpoints, inflight, last, avoid)
    allowed = [endpoint.replica for endpoint in endpoints if endpoint.replica not in avoid]
    if chosen is None:
        assert not allowed
        return
    assert chosen.replica in allowed
    fewest = min(inflight.get(name, 0) for name in allowed)
    assert inflight.get(chosen.replica, 0) == fewest
    tied = [name for name in allowed if inflight.get(name, 0) == fewest]
    assert last[chosen.replica] == min(last[name] for name in tied)


@given(endpoint_sets, st.integers(1, 60))
def test_equal_replicas_take_turns(endpoints: tuple[Endpoint, ...], requests: int) -> None:
    ledger = Ledger(lambda: 0.0)
    chosen: Counter[str] = Counter()
    for number in range(requests):
        endpoint = ledger.choose(endpoints, Tries())
        assert endpoint is not None
        with ledger.inside("m", endpoint.replica, f"req-{number}"):
            chosen[endpoint.replica] += 1
    shares = [chosen[endpoint.replica] for endpoint in endpoints]
    assert max(shares) - min(shares) <= 1


@given(endpoint_sets, st.integers(1, 40))
def test_requests_that_stay_are_spread_evenly(endpoints: tuple[Endpoint, ...], requests: int) -> None:
    ledger = Ledger(lambda: 0.0)
    for number in range(requests):
        endpoint = ledger.choose(endpoints, Tries())
        assert endpoint is not None
        ledger.inside("m", endpoint.replica, f"req-{number}").__enter__()
    spread = [ledger.inflight.get(endpoint.replica, 0) for endpoint in endpoints]
    assert sum(spread) == requests
    assert max(spread) - min(spread) <= 1


@given(endpoint_sets, counts, turns, st.lists(st.booleans(), min_size=20, max_size=20))
def test_retries_end_and_never_repeat_a_refusal(
    endpoints: tuple[Endpoint, ...], inflight: dict[str, int], last: dict[str, int], breaks: list[bool]
) -> None:
    tries = Tries()
    seen: list[tuple[str, bool]] = []
    for broke in breaks:
        endpoint = next_endpoint(endpoints, inflight, last, tries)
        if endpoint is None:
            break
        refused_before = {name for name, was_break in seen if not was_break}
        assert endpoint.replica not in refused_before
        untouched = {e.replica for e in endpoints} - {name for name, _ in seen}
        assert endpoint.replica in untouched or not untouched
        seen.append((endpoint.replica, broke))
        tries = tries.after_break(endpoint.replica) if broke else tries.after_refusal(endpoint.replica)
    assert next_endpoint(endpoints, inflight, last, tries) is None
    assert sum(was_break for _, was_break in seen) <= MAX_BREAKS
    assert len(seen) <= len(endpoints) + MAX_BREAKS


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.sampled_from(NAMES)), max_size=60))
def test_counters_are_what_is_inside_and_never_hold_a_zero(steps: list[tuple[bool, str, str]]) -> None:
    ledger = Ledger(lambda: 0.0)
    inside: list[tuple[str, str]] = []
    contexts: list[Any] = []
    routes = Routes.of(RoutingTable(instance="i", stamp=Stamp(epoch=1, seq=1)))
    for number, (enters, model, replica) in enumerate(steps):
        if enters or not contexts:
            context = ledger.inside(model, replica, f"req-{number}")
            context.__enter__()
            contexts.append(context)
            inside.append((model, replica))
        else:
            contexts.pop().__exit__(None, None, None)
            inside.pop()
        assert ledger.inflight == Counter(replica for _, replica in inside)
        assert ledger.inflight_by_model == Counter(model for model, _ in inside)
        leaving = ledger.report("g", routes).leaving
        assert {replica: len(named) for replica, named in leaving.items()} == {
            replica: min(count, LEAVING_NAMED) for replica, count in ledger.inflight.items()
        }


names = st.text(st.sampled_from("ab/:"), min_size=1, max_size=3)


@given(st.dictionaries(names, st.lists(names, max_size=3).map(tuple), max_size=5))
def test_a_models_own_name_always_finds_it_and_every_alias_finds_some_owner(models: dict[str, tuple[str, ...]]) -> None:
    table = RoutingTable(
        instance="i",
        stamp=Stamp(epoch=1, seq=1),
        models=tuple(route(name, aliases=aliases) for name, aliases in models.items()),
    )
    routes = Routes.of(table)
    assert list(routes.models) == list(models)
    for name, aliases in models.items():
        assert routes.names[name].name == name
        for alias in aliases:
            owner = routes.names[alias]
            assert owner.name == alias or alias in owner.aliases
