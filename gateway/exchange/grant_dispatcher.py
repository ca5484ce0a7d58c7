"""The delivery of admission's grants to the requests that they are for."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from controller.schema.routing import Endpoint
from gateway.admission.admission import Grant

logger = logging.getLogger(__name__)


class GrantDispatcher:
    """Delivers grants in a loop. A request that fails at once passes its slot to the next one, which may fail too:
    nested calls would go as deep as the queue is long."""

    def __init__(self) -> None:
        self._grants: deque[Grant] = deque()
        self._is_dispatching = False

    def grant_slots(self, grants: Iterable[Grant]) -> None:
        """Tell each ticket's owner that it has a slot (`use_slot`) or that nothing is left for it (`fail_request`).

        An owner that calls this while a grant is delivered to it gets back at once; the outer call delivers the rest.
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
