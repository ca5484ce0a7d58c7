"""Derives an engine's health from the outcomes of its probes. Pure.

An engine is ready once its health path answers and it has generated one token (or one embedding). A failed probe only
stops routing to the engine. An engine is restarted only if it exits, if it reports that it is dead, or if for 120 s it
makes no progress while it is busy or while it accepts connections without answering.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from controller.schema.applied_figures import AppliedFigures
from controller.state import Health, IdleSpan

STALL_S = 120.0
"""Seconds without progress after which a busy engine counts as stalled."""
PREEMPTION_PROBES = 2
"""Consecutive probes with new preemptions after which an engine counts as preempting. A single burst does not count."""
PREEMPTION_HOLD_S = 600.0
"""Seconds for which an engine counts as preempting after the last preemption that a probe saw."""


_NUMBER_LABEL = re.compile(r'(\w+)="(\d+)"')


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What one probe of one engine found. None in a field: not known, or not asked by this probe; `error` None: the
    probe succeeded."""

    healthy: bool
    """Whether the health path answered with 200."""
    reached: bool = True
    """False: no connection was made, which says something about the network rather than about the engine."""
    dead: bool = False
    """Whether the engine answered that it is dead and cannot continue."""
    generated: bool = False
    """Whether the engine has generated its first token. Always True in healthy probes of an engine that is ready."""
    busy_requests: float | None = None
    """Requests inside the engine, by the engine's own metrics; None: unknown."""
    progress: float | None = None
    """A metric that grows while the engine works, such as tokens generated; None: unknown."""
    error: str | None = None
    """Why the probe failed; None: it succeeded."""
    figures: AppliedFigures = field(default_factory=AppliedFigures)
    """Figures of its own configuration that the engine reported this time."""
    system_first: bool | None = None
    """Whether the model's chat template accepts system messages only at the beginning of a conversation; None: not
    asked this time, or unknown."""
    kv_cache_tokens: int | None = None
    """Tokens that the engine's KV cache holds; None: unknown."""
    preemptions: float | None = None
    """How often the engine has ever preempted a running request, taking back its KV cache; None: unknown."""


@dataclass(frozen=True, slots=True)
class ProbedHealth:
    """What all probes of one engine so far add up to. Immutable: `apply_outcome` returns the next one. Times are Unix
    times in seconds, unless they say that they are monotonic."""

    health: Health = Health.STARTING
    ready_since: float | None = None
    """When the engine first became ready; None: it never was."""
    progress: float | None = None
    """The last known `ProbeOutcome.progress`; None: unknown so far."""
    progressed_at: float | None = None
    """Monotonic seconds when the engine last made progress, had nothing to do, or could not be reached; None: never
    probed."""
    idle: bool | None = None
    """Whether the engine had no request inside at the last probe, by its own metrics; None: unknown."""
    idle_span: IdleSpan | None = None
    """The unbroken run of probes that found the engine idle; None: the last probe did not."""
    probed_at: float | None = None
    """When the last probe began; what it found is no older than that. None: never probed."""
    error: str | None = None
    """Why the last probe failed; None: it succeeded."""
    figures: AppliedFigures = field(default_factory=AppliedFigures)
    """All that the engine has reported of its own configuration so far."""
    system_first: bool | None = None
    """The last known `ProbeOutcome.system_first`; None: unknown so far."""
    kv_cache_tokens: int | None = None
    """The last known `ProbeOutcome.kv_cache_tokens`; None: unknown so far."""
    preemptions: float | None = None
    """The last known `ProbeOutcome.preemptions`; None: unknown so far."""
    preempting_probes: int = 0
    """How many consecutive probes, up to the last one, saw new preemptions."""
    preempting_until: float | None = None
    """Monotonic seconds until which the engine counts as preempting; None: it does not. It is cleared by the first
    probe after that time."""

    @property
    def is_preempting(self) -> bool:
        """Whether the engine, as of its last probe, keeps preempting running requests because its KV cache is full."""
        return self.preempting_until is not None


