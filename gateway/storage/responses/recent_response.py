"""The response that was made last on a connection, for as long as that is open: what the next one there may continue,
whether or not the response is stored. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.context import ResponseContext
from gateway.storage.responses.errors import too_long
from gateway.storage.responses.records import CONTINUABLE, History, HistoryBounds


class _Kept(NamedTuple):
    response_id: str
    history: History
    size: int
    """Bytes of the history's items, as JSON."""
    is_stored: bool


class RecentResponse:
    """Of one connection. It holds one response and all that the response continues, within bounds."""

    def __init__(self, bounds: HistoryBounds) -> None:
        self._bounds = bounds
        self._kept: _Kept | None = None
        self._too_long_id: str | None = None
        """The response that was made last, where it is too much to be kept."""

    def find_history(self, response_id: str) -> History | None:
        """What continuing that response means; None: another was made last, or none.

        Raises:
            RoundhouseError: `invalid_request`: it and what it continues are more than a conversation may be.
        """
        if response_id == self._too_long_id:
            raise too_long(self._bounds, "previous_response_id")
        return self._kept.history if self._kept is not None and self._kept.response_id == response_id else None

    def is_stored(self, response_id: str) -> bool:
        """Whether that response can be continued elsewhere, too."""
        return self._kept is None or self._kept.response_id != response_id or self._kept.is_stored

    def keep(self, context: ResponseContext, model: str) -> None:
        """The response of `context` was made by the model of this own name. Keep it if it can be continued."""
        response = context.response
        if response is None or response["status"] not in CONTINUABLE:
            return
        output: list[Fields] = response["output"]
        items = (*context.history, *context.input_items, *output)
        size = self._size_of(context.history) + len(json_bytes([*context.input_items, *output]))
        if size > self._bounds.bytes or len(items) > self._bounds.items:
            self._kept, self._too_long_id = None, None if context.stores else context.id
        else:
            self._kept, self._too_long_id = _Kept(context.id, History(model, items), size, context.stores), None

    def _size_of(self, history: tuple[Fields, ...]) -> int:
        if self._kept is not None and self._kept.history.items is history:
            return self._kept.size
        return len(json_bytes(history)) if history else 0

    def forget(self, response_id: str | None) -> None:
        """That response was continued, which failed: it is not continued again here."""
        if self._kept is not None and self._kept.response_id == response_id:
            self._kept = None
