"""Requests of the retrieval program to the gateway: embeddings and rankings. They show a token instead of a key."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from common.internal_tokens import RETRIEVAL_TOKEN
from controller.schema.errors import RoundhouseError
from controller.schema.keys import Key
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import Caller
from retrieval.schema.headers import BACKGROUND_HEADER

NAME: Final = "(retrieval)"
"""Name of the caller in logs and metrics; no key can have it."""
BACKGROUND_WEIGHT: Final = 1e-4
"""Share of a busy model for work that nobody waits for: fair queueing lets ten thousand seconds of other requests go
before each second of it. An idle model serves it at once."""

_TOKEN_NAME: Final = RETRIEVAL_TOKEN.header.encode()
_BACKGROUND_NAME: Final = BACKGROUND_HEADER.encode()
_ORIGIN: Final = b"origin"


class InternalCallers:
    """Recognises requests of the retrieval program by the token that it shares with the gateway, and lets them have the
    routes that the token opens (`RETRIEVAL_TOKEN`) and no other. Made once."""

    def __init__(self, read_token: Callable[[], str | None], concurrency: int) -> None:
        """`read_token`: returns the token that retrieval shares with the gateway; None: there is none now.
        `concurrency`: maximum number of its requests at a time, waiting ones included."""
        self._read_token = read_token
        key = Key(
            name="retrieval",
            sha256="",
            tenant=NAME,
            scopes=("inference",),
            service_tiers=("default",),
            concurrency=concurrency,
        )
        self._interactive = replace(Caller.of(key), name=NAME, is_internal=True)
        self._background = replace(self._interactive, tenant=f"{NAME} background", weight=BACKGROUND_WEIGHT)

    def find_caller(self, headers: Sequence[Header], method: str, path: str) -> Caller | None:
        """Return the retrieval program as the caller of a request that carries its token.

        None: the request carries no token, and must be authenticated in another way. The caller has the scope
        `inference` alone. `headers`: with names in lower case. `path`: decoded, without the query. If a token is shown,
        `read_token` is called, which may read a file. A request marked as background work gets a caller of its own
        tenant with the weight `BACKGROUND_WEIGHT`; both count against the same `concurrency`.

        Raises:
            RoundhouseError: `invalid_api_key` if the token is wrong, if the gateway has none now, or if the request has
                an Origin header, as those of web pages have; `scope_required` if the token does not open the route.
        """
        shown: bytes | None = None
        for name, value in headers:
            if name == _TOKEN_NAME:
                shown = value
                break
        if shown is None:
            return None
        names = dict(headers)
        token = self._read_token()
        if token is None or _ORIGIN in names or not hmac.compare_digest(shown, token.encode()):
            message = f"The header {RETRIEVAL_TOKEN.header} is for Roundhouse's own programs."
            raise RoundhouseError("invalid_api_key", message)
        if not RETRIEVAL_TOKEN.opens_route("gateway", method, path):
            opened = " and ".join(" ".join(route) for route in sorted(RETRIEVAL_TOKEN.opens["gateway"] or ()))
            raise RoundhouseError("scope_required", f"The token of retrieval opens {opened}, and nothing else.")
        return self._background if names.get(_BACKGROUND_NAME) == b"1" else self._interactive
