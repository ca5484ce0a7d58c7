"""Deciding when a draining replica holds no requests any more. Pure.

Invariant: a replica counts as empty only when no gateway that was ever routed to it can still hold a request for it:
every gateway reports zero under a table that no longer routes to the replica. A lost gateway's counts are unknown, not
zero; then the engine's own idle figure decides, and without one the drain's deadline.

An engine that reports itself idle for `IDLE_PROOF_S` since a gateway was lost holds no request of that gateway
(docs/adr/0013).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract.routing import GatewayReport, Stamp
from controller.state import IdleSpan

ARRIVAL_S = 5.0
"""Seconds that a new controller waits for gateways that still route by an older table."""
FORGET_S = 600.0
"""Seconds after which a lost gateway counts as holding no requests."""
IDLE_PROOF_S = 5.0
"""Seconds of idleness, by the engine's own figure and since the last gateway was lost, that prove that the engine holds
no request of a lost gateway. By then requests on their way have arrived, and a gateway that only lost its link is back.
"""


@dataclass(frozen=True, slots=True)
class GatewayView:
    """The last report of one gateway. `lost_at`: Unix time when its connection was lost; None: it is connected."""

    report: GatewayReport
    lost_at: float | None = None


@dataclass(frozen=True, slots=True)
class DrainState:
    """A drain under way. `since`: Unix time of its start. `unrouted_stamp`: stamp of the first routing table that does
    not route to the replica; None: there is none yet."""

    since: float
    unrouted_stamp: Stamp | None = None


def gateways_may_reconnect(now: float, up_since: float) -> bool:
    """Whether gateways of the previous controller may still be about to reconnect: for `ARRIVAL_S` (5 s) after the
    start.

    `now`, `up_since`: Unix times in seconds; `up_since` is this controller's start. False if `now` is before it.
    """
    return 0 <= now - up_since < ARRIVAL_S


def counts_unknown_since(gateways: Iterable[GatewayView], now: float) -> float | None:
    """Return the Unix time at which the latest of the lost gateways was lost; None: all gateways are connected.

    The counts of a lost gateway are unknown until it was lost for `FORGET_S` (10 min); from then on it is left out.
    Without any gateway left, return -infinity, since then no count is known.
    """
    views = present_gateways(gateways, now)
    if not views:
        return float("-inf")
    return max((view.lost_at for view in views if view.lost_at is not None), default=None)


def idle_proof_due_at(idle_span: IdleSpan, unknown_since: float) -> float:
    """Return the Unix time from which on a probe that finds the engine still idle proves that it holds no requests of
    gateways whose counts are unknown. `idle_span` is the engine's present one.

    `unknown_since`: the result of `counts_unknown_since`, which must not be None.
    """
    return max(idle_span.since, unknown_since) + IDLE_PROOF_S


def proves_idle(idle_span: IdleSpan | None, unknown_since: float) -> bool:
    """Whether the engine's idle span proves that it holds no requests of gateways whose counts are unknown: a probe at
    or after `idle_proof_due_at` found it idle. False where `idle_span` is None: the engine is busy, or does not report
    whether it is idle."""
    return idle_span is not None and idle_span.until >= idle_proof_due_at(idle_span, unknown_since)


def count_inflight(
    name: str, gateways: Iterable[GatewayView], now: float, idle_span: IdleSpan | None = None
) -> int | None:
    """Return the number of requests that connected gateways report in the replica `name`.

    None: unknown, because a gateway is lost or there is none, and `idle_span` does not prove that the engine holds no
    other requests. `now`: Unix time in seconds.
    """
    views = present_gateways(gateways, now)
    unknown_since = counts_unknown_since(views, now)
    if unknown_since is not None and not proves_idle(idle_span, unknown_since):
        return None
    return sum(view.report.inflight.get(name, 0) for view in views if view.lost_at is None)


def is_drained(
    name: str, drain: DrainState, gateways: Iterable[GatewayView], engine_idle: bool | None, *, now: float, unsure: bool
) -> bool | None:
    """Whether a draining replica holds no requests; None: unknown.

    False while no routing table leaves the replica out, or while a connected gateway has not taken a table without the
    replica or reports requests in it. Otherwise None if `unsure`: gateways that are not in `gateways` may route to the
    replica. Otherwise True, if all gateways are connected and there is one; with a lost gateway, or without any, the
    answer is `engine_idle`: whether the engine reported, after the drain began, that it is idle; None: it does not
    report it. `name`: the replica's. `now`: Unix time in seconds.
    """
    if drain.unrouted_stamp is None:
        return False
    has_lost_gateway = False
    views = present_gateways(gateways, now)
    for view in views:
        if view.lost_at is not None:
            has_lost_gateway = True
        elif view.report.stamp is None or view.report.stamp < drain.unrouted_stamp or view.report.inflight.get(name, 0):
            return False
    if unsure:
        return None
    return True if views and not has_lost_gateway else engine_idle


def present_gateways(gateways: Iterable[GatewayView], now: float) -> list[GatewayView]:
    """Return the gateways that may still hold requests, in their order: all but those lost for `FORGET_S` (10 min) or
    more at `now` (Unix time)."""
    return [view for view in gateways if not _is_forgotten(view, now)]


def _is_forgotten(view: GatewayView, now: float) -> bool:
    return view.lost_at is not None and now - view.lost_at >= FORGET_S
