"""The delivery of admission's grants to the requests that they are for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from controller.schema.routing import Endpoint
from gateway.admission.admission import Grant

logger = logging.getLogger(__name__)


class GrantDispatcher:
    """Delivers the grants of `Admission` to the owners of their tickets. One object per gateway: `Services.turns`.

    Delivers in a loop: a request that fails at once passes its slot to the next one, which may fail too, and nested
    calls would go as deep as the queue is long.
    """

    def __init__(self) -> None:
        self._grants: deque[Grant] = deque()
        self._is_dispatching = False

    def grant_slots(self, grants: Iterable[Grant]) -> None:
        """Call `use_slot` of each ticket's owner with its endpoint, or `fail_request` with its error.

        When this returns, all grants are delivered, unless the caller is itself an owner that a grant is being
        delivered to: then this returns at once, and the outer call delivers them. An exception of an owner is logged
        and not raised.
        """
        self._grants.extend(grants)
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._grants:
                ticket, outcome = self._grants.popleft()
                try:
                    if isinstance(outcome, Endpoint):
                        ticket.owner.use_slot(outcome)
                    else:
                        ticket.owner.fail_request(outcome)
                except Exception:
                    logger.exception("a grant could not be delivered")
        finally:
            self._is_dispatching = False
