"""When a request that failed is made again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a failed request is repeated."""

    attempts: int = 6
    """Failures in a row after which a request is given up."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 30.0
    longest_asked_s: float = 300.0
    """Seconds that a source may ask to wait. A source that asks for more is given up."""

    def choose_delay(self, failures: int, asked_s: float | None) -> float | None:
        """Return the seconds until the next try after `failures` failures in a row (at least 1). None: give up, because
        there were `attempts` failures, or the source asks for more than `longest_asked_s`.

        The delay doubles with each failure from `first_delay_s` to `longest_delay_s`. `asked_s`: seconds that the
        source asked to wait, which the delay is never below; None: it asked for nothing.
        """
        if failures >= self.attempts or (asked_s is not None and asked_s > self.longest_asked_s):
            return None
        delay = min(self.longest_delay_s, self.first_delay_s * 2.0 ** (failures - 1))
        return delay if asked_s is None else max(delay, asked_s)


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, at least 0; None: there is none, or it cannot be read.
    `now`: Unix time in seconds."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        moment: datetime = parsedate_to_datetime(text)
    except ValueError:
        return None
    # A date without a zone is in UTC (RFC 9110, 5.6.7).
    at = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, at.timestamp() - datetime.fromtimestamp(now, UTC).timestamp())
