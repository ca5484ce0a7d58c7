"""Pages of lists, as a list object has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields

MOST_LISTED: Final = 100
USUALLY_LISTED: Final = 20


class ListQuery(NamedTuple):
    """Which page of a list is asked for."""

    after: str | None = None
    """The id of the entry after which the page begins; None: it is the first page."""
    limit: int = USUALLY_LISTED
    is_ascending: bool = False
    """The oldest entry comes first."""


def paginate_items(items: Iterable[Fields], query: ListQuery) -> Fields:
    """One page of items, as a list object. An id that occurs twice is listed once, where it was first. The items are
    given in ascending order.

    Raises:
        RoundhouseError: `invalid_request`: there is no item of the id after which the page begins.
    """
    distinct_items = _distinct_items(items)
    if not query.is_ascending:
        distinct_items.reverse()
    start = 0
    if query.after is not None:
        positions = (position for position, item in enumerate(distinct_items) if item.get("id") == query.after)
        index = next(positions, None)
        if index is None:
            raise unknown_cursor(query.after)
        start = index + 1
    end = start + query.limit
    return list_object(distinct_items[start:end], has_more=end < len(distinct_items))


def list_object(data: Sequence[Fields], *, has_more: bool) -> Fields:
    """One page."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": _id(data[:1]),
        "last_id": _id(data[-1:]),
        "has_more": has_more,
    }


def unknown_cursor(after: str) -> RoundhouseError:
    """The list has no entry of the id after which a page is to begin."""
    message = f"`after` must be the id of an entry of the list; it is {after!r:.100}."
    return RoundhouseError("invalid_request", message, param="after")


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
