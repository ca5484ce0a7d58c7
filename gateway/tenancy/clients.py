"""Clients without a key: their identity, as they state it themselves, and their limits. Pure.

A client chooses its own name, so these limits only keep well-meaning programs from crowding each other out. Declare
keys to stop others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

from gateway.tenancy.api_keys import ANONYMOUS, Caller

LONGEST_CLIENT_ID: Final = 100
"""Bytes. Bounds what is remembered per client, since a header may be much longer."""
REMEMBERED_CALLERS: Final = 1024
"""Clients whose `Caller` is cached."""
UNFIT_TEXT: Final = re.compile(rb"[^\x21-\x7e ]+")
"""Characters that a header value must not contain when the gateway forwards it."""


def find_client_text(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return how a client names itself: the first `X-Client-Id`, else the last `User-Agent`; empty if it has neither.

    The value is cut to `LONGEST_CLIENT_ID` bytes and not cleaned: it may hold characters that are unfit for a header.
    `headers`: names in lower case.
    """
    client_text = b""
    for name, value in headers:
        if name == b"x-client-id":
            client_text = value
            break
        if name == b"user-agent":
            client_text = value
    return client_text[:LONGEST_CLIENT_ID]


def clean_client_text(client_text: bytes) -> bytes:
    """Return the text cut to `LONGEST_CLIENT_ID` bytes, with only its printable ASCII characters.

    Spaces at both ends are removed as well. `anonymous` if nothing is left.
    """
    return UNFIT_TEXT.sub(b"", client_text[:LONGEST_CLIENT_ID]).strip() or b"anonymous"


def client_id_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the client's id for `X-Client-Id` and `X-RateLimit-Client`, from the headers of its request.

    `headers`: names in lower case. The id is never empty: a client that does not name itself is `anonymous`.
    """
    return clean_client_text(find_client_text(headers))


def find_document_tenant(caller: Caller, headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return whose documents a request is about: those of the key's tenant, whatever the headers say; without a key,
    those of the client as it names itself (`client_id_of`). `headers`: names in lower case."""
    return caller.tenant if caller.name is not None else client_id_of(headers).decode("ascii")


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of each client id while no keys are declared: per minute, and requests at a time. None: no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class ClientDirectory:
    """Makes the callers of requests without a key, and caches the latest `REMEMBERED_CALLERS`.

    The authenticator asks it while no keys are declared. Usage is counted in `RateLimits`, by client id.
    """

    def __init__(self, limits: ClientLimits) -> None:
        self._is_limited = limits != ClientLimits()
        self._caller_of = lru_cache(REMEMBERED_CALLERS)(partial(_limited_caller, limits))

    def find_caller(self, headers: Sequence[tuple[bytes, bytes]]) -> Caller:
        """Return the caller for a request's headers, whose names are in lower case. Never raises.

        Without limits, the caller is `ANONYMOUS` for all requests; else one with the rights of `ANONYMOUS`, the
        client's id and the limits.
        """
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