def apply_outcome(
    probed_health: ProbedHealth,
    outcome: ProbeOutcome,
    now: float,
    *,
    began_at: float | None = None,
    uptime: float | None = None,
) -> ProbedHealth:
    """Return the health after one more probe, which began at `began_at` (None: at `now`) and ended at `now`; both are
    Unix times in seconds. `uptime`: the end in monotonic seconds, so that a wall clock that is set makes no busy engine
    seem stalled; None: `now`. Apply probes in their order. An engine without `ready_since` is starting until a probe
    finds it healthy and its first token generated. One with it is ready, failing (the last probe failed) or stalled (no
    progress for 120 s, `STALL_S`). It is dead, at any time, if it answers that it is."""
    began_at = now if began_at is None else began_at
    uptime = now if uptime is None else uptime
    has_progressed = outcome.progress is not None and outcome.progress != probed_health.progress
    # An idle or unreachable engine need not make progress; one that accepts connections and does not answer must.
    is_resting = not outcome.reached or (outcome.healthy and outcome.busy_requests in (0, None))
    progressed_at = (
        uptime if has_progressed or is_resting or probed_health.progressed_at is None else probed_health.progressed_at
    )
    new_health = replace(
        probed_health,
        progress=probed_health.progress if outcome.progress is None else outcome.progress,
        progressed_at=progressed_at,
        idle=None if outcome.busy_requests is None else outcome.busy_requests == 0,
        idle_span=_extend_idle_span(probed_health, outcome, began_at),
        probed_at=began_at,
        error=outcome.error,
        figures=probed_health.figures.merge_figures(outcome.figures),
        system_first=probed_health.system_first if outcome.system_first is None else outcome.system_first,
        kv_cache_tokens=outcome.kv_cache_tokens or probed_health.kv_cache_tokens,
    )
    new_health = _note_preemptions(new_health, outcome.preemptions, uptime)
    if outcome.dead:
        return replace(new_health, health=Health.DEAD)
    if probed_health.ready_since is None:
        is_ready = outcome.healthy and outcome.generated
        return replace(new_health, health=Health.READY, ready_since=now) if is_ready else new_health
    if uptime - progressed_at >= STALL_S:
        return replace(new_health, health=Health.STALLED)
    return replace(new_health, health=Health.READY if outcome.healthy else Health.FAILING)


def _note_preemptions(probed_health: ProbedHealth, preemptions: float | None, uptime: float) -> ProbedHealth:
    """Return the health with the preemption count of a probe that ended at `uptime`; None: the probe found no count."""
    probes, until = probed_health.preempting_probes, probed_health.preempting_until
    if preemptions is not None:
        has_preempted = probed_health.preemptions is not None and preemptions > probed_health.preemptions
        probes = probes + 1 if has_preempted else 0
        if probes >= PREEMPTION_PROBES or (has_preempted and until is not None):
            until = uptime + PREEMPTION_HOLD_S
    if until is not None and uptime >= until:
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
    # If the progress metric changed, a request came and went between two probes.
    has_worked = outcome.progress != probed_health.progress
    if span is None or has_worked or began_at < span.until:  # the last: the clock was set back
        return IdleSpan(began_at, began_at)
    return IdleSpan(span.since, began_at)


def metric_sum(text: str, names: Iterable[str]) -> float | None:
    """Return the sum of the named metrics, over all labels, in a Prometheus text; None if it holds none of them.
    Samples that are NaN or infinite are left out."""
    wanted_names = set(names)
    sample = re.compile(r"([A-Za-z_:][\w:]*)(?:\{[^}]*\})? ([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:\s|$)")
    values = [
        float(match[2]) for line in text.splitlines() if (match := sample.match(line)) and match[1] in wanted_names
    ]
    return sum(values) if values else None


def parse_cache_tokens(text: str, metric: str) -> int | None:
    """Return how many tokens the KV cache of a vLLM server holds, by its Prometheus text; None if the text lacks it.

    `metric` names vLLM's info metric about the cache. Each engine of the server has a sample of it, whose labels hold
    `kv_cache_size_tokens`, or else `num_gpu_blocks` and `block_size` (tokens per block). The result is their sum.
    """
    total = 0
    for line in text.splitlines():
        if line.startswith(metric + "{"):
            labels = dict(_NUMBER_LABEL.findall(line))
            blocks = int(labels.get("num_gpu_blocks", 0)) * int(labels.get("block_size", 0))
            total += int(labels.get("kv_cache_size_tokens", 0)) or blocks
    return total or None
