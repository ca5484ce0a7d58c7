"""Health of a remote model, from probes of it and requests to it, and when to probe it next. Pure.

A remote has failed when it refused a connection, or when three consecutive probes failed and no request was answered
between them. Status 429 is no failure: the remote is there and limits requests. A refused key is no outage: only
another key, or whoever runs the remote, ends it. A healthy remote is probed ever more rarely, because each probe may
cost something.

Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

FAILURES: Final = 3
"""Consecutive failed probes after which a remote has failed."""
LONGEST_GAP_S: Final = 60.0
"""Maximum number of seconds between probes of a remote that is healthy, or that refuses its key."""
LONGEST_OUTAGE_GAP_S: Final = 10.0
"""Maximum number of seconds between probes of a remote that has failed: requests are refused until a probe succeeds."""
LONGEST_PATIENCE_S: Final = 3600.0
"""Maximum number of seconds of a `Retry-After` that are respected."""
_HTTP_OK: Final = 200
_TOO_MANY: Final = 429
_KEY_REFUSED: Final = (401, 403)


class ProbeVerdict(Enum):
    """What one probe of a remote showed: `WELL` (status 200), `LIMITED` (429), `KEY_REFUSED` (401 or 403),
    `CONNECTION_REFUSED`, or `FAILED` (anything else, no answer too)."""

    WELL = "healthy"
    LIMITED = "limited"
    """Answered 429."""
    KEY_REFUSED = "key refused"
    """Answered 401 or 403."""
    CONNECTION_REFUSED = "connection refused"
    FAILED = "failed"
    """Anything else: no answer, another status."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Verdict and details of one probe. Immutable; made by `probe_remote` and read by `apply_probe`. `message` None:
    nothing went wrong. `retry_after_s` None: the answer has no `Retry-After`."""

    verdict: ProbeVerdict
    message: str | None = None
    """What went wrong, for people; None: nothing."""
    retry_after_s: float | None = None
    """Seconds of the answer's `Retry-After`; None: the answer has none."""


@dataclass(frozen=True, slots=True)
class RemoteHealth:
    """Health of one remote, and when it was and will be probed. Immutable: `apply_*` return a new one. `is_well` None:
    not decided yet.

    The default is a remote that was never probed, whose probe is due at once. Times are monotonic seconds.
    """

    is_well: bool | None = None
    """Whether the remote serves requests; None: not decided yet."""
    error: str | None = None
    """Why the remote is not well; None: it is well, or that is not decided."""
    is_key_refused: bool = False
    """Whether the remote is not well because it refuses its key."""
    failure_count: int = 0
    """Consecutive failed probes since a request was last answered."""
    probed_at: float = float("-inf")
    """Monotonic seconds of the last probe; -inf: not probed yet."""
    gap_s: float = 0.0
    """Seconds from the last probe to the next, as planned at the last one; 0: not probed yet."""
    next_probe_at: float = float("-inf")
    """Monotonic seconds at which the next probe is due; -inf: at once."""


def judge_status(status: int) -> ProbeVerdict:
    """Return the verdict for the HTTP status of a probe's answer: only 200 is `WELL`, and other 2xx are `FAILED`."""
    if status == _HTTP_OK:
        return ProbeVerdict.WELL
    if status == _TOO_MANY:
        return ProbeVerdict.LIMITED
    return ProbeVerdict.KEY_REFUSED if status in _KEY_REFUSED else ProbeVerdict.FAILED


def apply_probe(health: RemoteHealth, outcome: ProbeOutcome, now: float, interval_s: float) -> RemoteHealth:
    """Return the health after one more probe, which ended at `now` (monotonic seconds), with its next probe planned.

    A refused connection, or the third failed probe in a row, makes the remote not well; any success makes it well at
    once. Status 429 counts as a success, unless the remote has refused its key, and puts the next probe off for its
    `Retry-After`, up to `LONGEST_PATIENCE_S` (1 h).

    `interval_s`: least seconds between two probes. While the remote stays as it is, the gap doubles with each probe, up
    to `LONGEST_GAP_S` (60 s) if it is well or refuses its key, and `LONGEST_OUTAGE_GAP_S` (10 s) if it has failed
    otherwise.
    """
    if outcome.verdict is ProbeVerdict.WELL:
        is_steady = health.is_well and not health.failure_count
        gap_s = _grow_gap(health.gap_s, interval_s, LONGEST_GAP_S) if is_steady else interval_s
        return _plan_probe(RemoteHealth(is_well=True), now, gap_s)
    if outcome.verdict is ProbeVerdict.LIMITED:
        gap_s = _grow_gap(health.gap_s, interval_s, LONGEST_GAP_S)
        if outcome.retry_after_s is not None:
            gap_s = max(interval_s, min(outcome.retry_after_s, LONGEST_PATIENCE_S))
        # A server that limits requests may not have looked at the key.
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
    """Return the health after a client's request was answered with `status`.

    401, 403 and 5xx bring the next probe forward (`apply_doubt`), and 429 changes nothing. Any other status shows that
    the remote is well, and puts the next probe off until at least `LONGEST_GAP_S` (60 s) after the last one. Returns
    `health` itself if nothing changes. `now`: monotonic seconds. `interval_s`: least seconds between two probes.
    """
    if status == _TOO_MANY:
        return health
    if status in _KEY_REFUSED or status >= 500:
        return apply_doubt(health, now, interval_s)
    next_probe_at = max(health.next_probe_at, health.probed_at + max(interval_s, LONGEST_GAP_S))
    if health.is_well and not health.failure_count and next_probe_at == health.next_probe_at:
        return health  # the usual case, on the hot path
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
    """Return the health after a sign of failure, for example a broken connection, which brings the next probe forward.

    The probe is due now, but no sooner than `interval_s` seconds after the last one, and never later than it was.
    `is_well` stays as it is until that probe. `now`: monotonic seconds.
    """
    next_probe_at = min(health.next_probe_at, max(now, health.probed_at + interval_s))
    return replace(health, next_probe_at=next_probe_at)


def parse_retry_after(text: str | None, unix_now: float) -> float | None:
    """Return the seconds from now, at least 0, that a `Retry-After` header names as a number or a date.

    None if there is no header (`text` None) or it is unreadable; nothing is raised. `unix_now`: Unix time in seconds.
    """
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
