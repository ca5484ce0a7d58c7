"""What the gateways say of the requests for each model. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.drains import GatewayView, present
from controller.state import Use


def uses(models: Iterable[str], gateways: Iterable[GatewayView], now: float) -> dict[str, Use]:
    """Model to the requests for it. How many wait is unknown while a gateway is lost, and while there is none."""
    views = present(gateways, now)
    known = bool(views) and all(view.lost_at is None for view in views)
    reports = [view.report for view in views]
    return {
        name: Use(
            sum(report.queued.get(name, 0) for report in reports) if known else None,
            min((report.waits_since[name] for report in reports if name in report.waits_since), default=None),
            max((report.last_used[name] for report in reports if name in report.last_used), default=None),
        )
        for name in models
    }
