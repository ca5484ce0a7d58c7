"""Reads items that a client adds to a conversation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, optional_field, require_value
from gateway.protocols.responses.items import check_items, resolve_item
from gateway.protocols.responses.request import describe_items

MOST_ADDED: Final = 1000
"""Maximum items in one request. OpenAI's API takes 20."""


class BranchStart(NamedTuple):
    """Where added items begin a new branch, instead of following the item before them."""

    parent_id: str | None
    """Id of the item below which they are added; None: they begin a branch at the root."""


class AddedItem(NamedTuple):
    """An item that a client adds to a conversation, checked, and where it stands in the tree."""

    item: Fields
    """The item as it is stored, with an id."""
    start: BranchStart | None
    """Where it begins a branch; None: it follows the item before it in the request."""


def read_added_items(
    values: Any, referenced_items: Mapping[str, Fields], new_id: Callable[[str], str]
) -> list[AddedItem]:
    """Return the `items` of a request as they are stored, in order: each with an id, references replaced by the items
    they name, and the place that its `parent_id` gives it. May be empty.

    `values` is the decoded field. `referenced_items`: stored items by their id. `new_id` returns a fresh id with the
    given prefix. Whether an item has the id `parent_id` is not checked.

    Raises:
        RoundhouseError: `invalid_request`, also for more than `MOST_ADDED` items, an unknown reference or an id that
            occurs twice; or `modality_unsupported`. Its `param` is the path, such as `items[1].id`.
    """
    items = require_value(values, list, "items")
    if len(items) > MOST_ADDED:
        raise field_error("items", f"must have at most {MOST_ADDED} items at a time; it has {len(items)}")
    placed_items, starts = [], []
    for index, item in enumerate(items):
        place = f"items[{index}]"
        # The stored item that a reference names has another parent, so the request's own is read.
        starts.append(read_start(require_value(item, dict, place), f"{place}."))
        bare_item = _without_notes(item)
        placed_items.append((_without_notes(resolve_item(bare_item, referenced_items, place)), place))
    check_items(placed_items)
    described_items = describe_items(placed_items, new_id)
    added_items = [AddedItem(*each) for each in zip(described_items, starts, strict=True)]
    seen_ids: set[str] = set()
    for index, (item, _) in enumerate(added_items):
        if item["id"] in seen_ids:
            raise field_error(f"items[{index}].id", f"must be another than those before it; it is {item['id']!r:.100}")
        seen_ids.add(item["id"])
    return added_items


def read_start(fields: Fields, at: str = "") -> BranchStart | None:
    """Return where the `parent_id` of a request, or of one item, begins a branch; None: there is no such field.

    `at`: path of the item in the request, followed by a dot; empty for the request itself. Raises RoundhouseError
    `invalid_request` if `parent_id` is neither a string nor null.
    """
    return BranchStart(optional_field(fields, "parent_id", str, at)) if "parent_id" in fields else None


def _without_notes(item: Fields) -> Fields:
    """Return the item without `parent_id`, which is stored beside it, and without `answer`, by which the gateway tells
    how a response made an item."""
    return {name: value for name, value in item.items() if name not in ("parent_id", "answer")}
