"""What gateways report that requests asked for, and what of it counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.override import Evicted
from contract.routing import GatewayReport, Stamp
from controller.desired.source import GATEWAYS_HEARD, DemandLedger, StatePersistence
from controller.state_dir import StateDir


@dataclass
class Bench:
    """A ledger over a state folder, at a time that a test sets."""

    persistence: StatePersistence
    now: float = 100.0

    def __post_init__(self) -> None:
        self.ledger = DemandLedger(self.persistence, lambda: self.now)

    def report(self, at: float, gateway: str = "g", stamp: Stamp | None = None) -> bool:
        """A gateway reports a request for `m` of that time; whether it is new."""
        return self.ledger.take_demand(GatewayReport(gateway_id=gateway, stamp=stamp, demand={"m": at}))

    @property
    def demand(self) -> dict[str, float]:
        return self.persistence.state.demand

    @property
    def evictions(self) -> dict[str, Evicted]:
        return self.persistence.state.rested

    def unload(self, revision: int = 5) -> None:
        self.persistence.update_state(self.ledger.end_for_override("m", revision))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    store = StateDir.open_folder(tmp_path / "state")
    yield Bench(StatePersistence(store))
    store.close()


def stamp(seq: int) -> Stamp:
    return Stamp(epoch=1, seq=seq)


def test_another_request_of_the_same_gateway_is_new_and_a_repetition_is_not(bench: Bench) -> None:
    assert bench.report(at=90.0)
    assert bench.demand == {"m": 100.0}, "as of now, by this clock"
    bench.now = 110.0
    assert not bench.report(at=90.0)
    assert not bench.report(at=95.0, gateway="other"), "what was wanted already"
    assert bench.report(at=95.0)
    assert bench.demand == {"m": 110.0}


def test_an_eviction_ends_demand_until_the_next_request(bench: Bench) -> None:
    bench.report(at=90.0)
    bench.now = 110.0
    bench.ledger.evict_models({"m": "it made room"})
    assert (bench.demand, bench.evictions) == ({}, {"m": Evicted(at=110.0, reason="it made room")})
    assert not bench.report(at=90.0)
    assert not bench.report(at=109.0, gateway="other"), "it is of before the eviction"
    bench.now = 120.0
    assert bench.report(at=115.0, gateway="another")
    assert (bench.demand, bench.evictions) == ({"m": 120.0}, {})


@pytest.mark.parametrize(("first", "later"), [(None, None), (None, stamp(8)), (stamp(6), stamp(6))])
def test_a_request_from_before_an_unload_does_not_load_again(
    bench: Bench, first: Stamp | None, later: Stamp | None
) -> None:
    """The first table that has the unload is 7. Gateways that do not have it report what was asked before."""
    bench.report(at=90.0)
    bench.unload(revision=5)
    assert bench.demand == {}
    assert not bench.report(at=91.0, stamp=first)
    bench.ledger.note_published(4, stamp(6))  # built before the unload
    bench.ledger.note_published(5, stamp(7))
    bench.ledger.note_published(6, stamp(8))
    assert bench.report(at=92.0, stamp=later) == (later == stamp(8))


def test_demand_after_an_unload_counts_from_the_first_table_that_has_it(bench: Bench) -> None:
    bench.unload(revision=5)
    assert not bench.report(at=91.0, stamp=stamp(7)), "no table is known to have it"
    bench.ledger.note_published(5, stamp(7))
    bench.ledger.note_published(6, stamp(9))
    assert bench.report(at=92.0, stamp=stamp(7))
    assert bench.report(at=93.0, stamp=None), "the unload is forgotten with the first request after it"


def test_a_load_ends_an_eviction_and_leaves_demand(bench: Bench) -> None:
    bench.report(at=90.0)
    bench.ledger.evict_models({"m": "idle", "n": "idle"})
    bench.ledger.request_reload(["m"])
    bench.persistence.update_state(bench.ledger.end_for_override("n", None))
    assert (set(bench.demand), bench.evictions) == ({"m"}, {})
    assert bench.report(at=95.0), "a load drops nothing that gateways report"


def test_reports_of_so_many_gateways_are_remembered(bench: Bench) -> None:
    bench.report(at=90.0, gateway="first")
    for number in range(GATEWAYS_HEARD - 1):
        bench.ledger.take_demand(GatewayReport(gateway_id=f"g{number}", stamp=None))
    assert bench.report(at=91.0, gateway="first"), "it is known: another request is new"
    for number in range(GATEWAYS_HEARD):
        bench.ledger.take_demand(GatewayReport(gateway_id=f"h{number}", stamp=None))
    assert not bench.report(at=92.0, gateway="first"), "it is not: the model is wanted already"


def test_an_end_in_the_future_is_none(bench: Bench) -> None:
    bench.ledger.evict_models({"m": "idle"})
    bench.now = 50.0  # the clock was set back
    assert bench.report(at=40.0)
