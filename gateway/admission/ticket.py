"""Types that admission and its callers exchange: a request's `Ticket`, its `QueuePlace` and its `Grant`. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint
from gateway.admission.circuit_breaker import CircuitBreaker
from gateway.admission.retry_state import NO_RETRIES, RetryState
from gateway.admission.token_estimator import TokenEstimator
from gateway.admission.token_pool import TokenClaim, TokenPool
from gateway.sessions.replica_sessions import SessionClaim

if TYPE_CHECKING:
    from gateway.admission.model_sessions import ModelSessions
    from gateway.admission.session_placement import SessionPlacement

_RANKS: Final = 3


class Slots(Protocol):
    """The replica that a ticket is inside: what the ticket's users may read of it, and `release`.

    Implemented by `replica_slots.ReplicaSlots`, which describes the attributes.
    """

    endpoint: Endpoint
    inflight: int
    slots_taken: int
    token_pool: TokenPool | None
    is_routed: bool
    breaker: CircuitBreaker | None
    placement: SessionPlacement | None

    def release(self, ticket: Ticket) -> None:
        """Give back the slots and KV cache tokens of `ticket`; a second call would give back the slots again.

        Call once for a ticket that is inside this replica. `ModelQueue.release_ticket` does so.
        """


class QueueLength(Protocol):
    """The number of tickets that wait for a model. Implemented by `fair_queue.FairQueue`."""

    waiting_count: int


class Queue(Protocol):
    """The replicas and the waiting tickets of one model, as `Ticket.queue` refers to them.

    Implemented by `model_queue.ModelQueue`, which describes the attributes. Used by `Admission` only.
    """

    model: str
    inflight: int
    is_routed: bool
    is_loaded: bool
    token_estimator: TokenEstimator
    sessions: ModelSessions

    @property
    def fair_queue(self) -> QueueLength:
        """The queue of the model's waiting tickets; this protocol gives only their number (`waiting_count`)."""

    def update_broken_count(self) -> None:
        """Bring the number of replicas with an open circuit breaker up to date; `serve_queue` uses it.

        Call after a breaker opened or was discarded.
        """

    def release_ticket(self, ticket: Ticket, now: float) -> None:
        """Give back the slots and KV cache tokens of a ticket that is inside, end its turn of a session and its trial
        of a circuit breaker, and settle its tenant's charge. `now`: monotonic seconds.

        The caller sets `ticket.state`, and calls `serve_queue` for the tickets that wait.
        """

    def requeue_ticket(self, ticket: Ticket) -> None:
        """Queue a ticket again after `release_ticket`, in front of its tenant's others, and set its state to `waiting`.

        The limit of the queue does not apply.
        """

    def drop_ticket(self, ticket: Ticket) -> None:
        """Remove a waiting ticket from the queue, and set its state to `gone`. KeyError if the ticket waits no more."""

    def serve_queue(self, now: float) -> list[Grant]:
        """Admit every waiting ticket that can enter at `now` (monotonic seconds); see `ModelQueue.serve_queue`.

        Returns the grants. The caller must pass each one to its ticket's owner, or release the ticket.
        """

    def replicas_left(self, retries: RetryState, now: float) -> Sequence[Slots]:
        """Return the replicas that a request with these `retries` may try now, or once they have room or pass a trial.

        Empty if none is left. `now`: monotonic seconds.
        """

    def explain_unreachable(self, retries: RetryState, now: float) -> RoundhouseError:
        """Return, and do not raise, the `engine_unreachable` error that says why no replica is left to try.

        `now`: monotonic seconds.
        """


class QueuePlace(NamedTuple):
    """Where a request stands in its model's queue: when it arrived (`Ticket.place`), or now (`Admission.list_places`).

    `position` counts from 1, and 1 means that the request entered a replica at once: the first waiting request has 2.
    `depth` is the number of waiting requests plus 1, this request included if it waits or was refused with
    `queue_full`. `wait_ms` is the estimated wait in milliseconds, 0 at position 1; None: unknown, because no request of
    the model has been answered yet or the model has no replica.
    """

    position: int
    depth: int
    wait_ms: int | None


AT_ONCE: Final = QueuePlace(1, 1, 0)


