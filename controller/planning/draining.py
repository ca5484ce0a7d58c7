"""When a drained replica is empty. Pure.

Invariant: a replica counts as empty only when nobody who may have been given it can still hold a request for it:
every gateway reports zero under a table that no longer routes to it. A lost gateway's counts are unknown, never zero;
then the engine's own idle figure decides, else the drain's deadline.

What a lost gateway holds of a replica is bounded by what the replica's engine says of itself: one that has said since
the loss, for `IDLE_PROOF_S`, that it is idle, holds nothing of that gateway's (docs/adr/0013).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.schema.routing import GatewayReport, Stamp
from controller.state import IdleSpan

ARRIVAL_S = 5.0
"""A new controller gives gateways that still route by an older table this long to come back."""
FORGET_S = 600.0
"""A gateway that has been gone this long holds no request any more."""
IDLE_PROOF_S = 5.0
"""An engine that has been idle this long, by its own figure and after the last gateway was lost, holds no request of a
lost gateway. By then what was on its way has come, and a gateway that lost nothing but its link is back."""


@dataclass(frozen=True, slots=True)
class GatewayView:
    """One gateway as last heard of. `lost_at` None: its link is up."""

    report: GatewayReport
    lost_at: float | None = None


@dataclass(frozen=True, slots=True)
class DrainState:
    """A drain under way. `unrouted_stamp` is the first table that no longer routes to the replica; None: there is
    none yet."""

    since: float
    unrouted_stamp: Stamp | None = None


def gateways_may_reconnect(now: float, up_since: float) -> bool:
    """Whether gateways of the controller before this one, which is up since then, may not be back yet."""
    return 0 <= now - up_since < ARRIVAL_S


def counts_unknown_since(gateways: Iterable[GatewayView], now: float) -> float | None:
    """Since when some gateway's counts are unknown: when the last one was lost, or ever since where there is none;
    None: all are known."""
    views = present_gateways(gateways, now)
    if not views:
        return float("-inf")
    return max((view.lost_at for view in views if view.lost_at is not None), default=None)


def idle_proof_due_at(idle_span: IdleSpan, unknown_since: float) -> float:
    """From when on one more probe that hears the same proves that nothing is inside which gateways do not tell of."""
    return max(idle_span.since, unknown_since) + IDLE_PROOF_S


def proves_idle(idle_span: IdleSpan | None, unknown_since: float) -> bool:
    """Whether by the engine's word nothing is inside that gateways, unknown since then, do not tell of."""
    return idle_span is not None and idle_span.until >= idle_proof_due_at(idle_span, unknown_since)


def count_inflight(
    name: str, gateways: Iterable[GatewayView], now: float, idle_span: IdleSpan | None = None
) -> int | None:
    """Requests inside one replica, by all gateways; None: one of them is lost, or there is none, and `idle_span` does
    not prove that the engine holds nothing else."""
    views = present_gateways(gateways, now)
    unknown_since = counts_unknown_since(views, now)
    if unknown_since is not None and not proves_idle(idle_span, unknown_since):
        return None
    return sum(view.report.inflight.get(name, 0) for view in views if view.lost_at is None)


def is_drained(
    name: str, drain: DrainState, gateways: Iterable[GatewayView], engine_idle: bool | None, *, now: float, unsure: bool
) -> bool | None:
    """Whether the replica is empty. `engine_idle`: the engine's own figure, read after the drain began. `unsure`: more
    gateways than these may have been given it."""
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
    """The gateways that may still hold requests."""
    return [view for view in gateways if not _is_forgotten(view, now)]


def _is_forgotten(view: GatewayView, now: float) -> bool:
    return view.lost_at is not None and now - view.lost_at >= FORGET_S
