"""Routing tables and tickets for tests of admission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.schema.routing import Endpoint, ModelRoute, RoutingTable, SessionBinding, Stamp
from controller.schema.status import ModelState
from gateway.admission.admission import Admission, Grant, Ticket
from gateway.admission.token_pool import TokenClaim
from gateway.routing.table import Routes
from gateway.sessions.replica_sessions import Sampling, SessionClaim
from gateway.sessions.transcript import Transcript


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
        endpoint = self.admission.admit_ticket(ticket, self.routes.models[model], self.now)
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
