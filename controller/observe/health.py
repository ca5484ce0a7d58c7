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
PREEMPTION_PROBES = 2
"""Probes in a row that see preemptions before an engine counts as preempting: one burst is none."""
PREEMPTION_HOLD_S = 600.0
"""So long it counts as preempting after the last one."""


_NUMBER_LABEL = re.compile(r'(\w+)="(\d+)"')


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
    kv_cache_tokens: int | None = None
    """Tokens that its KV cache holds; None: it does not tell."""
    preemptions: float | None = None
    """How often it has taken its cache from a request that it had begun; None: it does not tell."""


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
    kv_cache_tokens: int | None = None
    """The same of `ProbeOutcome.kv_cache_tokens`."""
    preemptions: float | None = None
    """The same of `ProbeOutcome.preemptions`."""
    preempting_probes: int = 0
    """The last probes in a row that saw new preemptions."""
    preempting_until: float | None = None
    """Until when it counts as preempting; None: it does not."""

    @property
    def is_preempting(self) -> bool:
        """Whether it takes its cache from requests that it has begun, again and again."""
        return self.preempting_until is not None


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
        kv_cache_tokens=outcome.kv_cache_tokens or probed_health.kv_cache_tokens,
    )
    new_health = _note_preemptions(new_health, outcome.preemptions, now)
    if outcome.dead:
        return replace(new_health, health=Health.DEAD)
    if probed_health.ready_since is None:
        is_ready = outcome.healthy and outcome.generated
        return replace(new_health, health=Health.READY, ready_since=now) if is_ready else new_health
    if now - progressed_at >= STALL_S:
        return replace(new_health, health=Health.STALLED)
    return replace(new_health, health=Health.READY if outcome.healthy else Health.FAILING)


def _note_preemptions(probed_health: ProbedHealth, preemptions: float | None, now: float) -> ProbedHealth:
    """The health with what a probe that ended `now` told of preemptions; None: it told nothing."""
    probes, until = probed_health.preempting_probes, probed_health.preempting_until
    if preemptions is not None:
        has_preempted = probed_health.preemptions is not None and preemptions > probed_health.preemptions
        probes = probes + 1 if has_preempted else 0
        if probes >= PREEMPTION_PROBES or (has_preempted and until is not None):
            until = now + PREEMPTION_HOLD_S
    if until is not None and now >= until:
        until = None
    return replace(
        probed_health,
        preemptions=probed_health.preemptions if preemptions is None else preemptions,
        preempting_probes=probes,
        preempting_until=until,
    )


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


def parse_cache_tokens(text: str, metric: str) -> int | None:
    """Tokens that the KV cache holds, by the labels of an info metric of vLLM in Prometheus text, one for each of its
    engines: `kv_cache_size_tokens`, or `num_gpu_blocks` of `block_size` tokens; None: it does not tell."""
    total = 0
    for line in text.splitlines():
        if line.startswith(metric + "{"):
            labels = dict(_NUMBER_LABEL.findall(line))
            blocks = int(labels.get("num_gpu_blocks", 0)) * int(labels.get("block_size", 0))
            total += int(labels.get("kv_cache_size_tokens", 0)) or blocks
    return total or None


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
