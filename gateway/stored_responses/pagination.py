"""Pages of items, as a list object has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields


def paginate_items(items: Iterable[Fields], after: str | None, limit: int, *, is_ascending: bool) -> Fields:
    """A list object of the items that come after the one of that id; None: of the first ones. An id that occurs twice
    is listed once, where it was first. The items are given in ascending order.

    Raises:
        RoundhouseError: `invalid_request`: there is no item of that id.
    """
    distinct_items = _distinct_items(items)
    if not is_ascending:
        distinct_items.reverse()
    start = 0
    if after is not None:
        positions = (position for position, item in enumerate(distinct_items) if item.get("id") == after)
        index = next(positions, None)
        if index is None:
            message = f"`after` must be the id of one of the response's items; it is {after!r:.100}."
            raise RoundhouseError("invalid_request", message, param="after")
        start = index + 1
    data = distinct_items[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": _id(data[:1]),
        "last_id": _id(data[-1:]),
        "has_more": start + limit < len(distinct_items),
    }


def _distinct_items(items: Iterable[Fields]) -> list[Fields]:
    seen_ids: set[str] = set()
    distinct_items = []
    for item in items:
        item_id = item.get("id")
        if item_id is not None:
            if item_id in seen_ids:
                continue
            seen_ids.add(item_id)
        distinct_items.append(item)
    return distinct_items


def _id(items: Sequence[Fields]) -> str | None:
    return items[0].get("id") if items else None
