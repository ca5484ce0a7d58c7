"""What a request's body tells of the tokens that the request will take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.tenancy.rate_limits import LARGE_BODY_BYTES, MOST_TOKENS, count_media_bytes

_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


class TokenDemand(NamedTuple):
    """Size of a request's prompt, and the limits of its answers."""

    text_bytes: int
    """Size of the body without images and sound."""
    has_media: bool
    max_tokens: int | None
    """Limit of one answer; None: the request sets none."""
    sequences: int
    """Answers that the engine generates in parallel (`n`); they share the prompt."""


def read_demand(body_bytes: int, text_bytes: int, fields: Mapping[str, Any], sequences: int) -> TokenDemand:
    """Read the demand from a decoded body.

    `text_bytes`: size of the body's text, less than `body_bytes` if media were cut out of the body already.
    `fields`: the body's fields. `sequences`: answers to generate in parallel.
    """
    media_bytes = count_media_bytes(fields) if text_bytes > LARGE_BODY_BYTES else 0
    max_tokens: int | None = None
    for name in _LIMITS:
        limit = fields.get(name)
        if limit.__class__ is int and 0 < limit <= MOST_TOKENS and (max_tokens is None or limit > max_tokens):
            max_tokens = limit
    has_media = media_bytes > 0 or body_bytes > text_bytes
    return TokenDemand(max(0, text_bytes - media_bytes), has_media, max_tokens, sequences)
