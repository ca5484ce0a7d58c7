"""What a request's body tells of the tokens that the request will take. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.tenancy.rate_limits import LARGE_BODY_BYTES, answer_limit, count_media_bytes


class TokenDemand(NamedTuple):
    """What a request's body says about the tokens that it will take. `text_bytes`: bytes of the body without images and
    sound. `max_tokens`: limit of each of the `sequences` answers; None: the request sets none that is valid."""

    text_bytes: int
    """Bytes of the body without images and sound."""
    has_media: bool
    """Whether the body holds images or sound. Media in a body of at most `LARGE_BODY_BYTES` count as text."""
    max_tokens: int | None
    """Limit of one answer in tokens, above 0; None: the request sets none that is valid."""
    sequences: int
    """Answers that the engine generates in parallel (`n`); they share the prompt."""


def read_demand(body_bytes: int, text_bytes: int, fields: Mapping[str, Any], sequences: int) -> TokenDemand:
    """Return the `TokenDemand` of a decoded body.

    `text_bytes`: bytes of the body's text, less than `body_bytes` if media were cut out of the body already. `fields`:
    the body's fields, of which the limit of the answer and media that are still there are read. `sequences`: answers to
    generate in parallel.
    """
    media_bytes = count_media_bytes(fields) if text_bytes > LARGE_BODY_BYTES else 0
    has_media = media_bytes > 0 or body_bytes > text_bytes
    return TokenDemand(max(0, text_bytes - media_bytes), has_media, answer_limit(fields), sequences)