class Ticket:
    """One request's claim to slots of a replica. Created by the caller of `Admission`, and used for one request only.

    Its state goes from `new` to `waiting` or `inside`, possibly between these two several times, and ends as `gone`.
    Except for `is_refused` and `goes_on`, attributes that the constructor does not take are set by admission, which
    also sets `rank` to 0 when it queues the ticket again after an attempt.
    """

    __slots__ = (
        "account",
        "blocked_at",
        "claim",
        "engine_slot",
        "entered_at",
        "expected_s",
        "goes_on",
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
        "session",
        "slots",
        "state",
        "tenant",
        "weight",
    )

    state: Literal["new", "waiting", "inside", "gone"]
    queue: Queue
    """The model's queue. Set by `Admission.admit_ticket`."""
    account: TenantAccount
    """The tenant's account with the model. Set when the ticket is queued or enters."""
    replica: Slots
    """The replica that the ticket is inside, or was last. Set when it enters, as are the three below."""
    expected_s: float
    """Seconds that its tenant was charged in advance."""
    entered_at: float
    """Monotonic seconds when it entered."""
    held_slots: int
    """Slots that it holds."""

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
        session: SessionClaim | None = None,
    ) -> None:
        """`owner`: any object of the caller, to find it again in a `Grant`. `model`: the model's own name, no alias.

        `weight`: the tenant's share, above 0. `rank`: 0 priority, 1 default, 2 flex. `prefix`: see
        `prefix_affinity.prefix_keys`. `slots`: slots to take of one replica; one that has fewer gives all of them.
        `claim`: KV cache tokens to take; None: the request's tokens are not counted.
        `session`: the request's turn in a session; None: it belongs to none.
        """
        self.owner = owner
        self.model = model
        self.tenant = tenant
        self.weight = weight
        self.rank = rank
        self.prefix = prefix
        self.slots = slots
        self.claim = claim
        self.session = session
        self.goes_on = False
        """The request is a part of one that was let in before, so the limit of the queue does not apply. Set by the
        owner."""
        self.engine_slot: int | None = None
        """Inside: the slot of the engine to name in the request; None: the engine chooses."""
        self.blocked_at: int | None = None
        """How many requests of the model had entered when this one first needed more of a replica than was free; None:
        that has not happened."""
        self.state = "new"
        self.place: QueuePlace | None = None
        """Set on arrival and never changed. A ticket refused with `queue_full` has the place that it would have had.
        None: not arrived yet, or refused with `engine_unreachable`."""
        self.retries = NO_RETRIES
        self.is_refused = False
        """Whether the engine answered with an error. Set by the owner before `Admission.release_ticket`."""

    @property
    def was_preempted(self) -> bool:
        """Whether the ticket's KV cache tokens were taken back at least once, so that it was admitted again. False
        without a `claim`."""
        return self.claim is not None and self.claim.preemptions > 0

    def __repr__(self) -> str:
        return f"Ticket({self.tenant} {self.model}, {self.state})"


class TenantAccount:
    """One tenant's waiting tickets at one model, and its counter for fair queueing.

    `counter`: slot-seconds that the tenant received, divided by `weight`; the tenant with the lowest goes next.
    `inflight`: its tickets that are inside a replica. Made and changed by `fair_queue.FairQueue` only.
    """

    __slots__ = ("counter", "entry", "inflight", "name", "ranks", "turn", "waiting_count", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.counter = 0.0
        self.turn = 0
        """Turn number of the tenant's last entry or start of waiting; the lowest goes first among equal counters."""
        self.inflight = 0
        self.waiting_count = 0
        self.ranks: tuple[OrderedDict[Ticket, None], ...] = tuple(OrderedDict() for _ in range(_RANKS))
        """The waiting tickets by rank, next to enter first."""
        self.entry: HeapEntry | None = None
        """The account's valid entry in the heap; its other entries are outdated. None: it has no waiting ticket."""


HeapEntry = tuple[float, int, TenantAccount]
"""Counter, turn, account. Turns are unique, so that accounts are never compared."""


Grant = tuple[Ticket, Endpoint | RoundhouseError]
"""The outcome for a ticket that waited: the endpoint whose slot it now holds, or the error for which it was removed."""
