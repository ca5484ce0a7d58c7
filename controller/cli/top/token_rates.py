"""Tokens per second from a gateway's counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SERIES = "roundhouse_gateway_tokens_total"
DIRECTION = "out"


@dataclass(frozen=True, slots=True)
class TokenSample:
    """The counters at one time. `at` in seconds of any clock that never goes back."""

    at: float
    tokens: Mapping[str, float] = field(default_factory=dict)
    """Model to tokens that its engines have made."""


def token_rates(before: TokenSample | None, after: TokenSample | None) -> Mapping[str, float] | None:
    """Model to tokens per second between two samples; models that are in neither made none. None: not known."""
    if before is None or after is None or after.at <= before.at:
        return None
    seconds = after.at - before.at
    return {model: _increase(before.tokens.get(model, 0.0), now) / seconds for model, now in after.tokens.items()}


def _increase(before: float, now: float) -> float:
    # A counter that fell is that of a gateway which has started anew.
    return now - before if now >= before else now


def tokens_of(exposition: str) -> dict[str, float]:
    """Model to tokens out, of what a gateway's /metrics says. Raises ValueError when it says nothing readable."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == SERIES and sample.labels.get("direction") == DIRECTION:
                model = sample.labels.get("model", "")
                totals[model] = totals.get(model, 0.0) + sample.value
    return totals
