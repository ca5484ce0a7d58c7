"""Properties of what is counted inside, and of what a name means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.routing import ModelRoute, RoutingTable, Stamp
from gateway.control.inflight import LEAVING_NAMED, InflightCounts
from gateway.routing.table import Routes
from tests.fakes.fake_controller import route
from tests.support.campaign import campaign_count

NAMES = [f"r{number}" for number in range(6)]


@settings(max_examples=campaign_count(50, 2_500))
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.sampled_from(NAMES)), max_size=60))
def test_counters_are_what_is_inside_and_never_hold_a_zero(steps: list[tuple[bool, str, str]]) -> None:
    ledger = InflightCounts(lambda: 0.0, {})
    inside: list[tuple[str, str, str]] = []
    routes = Routes.of(RoutingTable(instance="i", stamp=Stamp(epoch=1, seq=1)))
    for number, (enters, model, replica) in enumerate(steps):
        if enters or not inside:
            ledger.enter_replica(model, replica, f"req-{number}")
            inside.append((model, replica, f"req-{number}"))
        else:
            ledger.leave_replica(*inside.pop())
        assert ledger.inflight == Counter(replica for _, replica, _ in inside)
        assert ledger.inflight_by_model == Counter(model for model, _, _ in inside)
        leaving = ledger.make_report("g", routes).leaving
        assert {replica: len(named) for replica, named in leaving.items()} == {
            replica: min(count, LEAVING_NAMED) for replica, count in ledger.inflight.items()
        }


names = st.text(st.sampled_from("ab/:"), min_size=1, max_size=3)


@settings(max_examples=campaign_count(50, 2_500))
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


described = st.tuples(st.lists(names, max_size=1).map(tuple), st.lists(st.sampled_from(["http://p", "http://q"])))
"""A model's aliases, and the addresses of its replicas."""


@settings(max_examples=campaign_count(50, 2_500))
@given(st.lists(st.dictionaries(st.sampled_from("abc"), described), min_size=2, max_size=4))
def test_models_and_endpoints_that_are_as_they_were_stay_the_same_objects(tables: list[dict[str, Any]]) -> None:
    before: Mapping[str, ModelRoute] = {}
    former: Routes | None = None
    for seq, models in enumerate(tables):
        made = tuple(route(name, urls, aliases=aliases) for name, (aliases, urls) in models.items())
        table = RoutingTable(instance="i", stamp=Stamp(epoch=1, seq=seq), models=made)
        after, anew = Routes.of(table, former), Routes.of(table)
        assert (after.models, after.names, after.replicas) == (anew.models, anew.names, anew.replicas)
        for name, model in after.models.items():
            known = before.get(name)
            assert (model is known) == (model == known)
            known_endpoints = known.endpoints if known is not None else ()
            for endpoint in model.endpoints:
                assert endpoint not in known_endpoints or any(endpoint is each for each in known_endpoints)
        before, former = after.models, after
