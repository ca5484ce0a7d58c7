"""Who a client without a key is, by what it says of itself, and the limits that each has. Pure.

A client chooses its own name, so these limits keep programs that mean well from crowding each other out. Keys are what
stops the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

from gateway.tenancy.api_keys import ANONYMOUS, Caller

LONGEST_CLIENT_ID: Final = 100
"""Bytes. What is remembered of a client is not to be as long as a header may be."""
REMEMBERED_CALLERS: Final = 1024
UNFIT_TEXT: Final = re.compile(rb"[^\x21-\x7e ]+")
"""What a header's value that we pass on may not have."""


def find_client_text(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """What a request's headers, whose names are in lower case, call its client: `X-Client-Id`, else `User-Agent`, cut
    to `LONGEST_CLIENT_ID`; empty: nothing."""
    client_text = b""
    for name, value in headers:
        if name == b"x-client-id":
            client_text = value
            break
        if name == b"user-agent":
            client_text = value
    return client_text[:LONGEST_CLIENT_ID]


def clean_client_text(client_text: bytes) -> bytes:
    """`client_text` as headers and logs carry it: nothing in it can end a header or a log's line."""
    return UNFIT_TEXT.sub(b"", client_text[:LONGEST_CLIENT_ID]).strip() or b"anonymous"


def client_id_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The client that sends these headers, as `X-Client-Id` and `X-RateLimit-Client` carry it."""
    return clean_client_text(find_client_text(headers))


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What each client may use up while no keys are declared; None: no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class ClientDirectory:
    """Finds the caller of a request that carries no key."""

    def __init__(self, limits: ClientLimits) -> None:
        self._is_limited = limits != ClientLimits()
        self._caller_of = lru_cache(REMEMBERED_CALLERS)(partial(_limited_caller, limits))

    def find_caller(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller:
        """`ANONYMOUS` where clients have no limits, else a caller with its rights, the client's id and the limits."""
        return self._caller_of(client_id_of(headers)) if self._is_limited else ANONYMOUS


def _limited_caller(limits: ClientLimits, client_id: bytes) -> Caller:
    return replace(
        ANONYMOUS,
        client_id=client_id,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrency=limits.concurrency,
        is_limited=True,
    )
