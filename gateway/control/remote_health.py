"""From what probes of a remote model and requests to it see to its health, and when it is probed next. Pure.

A remote has failed when three probes in a row failed and no request was answered between them, or when it refused a
connection. 429 says that it is there and asks for patience. A key that is refused is no outage: only another key, or
whoever runs the remote, ends it. A remote that is well is probed ever more rarely, as each probe may cost something.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

FAILURES: Final = 3
"""Probes in a row that fail before a remote has failed."""
LONGEST_GAP_S: Final = 60.0
"""Between probes of a remote that is well, or that refuses its key."""
LONGEST_OUTAGE_GAP_S: Final = 10.0
"""Between probes of a remote that is away: requests are refused until one succeeds."""
LONGEST_PATIENCE_S: Final = 3600.0
"""The longest `Retry-After` that is believed."""
_HTTP_OK: Final = 200
_TOO_MANY: Final = 429
_KEY_REFUSED: Final = (401, 403)


class ProbeVerdict(Enum):
    """What one probe says of a remote."""

    WELL = "well"
    LIMITED = "limited"
    """It answered 429."""
    KEY_REFUSED = "key refused"
    """It answered 401 or 403."""
    CONNECTION_REFUSED = "connection refused"
    FAILED = "failed"
    """Anything else: no answer, another status."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """One probe of a remote."""

    verdict: ProbeVerdict
    message: str | None = None
    """What it answered, for people and without secrets; None: it is well."""
    retry_after_s: float | None = None
    """Seconds for which it asks not to be asked; None: it does not say."""


@dataclass(frozen=True, slots=True)
class RemoteHealth:
    """What is known of one remote."""

    is_well: bool | None = None
    """None: not decided yet."""
    error: str | None = None
    """Why it is not well; None: it is, or that is not decided."""
    is_key_refused: bool = False
    """It is not well because of its key."""
    failure_count: int = 0
    """Probes in a row that failed, if no request was answered between them."""
    probed_at: float = float("-inf")
    gap_s: float = 0.0
    """From the last probe to the next, as planned at the last one; 0: there was none."""
    next_probe_at: float = float("-inf")


def judge_status(status: int) -> ProbeVerdict:
    """What the status of a probe's answer says."""
    if status == _HTTP_OK:
        return ProbeVerdict.WELL
    if status == _TOO_MANY:
        return ProbeVerdict.LIMITED
    return ProbeVerdict.KEY_REFUSED if status in _KEY_REFUSED else ProbeVerdict.FAILED


def apply_probe(health: RemoteHealth, outcome: ProbeOutcome, now: float, interval_s: float) -> RemoteHealth:
    """The health after one more probe. `interval_s`: the shortest time between two."""
    if outcome.verdict is ProbeVerdict.WELL:
        is_steady = health.is_well and not health.failure_count
        gap_s = _grow_gap(health.gap_s, interval_s, LONGEST_GAP_S) if is_steady else interval_s
        return _plan_probe(RemoteHealth(is_well=True), now, gap_s)
    if outcome.verdict is ProbeVerdict.LIMITED:
        gap_s = _grow_gap(health.gap_s, interval_s, LONGEST_GAP_S)
        if outcome.retry_after_s is not None:
            gap_s = max(interval_s, min(outcome.retry_after_s, LONGEST_PATIENCE_S))
        # Whether it takes the key is not said by a server that did not look at it.
        limited_health = replace(health, failure_count=0) if health.is_key_refused else RemoteHealth(is_well=True)
        return _plan_probe(limited_health, now, gap_s)
    failure_count = health.failure_count + 1
    is_decided = (
        health.is_well is False or failure_count >= FAILURES or outcome.verdict is ProbeVerdict.CONNECTION_REFUSED
    )
    if not is_decided:
        return _plan_probe(replace(health, failure_count=failure_count), now, interval_s)
    is_key_refused = outcome.verdict is ProbeVerdict.KEY_REFUSED
    longest_s = LONGEST_GAP_S if is_key_refused else LONGEST_OUTAGE_GAP_S
    gap_s = _grow_gap(health.gap_s, interval_s, longest_s) if health.is_well is False else interval_s
    failed_health = RemoteHealth(
        is_well=False, error=outcome.message, is_key_refused=is_key_refused, failure_count=failure_count
    )
    return _plan_probe(failed_health, now, gap_s)


def apply_answer(health: RemoteHealth, status: int, now: float, interval_s: float) -> RemoteHealth:
    """The health after a request was answered with `status`. What shows that the remote is well stands for a probe;
    what raises a doubt brings the next one forward."""
    if status == _TOO_MANY:
        return health
    if status in _KEY_REFUSED or status >= 500:
        return apply_doubt(health, now, interval_s)
    next_probe_at = max(health.next_probe_at, health.probed_at + max(interval_s, LONGEST_GAP_S))
    if health.is_well and not health.failure_count and next_probe_at == health.next_probe_at:
        return health  # as after almost every request: on the hot path
    return replace(
        health,
        is_well=True,
        error=None,
        is_key_refused=False,
        failure_count=0,
        gap_s=max(health.gap_s, LONGEST_GAP_S),
        next_probe_at=next_probe_at,
    )


def apply_doubt(health: RemoteHealth, now: float, interval_s: float) -> RemoteHealth:
    """The health after something that does not speak for it, such as a connection that broke: it is probed at once,
    but no sooner than `interval_s` after the last probe."""
    next_probe_at = min(health.next_probe_at, max(now, health.probed_at + interval_s))
    return replace(health, next_probe_at=next_probe_at)


def parse_retry_after(text: str | None, unix_now: float) -> float | None:
    """Seconds that a `Retry-After` header asks for, by number or by date; None: it has none that can be read."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_now)
    except (ValueError, OverflowError):
        return None


def _grow_gap(gap_s: float, interval_s: float, longest_s: float) -> float:
    return max(interval_s, min(2 * gap_s, longest_s))


def _plan_probe(health: RemoteHealth, now: float, gap_s: float) -> RemoteHealth:
    return replace(health, probed_at=now, gap_s=gap_s, next_probe_at=now + gap_s)
