"""The wait of a request for the load of its model."""

from __future__ import annotations

import re
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.control.inflight import InflightCounts
from gateway.exchange.progress import load_comment
from gateway.routing.availability import is_worth_waiting, no_longer_loading

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
