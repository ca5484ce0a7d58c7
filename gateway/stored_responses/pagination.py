"""Pages of items, as a list object has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields


def page(items: Iterable[Fields], after: str | None, limit: int, *, is_ascending: bool) -> Fields:
    """A list object of the items that come after the one of that id; None: of the first ones. An id that occurs twice
    is listed once, where it was first. The items are given in ascending order.

    Raises:
        RoundhouseError: `invalid_request`: there is no item of that id.
    """
    listed = _distinct(items)
    if not is_ascending:
        listed.reverse()
    begin = 0
    if after is not None:
        places = (place for place, item in enumerate(listed) if item.get("id") == after)
        found = next(places, None)
        if found is None:
            message = f"`after` must be the id of one of the response's items; it is {after!r:.100}."
            raise RoundhouseError("invalid_request", message, param="after")
        begin = found + 1
    data = listed[begin : begin + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": _id(data[:1]),
        "last_id": _id(data[-1:]),
        "has_more": begin + limit < len(listed),
    }


def _distinct(items: Iterable[Fields]) -> list[Fields]:
    seen: set[str] = set()
    kept = []
    for item in items:
        item_id = item.get("id")
        if item_id is not None:
            if item_id in seen:
                continue
            seen.add(item_id)
        kept.append(item)
    return kept


def _id(items: Sequence[Fields]) -> str | None:
    return items[0].get("id") if items else None
