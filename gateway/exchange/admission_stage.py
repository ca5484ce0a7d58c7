"""An exchange in admission: it gets a slot or a refusal, or waits in the queue, perhaps for a load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute
from contract.status import ModelState
from gateway.admission.admission import cache_exhausted_error
from gateway.admission.prefix_affinity import prefix_keys
from gateway.admission.ticket import NO_RETRIES, Grant, RetryState, Ticket
from gateway.admission.token_pool import TokenClaim, read_demand
from gateway.control.inflight import InflightCounts
from gateway.exchange.engine_stage import Attempt
from gateway.exchange.hooks import ExchangeState, SendHook
from gateway.exchange.progress import load_comment
from gateway.protocols.api_matrix import ServingOption, serving_option
from gateway.protocols.common.bodies import route_to_module
from gateway.protocols.common.capabilities import check_length
from gateway.protocols.common.fan_out import count_slots
from gateway.routing.availability import is_worth_waiting, no_longer_loading, refusal_of
from gateway.sessions import SessionClaim

if TYPE_CHECKING:
    from gateway.exchange.exchange import Exchange


_PARAM: Final = "replica"


HEADER: Final = b"x-replica: %b\r\n"
"""The header line of an answer that one replica gave by its own state."""


def find_named_replica(route: ModelRoute, query: bytes, *, must_choose: bool) -> Endpoint | None:
    """Return the endpoint of the replica that `query` names in `replica`, by its name or its number; None: any replica
    may answer.

    `must_choose`: the request is about one replica's state, so that one of several must be named.

    Raises:
        RoundhouseError: `invalid_request`: the query names no replica that serves the model, or none although several
            do and `must_choose` is set. The message lists the replicas.
    """
    endpoints = route.endpoints
    wanted = dict(parse_qsl(query.decode("latin-1"))).get(_PARAM) if query else None
    if wanted is None:
        if not must_choose or len(endpoints) < 2:
            return None
        raise _refuse(f"{route.name!r} has {len(endpoints)} replicas, each with a state of its own", route)
    found = next((each for each in endpoints if wanted in (each.replica, str(each.index))), None)
    if found is None:
        raise _refuse(f"No replica {wanted[:100]!r} serves {route.name!r} now", route)
    return found


def _refuse(reason: str, route: ModelRoute) -> RoundhouseError:
    names = ", ".join(each.replica for each in route.endpoints)
    first = route.endpoints[0].index if route.endpoints else 0
    return RoundhouseError(
        "invalid_request", f"{reason}. Name one: `?replica={first}`, or by name: {names}.", param=_PARAM
    )


_AUTOLOAD_OFF: Final = re.compile(rb"(?:^|&)autoload=(?:false|0)(?:&|$)")


def forbids_autoload(query: bytes) -> bool:
    """Return whether a request's query, as sent, says that the request must load no model: `autoload=false`, as
    llama-server's router reads it."""
    return bool(query) and _AUTOLOAD_OFF.search(query) is not None


class LoadWait:
    """A request's wait for one load of its model: its deadline, and the progress that its client was sent.

    It is `Exchange.load_wait` as long as the request waits. It does not wait by itself: `Exchange.run_due` heeds the
    deadline.
    """

    __slots__ = ("_last_comment", "deadline")

    def __init__(self, deadline: float) -> None:
        """`deadline`: until when the request waits, in monotonic seconds."""
        self.deadline = deadline
        self._last_comment = b""

    def next_comment(self, route: ModelRoute) -> bytes | None:
        """Return the SSE comment for the progress of `route`'s load; None if it equals the one returned last."""
        comment = load_comment(route)
        if comment == self._last_comment:
            return None
        self._last_comment = comment
        return comment


def begin_load_wait(ledger: InflightCounts, route: ModelRoute, refusal: RoundhouseError, deadline: float) -> LoadWait:
    """Record the demand for a model that is not loaded, and return a wait for its load.

    `refusal`: why the model takes no request now. `deadline`: monotonic seconds.

    Raises:
        RoundhouseError: `refusal`, if the model is not `autoload`, so that nothing is recorded, or if its load failed;
            the demand of an `autoload` model is recorded all the same.
    """
    if route.autoload:
        ledger.record_demand(route.name)
    if not is_worth_waiting(route):
        raise refusal
    return LoadWait(deadline)


