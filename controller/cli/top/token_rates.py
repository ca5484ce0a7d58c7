"""Tokens per second, from two samples of a gateway's counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SERIES = "roundhouse_gateway_tokens_total"
"""Metric of the gateway that counts tokens."""
DIRECTION = "out"
"""Value of the label `direction` for tokens that engines have generated."""


@dataclass(frozen=True, slots=True)
class TokenSample:
    """A sample of a gateway's token counters. `at`: when it was taken, in seconds of a monotonic clock, the same for
    all samples."""

    at: float
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Model to the number of tokens that its engines have generated."""


def token_rates(before: TokenSample | None, after: TokenSample | None) -> Mapping[str, float] | None:
    """Return the generated tokens per second between two samples, by model in `after`. A model that only `before` has
    is left out. A counter that fell counts as restarted at 0.

    None means unknown: a sample is missing, or no time has passed between them.
    """
    if before is None or after is None or after.at <= before.at:
        return None
    seconds = after.at - before.at
    return {model: _increase(before.tokens.get(model, 0.0), now) / seconds for model, now in after.tokens.items()}


def _increase(before: float, now: float) -> float:
    # A counter that fell belongs to a gateway that has restarted.
    return now - before if now >= before else now


def tokens_of(exposition: str) -> dict[str, float]:
    """Parse the text of a gateway's `/metrics` to the tokens that engines have generated since the gateway's start, by
    model. Empty where the text has no such counter. Raises ValueError where the text cannot be parsed."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == SERIES and sample.labels.get("direction") == DIRECTION:
                model = sample.labels.get("model", "")
                totals[model] = totals.get(model, 0.0) + sample.value
    return totals
