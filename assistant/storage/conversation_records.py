"""Stored conversations and their items, as values, and the tree of a conversation: where new items stand, and which
response may add some at a place. Pure.

The items of a conversation form a tree: each has the id of its parent, the item before it, or None if it is a first
one. The active branch leads from a first item to the conversation's active item. OpenAI's routes show that branch, and
a response continues it.

The locks are in memory only: one gateway at a time has the database, and a response that was being made when its
gateway was killed adds nothing to its conversation.
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, optional_field
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.responses.items import AddedItem, BranchStart


def conversation_not_found(conversation_id: str, param: str = "conversation_id") -> RoundhouseError:
    """Return, without raising it, `conversation_not_found` (404) for a conversation that the caller cannot see.

    `param`: the parameter of the request that has the id.
    """
    message = f"Conversation with id {conversation_id!r:.100} not found."
    return RoundhouseError("conversation_not_found", message, param=param)


def item_not_found(conversation_id: str, item_id: str, param: str = "item_id") -> RoundhouseError:
    """Return, without raising it, `conversation_item_not_found` (404) for an item that the conversation lacks.

    `param`: the parameter of the request that has the item's id.
    """
    message = f"Item with id {item_id!r:.100} not found in conversation {conversation_id!r:.100}."
    return RoundhouseError("conversation_item_not_found", message, param=param)


def conversation_locked(conversation_id: str, response_id: str) -> RoundhouseError:
    """Return `conversation_locked` (400) for a change of a conversation in which the response `response_id` is
    running."""
    message = (
        f"Another process is currently operating on the conversation {conversation_id!r:.100}: the response "
        f"{response_id} is being made in it. Retry when that is over, or cancel it."
    )
    return RoundhouseError("conversation_locked", message, param="conversation")


def conversation_too_long(most_items: int, most_bytes: int, param: str) -> RoundhouseError:
    """Return `invalid_request` for a conversation that is longer than the limits, or would be with added items.

    `param`: the field of the request that continues the conversation or adds to it.
    """
    message = (
        f"The conversation is longer than what may be continued: {most_items} items, {most_bytes} bytes. Delete some "
        "of its items, or begin a new one with what matters of it."
    )
    return RoundhouseError("invalid_request", message, param=param)


def wrong_item_id(item_id: str, place: str) -> RoundhouseError:
    """Return `invalid_request` for an item whose id has a wrong form. `place`: path of the id in the request."""
    message = f"`{place}` must have letters, digits, - and _ only, at most 128; it is {item_id!r:.100}."
    return RoundhouseError("invalid_request", message, param=place)


def duplicate_item(item_id: str, place: str) -> RoundhouseError:
    """Return `invalid_request` for a new item whose id the conversation has already. `place`: path of the id."""
    message = f"Duplicate item found with id {item_id!r:.100}. Leave its id out, or the item."
    return RoundhouseError("invalid_request", message, param=place)


def storage_disabled() -> RoundhouseError:
    """Return `storage_disabled` (403) for a new conversation on a gateway that stores nothing."""
    message = "This gateway stores nothing (ROUNDHOUSE_RESPONSES_RETENTION_H is 0), so there are no conversations."
    return RoundhouseError("storage_disabled", message)


MOST_BYTES: Final = 65_536
"""Maximum bytes of the settings as compact JSON."""


def read_settings(fields: Fields) -> bytes | None:
    """Return the `settings` of a request as JSON; None if they are missing or null.

    Raises:
        RoundhouseError: `invalid_request` if they are no object, nested too deeply, or longer than `MOST_BYTES`.
    """
    settings = optional_field(fields, "settings", dict)
    if settings is None:
        return None
    try:
        encoded = json_bytes(settings)
    except RecursionError:
        raise field_error("settings", "must not be nested so deeply") from None
    if len(encoded) > MOST_BYTES:
        raise field_error("settings", f"must have at most {MOST_BYTES} bytes of JSON; it has {len(encoded)}")
    return encoded


SHOWN_AROUND: Final = 80
"""Maximum characters of a text that a hit shows on each side of what was found."""

_DATA_FIELDS: Final = {"input_image": "image_url", "input_file": "file_data"}
"""The field of a content part that may hold a data URL, by the part's type."""
_TEXT_FIELDS: Final = ("text", "refusal", "filename")
"""Fields of content parts that are searched."""
_ITEM_FIELDS: Final = {
    "message": ("content",),
    "function_call": ("name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("name", "input"),
    "custom_tool_call_output": ("output",),
    "mcp_call": ("name", "arguments", "output"),
}
"""Fields that are searched, by the type of the item. Thoughts, lists of tools and summaries are not."""


class Hit(NamedTuple):
    """Where a text has what was searched for, with at most `SHOWN_AROUND` characters on each side."""

    before: str
    match: str
    after: str


def text_of(item: Fields) -> str:
    """Return what a search finds in an item: the text of a message, or name, arguments and result of a call.

    Texts are separated by line breaks. Empty if the item has none. Values of a wrong type are skipped.
    """
    kind = item.get("type")
    names = _ITEM_FIELDS.get(kind, ()) if isinstance(kind, str) else ()
    return "\n".join(text for name in names for text in _texts_in(item.get(name)))


def without_media(item: Fields) -> Fields | None:
    """Return a copy of an item whose content parts have `omitted` in place of media data; None: it holds no such data.

    `omitted` has `media_type`, null where the part does not say it, and `bytes`, the length of the base64 text. An
    address of another server is no data and stays.
    """
    outlines: Fields = {}
    for name in ("content", "output"):
        parts = item.get(name)
        if isinstance(parts, list):
            new_parts = [_part_without_media(part) for part in parts]
            if any(new is not old for new, old in zip(new_parts, parts, strict=True)):
                outlines[name] = new_parts
    return {**item, **outlines} if outlines else None


def fold_text(text: str) -> bytes:
    """Return a text in the form in which texts are compared, in UTF-8: letters without case, and characters that
    Unicode holds compatible (full width, ligatures, composed accents) made equal. Halves of surrogate pairs are kept.
    """
    return (text.lower() if text.isascii() else _normal(text).casefold()).encode("utf-8", "surrogatepass")


def fold_words(query: str) -> tuple[bytes, ...]:
    """Return the words of a query, folded; empty if the query has none. White space separates words."""
    return tuple(dict.fromkeys(fold_text(word) for word in query.split()))


def find_hit(text: str, words: tuple[bytes, ...]) -> Hit | None:
    """Return where a text first has the first of `words`; None: it lacks one of the words. A word may be a part of a
    longer one. `words`: from `fold_words`, at least one. The texts of the hit are in Unicode's normal form KC, with
    each run of white space as one blank."""
    folded = fold_text(text)
    if not all(word in folded for word in words):
        return None
    shown = _normal(text)
    before_match = folded[: folded.index(words[0])].decode("utf-8", "surrogatepass")
    start, end = _unfolded_range(shown, len(before_match), len(words[0].decode("utf-8", "surrogatepass")))
    before = _one_line(shown[max(0, start - SHOWN_AROUND) : start])
    return Hit(before, _one_line(shown[start:end]), _one_line(shown[end : end + SHOWN_AROUND]))


def _unfolded_range(text: str, folded_start: int, folded_length: int) -> tuple[int, int]:
    """Return where characters of the case-folded text lie in `text`, because folding may make one character several."""
    folded_end = folded_start + folded_length
    if len(text.casefold()) == len(text):
        return folded_start, folded_end
    ends = range(len(text) + 1)
    start = bisect_right(ends, folded_start, key=lambda end: len(text[:end].casefold())) - 1
    return start, bisect_left(ends, folded_end, key=lambda end: len(text[:end].casefold()))


def _normal(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _one_line(text: str) -> str:
    lead, trail = " " * text[:1].isspace(), " " * text[-1:].isspace()
    words = " ".join(text.split())
    return f"{lead}{words}{trail}" if words else lead


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of a field that is a text, or a list of content parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, dict):
                yield from (part[name] for name in _TEXT_FIELDS if isinstance(part.get(name), str))


def _part_without_media(part: Any) -> Any:
    """Return the part itself if it holds no media data."""
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
        sound = part["input_audio"]
        data, form = sound.get("data"), sound.get("format")
        if isinstance(data, str):
            media_type = f"audio/{form}" if isinstance(form, str) else None
            others = {name: value for name, value in sound.items() if name != "data"}
            return {**part, "input_audio": others, "omitted": {"media_type": media_type, "bytes": len(data)}}
        return part
    name = _DATA_FIELDS.get(kind) if isinstance(kind, str) else None
    value = None if name is None else part.get(name)
    if not isinstance(value, str) or (kind == "input_image" and not value.startswith("data:")):
        return part
    head, _, data = value.rpartition(",")
    media_type = head.removeprefix("data:").split(";")[0] or None
    others = {key: each for key, each in part.items() if key != name}
    return {**others, "omitted": {"media_type": media_type, "bytes": len(data)}}


class StoredConversation(NamedTuple):
    """A stored conversation, without its items."""

    id: str
    created_at: float
    """Unix time in seconds."""
    metadata: Mapping[str, str]
    model: str | None
    """Own name of the model that last answered in the conversation; None: none has."""
    used_at: float
    """When it was last continued or changed, as Unix time in seconds."""
    active_item: str | None
    """Id of the active item; None: none is active."""
    item_count: int
    """Number of its items, of all branches."""
    settings: bytes | None
    """JSON object that clients keep with it; None: there is none."""

    @property
    def fields(self) -> Fields:
        """OpenAI's conversation object (`id`, `object`, `created_at` in whole seconds, `metadata`), and ours:
        `last_used_at` in whole seconds, `active_item_id`, `item_count`, `model`, `settings`."""
        return {**self.listed_fields, "settings": None if self.settings is None else json.loads(self.settings)}

    @property
    def listed_fields(self) -> Fields:
        """The fields without `settings`, as a list of conversations shows them."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": int(self.created_at),
            "last_used_at": int(self.used_at),
            "metadata": dict(self.metadata),
            "model": self.model,
            "item_count": self.item_count,
            "active_item_id": self.active_item,
        }


class FoundConversation(NamedTuple):
    """A conversation of a list, and where a search found what it looked for."""

    conversation: StoredConversation
    item_id: str | None = None
    """Id of the item that the search found; None: it found the title, or nothing was searched for."""
    hit: Hit | None = None
    """None: nothing was searched for."""

    @property
    def fields(self) -> Fields:
        """The conversation as a list shows it; after a search with `hit`: `item_id`, `before`, `match`, `after`."""
        fields = self.conversation.listed_fields
        return fields if self.hit is None else {**fields, "hit": {"item_id": self.item_id, **self.hit._asdict()}}


class NewSettings(NamedTuple):
    """Settings that replace those of a conversation."""

    settings: bytes | None
    """A JSON object; None removes the settings."""


class BranchEnd(NamedTuple):
    """A request to move the end of a conversation's active branch to an item."""

    item_id: str | None
    """None: no item is active, so that the next one begins a branch at the root."""


class ConversationChange(NamedTuple):
    """New metadata, settings and active item of a conversation, as a request gives them. None: that part stays as it
    is."""

    metadata: Mapping[str, str] | None = None
    settings: NewSettings | None = None
    active_item: BranchEnd | None = None


class ItemListForm(NamedTuple):
    """Which items of a conversation a list has, and whether they are shown with their media."""

    has_all_branches: bool = False
    """Whether it has the items of all branches, and not of the active one alone."""
    omits_media: bool = False
    """Whether items are shown without their media (`without_media`)."""


ACTIVE_BRANCH: Final = ItemListForm()
"""The list that OpenAI's API has."""


class NewItem(NamedTuple):
    """An item to be written. It holds JSON that is encoded already, so that later changes of the item have no effect.
    Made by `encode_items`."""

    id: str
    item: bytes
    """JSON of the item with its id."""
    text: str = ""
    """What a search finds in it."""
    outline: bytes | None = None
    """JSON of the item without its media (`without_media`); None: it has none."""
    start: BranchStart | None = None
    """Where it begins a branch; None: it follows the item before it."""
    answer: bytes | None = None
    """JSON of how a response made it (`AnswerTimes.describe_items`); None: a client added it."""


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """The items that a response adds to the conversation that it was made in: its input and its output."""

    id: str
    """The response's id."""
    conversation_id: str
    tenant: str
    model: str
    """Own name of the model that answered."""
    items: tuple[NewItem, ...]
    start: BranchStart | None = None
    """The item that they follow, by the request; None: they continue the active branch."""
    written: list[str] = field(default_factory=list, compare=False)
    """Ids that the items have in the conversation, once they are written: an id that was taken is another one there.
    Used by the store's thread alone."""

    @property
    def size(self) -> int:
        """Bytes of the items."""
        return size_of(self.items)


class Branch(NamedTuple):
    """The branch of a conversation that a response continues: its items, their bytes as JSON, and the model that
    answered last."""

    model: str | None
    """Own name of the model that last answered in the conversation; None: none has."""
    last_item: str | None
    """Id of the last item; None: there are no items."""
    items: tuple[Fields, ...]
    """The items, oldest first."""
    bytes: int
    """Of all items as JSON."""


def encode_items(items: Sequence[Fields], answers: Sequence[Fields] = ()) -> tuple[NewItem, ...]:
    """Encode items, each of which has an `id`, to be written one below the other.

    `answers`: how a response made each of them, as clients see it; empty: no response did.

    Raises:
        RecursionError: an item is nested too deeply.
    """
    encoded = [_encode(item) for item in items]
    if answers:
        pairs = zip(encoded, answers, strict=True)
        encoded = [item._replace(answer=json_bytes(answer)) for item, answer in pairs]
    return tuple(encoded)


def encode_added_items(items: Sequence[AddedItem]) -> tuple[NewItem, ...]:
    """Encode items of a client, to be written where each of them says. Raises RecursionError as `encode_items`."""
    return tuple([_encode(added.item)._replace(start=added.start) for added in items])


def size_of(items: Sequence[NewItem]) -> int:
    """Return the bytes that the items take in the database, without those of its indexes."""
    return sum(len(each.item) + len(each.text) + len(each.outline or b"") + len(each.answer or b"") for each in items)


def _encode(item: Fields) -> NewItem:
    outline: Any = without_media(item)
    return NewItem(item["id"], json_bytes(item), text_of(item), None if outline is None else json_bytes(outline))


class LockHolder(Protocol):
    """A response that adds its items to a conversation when it ends, and so holds a lock in it until then."""

    @property
    def response_id(self) -> str:
        """Id of the response."""

    def store_outcome(self) -> None:
        """If the response has ended, store it and release its lock; otherwise do nothing."""


class ConversationLocks:
    """The locks of all conversations of a gateway, by tenant and conversation id. Belongs to the event loop.

    A response that names the item that it follows (a `BranchStart`) locks that place of the tree; one that continues
    the active branch locks the whole conversation. No method waits. A conversation need not exist to be locked.
    """

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], list[_Lock]] = {}

    def acquire(self, tenant: str, conversation_id: str, holder: LockHolder, start: BranchStart | None = None) -> None:
        """Lock a conversation, or with `start` that place of it, for the response `holder`, which must call `release`
        at its end. Responses that have ended are stored first, which releases their locks.

        Raises:
            RoundhouseError: `conversation_locked` as `require_free` does, even if `holder` itself holds the lock.
        """
        self.require_free(tenant, conversation_id, start)
        self._locks.setdefault((tenant, conversation_id), []).append(_Lock(holder, start))

    def release(self, tenant: str, conversation_id: str, holder: LockHolder) -> None:
        """Release the lock that `holder` holds in a conversation, if it holds one."""
        locks = self._locks.get((tenant, conversation_id), [])
        locks[:] = [lock for lock in locks if lock.holder is not holder]
        if not locks:
            self._locks.pop((tenant, conversation_id), None)

    def find_response(self, tenant: str, conversation_id: str) -> str | None:
        """Return the id of the response that is being made in a conversation, of several the one that was begun first;
        None: none is."""
        return next((lock.holder.response_id for lock in self._find_held(tenant, conversation_id)), None)

    def require_free(self, tenant: str, conversation_id: str, start: BranchStart | None = None) -> None:
        """Check that no response is being made in a conversation; with `start`, none that continues the active branch
        or follows the same item.

        Raises:
            RoundhouseError: `conversation_locked` if there is such a response.
        """
        for lock in self._find_held(tenant, conversation_id):
            if start is None or lock.start is None or lock.start == start:
                raise conversation_locked(conversation_id, lock.holder.response_id)

    def require_free_end(self, tenant: str, conversation_id: str) -> None:
        """Check that no response that continues the active branch is being made in a conversation, so that the end of
        that branch may be moved. Raises RoundhouseError `conversation_locked` if there is one."""
        for lock in self._find_held(tenant, conversation_id):
            if lock.start is None:
                raise conversation_locked(conversation_id, lock.holder.response_id)

    def _find_held(self, tenant: str, conversation_id: str) -> list[_Lock]:
        """Return the locks of responses that are being made, oldest first. A response that has ended is stored first,
        because its client may know its end already."""
        for lock in list(self._locks.get((tenant, conversation_id), ())):
            lock.holder.store_outcome()
        return list(self._locks.get((tenant, conversation_id), ()))


