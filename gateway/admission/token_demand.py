"""What one request says of the tokens that it will take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.tenancy.rate_limits import LARGE_BODY_BYTES, MOST_TOKENS, count_media_bytes

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


class TokenDemand(NamedTuple):
    """One request's prompt and answers, as far as its body tells."""

    text_bytes: int
    """Size of the body without its media."""
    has_media: bool
    max_tokens: int | None
    """Of one answer; None: the request sets no limit."""
    sequences: int
    """Answers that the engine makes at a time; they share the prompt."""


def read_demand(body_bytes: int, text_bytes: int, fields: Mapping[str, Any], sequences: int) -> TokenDemand:
    """The demand of a request.

    `text_bytes` is the size of what its prompt is made of; less than `body_bytes` where media are left out already.
    """
    media_bytes = count_media_bytes(fields) if text_bytes > LARGE_BODY_BYTES else 0
    max_tokens: int | None = None
    for name in _LIMITS:
        limit = fields.get(name)
        if limit.__class__ is int and 0 < limit <= MOST_TOKENS and (max_tokens is None or limit > max_tokens):
            max_tokens = limit
    has_media = media_bytes > 0 or body_bytes > text_bytes
    return TokenDemand(max(0, text_bytes - media_bytes), has_media, max_tokens, sequences)
