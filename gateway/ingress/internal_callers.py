"""Requests of the retrieval program to the gateway: embeddings and rankings. They show a token instead of a key."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.keys import Key
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import Caller
from retrieval.schema.headers import BACKGROUND_HEADER, TOKEN_HEADER

NAME: Final = "(retrieval)"
"""Name of the caller in logs and metrics; no key can have it."""
BACKGROUND_WEIGHT: Final = 1e-4
"""Share of a busy model for work that nobody waits for: fair queueing lets ten thousand seconds of other requests go
before each second of it. An idle model serves it at once."""

_TOKEN_NAME: Final = TOKEN_HEADER.encode()
_BACKGROUND_NAME: Final = BACKGROUND_HEADER.encode()
_ORIGIN: Final = b"origin"


class InternalCallers:
    """Recognises requests of the retrieval program by the token that it shares with the gateway. Made once."""

    def __init__(self, read_token: Callable[[], str | None]) -> None:
        """`read_token`: returns the token that retrieval shares with the gateway; None: there is none now."""
        self._read_token = read_token
        key = Key(name="retrieval", sha256="", tenant=NAME, scopes=("inference",), service_tiers=("default",))
        self._interactive = replace(Caller.of(key), name=NAME, is_internal=True)
        self._background = replace(self._interactive, tenant=f"{NAME} background", weight=BACKGROUND_WEIGHT)

    def find_caller(self, headers: Sequence[Header]) -> Caller | None:
        """Return the retrieval program as the caller of a request that carries its token.

        None: the request carries no token, and must be authenticated in another way. The caller has the scope
        `inference` alone. `headers`: with names in lower case. If a token is shown, `read_token` is called, which may
        read a file. A request marked as background work gets a caller of its own tenant with the weight
        `BACKGROUND_WEIGHT`.

        Raises:
            RoundhouseError: `invalid_api_key` if the token is wrong, if the gateway has none now, or if the request has
                an Origin header, as those of web pages have.
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
            raise RoundhouseError("invalid_api_key", f"The header {TOKEN_HEADER} is for Roundhouse's own programs.")
        return self._background if names.get(_BACKGROUND_NAME) == b"1" else self._interactive
