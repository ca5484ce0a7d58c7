"""What the gateways say of the requests for each model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.planning.draining import GatewayView, present_gateways
from controller.state import ModelTraffic


def traffic_by_model(
    models: Iterable[str],
    gateways: Iterable[GatewayView],
    now: float,
    *,
    last_used: Mapping[str, float],
    up_since: float,
    unsure: bool,
) -> dict[str, ModelTraffic]:
    """Model to the requests for it. How many wait is unknown while a gateway is lost, while there is none, and while
    there may be more (`unsure`). What is in none of `last_used` may have been used until the controller was `up_since`.
    """
    views = present_gateways(gateways, now)
    reports = [view.report for view in views if view.lost_at is None]
    is_known = 0 < len(reports) == len(views) and not unsure
    return {
        name: ModelTraffic(
            sum(report.queued.get(name, 0) for report in reports) if is_known else None,
            min((report.waits_since[name] for report in reports if name in report.waits_since), default=None),
            last_used.get(name, up_since),
        )
        for name in models
    }