class _Lock(NamedTuple):
    """A lock that a response holds in a conversation."""

    holder: LockHolder
    start: BranchStart | None
    """The place that it locks; None: the whole conversation."""


class BranchSize(NamedTuple):
    """Length of the branch from the root to an item, the item included."""

    items: int
    bytes: int


class Link(NamedTuple):
    """An item of a conversation's tree: its id, its parent's (None: it begins a branch at the root) and its size, but
    not its content."""

    id: str
    parent_id: str | None
    bytes: int


def parents_of(items: Sequence[NewItem], first_parent: str | None) -> list[str | None]:
    """Return the id of each new item's parent; None: the item begins a branch at the root.

    An item without a parent of its own follows the item before it, the first one follows `first_parent`.
    """
    parent_ids = []
    last_id = first_parent
    for item in items:
        parent_ids.append(last_id if item.start is None else item.start.parent_id)
        last_id = item.id
    return parent_ids


def find_outer_parents(items: Sequence[NewItem], parent_ids: Sequence[str | None]) -> dict[str, str]:
    """Return the parents that the conversation must have already, since no earlier item of the same request is that
    parent: by the parent's id, the path in the request that names it first. `parent_ids`: from `parents_of`."""
    outer_parents: dict[str, str] = {}
    earlier_ids: set[str] = set()
    for index, (item, parent_id) in enumerate(zip(items, parent_ids, strict=True)):
        if parent_id is not None and parent_id not in earlier_ids:
            outer_parents.setdefault(parent_id, "parent_id" if item.start is None else f"items[{index}].parent_id")
        earlier_ids.add(item.id)
    return outer_parents