def check_worth_waiting(route: ModelRoute, refusal: RoundhouseError) -> None:
    """Check that a request may go on waiting for the load of its model: the model is `autoload` and its load has not
    failed.

    `refusal`: why the model takes no request now.

    Raises:
        RoundhouseError: `refusal`, or `model_unloading` in the place of a refusal `model_not_loaded`, since the model
            was unloaded meanwhile.
    """
    if not is_worth_waiting(route):
        raise no_longer_loading(route) if refusal.entry.code == "model_not_loaded" else refusal


_QUEUED, _LOADING = ExchangeState.QUEUED, ExchangeState.LOADING
_HELD, _LOADED = ExchangeState.HELD, ModelState.LOADED


class AdmissionStage:
    """A complete request in admission: checks it, takes its slot, and waits in the queue or for a load.

    It is the owner of the request's ticket (`Ticket.owner`). A request that waits goes on in `use_slot`: whoever frees
    a slot gets grants from `Admission`, and hands them to `Services.grants`, which calls the owners. Made by `Exchange`
    when its hooks have completed the request.
    """

    __slots__ = ("_checked_route", "_exchange", "_held_hooks", "serving_option", "ticket", "waits_since")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._checked_route: ModelRoute | None = None
        self._held_hooks: Iterator[SendHook]
        """The hooks that are left after the pause that the request is held for; set by the pause."""
        self.serving_option: ServingOption
        """How the model's engine serves the request's API. Set when the request is checked, and not before."""
        self.ticket: Ticket | None = None
        """None before admission, after the end, and for an API that takes no slot."""
        self.waits_since: float | None = None
        """When the request entered the queue, in monotonic seconds; None: it is not in the queue."""

    def admit_request(self, route: ModelRoute) -> None:
        """Check and count the request, and send it or put it into the queue of its model. Call once.

        `route`: the model in the routing table in force. A model that is `autoload`, not loaded and not failed is
        demanded from the controller, and the request waits for the load in the queue. A hook of `before_admission` may
        answer the request instead; then nothing is sent or queued.

        Raises:
            RoundhouseError: `not_supported`, or what `Dialect.check_request`, `check_length` or the translation for the
                engine refuses; `invalid_request` for a wrong `?replica=`; `rate_limit_exceeded`; the model is not
                loaded and not waited for (see `refusal_of`); `queue_full`; `engine_unreachable`.
            Exception: what a hook or `EngineStage.send_attempt` raises. After any exception, the caller must end the
                request.
        """
        self._check_request(route)
        exchange = self._exchange
        services, hooks = exchange.services, exchange.hooks
        now = exchange.count_request()
        if hooks.before_admission and any(answers(exchange) for answers in hooks.before_admission):
            return
        refusal = self._find_refusal(route)
        endpoint: Endpoint | None
        if refusal is None and not exchange.api.takes_slot:
            exchange.set_header_lines(now)
            endpoint = self._find_named_replica(route) or services.admission.choose_replica(route, now)
            self._tell_replica(endpoint)
        else:
            if refusal is not None:
                self._await_load(route, refusal, now)
            self.ticket = ticket = self._new_ticket(route)
            endpoint = services.admission.admit_ticket(ticket, now)
            exchange.set_header_lines(now)
        if hooks.on_admitted:
            for on_admitted in hooks.on_admitted:
                on_admitted(exchange)
        if endpoint is None:
            self._wait_in_queue(route, now)
        else:
            self._enter_replica(route, endpoint)

    def _find_named_replica(self, route: ModelRoute) -> Endpoint | None:
        api, query = self._exchange.api, self._exchange.client.query
        return find_named_replica(route, query, must_choose=api.changes_replica) if api.names_replica else None

    def _tell_replica(self, endpoint: Endpoint) -> None:
        if self._exchange.api.names_replica:
            self._exchange.answer.lines += HEADER % endpoint.replica.encode()

    def renew_route(self) -> ModelRoute:
        """Return the model as the table in force has it, and check the request again if the model has changed.

        Raises:
            RoundhouseError: `controller_unavailable` if no table is in force any more; `unknown_model` if the model is
                gone; `invalid_api_key`, `scope_required` or `model_not_allowed` if the caller's key does not allow the
                request any more; or the changed model does not take the request.
        """
        route = self._exchange.renew_route()
        if route is not self._checked_route:
            self._check_request(route)
        return route

    def _check_request(self, route: ModelRoute) -> None:
        api, request = self._exchange.api, self._exchange.request
        self.serving_option = option = serving_option(api.path, request, route)
        route_to_module(request, route)
        option.dialect.check_request(request, route)
        if api.takes_slot and not api.is_native:
            check_length(request, route)
        self._checked_route = route

    def _new_ticket(self, route: ModelRoute) -> Ticket:
        exchange = self._exchange
        request, caller = exchange.request, exchange.caller
        fields = request.outline_fields
        prefix = prefix_keys(fields, request.prompt) if len(route.endpoints) > 1 else ()
        rank = caller.tier_rank(fields.get("service_tier"))
        slots = count_slots(fields, route, exchange.api.inputs)
        answers = slots if exchange.api.streams else 1
        claim = TokenClaim(read_demand(request.size, request.text_bytes + exchange.extra_text_bytes, fields, answers))
        ticket = Ticket(self, route.name, caller.tenant, caller.weight, rank, prefix, slots, claim, exchange.session)
        ticket.goes_on = exchange.goes_on
        return ticket

    def _wait_in_queue(self, route: ModelRoute, now: float) -> None:
        """Note that admission has put the ticket into the queue."""
        exchange = self._exchange
        self.waits_since = now
        exchange.move_to(_QUEUED if exchange.load_wait is None else _LOADING)
        exchange.services.ledger.on_change()
        self._call_wait_hooks(route)

    def _enter_replica(self, route: ModelRoute, endpoint: Endpoint) -> None:
        """Send the request to the replica whose slot it has, after the hooks of `before_send`."""
        exchange, engine = self._exchange, self._exchange.engine
        assert engine is not None
        if exchange.load_wait is not None:
            exchange.end_load_wait()
        if exchange.hooks.before_send:
            self._send_after(iter(exchange.hooks.before_send), endpoint, route)
        else:
            engine.send_attempt(route, endpoint)

    def _send_after(self, hooks: Iterator[SendHook], endpoint: Endpoint, route: ModelRoute) -> None:
        """Call the hooks that are left, and then send the request."""
        exchange, engine = self._exchange, self._exchange.engine
        assert engine is not None
        for hook in hooks:
            pause = hook(exchange, route, endpoint)
            if pause is not None:
                self._held_hooks = hooks
                exchange.wait_for(pause, _HELD, partial(self._go_on, hooks, endpoint))
                return
        engine.send_attempt(route, endpoint)

    def _go_on(self, hooks: Iterator[SendHook], endpoint: Endpoint, route: ModelRoute) -> None:
        """Go on after a pause: with the hooks that are left, or from admission if the table lacks the replica now.

        Does nothing if the slot was given up during the pause: the request goes on from admission then.
        """
        if self._exchange.state is not _HELD or self._held_hooks is not hooks:
            return
        place = (endpoint.replica, endpoint.base_url, endpoint.token)
        same = (each for each in route.endpoints if (each.replica, each.base_url, each.token) == place)
        if (current := next(same, None)) is not None:  # whose figures may be others by now
            self._send_after(hooks, current, route)
        elif self.ticket is not None:
            self._readmit(self._exchange.services.admission.readmit_ticket)
        else:
            self._choose_replica(route, NO_RETRIES)

    def _choose_replica(self, route: ModelRoute, retries: RetryState) -> None:
        """Send a request that takes no slot again, to a replica that admission chooses. `retries`: where it failed."""
        exchange, now = self._exchange, self._exchange.services.now()
        named = self._find_named_replica(route)
        endpoint = named or exchange.services.admission.choose_replica(route, now, retries)
        exchange.set_header_lines(now)
        self._tell_replica(endpoint)
        self._enter_replica(route, endpoint)

    # In the queue: from admission, and from the routing table

    def use_slot(self, endpoint: Endpoint) -> None:
        """Send the request to `endpoint`, whose slot admission has granted to the ticket. Called by `GrantDispatcher`.

        A failure ends the request and is not raised. Does nothing after the end of the request.
        """
        if not self._exchange.is_ended:
            self._exchange.run_guarded(self._use_slot, endpoint)

    def _use_slot(self, endpoint: Endpoint) -> None:
        exchange = self._exchange
        services, now = exchange.services, exchange.services.now()
        if self.waits_since is not None:
            series = services.metrics.series_of(exchange.account.model, exchange.api.path)
            series.count_waited(now - self.waits_since)
        self.waits_since = None
        exchange.end_load_wait()
        route = self.renew_route()
        endpoint = self._find_named_replica(route) or endpoint
        self._tell_replica(endpoint)
        self._enter_replica(route, endpoint)

    def fail_request(self, error: RoundhouseError) -> None:
        """End the request with `error`, which the client gets. Does nothing after the end of the request.

        Called by `GrantDispatcher` for a grant that holds an error.
        """
        self._exchange.fail_request(error)

    def follow_table(self) -> None:
        """Look at the model again: the request goes on waiting, for a slot or a load, or ends with an error, which the
        client gets.

        Call for a request in the queue when a routing table has come into force and admission has applied the table.
        Raises nothing.
        """
        self._exchange.run_guarded(self._check_table)

    def _check_table(self) -> None:
        exchange = self._exchange
        route = self.renew_route()
        refusal = self._find_refusal(route)
        if refusal is None:
            exchange.end_load_wait()
        else:
            check_worth_waiting(route, refusal)
            if exchange.load_wait is None:
                self._await_load(route, refusal, exchange.services.now())
        state = _QUEUED if exchange.load_wait is None else _LOADING
        if state is not exchange.state:
            exchange.move_to(state)
        self._call_wait_hooks(route)

    def _find_refusal(self, route: ModelRoute) -> RoundhouseError | None:
        """Return why the model takes no request now, in words that the caller may read; None: it takes requests."""
        if route.state is _LOADED:
            return None
        exchange = self._exchange
        services = exchange.services
        is_admin = services.gate.allows_admin(exchange.caller, exchange.client.local_address)
        return refusal_of(route, services.clock(), is_for_admin=is_admin and not exchange.hides_paths)

    def _await_load(self, route: ModelRoute, refusal: RoundhouseError, now: float) -> None:
        """Begin to wait for a load of the model. Raises `refusal` if nothing is going to load it, or the request says
        `?autoload=false`."""
        exchange = self._exchange
        services = exchange.services
        if forbids_autoload(exchange.client.query):
            raise refusal
        deadline = now + services.settings.autoload_timeout_s
        exchange.begin_load_wait(begin_load_wait(services.ledger, route, refusal, deadline))

    def _call_wait_hooks(self, route: ModelRoute) -> None:
        for on_wait in self._exchange.hooks.on_wait:
            on_wait(self._exchange, route)

    # After an attempt

    def retry_request(self, replica: str, *, is_refused: bool) -> None:
        """Send the request elsewhere, or queue it, after `replica` failed before it answered.

        `is_refused`: the replica did not accept the connection; False: it accepted and broke it.

        Raises:
            RoundhouseError: `engine_unreachable` if no replica is left to try, or the request names its replica, or
                after two broken connections, or, for an API that takes no slot, after two attempts; `invalid_request`
                if the replica that it names is gone; the model's refusal if it is not loaded and not waited for; what
                `renew_route` raises because the model or the key has changed; or the request cannot be translated for
                the engine. The caller must end the request, as after any exception.
            Exception: what a hook or `EngineStage.send_attempt` raises.
        """
        admission, exchange = self._exchange.services.admission, self._exchange
        route, ticket = self.renew_route(), self.ticket
        is_named = self._find_named_replica(route) is not None
        if is_named or (ticket is None and exchange.account.attempts > 1):
            raise RoundhouseError("engine_unreachable", f"The model {route.name!r} cannot be reached.")
        if ticket is not None:
            self._readmit(partial(admission.retry_ticket, is_refused=is_refused))
            return
        retries = NO_RETRIES.after_refusal(replica) if is_refused else NO_RETRIES.after_break(replica)
        self._choose_replica(route, retries)

    def preempt_request(self, *, by_engine: bool) -> None:
        """Give the slot back, and send or queue the request again with a larger claim on a replica's KV cache.

        Call only for a request with a ticket that is inside, and after its attempt has ended. `by_engine`: the engine
        reported a full KV cache; False: another request needs the tokens.

        Raises:
            RoundhouseError: `kv_cache_exhausted`: there are no more tokens to claim; the model's refusal if it is not
                loaded and not waited for; or what `renew_route` raises because the model or the key has changed. The
                caller must end the request, as after any exception.
            Exception: what a hook or `EngineStage.send_attempt` raises.
        """
        self._readmit(partial(self._exchange.services.admission.preempt_ticket, by_engine=by_engine))

    def _readmit(self, admit: Callable[[Ticket, float], tuple[Endpoint | None, Sequence[Grant]]]) -> None:
        """Call `admit`, which gives the slot back and admits the ticket anew, and send or queue the request."""
        assert self.ticket is not None
        services = self._exchange.services
        now = services.now()
        route = self.renew_route()
        refusal = self._find_refusal(route)
        if refusal is not None:
            self._await_load(route, refusal, now)
        endpoint, grants = admit(self.ticket, now)
        try:
            if endpoint is None:
                self._wait_in_queue(route, now)
            else:
                self._enter_replica(route, endpoint)
        finally:
            services.grants.grant_slots(grants)  # other requests hold these slots, whatever becomes of this one

    @property
    def may_be_resent(self) -> bool:
        """Whether the request can leave its engine and be sent again: no engine was asked yet; or a streaming attempt
        is under way, the client has no part of an answer, and the body is still there."""
        engine = self._exchange.engine
        return self._exchange.state is _HELD or (engine is not None and engine.may_be_resent)

    def give_up_tokens(self) -> None:
        """Leave the engine, whose KV cache has no room for the request, and send or queue the request again.

        If it may not be sent again, it ends with `kv_cache_exhausted`. Raises nothing, and does nothing after the end.
        """
        exchange, engine = self._exchange, self._exchange.engine
        if exchange.is_ended or self.ticket is None:
            return
        if engine is None or not self.may_be_resent:
            exchange.fail_request(cache_exhausted_error(exchange.account.model))
        else:
            engine.end()
            exchange.run_guarded(partial(self.preempt_request, by_engine=False))

    def release_slot(self, attempt: Attempt | None, now: float) -> None:
        """Take the ticket out of the queue or its replica, tell admission what the engine counted, and deliver the
        grants that follow.

        Call when the request needs no engine any more, after `account.usage` is set: admission learns from it what
        requests take and what a session holds. Without a ticket, as after an earlier call, it does nothing. `attempt`:
        the last one that came to an answer or is under way; None: there is none. `now`: monotonic seconds.
        """
        services, ticket = self._exchange.services, self.ticket
        if ticket is None:
            return
        self.ticket = None  # it refers back
        if self.waits_since is not None:
            services.ledger.on_change()
        ticket.is_refused = attempt is not None and attempt.is_refused
        usage = self._exchange.account.usage
        if usage is not None:
            services.admission.record_usage(ticket, usage.prompt, usage.completion)
        if ticket.session is not None and attempt is not None and not attempt.is_refused:
            self._record_turn(ticket.session, ticket, attempt)
        grants = services.admission.release_ticket(ticket, now)
        if grants:
            services.grants.grant_slots(grants)

    def _record_turn(self, claim: SessionClaim, ticket: Ticket, attempt: Attempt) -> None:
        """Note what the engine holds of a session after an answer, or a part of one."""
        exchange = self._exchange
        first_byte_at, usage = exchange.answer.first_byte_at, exchange.account.usage
        if first_byte_at is None:
            return
        claim.held_tokens = 0 if usage is None else usage.prompt + usage.completion
        if usage is not None and exchange.is_stream:
            cached_tokens = usage.cached if usage.cached is not None else claim.cached_tokens
            prompt_s = first_byte_at - attempt.sent_at
            exchange.services.admission.record_prompt(ticket, usage.prompt - cached_tokens, prompt_s)
