"""Routing tables and tickets for tests of admission, and a simulation of replicas that have one KV cache each.

As llama-server does it: a request's prompt is in the cache from its first tick on, each tick adds tokens to its answer,
and when the cache has no room for all of them, every request inside fails. Nothing waits, and no time passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from contract.errors import RoundhouseError
from contract.routing import Endpoint, ModelRoute, RoutingTable, SessionBinding, Stamp
from contract.status import ModelState
from gateway.admission.admission import Admission
from gateway.admission.ticket import Grant, Ticket
from gateway.admission.token_pool import TokenClaim, TokenDemand
from gateway.routing.table import Routes
from gateway.sessions import Sampling, SessionClaim, Transcript


def route_of(
    name: str,
    replicas: Sequence[str] = (),
    *,
    target: int = 1,
    queue_limit: int | None = None,
    state: ModelState = ModelState.LOADED,
    session_cache: int = 0,
    session_binding: SessionBinding | None = None,
) -> ModelRoute:
    return ModelRoute(
        name=name,
        backend="stub",
        state=state,
        created=0,
        served_name=name,
        endpoints=tuple(Endpoint(replica=each, base_url=f"http://{each}") for each in replicas),
        target_inflight=target,
        queue_limit=queue_limit,
        session_cache=session_cache,
        session_binding=session_binding,
    )


def claim_of(
    name: str, messages: Sequence[str] = (), *, temperature: float | None = None, tokens: int | None = 1_000
) -> SessionClaim:
    """A turn of a session that asks with these messages, after which the engine holds `tokens`; None: the turn comes to
    no answer."""
    claim = SessionClaim(name.encode().ljust(16), Transcript(messages), Sampling(temperature=temperature))
    claim.held_tokens = tokens
    return claim


def routes_of(*models: ModelRoute) -> Routes:
    return Routes.of(RoutingTable(instance="i", stamp=Stamp(epoch=1, seq=1), models=models))


@dataclass
class AdmissionHarness:
    """An admission, its table in force, and a clock that stands until it is moved."""

    admission: Admission = field(default_factory=lambda: Admission(queue_limit=None))
    routes: Routes = field(default_factory=routes_of)
    now: float = 1000.0

    def table(self, *models: ModelRoute) -> list[Grant]:
        self.routes = routes_of(*models)
        return list(self.admission.apply_table(self.routes, self.now))

    def come(
        self,
        tenant: str = "alice",
        model: str = "m",
        *,
        weight: float = 1.0,
        rank: int = 1,
        prefix: Sequence[int] = (),
        slots: int = 1,
        claim: TokenClaim | None = None,
        session: SessionClaim | None = None,
    ) -> Ticket:
        """A new ticket, inside or waiting."""
        ticket = Ticket(None, model, tenant, weight, rank, prefix, slots, claim, session)
        endpoint = self.admission.admit_ticket(ticket, self.now)
        assert (endpoint is None) == (ticket.state == "waiting")
        if endpoint is not None:
            assert endpoint.replica == where(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> list[Grant]:
        return list(self.admission.release_ticket(ticket, self.now))


def harness_of(replicas: Sequence[str], **fields: Any) -> AdmissionHarness:
    """With a table of the model `m`, which has these replicas."""
    harness = AdmissionHarness()
    harness.table(route_of("m", replicas, **fields))
    return harness


def where(ticket: Ticket) -> str:
    """The name of the replica that it is inside."""
    assert ticket.state == "inside"
    return ticket.replica.endpoint.replica


def who(grants: Sequence[Grant]) -> list[tuple[Ticket, str]]:
    """Tickets, each with the name of its replica, or the code of its error."""
    return [
        (ticket, outcome.replica if isinstance(outcome, Endpoint) else outcome.entry.code) for ticket, outcome in grants
    ]


TICK_TOKENS = 16
"""Of an answer, in one tick."""


@dataclass(frozen=True)
class Kind:
    """A request as its client sends it, and as the engine finds it."""

    text_bytes: int
    prompt_tokens: int
    answer_tokens: int
    """What the model says of its own accord, of each answer."""
    max_tokens: int | None = None
    is_stream: bool = False
    choices: int = 1

    @property
    def answered_tokens(self) -> int:
        length = self.answer_tokens if self.max_tokens is None else min(self.answer_tokens, self.max_tokens)
        return length * self.choices

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answered_tokens


@dataclass(eq=False)
class Request:
    kind: Kind
    ticket: Ticket = field(init=False)
    answered: int = 0
    mark: int = 0
    has_sent: bool = False
    outcome: str | None = None
    """`answered`, or the code of its error; None: it is under way."""
    entered_count: int = 0
    """How often it was sent to the engine."""


@dataclass
class TokenWorld:
    """One model with so many replicas. `reported` is what usage says of each true token."""

    capacity: int
    slots: int
    replicas: int = 1
    reported: float = 1.0
    now: float = 0.0
    overruns: int = 0
    """How often an engine found no room."""
    most_inside: int = 0
    """Tokens, by an engine's own count."""
    idle_slots_while_waiting: int = 0
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        route = route_of("m", [f"r{number}" for number in range(self.replicas)], target=self.slots, queue_limit=10_000)
        endpoints = tuple(
            endpoint.model_copy(update={"kv_cache_tokens": self.capacity}) for endpoint in route.endpoints
        )
        self.route = route.model_copy(update={"endpoints": endpoints, "context_length": self.capacity})
        self.admission = Admission(queue_limit=10_000)
        self.admission.apply_table(routes_of(self.route), self.now)

    def come(self, kind: Kind, tenant: str = "a") -> Request:
        request = Request(kind)
        slots = min(kind.choices, self.slots)
        claim = TokenClaim(TokenDemand(kind.text_bytes, False, kind.max_tokens, slots))
        request.ticket = Ticket(request, "m", tenant, 1.0, 1, (), slots, claim)
        self.requests.append(request)
        if self.admission.admit_ticket(request.ticket, self.now) is not None:
            self._begin(request)
        return request

    def inside(self, replica: str) -> list[Request]:
        return [
            request
            for request in self.requests
            if request.ticket.state == "inside" and request.ticket.replica.endpoint.replica == replica
        ]

    @property
    def under_way(self) -> list[Request]:
        return [request for request in self.requests if request.outcome is None]

    def tick(self) -> None:
        """Each engine works once."""
        self.now += 1.0
        for endpoint in self.route.endpoints:
            self._work(endpoint.replica)
        self.check()

    def run(self, most_ticks: int) -> None:
        """Until all requests have come to an end."""
        for _ in range(most_ticks):
            if not self.under_way:
                return
            self.tick()
        raise AssertionError(f"not at an end: {self.admission!r} {[each.ticket.claim for each in self.under_way]}")

    def check(self) -> None:
        """What must always hold, and what is counted."""
        for queue in self.admission._queues.values():
            for replica in queue.replicas:
                pool = replica.token_pool
                assert pool is not None
                assert pool.granted == sum(claim.granted for claim in pool.tickets.values())
                assert pool.reserved == sum(claim.reserved for claim in pool.tickets.values())
                assert set(pool.tickets) == {each.ticket for each in self.inside(replica.endpoint.replica)}
                assert pool.granted <= pool.usable or len(pool.tickets) == 1
            if queue.fair_queue.waiting_count:
                self.idle_slots_while_waiting += sum(self.slots - replica.slots_taken for replica in queue.replicas)

    def _work(self, replica: str) -> None:
        for request in self.inside(replica):
            if request.ticket.state == "inside" and request.outcome is None:  # not one that left in this very tick
                self._answer(request)
        inside = self.inside(replica)
        tokens = sum(request.kind.prompt_tokens + request.answered for request in inside)
        self.most_inside = max(self.most_inside, tokens)
        if tokens > self.capacity:
            self.overruns += 1
            for request in inside:
                self._fail(request)

    def _answer(self, request: Request) -> None:
        kind = request.kind
        step = min(TICK_TOKENS * kind.choices, kind.answered_tokens - request.answered)
        request.answered += step
        request.has_sent |= kind.is_stream and step > 0
        if request.answered >= kind.answered_tokens:
            reported = round(kind.prompt_tokens * self.reported), round(kind.answered_tokens * self.reported)
            self.admission.record_usage(request.ticket, *reported)
            self._leave(request, "answered")
        elif request.answered >= request.mark:
            request.mark, victims = self.admission.extend_answer(
                request.ticket, request.answered, lambda ticket: not ticket.owner.has_sent
            )
            for victim in victims:
                if victim.owner.has_sent:
                    self._leave(victim.owner, "kv_cache_exhausted")
                else:
                    self._preempt(victim.owner, by_engine=False)

    def _fail(self, request: Request) -> None:
        self.admission.record_overrun(request.ticket, self.now)
        if request.has_sent:
            self._leave(request, "kv_cache_exhausted")
        else:
            self._preempt(request, by_engine=True)

    def _preempt(self, request: Request, *, by_engine: bool) -> None:
        try:
            endpoint, grants = self.admission.preempt_ticket(request.ticket, self.now, by_engine=by_engine)
        except RoundhouseError as error:
            self._leave(request, error.entry.code)
            return
        if endpoint is not None:
            self._begin(request)
        self._take(grants)

    def _leave(self, request: Request, outcome: str) -> None:
        request.outcome = outcome
        self._take(self.admission.release_ticket(request.ticket, self.now))

    def _take(self, grants: object) -> None:
        for ticket, outcome in grants:  # type: ignore[attr-defined]
            assert isinstance(outcome, Endpoint)
            self._begin(ticket.owner)

    def _begin(self, request: Request) -> None:
        request.answered = 0
        request.entered_count += 1
        request.mark = self.admission.begin_answer(request.ticket, is_counted=True)
