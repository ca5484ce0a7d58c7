"""What a lost gateway may hold is bounded by its engine's word, over generated requests and probes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.routing import GatewayReport
from controller.observe.health import ProbedHealth, ProbeOutcome, apply_outcome
from controller.planning.draining import FORGET_S, IDLE_PROOF_S, GatewayView, count_inflight
from controller.state import IdleSpan
from tests.support.campaign import campaign_count

LOST_AT = 20.0


@dataclass(frozen=True)
class EngineRequest:
    """One that is inside the engine from `since` until just before `ends`."""

    is_of_lost: bool
    """A gateway that lost only its link sends new ones too."""
    since: float
    ends: float

    def is_inside(self, at: float) -> bool:
        return self.since <= at < self.ends

    def overlaps(self, span: IdleSpan) -> bool:
        """Whether it was inside at any time of the span."""
        return self.since <= span.until and self.ends > span.since


requests = st.builds(
    lambda is_of_lost, since, takes_s: EngineRequest(is_of_lost, since, since + takes_s),
    st.booleans(),
    st.floats(0.0, 60.0),
    st.floats(0.01, 40.0),
)
pauses = st.lists(st.tuples(st.floats(0.1, 8.0), st.integers(0, 9)), min_size=1, max_size=30)
"""Seconds to the next probe, which fails where the number is 0."""


@settings(max_examples=campaign_count(100, 10_000))
@given(st.lists(requests, max_size=6), pauses)
def test_a_count_that_is_told_has_left_out_nothing_of_a_lost_gateway(
    inside: list[EngineRequest], probes: list[tuple[float, int]]
) -> None:
    now, probed_health = 0.0, ProbedHealth(ready_since=0.0)
    for pause_s, luck in probes:
        now += pause_s
        outcome = ProbeOutcome(healthy=False)
        if luck:
            busy, ended = sum(each.is_inside(now) for each in inside), sum(now >= each.ends for each in inside)
            outcome = ProbeOutcome(healthy=True, busy_requests=busy, progress=ended)
        probed_health = apply_outcome(probed_health, outcome, now)
        if now < LOST_AT:
            continue
        live_count = sum(each.is_inside(now) and not each.is_of_lost for each in inside)
        told = GatewayReport(gateway_id="live", stamp=None, inflight={"r": live_count} if live_count else {})
        last_heard = GatewayReport(gateway_id="lost", stamp=None, inflight={"r": 1})
        views = [GatewayView(told), GatewayView(last_heard, LOST_AT)]
        span = probed_health.idle_span
        count = count_inflight("r", views, now, span)
        if count is not None:
            assert count == live_count
            assert span is not None
            assert span.until >= LOST_AT + IDLE_PROOF_S
            assert span.until >= span.since + IDLE_PROOF_S
            assert not [each for each in inside if each.is_of_lost and each.overlaps(span)]
        elif span is not None:
            assert span.until < max(span.since, LOST_AT) + IDLE_PROOF_S, "it was idle for long enough"


@given(st.floats(0.0, FORGET_S), st.none() | st.floats(0.0, FORGET_S))
def test_an_engine_that_does_not_tell_is_bounded_as_long_as_its_gateway_may_be_back(
    age_s: float, other_age_s: float | None
) -> None:
    now = 10_000.0
    views = [
        GatewayView(GatewayReport(gateway_id=str(age), stamp=None), now - age)
        for age in (age_s, other_age_s)
        if age is not None
    ]
    assert count_inflight("r", views, now) is None
