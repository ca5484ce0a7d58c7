"""When a drained replica is empty. Pure.

Invariant: a replica counts as empty only when nobody who may have been given it can still hold a request for it:
every gateway reports zero under a table that no longer routes to it. A lost gateway's counts are unknown, never zero;
then the engine's own idle figure decides, else the drain's deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.schema.routing import GatewayReport, Stamp

ARRIVAL_S = 5.0
"""A new controller gives gateways that still route by an older table this long to come back."""
FORGET_S = 600.0
"""A gateway that has been gone this long holds no request any more."""


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


def count_inflight(name: str, gateways: Iterable[GatewayView], now: float) -> int | None:
    """Requests inside one replica, by all gateways; None: one of them is lost, or there is none."""
    views = present_gateways(gateways, now)
    if not views or any(view.lost_at is not None for view in views):
        return None
    return sum(view.report.inflight.get(name, 0) for view in views)


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
