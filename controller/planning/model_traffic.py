"""Adding up what gateways report of the requests for each model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from controller.planning.draining import GatewayView, counts_unknown_since, present_gateways, proves_idle
from controller.state import IdleSpan, ModelTraffic, ObservedReplica, Phase


def joint_idle_span(spans: Iterable[IdleSpan | None]) -> IdleSpan | None:
    """Return the span in which all of these engines were idle: from the latest `since` to the earliest `until`.

    `until` may come before `since`, where one engine was probed before another became idle; such a span proves nothing
    (`proves_idle`). None: one engine is not idle or does not report it, or there is no engine.
    """
    known_spans = []
    for span in spans:
        if span is None:
            return None
        known_spans.append(span)
    if not known_spans:
        return None
    return IdleSpan(max(span.since for span in known_spans), min(span.until for span in known_spans))


def idle_span_by_model(replicas: Iterable[ObservedReplica]) -> dict[str, IdleSpan]:
    """Return, by model name, the span in which all of the model's running engines were idle (see `joint_idle_span`).
    Models without a running engine, or with one that is busy or does not report idleness, are left out."""
    spans_by_model: dict[str, list[IdleSpan | None]] = {}
    for replica in replicas:
        if replica.phase is Phase.RUNNING:
            spans_by_model.setdefault(replica.id.model, []).append(replica.idle_span)
    joint_spans = {model: joint_idle_span(spans) for model, spans in spans_by_model.items()}
    return {model: span for model, span in joint_spans.items() if span is not None}


def traffic_by_model(
    models: Iterable[str],
    gateways: Iterable[GatewayView],
    now: float,
    *,
    last_used: Mapping[str, float],
    up_since: float,
    unsure: bool,
    idle_spans: Mapping[str, IdleSpan],
) -> dict[str, ModelTraffic]:
    """Return, by model name, the traffic of each of `models`: requests that wait, since when, and the last use, over
    all gateways.

    All times are Unix seconds. `last_used`: model to the time of its last request. A model without an entry counts as
    used until `up_since`, this controller's start. `unsure`: there may be gateways besides these.

    The number of waiting requests is None (unknown) while `unsure`. It is also None while a gateway is lost or there is
    no gateway, unless the model's entry in `idle_spans` (see `idle_span_by_model`) proves that its engines are idle:
    idle engines have free slots, so no request of a lost gateway waits for them. A lost gateway may have used the
    engines until they became idle, so the last use is then not before that.
    """
    views = present_gateways(gateways, now)
    reports = [view.report for view in views if view.lost_at is None]
    unknown_since = counts_unknown_since(views, now)
    traffic = {}
    for name in models:
        idle_span, used_at = idle_spans.get(name), last_used.get(name, up_since)
        if unknown_since is not None and idle_span is not None:
            used_at = max(used_at, idle_span.since)
        is_known = not unsure and (unknown_since is None or proves_idle(idle_span, unknown_since))
        traffic[name] = ModelTraffic(
            sum(report.queued.get(name, 0) for report in reports) if is_known else None,
            min((report.waits_since[name] for report in reports if name in report.waits_since), default=None),
            used_at,
        )
    return traffic
