"""The type of Roundhouse's error codes.

The codes are the contract: `docs/errors.md` is tested against them, and the gateway and the controller answer with
no other.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One error code: its meaning and its answer, which are the same wherever the code is used.

    `status` is the HTTP status, `type` the OpenAI error type, `meaning` one or two sentences for the documentation,
    `next_steps` what to do, in the order to try. `retry` tells a client whether the same request may succeed later:
    True adds `Retry-After`, False adds `x-should-retry: false`, None adds no header.
    """

    code: str
    status: int
    type: str
    meaning: str
    next_steps: tuple[str, ...]
    retry: bool | None = None
