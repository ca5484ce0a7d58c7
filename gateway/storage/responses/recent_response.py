"""The last response on a WebSocket connection, which the next one there may continue even if it is not stored. Pure."""

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
    """Bytes of the history's items as JSON."""
    is_stored: bool


class RecentResponse:
    """Memory of one WebSocket connection: its last response, with everything that the response continues.

    It lives as long as the connection. A response larger than the bounds is not kept.
    """

    def __init__(self, bounds: HistoryBounds) -> None:
        self._bounds = bounds
        self._kept: _Kept | None = None
        self._too_long_id: str | None = None
        """Id of the last response, if it was too large to be kept and is not stored; None otherwise."""

    def find_history(self, response_id: str) -> History | None:
        """Return the history for a request that continues the response: all its items, input and output, and those that
        it continues. None: the response is not kept here; it may be stored.

        Raises:
            RoundhouseError: `invalid_request` if the response is the connection's last one, is not stored, and was too
                large to be kept.
        """
        if response_id == self._too_long_id:
            raise too_long(self._bounds, "previous_response_id")
        return self._kept.history if self._kept is not None and self._kept.response_id == response_id else None

    def is_stored(self, response_id: str) -> bool:
        """Return False if this is the kept response and its request asked not to store it, or nothing is stored here.

        True for any other response, of which this object knows nothing.
        """
        return self._kept is None or self._kept.response_id != response_id or self._kept.is_stored

    def keep(self, context: ResponseContext, model: str) -> None:
        """Keep the response of `context` in place of the one before. Call when a response has ended.

        A response that cannot be continued (such as a failed one) changes nothing. A response that exceeds the bounds
        is not kept, and neither is the one before. `model`: own name of the model that made the response. Raises
        RecursionError if an item is nested too deeply to be encoded as JSON.
        """
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
        """Drop the kept response if it has this id, so that it can be continued no more from here.

        Call when a request that continued it failed. `response_id` None, or another id: nothing is dropped.
        """
        if self._kept is not None and self._kept.response_id == response_id:
            self._kept = None