def measure_branches(links: Iterable[Link], wanted_ids: Iterable[str]) -> dict[str, BranchSize]:
    """Return the length of the branch that ends with each of the wanted items.

    `links` are items of a tree, in any order, among them every wanted one and all that precede it. Wanted ids that are
    not among them are left out of the result.
    """
    links_by_id = {link.id: link for link in links}
    sizes: dict[str | None, BranchSize] = {None: BranchSize(0, 0)}
    found = {}
    for wanted_id in wanted_ids:
        path = []
        item_id: str | None = wanted_id
        while item_id not in sizes and item_id in links_by_id:
            path.append(links_by_id[item_id])
            item_id = links_by_id[item_id].parent_id
        size = sizes.get(item_id, BranchSize(0, 0))
        for link in reversed(path):
            size = sizes[link.id] = BranchSize(size.items + 1, size.bytes + link.bytes)
        if wanted_id in links_by_id:
            found[wanted_id] = sizes[wanted_id]
    return found


def longest_branch(
    items: Sequence[NewItem], parent_ids: Sequence[str | None], outer_sizes: Mapping[str, BranchSize]
) -> BranchSize:
    """Return the most items and most bytes of any branch that ends with a new item; they may be of different branches.

    `parent_ids`: from `parents_of`. `outer_sizes`: from `measure_branches`, for every parent that is no new item.
    """
    sizes = dict(outer_sizes)
    most_items = most_bytes = 0
    for item, parent_id in zip(items, parent_ids, strict=True):
        before = BranchSize(0, 0) if parent_id is None else sizes[parent_id]
        size = sizes[item.id] = BranchSize(before.items + 1, before.bytes + len(item.item))
        most_items, most_bytes = max(most_items, size.items), max(most_bytes, size.bytes)
    return BranchSize(most_items, most_bytes)
