"""The response that was made last on a connection, for as long as that is open: what the next one there may continue,
whether or not the response is stored. Belongs to the event loop."""

from __future__ import annotations

from typing import NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.responses.context import ResponseContext
from gateway.stored_responses.records import CONTINUABLE, History


class _Kept(NamedTuple):
    response_id: str
    history: History
    is_stored: bool


class RecentResponse:
    """Of one connection. It holds one response and all that the response continues, which a request may be."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def find_history(self, response_id: str) -> History | None:
        """What continuing that response means; None: another was made last, or none."""
        return self._kept.history if self._kept is not None and self._kept.response_id == response_id else None

    def is_stored(self, response_id: str) -> bool:
        """Whether that response can be continued elsewhere, too."""
        return self._kept is None or self._kept.response_id != response_id or self._kept.is_stored

    def keep(self, context: ResponseContext, model: str) -> None:
        """The response of `context` was made by the model of this own name. Keep it if it can be continued."""
        response = context.response
        if response is not None and response["status"] in CONTINUABLE:
            output: list[Fields] = response["output"]
            items = (*context.history, *context.input_items, *output)
            self._kept = _Kept(context.id, History(model, items), context.stores)

    def forget(self, response_id: str | None) -> None:
        """That response was continued, which failed: it is not continued again here."""
        if self._kept is not None and self._kept.response_id == response_id:
            self._kept = None
