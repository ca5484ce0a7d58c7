"""What admission and its callers pass to and fro: one request's claim, and what it is told. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.retry_state import NO_RETRIES, RetryState
from gateway.admission.token_estimator import TokenEstimator
from gateway.admission.token_pool import TokenClaim, TokenPool

_RANKS: Final = 3


class Slots(Protocol):
    """A replica, as far as a ticket leads to it: `model_queue.ReplicaSlots`."""

    endpoint: Endpoint
    inflight: int
    slots_taken: int
    token_pool: TokenPool | None
    is_routed: bool
    breaker: CircuitBreaker | None

    def release(self, ticket: Ticket) -> None:
        """`ticket`, which is inside, is out."""


class QueueLength(Protocol):
    """A queue's length: `fair_queue.FairQueue`."""

    waiting_count: int


class Queue(Protocol):
    """A model's queue, as far as a ticket leads to it: `model_queue.ModelQueue`."""

    model: str
    inflight: int
    is_routed: bool
    is_loaded: bool
    token_estimator: TokenEstimator

    @property
    def fair_queue(self) -> QueueLength:
        """The tickets that wait."""

    def update_broken_count(self) -> None:
        """See `model_queue.ModelQueue`, as for the others."""

    def release_ticket(self, ticket: Ticket, now: float) -> None:
        """`ticket` is out of its replica."""

    def requeue_ticket(self, ticket: Ticket) -> None:
        """The ticket waits for another replica."""

    def drop_ticket(self, ticket: Ticket) -> None:
        """The ticket waits no longer."""

    def serve_queue(self, now: float) -> list[Grant]:
        """Everybody who can go in now."""

    def replicas_left(self, retries: RetryState, now: float) -> Sequence[Slots]:
        """Where a request may be tried."""

    def explain_unreachable(self, retries: RetryState, now: float) -> RoundhouseError:
        """Why nothing is left to try."""


class QueuePlace(NamedTuple):
    """Where a request stood in its model's line when it came.

    Whoever is served counts as the queue's first place, so `position` 1 is: served at once. `depth` is one more than
    the number that wait. `wait_ms` is None where nothing is known to estimate it from.
    """

    position: int
    depth: int
    wait_ms: int | None


AT_ONCE: Final = QueuePlace(1, 1, 0)


class Ticket:
    """One request's claim to a slot, made by whoever brings the request. Used once."""

    __slots__ = (
        "account",
        "blocked_at",
        "claim",
        "entered_at",
        "expected_s",
        "held_slots",
        "is_refused",
        "model",
        "owner",
        "place",
        "prefix",
        "queue",
        "rank",
        "replica",
        "retries",
        "slots",
        "state",
        "tenant",
        "weight",
    )

    state: Literal["new", "waiting", "inside", "gone"]
    queue: Queue
    """The rest is admission's own. This is set on arrival."""
    account: TenantAccount
    replica: Slots
    """Where it is inside, or was last. This, `expected_s`, `entered_at` and `held_slots` are set on entering."""
    expected_s: float
    entered_at: float
    held_slots: int

    def __init__(
        self,
        owner: Any,
        model: str,
        tenant: str,
        weight: float,
        rank: int,
        prefix: Sequence[int] = (),
        slots: int = 1,
        claim: TokenClaim | None = None,
    ) -> None:
        """`owner`: whatever the caller wants to find again in a `Grant`. `model`: the model's own name, no alias.

        `weight` is above 0. `rank`: 0 priority, 1 default, 2 flex. `prefix`: see `prefix_affinity.prefix_keys`.
        `slots`: how many of one replica's it takes; one that has fewer gives all that it has.
        `claim`: what it takes of the replica's tokens; None: nothing that matters.
        """
        self.owner = owner
        self.model = model
        self.tenant = tenant
        self.weight = weight
        self.rank = rank
        self.prefix = prefix
        self.slots = slots
        self.claim = claim
        self.blocked_at: int | None = None
        """How many requests of its model had gone in when it first needed more of a replica than was free; None: it
        has not."""
        self.state = "new"
        self.place: QueuePlace | None = None
        """Set on arrival, and not changed afterwards. One refused with `queue_full` has the place that it would have
        had; None: it has not arrived, or nothing was left to try."""
        self.retries = NO_RETRIES
        self.is_refused = False
        """The engine answered with an error. Set by the owner before the ticket leaves."""

    @property
    def was_preempted(self) -> bool:
        """Whether it has given its place back once."""
        return self.claim is not None and self.claim.preemptions > 0

    def __repr__(self) -> str:
        return f"Ticket({self.tenant} {self.model}, {self.state})"


class TenantAccount:
    """One tenant's account with one model."""

    __slots__ = ("counter", "entry", "inflight", "name", "ranks", "turn", "waiting_count", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = 0.0
        self.turn = 0
        """Decides between equal counters: when it last went in, or came to wait."""
        self.inflight = 0
        self.waiting_count = 0
        self.ranks: tuple[OrderedDict[Ticket, None], ...] = tuple(OrderedDict() for _ in range(_RANKS))
        """Who waits, by rank, in the order in which they go."""
        self.entry: HeapEntry | None = None
        """The one of its entries in the heap that counts; None while it has nobody waiting."""


HeapEntry = tuple[float, int, TenantAccount]
"""Counter, turn, share. No two shares have had the same turn, so that they are never compared."""


Grant = tuple[Ticket, Endpoint | RoundhouseError]
"""What a ticket that waited has come to: the endpoint whose slot it now holds, or, when nothing is left that could take
it, why it is gone."""
