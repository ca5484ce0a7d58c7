"""What admission and its callers pass to and fro: one request's claim, and what it is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from controller.schema.errors import RoundhouseError
from controller.schema.routing import Endpoint
from gateway.admission.retry_state import NO_TRIES

if TYPE_CHECKING:
    from gateway.admission.fair_queue import Share
    from gateway.admission.model_queue import Line, Replica


class Place(NamedTuple):
    """Where a request stood in its model's line when it came.

    Whoever is served counts as the line's first place, so `position` 1 is: served at once. `depth` is one more than
    the number that wait. `wait_ms` is None where nothing is known to estimate it from.
    """

    position: int
    depth: int
    wait_ms: int | None


AT_ONCE: Final = Place(1, 1, 0)


class Ticket:
    """One request's claim to a slot, made by whoever brings the request. Used once."""

    __slots__ = (
        "expected_s",
        "line",
        "model",
        "owner",
        "place",
        "prefix",
        "rank",
        "replica",
        "share",
        "since",
        "state",
        "tenant",
        "tries",
        "weight",
    )

    state: Literal["new", "waiting", "inside", "gone"]
    line: Line
    """The rest is admission's own. This is set on arrival."""
    share: Share
    replica: Replica
    """Where it is inside, or was last. This, `expected_s` and `since` are set on entering."""
    expected_s: float
    since: float

    def __init__(
        self, owner: Any, model: str, tenant: str, weight: float, rank: int, prefix: Sequence[int] = ()
    ) -> None:
        """`owner`: whatever the caller wants to find again in a `Grant`. `model`: the model's own name, no alias.

        `weight` is above 0. `rank`: 0 priority, 1 default, 2 flex. `prefix`: see `affinity.prefix_keys`.
        """
        self.owner = owner
        self.model = model
        self.tenant = tenant
        self.weight = weight
        self.rank = rank
        self.prefix = prefix
        self.state = "new"
        self.place: Place | None = None
        """Set on arrival, and not changed afterwards. One refused with `queue_full` has the place that it would have
        had; None: it has not arrived, or nothing was left to try."""
        self.tries = NO_TRIES

    def __repr__(self) -> str:
        return f"Ticket({self.tenant} {self.model}, {self.state})"


Grant = tuple[Ticket, Endpoint | RoundhouseError]
"""What a ticket that waited has come to: the endpoint whose slot it now holds, or, when nothing is left that could take
it, why it is gone."""
