"""Reads items that a client adds to a conversation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, require_value
from gateway.protocols.responses.items import check_items, resolve_item
from gateway.protocols.responses.request import describe_items

MOST_ADDED: Final = 20
"""Maximum items in one request, as in OpenAI's API."""


def read_added_items(values: Any, referenced_items: Mapping[str, Fields], new_id: Callable[[str], str]) -> list[Fields]:
    """Return the `items` of a request as they are stored, in order: each with an id, references replaced by the items
    they name. May be empty.

    `values` is the decoded field. `referenced_items`: stored items by their id. `new_id` returns a fresh id with the
    given prefix.

    Raises:
        RoundhouseError: `invalid_request`, also for more than `MOST_ADDED` items, an unknown reference or an id that
            occurs twice; or `modality_unsupported`. Its `param` is the path, such as `items[1].id`.
    """
    items = require_value(values, list, "items")
    if len(items) > MOST_ADDED:
        raise field_error("items", f"must have at most {MOST_ADDED} items at a time; it has {len(items)}")
    placed_items = []
    for index, item in enumerate(items):
        place = f"items[{index}]"
        placed_items.append((resolve_item(require_value(item, dict, place), referenced_items, place), place))
    check_items(placed_items)
    added_items = [_without_parent(item) for item in describe_items(placed_items, new_id)]
    seen_ids: set[str] = set()
    for index, item in enumerate(added_items):
        if item["id"] in seen_ids:
            raise field_error(f"items[{index}].id", f"must be another than those before it; it is {item['id']!r:.100}")
        seen_ids.add(item["id"])
    return added_items


def _without_parent(item: Fields) -> Fields:
    """Return the item without `parent_id`: a client may send an item back as it was shown, but the conversation decides
    where it belongs."""
    return {name: value for name, value in item.items() if name != "parent_id"}
