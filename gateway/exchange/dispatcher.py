"""Opens an exchange for each inference request, and calls exchanges when time passes or the routing table changes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from controller.schema.errors import RoundhouseError
from gateway.exchange.api_spec import ApiSpec
from gateway.exchange.completion_hooks import COMPLETION_HOOKS
from gateway.exchange.exchange import Exchange
from gateway.exchange.exchange_state import WAITING_STATES
from gateway.exchange.fan_out import fan_out_hooks
from gateway.exchange.file_hooks import FILE_HOOKS
from gateway.exchange.file_search_hooks import FILE_SEARCH_HOOKS
from gateway.exchange.grounding_hooks import GROUNDED_CHAT, GROUNDED_MESSAGES
from gateway.exchange.hooks import NO_HOOKS, ExchangeHooks
from gateway.exchange.progress_hooks import PROGRESS_HOOKS
from gateway.exchange.response_hooks import RESPONSE_HOOKS, open_turn_hooks
from gateway.exchange.response_session import PATH as RESPONSES_PATH
from gateway.exchange.response_session import ResponseSession, SocketTurn
from gateway.exchange.services import Services
from gateway.exchange.session_hooks import SESSION_HOOKS
from gateway.exchange.stream_hooks import STREAM_HOOKS
from gateway.exchange.tool_loop_hooks import COUNTED_TOOLS, tool_loop_hooks
from gateway.ingress.authenticator import Authenticator, KeylessWarning
from gateway.routing.table import Routes
from gateway.server.asgi import Header
from gateway.server.body_budget import BodyBudget
from gateway.server.call import ClientCall, Handler
from gateway.server.request_reader import WebSocketOpener
from gateway.server.websocket import WebSocketConnection
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S: Final = 0.5
"""The longest time between two scans for exchanges that have something due."""
_BARE_RESPONSES_PATH: Final = RESPONSES_PATH.removeprefix(b"/v1")
_HOOKS: Final = {
    "none": FILE_HOOKS + STREAM_HOOKS + PROGRESS_HOOKS,
    "read": FILE_HOOKS + RESPONSE_HOOKS + COUNTED_TOOLS,
    "made": FILE_HOOKS + RESPONSE_HOOKS + FILE_SEARCH_HOOKS + STREAM_HOOKS + PROGRESS_HOOKS,
    "message": GROUNDED_MESSAGES + FILE_HOOKS + STREAM_HOOKS + PROGRESS_HOOKS,
    "completion": GROUNDED_CHAT + FILE_HOOKS + COMPLETION_HOOKS + STREAM_HOOKS + PROGRESS_HOOKS,
}
"""`ApiSpec.state` to the hooks of its requests by HTTP."""
_NUMBER: Final = re.compile(rb"/[0-9]+$")


class InferenceDispatcher:
    """Opens an `Exchange` for each inference request, and a `ResponseSession` for each WebSocket.

    A `request_reader.InferenceRoutes`: inference requests bypass FastAPI. Run `run_timers` as a task as long as it
    serves. It applies each new routing table to admission: making one sets `services.live.on_table`. `apis` must hold
    `POST /v1/responses` (KeyError otherwise).
    """

    def __init__(
        self,
        apis: Iterable[ApiSpec],
        services: Services,
        authenticator: Authenticator,
        next_id: Callable[[], str],
    ) -> None:
        self._services = services
        self._authenticator = authenticator
        self._next_id = next_id
        self._is_stopping = False
        self.body_budget = BodyBudget(services.settings.body_memory_bytes)
        """Memory for large request bodies, shared by all connections."""
        self._apis = named_apis = {(api.method.encode(), api.path.encode()): api for api in apis}
        self._loop_hooks = tool_loop_hooks(self, self.body_budget)
        self._fan_out_hooks = fan_out_hooks(self)
        self._openers = {
            name: partial(self._open_exchange, api, self._hooks_of(api)) for name, api in named_apis.items()
        }
        self._responses_api = named_apis[b"POST", RESPONSES_PATH]
        self._keyless_warning = KeylessWarning(
            services.settings.host, serves_everybody=services.settings.serves_everybody
        )
        services.live.on_table = self._follow_table

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        """Return the function that opens an exchange for a request with this method and path; None: FastAPI serves it.

        `path`: without its query, perhaps percent-encoded. Call the function once per request, with its `ClientCall`:
        it authenticates the caller and returns the handler. A request that may not come in is answered with its error,
        and nothing is raised.
        """
        if b"%" in path:
            path = unquote_to_bytes(path)
        opener = self._openers.get((method, path))
        if opener is None and path.startswith(b"/slots/"):
            return self._openers.get((method, _NUMBER.sub(b"/{id}", path)))
        return opener

    def open_inner(
        self, call: ClientCall, caller: Caller, hooks: ExchangeHooks = NO_HOOKS, request_id: str | None = None
    ) -> Handler:
        """Open an exchange for a request of the gateway's own, and return its handler. It does not count for the limits
        of `caller`, who must have been authenticated.

        `hooks`: all that the exchange has. `request_id`: of the client's request that this one is a round of, which
        counts in metrics in its place; None: it gets a new one, and counts as a request. While the gateway stops, the
        call is answered with `gateway_stopping`. Raises KeyError if no inference API has the call's method and path.
        """
        api = self._apis[call.method, call.path]
        exchange = Exchange(api, call, self._services, request_id or self._next_id(), hooks)
        exchange.account.is_round = request_id is not None
        exchange.authorize_caller(replace(caller, is_limited=False))
        try:
            self._check_running()
        except RoundhouseError as error:
            exchange.fail_request(error)
        return exchange

    def find_websocket(self, path: bytes) -> WebSocketOpener | None:
        """Return the function that opens a WebSocket at `/v1/responses` or `/responses`; None: another path.

        `path`: without its query, perhaps percent-encoded. The function authenticates the caller by the headers of the
        handshake, and raises RoundhouseError where that fails or the gateway stops.
        """
        if b"%" in path:
            path = unquote_to_bytes(path)
        return self._open_session if path in (RESPONSES_PATH, _BARE_RESPONSES_PATH) else None

    def max_body_bytes(self) -> int:
        """Return the setting `max_body_bytes`: maximum bytes of a request's body. The reader refuses longer ones."""
        return self._services.settings.max_body_bytes

    @property
    def is_busy(self) -> bool:
        """Whether any exchange has not ended, including those that go on without their client."""
        return bool(self._services.exchanges)

    def end_all(self) -> None:
        """End every exchange with the error `gateway_stopping`, and refuse new ones with it from now on.

        Call after the grace period of a stop.
        """
        self._is_stopping = True
        # Those that wait go first, because they would be let in by each of the others that ends.
        for exchange in sorted(self._services.exchanges, key=lambda each: each.state not in WAITING_STATES):
            exchange.fail_request(_stopped_error())

    def next_request_id(self) -> str:
        """Return a new request id, for an answer to input that is no inference request, such as malformed HTTP."""
        return self._next_id()

    async def run_timers(self) -> None:
        """Do what is due by the clock for all exchanges, until cancelled. Never returns; failures are logged.

        Every 0.5 s, or more often where a time limit of the settings is short, call `run_due` on exchanges whose
        `due_at` has passed, let admission admit what waits and can enter by now (`admit_trials`), and send the progress
        comments that are due. One scan replaces a timer per request (ADR 8).
        """
        services = self._services
        settings = services.settings
        shortest_s = min(
            settings.heartbeat_s, settings.hold_headers_s, settings.request_timeout_s, settings.autoload_timeout_s
        )
        pause_s = min(LONGEST_PAUSE_S, shortest_s / 10)
        while True:
            await asyncio.sleep(pause_s)
            now = services.now()
            for exchange in [each for each in services.exchanges if each.due_at <= now]:
                self._run_guarded(exchange.run_due, now)
            self._run_guarded(self._tick, now)

            self._run_guarded(self._tell_progress, now)

    def _tick(self, now: float) -> None:
        self._services.turns.grant_slots(self._services.admission.admit_trials(now))

    def _tell_progress(self, now: float) -> None:
        self._services.progress.run_due(self._services.admission, now)

    def _run_guarded(self, action: Callable[[float], None], now: float) -> None:
        """Call `action`. Its failure must not stop the timers of all other exchanges."""
        try:
            action(now)
        except Exception:
            logger.exception("what was due failed")

    def _open_exchange(self, api: ApiSpec, hooks: ExchangeHooks, client: ClientCall) -> Handler:
        exchange = Exchange(api, client, self._services, self._next_id(), hooks)
        try:
            caller = self._authenticator.authenticate_request(
                client.headers, api.method, api.path, is_http_1_1=client.is_http_1_1
            )
            exchange.authorize_caller(caller)
            self._check_running()
            self._services.gate.authorize_request(caller, api.scope, client.local_address)
            if api.is_inner_state:
                self._check_served(api)
        except RoundhouseError as error:
            exchange.fail_request(error)
        return exchange

    def _open_session(
        self, headers: list[Header], local_address: str | None
    ) -> Callable[[WebSocketConnection], ResponseSession]:
        """See WebSocketOpener. Each request of the connection is authenticated again: its key may be revoked then."""
        self._check_running()
        api = self._responses_api
        caller = self._authenticator.authenticate_request(headers, api.method, api.path, is_http_1_1=True)
        self._services.gate.authorize_request(caller, api.scope, local_address)
        bounds = self._services.responses.history_bounds
        return lambda connection: ResponseSession(connection, headers, self._open_turn, bounds)

    def _open_turn(self, call: ClientCall, turn: SocketTurn) -> Handler:
        hooks = FILE_HOOKS + open_turn_hooks(turn) + FILE_SEARCH_HOOKS + self._loop_hooks + SESSION_HOOKS
        return self._open_exchange(self._responses_api, hooks, call)

    def _hooks_of(self, api: ApiSpec) -> ExchangeHooks:
        hooks = _HOOKS[api.state]
        if api.state == "made":
            hooks += self._loop_hooks
        if api.inputs:
            hooks += self._fan_out_hooks
        return hooks + SESSION_HOOKS if api.streams else hooks

    def _check_running(self) -> None:
        if self._is_stopping:
            raise _stopped_error()

    def _check_served(self, api: ApiSpec) -> None:
        if not self._services.settings.engine_state_routes:
            raise RoundhouseError("route_disabled", f"{api.method} {api.path} is not served.")

    def _follow_table(self, routes: Routes) -> None:
        """Apply a new routing table: admit requests that have room now, and let those that wait check their model."""
        services = self._services
        self._keyless_warning.follow_keys(has_keys=not routes.keys.is_empty)
        services.limits.follow_keys(routes.keys, services.now())
        services.paces.keep_models(routes.models)
        services.engines.refuse_absent(routes.replicas)
        grants = services.admission.apply_table(routes, services.now())
        services.turns.grant_slots(grants)
        for model in list(services.admission.depths):
            for ticket in services.admission.waiting_tickets(model):
                ticket.owner.follow_table()


def _stopped_error() -> RoundhouseError:
    return RoundhouseError("gateway_stopping", "The gateway was stopped before the answer was complete.")
