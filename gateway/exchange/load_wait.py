"""The wait of a request for the load of its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.control.inflight import InflightCounts
from gateway.protocols.common.json_bytes import json_bytes
from gateway.routing.availability import is_worth_waiting, no_longer_loading
from gateway.server.asgi import Header

PROGRESS_HEADER: Final = (b"x-load-progress", b"true")
"""The header of a client that wants SSE comments on the progress of a load."""


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
        comment = progress_comment(route)
        if comment == self._last_comment:
            return None
        self._last_comment = comment
        return comment


def begin_load_wait(ledger: InflightCounts, route: ModelRoute, refusal: RoundhouseError, deadline: float) -> LoadWait:
    """Record the demand for a model that is not loaded, and return a wait for its load.

    `refusal`: why the model takes no request now. `deadline`: monotonic seconds.

    Raises:
        RoundhouseError: `refusal`, if nothing is going to load the model or its load failed. The demand of an
            `autoload` model is recorded all the same.
    """
    if route.autoload:
        ledger.record_demand(route.name)
    if not is_worth_waiting(route):
        raise refusal
    return LoadWait(deadline)


def check_worth_waiting(route: ModelRoute, refusal: RoundhouseError) -> None:
    """Check that a model for which a request waits may still get loaded. `refusal`: why it takes no request now.

    Raises:
        RoundhouseError: `refusal`, or `model_unloading` where the model was unloaded in the meantime.
    """
    if not is_worth_waiting(route):
        raise no_longer_loading(route) if refusal.entry.code == "model_not_loaded" else refusal


def asks_for_progress(headers: Sequence[Header]) -> bool:
    """Return whether a client wants comments on the progress of a load: it sent `X-Load-Progress: true`."""
    return any(name == PROGRESS_HEADER[0] and value.lower() == PROGRESS_HEADER[1] for name, value in headers)


def progress_comment(route: ModelRoute) -> bytes:
    """Return an SSE comment with the model, its state, and the share of its load that is done (0 to 1), if known."""
    fields: dict[str, object] = {"model": route.name, "state": route.state.value}
    if route.progress is not None:
        fields["progress"] = round(route.progress, 3)
    return b": load-progress %b\n\n" % json_bytes(fields)
