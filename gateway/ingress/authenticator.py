"""Who asks: clients by their API keys (`tenancy/api_keys` checks these), and programs of ours by tokens."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from common.internal_tokens import RETRIEVAL_TOKEN
from contract.errors import RoundhouseError
from contract.keys import Key
from contract.retrieval import BACKGROUND_HEADER
from gateway.ingress.access_rules import check_host_form
from gateway.routing.table import LiveRoutes
from gateway.server.asgi import Header
from gateway.tenancy.api_keys import ANONYMOUS, Caller, ClientDirectory, KeyRing

logger = logging.getLogger(__name__)


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


_BEARER: Final = b"bearer "
_FRAMES_ORIGIN: Final = (b"origin", b"null")
"""What a browser sends for a document in a sandbox, which has no origin."""


class Authenticator:
    """Authenticates the requests of every route but the open ones (`/health/live`), and WebSocket handshakes.

    By API key where the table in force declares keys, else by Host and Origin headers. Made once; `IngressMiddleware`
    and `InferenceDispatcher` call it. Scopes and rate limits are checked by others.
    """

    def __init__(
        self,
        live: LiveRoutes,
        check_origin: Callable[[Sequence[Header]], None],
        clients: ClientDirectory,
        clock: Callable[[], float],
        *,
        serves_everybody: bool,
        internal: InternalCallers | None = None,
        read_metrics_key: Callable[[], str | None] | None = None,
    ) -> None:
        """`check_origin`: raises RoundhouseError for Host and Origin headers that are not accepted (`HostCheck`).
        `serves_everybody`: whether requests without a key are served while no keys are declared. `clients`: tells
        callers without a key apart. `clock`: Unix time in seconds. `internal`: recognises other programs of Roundhouse;
        None: there are none. `read_metrics_key`: returns the key of the metrics, or None where its file has none now;
        None: everybody may read them."""
        self._live = live
        self._check_origin = check_origin
        self._clients = clients
        self._clock = clock
        self._serves_everybody = serves_everybody
        self._internal = internal
        self._read_metrics_key = read_metrics_key
        self.keys_used: dict[str, float] = {}
        """Unix time of the last request that was accepted with a key, by the key's name. `InflightCounts` reports it,
        and forgets keys that are gone."""

    def authenticate_request(self, headers: Sequence[Header], method: str, path: str, *, is_http_1_1: bool) -> Caller:
        """Return the caller that a request's headers identify: another program of Roundhouse by its token, a key, or,
        while no keys are declared, a caller without a name.

        `headers`: with names in lower case. `path`: decoded, without the query; with `method` it decides whether a
        token of another program opens the route, and nothing else. `is_http_1_1`: that version requires a Host header.

        Raises:
            RoundhouseError: `invalid_api_key` for a missing, unknown, expired or ambiguous key, a wrong token, or a
                token beside an Origin header; `scope_required` for a token that does not open the route;
                `invalid_request` for a malformed Host header; without declared keys
                `keys_required`, `forbidden_host` or `forbidden_origin`; `controller_unavailable` if no table has
                arrived yet, so that the keys are unknown.
        """
        keys = self._live.current.keys
        if self._internal is not None:
            internal_caller = self._internal.find_caller(headers, method, path)
            if internal_caller is not None:
                return internal_caller
        if not keys.is_empty:
            check_host_form(headers, may_lack_host=not is_http_1_1)
            return self._authenticate_key(keys, headers)
        if not self._serves_everybody:
            message = "No keys are declared, and this gateway listens on an address that others reach."
            raise RoundhouseError("keys_required", message)
        self._check_origin(headers)
        return self._clients.find_caller(headers)

    def check_metrics_request(self, headers: Sequence[Header]) -> None:
        """Check that a request for metrics or for the state of the gateway shows the metrics' key, or one with the
        scope `admin`. Does nothing where no key of the metrics is set. `headers`: with names in lower case.

        Raises:
            RoundhouseError: `invalid_api_key` for any other key and for none; `scope_required` for a declared key
                without the scope.
        """
        if self._read_metrics_key is None:
            return
        credentials = [value for name, value in headers if name == b"authorization"]
        shown = [value[7:].strip() for value in credentials if value[:7].lower() == _BEARER]
        metrics_key = self._read_metrics_key()
        if metrics_key is not None and len(shown) == 1 and hmac.compare_digest(shown[0], metrics_key.encode()):
            return
        routes = self._live.current_or_none
        if routes is None or routes.keys.is_empty:
            message = "The metrics and the state of this gateway need the key of ROUNDHOUSE_METRICS_KEY."
            raise RoundhouseError("invalid_api_key", message)
        self._authenticate_key(routes.keys, headers).require_scope("admin")

    def find_viewer(self, headers: Sequence[Header]) -> Caller | None:
        """Return who reads the state of the gateway, once `check_metrics_request` has let the request in: the caller of
        the key that it shows, who sees the models that the key is for. `ANONYMOUS`, who sees every model: a key with
        the scope `admin`, the metrics' key, or any request while no keys are declared. None: the request shows no key
        that is valid here, so that no model is named to it. `headers`: with names in lower case. Raises nothing."""
        routes = self._live.current_or_none
        if self._read_metrics_key is not None or routes is None or routes.keys.is_empty:
            return ANONYMOUS
        try:
            caller = routes.keys.authenticate_key(headers, self._clock())
        except RoundhouseError:
            return None
        return ANONYMOUS if "admin" in caller.scopes else caller

    def _authenticate_key(self, keys: KeyRing, headers: Sequence[Header]) -> Caller:
        now = self._clock()
        caller = keys.authenticate_key(headers, now)
        if caller.name is not None:
            self.keys_used[caller.name] = now
        return caller

    def check_page_request(self, headers: Sequence[Header], *, is_http_1_1: bool) -> None:
        """Check the Host header of a request for the page's files, which hold no data and need no key.

        While no keys are declared, or before the first table, the headers must be those that `HostCheck` accepts, or
        Origin must be `null`, as the page's own sandboxed frames send it; with keys any well-formed Host will do.
        `headers`: with names in lower case. `is_http_1_1`: that version requires a Host header.

        Raises:
            RoundhouseError: `invalid_request` for a malformed Host header, `forbidden_host` or `forbidden_origin` for
                one that is not accepted.
        """
        routes = self._live.current_or_none
        if routes is not None and not routes.keys.is_empty:
            check_host_form(headers, may_lack_host=not is_http_1_1)
        else:
            self._check_origin([header for header in headers if header != _FRAMES_ORIGIN])


class KeylessWarning:
    """Logs a warning that every request is refused, because no keys are declared and the gateway is not open.

    Once when the first table has no keys, and once each time when a later one has none any more. Never logs if
    `serves_everybody`.
    """

    def __init__(self, host: str, *, serves_everybody: bool) -> None:
        """`host`: the setting of that name, for the log. `serves_everybody`: requests without a key are served while no
        keys are declared."""
        self._host = host
        self._serves_everybody = serves_everybody
        self._is_told = False

    def follow_keys(self, *, has_keys: bool) -> None:
        """Log the warning if it is due. Call for each table applied. `has_keys`: whether the table declares keys."""
        if not has_keys and not self._is_told and not self._serves_everybody:
            logger.warning(
                "no keys are declared, and %s is not loopback: every request is refused; `roundhouse key new NAME >"
                " desired-state/key-NAME.yaml` declares a key",
                self._host,
            )
        self._is_told = not has_keys
