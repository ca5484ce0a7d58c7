"""Opens an exchange for each inference request, and calls exchanges when time passes or the routing table changes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final
from urllib.parse import unquote_to_bytes

from contract.errors import RoundhouseError
from gateway.exchange.exchange import Exchange
from gateway.exchange.fan_out import fan_out_hooks
from gateway.exchange.hooks import NO_HOOKS, WAITING_STATES, ApiSpec, ExchangeHooks, StateUse
from gateway.exchange.progress_hooks import PROGRESS_HOOKS
from gateway.exchange.services import Services
from gateway.exchange.session_hooks import NAMED_SESSION_HOOKS, SESSION_HOOKS
from gateway.ingress.authenticator import Authenticator, KeylessWarning
from gateway.metrics.request_metrics import CLIENT_GONE_STATUS
from gateway.routing.table import Routes
from gateway.server.body_budget import BodyBudget
from gateway.server.call import ClientCall, Handler
from gateway.server.request_reader import WebSocketOpener
from gateway.tenancy.api_keys import Caller

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S: Final = 0.5
"""The longest time between two scans for exchanges that have something due."""
_NUMBER: Final = re.compile(rb"/[0-9]+$")


class InferenceDispatcher:
    """Opens an `Exchange` for each inference request.

    A `request_reader.InferenceRoutes`: inference requests bypass FastAPI. Run `run_timers` as a task as long as it
    serves. It applies each new routing table to admission: making one sets `services.live.on_table`. Call
    `add_features` before it serves: until then it opens nothing.
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
        self._apis = {(api.method.encode(), api.path.encode()): api for api in apis}
        self._fan_out_hooks = fan_out_hooks(self.open_inner)
        self.access_hooks: ExchangeHooks = NO_HOOKS
        """Of every request of a client, beside those of its API: writes the access log. Nothing where that is off."""
        self._find_websocket: Callable[[bytes], WebSocketOpener | None] = lambda _: None
        self._openers: dict[tuple[bytes, bytes], partial[Handler]] = {}
        self._other_openers: dict[bytes, Callable[[ClientCall], Handler]] = {}
        self._keyless_warning = KeylessWarning(
            services.settings.host, serves_everybody=services.settings.serves_everybody
        )
        services.live.on_table = self._follow_table

    def add_features(
        self,
        hooks: Mapping[StateUse, ExchangeHooks],
        find_websocket: Callable[[bytes], WebSocketOpener | None],
    ) -> None:
        """Open requests with these hooks from now on, by the `state` of their API, before those of progress, fan-out
        and sessions. Call once, before anything is served.

        `find_websocket` returns the function that opens a WebSocket at a path, or None where there is none.
        """
        for name, api in self._apis.items():
            api_hooks = hooks.get(api.state, NO_HOOKS)
            if api.streams:
                api_hooks += PROGRESS_HOOKS
            if api.inputs:
                api_hooks += self._fan_out_hooks
            if api.streams:
                api_hooks += SESSION_HOOKS if api.state == "made" else NAMED_SESSION_HOOKS
            api_hooks += self.access_hooks
            self._openers[name] = partial(self.open_exchange, api, api_hooks)
        self._find_websocket = find_websocket

    def keep_access_log(self, write_line: Callable[[str], None]) -> None:
        """Call `write_line` with a line of JSON at the end of each request of a client. Call once, before
        `add_features`; without the call, no request runs any code of it."""
        self.access_hooks = ExchangeHooks(on_end=(lambda exchange: write_line(describe_access(exchange)),))

    def add_openers(self, openers: Mapping[bytes, Callable[[ClientCall], Handler]]) -> None:
        """Serve `GET` of these paths, in the place of FastAPI, by the handlers that these functions make. Call before
        anything is served."""
        self._other_openers.update(openers)

    def get_api(self, method: bytes, path: bytes) -> ApiSpec:
        """Return the inference API of a method and a path. Raises KeyError: there is none."""
        return self._apis[method, path]

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        """Return the function that makes the handler of a request with this method and path, as a rule an exchange;
        None: FastAPI serves it.

        `path`: without its query, perhaps percent-encoded. Call the function once per request, with its `ClientCall`:
        it authenticates the caller and returns the handler. A request that may not come in is answered with its error,
        and nothing is raised.
        """
        return self._openers.get((method, path)) or self._find_other(method, path)

    def _find_other(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        if method == b"GET" and path in self._other_openers:
            return self._other_openers[path]
        if b"%" in path:
            path = unquote_to_bytes(path)
        if path.startswith(b"/slots/"):
            path = _NUMBER.sub(b"/{id}", path)
        return self._openers.get((method, path))

    def open_inner(
        self, call: ClientCall, caller: Caller, hooks: ExchangeHooks = NO_HOOKS, request_id: str | None = None
    ) -> Handler:
        """Open an exchange for a request of the gateway's own, and return its handler. Set the handler as
        `call.handler`, and call its `take_body`, unless `call.response_complete` says that the request is refused
        already (`gateway_stopping`). `caller`: authenticated; its rate limits do not apply.

        `hooks`: all that the exchange has. `request_id`: of the client's request that this one is a round of, which
        counts in metrics in its place; None: a new one, counted as a request. Raises KeyError if no inference API has
        the call's method and path.
        """
        api = self._apis[call.method, call.path]
        exchange = Exchange(api, call, self._services, request_id or self._next_id(), hooks)
        exchange.account.is_round = request_id is not None
        exchange.set_caller(replace(caller, is_limited=False))
        try:
            self.check_running()
        except RoundhouseError as error:
            exchange.fail_request(error)
        return exchange

    def find_websocket(self, path: bytes) -> WebSocketOpener | None:
        """Return the function that opens a WebSocket at `path`; None: there is none there.

        `path`: without its query, perhaps percent-encoded. The function authenticates the caller by the headers of the
        handshake, and raises RoundhouseError where that fails or the gateway stops.
        """
        return self._find_websocket(unquote_to_bytes(path) if b"%" in path else path)

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
        self._services.grants.grant_slots(self._services.admission.admit_trials(now))

    def _tell_progress(self, now: float) -> None:
        self._services.progress.run_due(self._services.admission, now)

    def _run_guarded(self, action: Callable[[float], None], now: float) -> None:
        """Call `action`. Its failure must not stop the timers of all other exchanges."""
        try:
            action(now)
        except Exception:
            logger.exception("what was due failed")

    def open_exchange(self, api: ApiSpec, hooks: ExchangeHooks, client: ClientCall) -> Handler:
        """Open an exchange for a client's request, and return its handler. It authenticates the caller. A request that
        may not come in is answered with its error, and nothing is raised. `hooks`: all that the exchange has."""
        exchange = Exchange(api, client, self._services, self._next_id(), hooks)
        try:
            caller = self._authenticator.authenticate_request(
                client.headers, api.method, api.path, is_http_1_1=client.is_http_1_1
            )
            exchange.set_caller(caller)
            self.check_running()
            self._services.gate.authorize_request(caller, api.scope, client.local_address)
            if api.is_inner_state:
                self._check_served(api)
        except RoundhouseError as error:
            exchange.fail_request(error)
        return exchange

    def check_running(self) -> None:
        """Raise RoundhouseError `gateway_stopping` if `end_all` was called."""
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
        services.grants.grant_slots(grants)
        for model in list(services.admission.depths):
            for ticket in services.admission.waiting_tickets(model):
                if ticket.state == "waiting":  # an earlier one that ended may have passed its slot on
                    ticket.owner.follow_table()


def _stopped_error() -> RoundhouseError:
    return RoundhouseError("gateway_stopping", "The gateway was stopped before the answer was complete.")


def describe_access(exchange: Exchange) -> str:
    """Return the line of the access log for a request that has ended, as JSON: never of its content, and of its headers
    nothing but the name of its key."""
    account, answer, services = exchange.account, exchange.answer, exchange.services
    usage = account.usage
    fields = {
        "time": datetime.fromtimestamp(services.clock(), UTC).isoformat(timespec="milliseconds"),
        "request_id": answer.request_id,
        "key": exchange.caller.name,
        "route": exchange.api.path,
        "model": account.model,
        "tokens_in": None if usage is None else usage.prompt,
        "tokens_out": (account.passed_tokens or None) if usage is None else usage.completion,
        "ms": round((services.now() - account.begun_at) * 1000, 1),
        "status": answer.status or CLIENT_GONE_STATUS,
    }
    return json.dumps(fields)
