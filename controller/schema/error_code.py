"""What an error code of Roundhouse always means.

The codes are the contract: `docs/errors.md` is tested against them, and the gateway and the controller answer with
no other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """What a code always means.

    `status` is the HTTP status; `type` the OpenAI error type; `retry` tells a client whether the same request may
    succeed later: True adds `Retry-After`, False adds `x-should-retry: false`, None says nothing.
    """

    code: str
    status: int
    type: str
    meaning: str
    next_steps: tuple[str, ...]
    retry: bool | None = None
