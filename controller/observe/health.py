"""From probe outcomes to an engine's health. Pure.

Ready: the health path answers, then one token (or one embedding) came. A failed probe only unroutes. A restart takes
an exit, an engine that says it is dead, or 120 s without progress while it is busy, or takes connections and does
not answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.state import Health, IdleSpan

STALL_S = 120.0


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """One probe of one engine."""

    healthy: bool
    reached: bool = True
    """False: no connection came about, which tells of the way to the engine rather than of the engine."""
    dead: bool = False
    """The engine answered that it cannot go on."""
    generated: bool = False
    """It gave the one token (asked for only until it is ready)."""
    busy_requests: float | None = None
    """Requests inside by its own figure; None: it has none, or did not tell."""
    progress: float | None = None
    """A figure that grows with its work."""
    error: str | None = None
    context_length: int | None = None
    """Tokens of one request, where it was asked and told."""
    system_first: bool | None = None
    """The model's chat template takes system messages at the beginning alone; None: not asked, or not told."""


@dataclass(frozen=True, slots=True)
class ProbedHealth:
    """What the probes of one engine add up to."""

    health: Health = Health.STARTING
    ready_since: float | None = None
    progress: float | None = None
    progressed_at: float | None = None
    idle: bool | None = None
    """By the engine's own figure, at the last probe; None: unknown."""
    idle_span: IdleSpan | None = None
    """None: at the last probe it was not idle, or that is unknown."""
    probed_at: float | None = None
    """When the last probe began: what it heard is no older."""
    error: str | None = None
    context_length: int | None = None
    """The last that it told; None: it has not, or does not."""
    system_first: bool | None = None
    """The same of `ProbeOutcome.system_first`."""


def apply_outcome(
    probed_health: ProbedHealth, outcome: ProbeOutcome, now: float, *, began_at: float | None = None
) -> ProbedHealth:
    """The health after one more probe, which ended `now`. `began_at` None: it took no time."""
    began_at = now if began_at is None else began_at
    has_progressed = outcome.progress is not None and outcome.progress != probed_health.progress
    # An engine with nothing to do need not move; one that takes a connection and does not answer gets no such benefit.
    is_resting = not outcome.reached or (outcome.healthy and outcome.busy_requests in (0, None))
    progressed_at = (
        now if has_progressed or is_resting or probed_health.progressed_at is None else probed_health.progressed_at
    )
    new_health = replace(
        probed_health,
        progress=probed_health.progress if outcome.progress is None else outcome.progress,
        progressed_at=progressed_at,
        idle=None if outcome.busy_requests is None else outcome.busy_requests == 0,
        idle_span=_extend_idle_span(probed_health, outcome, began_at),
        probed_at=began_at,
        error=outcome.error,
        context_length=probed_health.context_length if outcome.context_length is None else outcome.context_length,
        system_first=probed_health.system_first if outcome.system_first is None else outcome.system_first,
    )
    if outcome.dead:
        return replace(new_health, health=Health.DEAD)
    if probed_health.ready_since is None:
        is_ready = outcome.healthy and outcome.generated
        return replace(new_health, health=Health.READY, ready_since=now) if is_ready else new_health
    if now - progressed_at >= STALL_S:
        return replace(new_health, health=Health.STALLED)
    return replace(new_health, health=Health.READY if outcome.healthy else Health.FAILING)


def _extend_idle_span(probed_health: ProbedHealth, outcome: ProbeOutcome, began_at: float) -> IdleSpan | None:
    if outcome.busy_requests != 0:
        return None
    span = probed_health.idle_span
    # A figure of its work that is not what it was: a request came and went between two probes.
    has_worked = outcome.progress != probed_health.progress
    if span is None or has_worked or began_at < span.until:  # the last: the clock was set back
        return IdleSpan(began_at, began_at)
    return IdleSpan(span.since, began_at)


def metric_sum(text: str, names: Iterable[str]) -> float | None:
    """The sum of some metrics, over all labels, in Prometheus text; None when none of them is there."""
    wanted_names = set(names)
    sample = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})? ([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:\s|$)")
    values = [
        float(match[2]) for line in text.splitlines() if (match := sample.match(line)) and match[1] in wanted_names
    ]
    return sum(values) if values else None


def parse_context_length(text: str) -> int | None:
    """Tokens of one request, by an engine's list of its one model: `max_model_len` (vLLM), or `meta.n_ctx`
    (llama-server, which has counted slots and training context in; our worker)."""
    try:
        model = json.loads(text)["data"][0]
        context_length = model.get("max_model_len") or model["meta"]["n_ctx"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return (
        context_length
        if isinstance(context_length, int) and not isinstance(context_length, bool) and context_length > 0
        else None
    )
