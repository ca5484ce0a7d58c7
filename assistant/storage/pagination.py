"""Pages of lists, in the form of OpenAI's list object, and which of a tenant's stored objects a key may see. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.routing.table import Routes
from gateway.tenancy.api_keys import Caller

MOST_LISTED: Final = 100
"""Maximum number of entries of a page, unless a list says otherwise."""
USUALLY_LISTED: Final = 20
"""Entries of a page if the request sets no `limit`."""


class ListQuery(NamedTuple):
    """The page of a list that a request asks for: up to `limit` entries after `after`."""

    after: str | None = None
    """Id of the entry after which the page begins; None: the first page."""
    limit: int = USUALLY_LISTED
    """Maximum number of entries of the page."""
    is_ascending: bool = False
    """Whether the oldest entry comes first."""


def paginate_items(items: Iterable[Fields], query: ListQuery) -> Fields:
    """Return a page of items as OpenAI's list object (see `list_object`). `items`: all of them, oldest first.

    The page begins with the newest item unless `query.is_ascending`. An id that occurs several times is listed once, at
    its first place.

    Raises:
        RoundhouseError: `invalid_request` if no item has the id `query.after`.
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
    """Return OpenAI's list object with the entries of one page: `object`, `data`, `first_id`, `last_id`, `has_more`.

    The two ids are None for an empty page, and for an entry without `id`. `has_more`: whether entries follow the page.
    """
    return {
        "object": "list",
        "data": list(data),
        "first_id": _id(data[:1]),
        "last_id": _id(data[-1:]),
        "has_more": has_more,
    }


def unknown_cursor(after: str) -> RoundhouseError:
    """Return, without raising it, `invalid_request` for a list query whose `after` is no id of an entry of the
    list."""
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


def may_see_model(routes: Routes, caller: Caller, model: str | None) -> bool:
    """Return whether the caller's key may see a stored object that a model has made.

    `model`: the model's own name; None: no model made the object, so that every key of the tenant may see it. A model
    that is no longer declared is checked by its name alone, without its aliases. The tenant is not checked here.
    """
    if model is None:
        return True
    route = routes.models.get(model)
    return caller.may_see_name(model) if route is None else caller.may_see_model(route)
