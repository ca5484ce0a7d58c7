"""Stored responses and chat completions as values, what a request continues of responses, and errors about them.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from assistant.storage.conversation_records import ConversationTurn, conversation_not_found, item_not_found
from contract.errors import RoundhouseError
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, optional_field, require_text
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.large_body import LARGE_BYTES
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.items import BranchStart, read_start
from gateway.server.body_budget import BodyBudget

_PREVIOUS = "previous_response_id"


def previous_not_found(response_id: str, missing_id: str) -> RoundhouseError:
    """Return `previous_response_not_found` (400) for a request that continues the response `response_id`.

    `missing_id`: the response that is not stored: `response_id` itself, or an earlier one that it continues.
    """
    if missing_id == response_id:
        message = f"Previous response with id {response_id!r:.100} not found."
    else:
        message = f"The response {missing_id!r:.100}, which {response_id!r:.100} continues, is not stored any more."
    return RoundhouseError("previous_response_not_found", message, param=_PREVIOUS)


def conversation_gone(response_id: str, conversation_id: str) -> RoundhouseError:
    """Return `previous_response_not_found` (400) for a response whose conversation, or items of it, are not stored."""
    message = (
        f"The conversation {conversation_id!r:.100}, in which {response_id!r:.100} or a response before it was made, "
        "is not stored any more."
    )
    return RoundhouseError("previous_response_not_found", message, param=_PREVIOUS)


def responses_not_stored() -> RoundhouseError:
    """Return `previous_response_not_found` (400) for a gateway that stores no responses."""
    message = "This gateway stores no responses (ROUNDHOUSE_RESPONSES_RETENTION_H is 0), so none can be continued."
    return RoundhouseError("previous_response_not_found", message, param=_PREVIOUS)


def not_continuable(response_id: str, status: str) -> RoundhouseError:
    """Return `invalid_request` for a request that continues a response whose `status` is not in `CONTINUABLE`."""
    next_step = "wait until it is complete" if status in RUNNING else "continue the response before it, or begin anew"
    message = f"The response {response_id!r:.100} cannot be continued, because it is {status}: {next_step}."
    return RoundhouseError("invalid_request", message, param=_PREVIOUS)


def too_long(bounds: HistoryBounds, param: str) -> RoundhouseError:
    """Return `invalid_request` for a request whose history or referenced items exceed `bounds`.

    `param`: the field of the request that refers to them.
    """
    message = (
        f"The stored conversation is longer than what may be continued: {bounds.responses} responses, {bounds.items} "
        f"items, {bounds.bytes} bytes. Begin a new one, with what matters of it in `input`."
    )
    return RoundhouseError("invalid_request", message, param=param)


def too_many_references(ids: Sequence[str], limit: int) -> RoundhouseError:
    """Return `invalid_request` for a request whose input refers to more stored items than `limit`."""
    message = f"`input` refers to {len(ids)} stored items, and {limit} are the most."
    return RoundhouseError("invalid_request", message, param="input")


def not_in_background(response_id: str) -> RoundhouseError:
    """Return `invalid_request` for reading the events of a response that was not made in the background."""
    message = (
        f"The response {response_id!r:.100} was not made in the background: its events are sent to the request that "
        "makes it alone. Leave `stream` out, or send `background: true` with the request."
    )
    return RoundhouseError("invalid_request", message, param="stream")


def response_not_found(response_id: str) -> RoundhouseError:
    """Return `response_not_found` (404) for a response that the caller cannot see."""
    message = f"Response with id {response_id!r:.100} not found."
    return RoundhouseError("response_not_found", message, param="response_id")


MOST_REFERENCES: Final = 1000
"""Stored items that the input of a request may refer to."""
PARENT_PLACE: Final = "conversation.parent_id"
"""Path in a request of the id of the item that its response follows."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Form of ids. No object has another, and some texts, such as half surrogate pairs, could not even be searched for."""


class RequestOptions(NamedTuple):
    """What one request continues and refers to, and whether its response is stored."""

    previous_id: str | None
    """Id of the response that the request continues; None: none."""
    references: tuple[str, ...]
    """Ids of stored items that the input refers to."""
    is_stored: bool = False
    """Whether the response is to be stored."""
    is_background: bool = False
    """Whether the response is made without a connection to its client."""
    conversation_id: str | None = None
    """Id of the conversation that the request continues; None: none."""
    conversation_start: BranchStart | None = None
    """The item of the conversation that the response follows (`conversation.parent_id`); None: the active one."""

    @property
    def needs_stored(self) -> bool:
        """Whether the request continues or refers to anything that is stored."""
        return self.previous_id is not None or self.conversation_id is not None or bool(self.references)

    @classmethod
    def of(cls, fields: Fields, *, can_store: bool) -> RequestOptions:
        """Read the options of a request for a response. `can_store`: whether this gateway stores responses.

        Nothing is looked up. On a gateway that stores none, `is_stored` is False whatever the request says.

        Raises:
            RoundhouseError: `invalid_request` if a field has a wrong type, `background` is set without storing, the
                request continues both a response and a conversation, or refers to more than `MOST_REFERENCES` items;
                `previous_response_not_found`, `conversation_not_found` or `conversation_item_not_found` if an id has a
                wrong form.
        """
        options = cls.of_references(fields)
        wants_store = optional_field(fields, "store", bool) is not False
        background = optional_field(fields, "background", bool) is True
        if background and not wants_store:
            raise field_error("background", "needs a response that is stored: leave `store` out")
        if background and not can_store:
            raise field_error("background", "needs a response that is stored, and this gateway stores none")
        return options._replace(is_stored=wants_store and can_store, is_background=background)

    @classmethod
    def of_references(cls, fields: Fields) -> RequestOptions:
        """Read what a request refers to that makes no response itself, for example one that counts tokens.

        Nothing is looked up. `store` and `background` are not read, and stay False. Item ids of a wrong form are left
        out.

        Raises:
            RoundhouseError: `invalid_request` if a field has a wrong type, the request continues both a response and a
                conversation, or refers to more than `MOST_REFERENCES` items; `previous_response_not_found`,
                `conversation_not_found` or `conversation_item_not_found` if an id has a wrong form.
        """
        references = tuple(dict.fromkeys(_references(fields.get("input"))))
        if len(references) > MOST_REFERENCES:
            raise too_many_references(references, MOST_REFERENCES)
        previous_id = optional_field(fields, "previous_response_id", str)
        if previous_id is not None and not _ID.fullmatch(previous_id):
            raise previous_not_found(previous_id, previous_id)
        conversation_id = _conversation_id(fields.get("conversation"))
        if conversation_id is not None and previous_id is not None:
            rule = "cannot be used together with `previous_response_id`: the conversation has the earlier responses"
            raise field_error("conversation", rule)
        start = None if conversation_id is None else _conversation_start(fields["conversation"], conversation_id)
        return cls(previous_id, references, conversation_id=conversation_id, conversation_start=start)


def is_id(value: str) -> bool:
    """Return whether `value` has the form of an id: 1 to 128 letters, digits, `-` and `_` (ASCII)."""
    return _ID.fullmatch(value) is not None


def _conversation_id(value: Any) -> str | None:
    """Read the field `conversation`, which is an id or an object with one; None: there is none."""
    if value is None:
        return None
    if isinstance(value, dict):
        value, place = value.get("id"), "conversation.id"
    else:
        place = "conversation"
    conversation_id = require_text(value, place)
    if not is_id(conversation_id):
        raise conversation_not_found(conversation_id, "conversation")
    return conversation_id


def _conversation_start(value: Any, conversation_id: str) -> BranchStart | None:
    """Read which item of its conversation a request names in the field `conversation`; None: it names none."""
    start = read_start(value, "conversation.") if isinstance(value, dict) else None
    if start is not None and start.parent_id is not None and not is_id(start.parent_id):
        raise item_not_found(conversation_id, start.parent_id, PARENT_PLACE)
    return start


def _references(items: Any) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and (item.get("type") or "item_reference") == "item_reference":
            item_id = item.get("id")
            if isinstance(item_id, str) and "role" not in item and _ID.fullmatch(item_id):
                yield item_id


RUNNING: Final = frozenset({"queued", "in_progress"})
"""Statuses of a response that is being made."""
CONTINUABLE: Final = frozenset({"completed", "incomplete"})
"""Statuses of a response that another may continue: it has an answer, perhaps a truncated one."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response to be written, made by `of`. It holds JSON that is encoded already, so that later changes of the
    response have no effect."""

    id: str
    tenant: str
    model: str
    """The model's own name."""
    created_at: float
    """Unix time in seconds."""
    previous_id: str | None
    """Id of the response that it continues; None: it continues none."""
    status: str
    response: bytes
    """The response object as JSON, with an empty `output`."""
    input: bytes
    """Its own input items, a JSON array."""
    output: bytes
    """Its `output`, a JSON array."""
    items: int
    """Number of items in `input` and `output`."""
    conversation_id: str | None = None
    """The conversation that it was made in; None: none."""
    conversation_item: str | None = None
    """The item of that conversation that the response follows; None: it follows none."""
    turn: ConversationTurn | None = None
    """Items that it adds to the conversation; both are written, or neither."""
    events: bytes = b""
    """Its events (`EventLog.to_stored`); empty: none are stored."""

    @classmethod
    def of(
        cls,
        tenant: str,
        model: str,
        response: Fields,
        input_items: Sequence[Fields],
        conversation_item: str | None = None,
        turn: ConversationTurn | None = None,
        events: bytes = b"",
    ) -> StoredResponse:
        """Encode a response object to be stored. `response`: has at least `id`, `created_at`, `status` and `output`.
        `model`: the model's own name. `input_items`: its own input items, without those that it continues. The other
        arguments are the fields of the same names.

        Raises:
            RecursionError: the object or an item is nested too deeply.
        """
        output = response["output"]
        conversation = response.get("conversation")
        return cls(
            id=response["id"],
            tenant=tenant,
            model=model,
            created_at=response["created_at"],
            previous_id=response.get("previous_response_id"),
            status=response["status"],
            response=json_bytes({**response, "output": []}),
            input=json_bytes(input_items),
            output=json_bytes(output),
            items=len(input_items) + len(output),
            conversation_id=None if conversation is None else conversation["id"],
            conversation_item=conversation_item,
            turn=turn,
            events=events,
        )

    @property
    def items_size(self) -> int:
        """Bytes of the input and output items as JSON."""
        return len(self.input) + len(self.output)

    @property
    def size(self) -> int:
        """Bytes of everything that is written for the response."""
        turn_size = 0 if self.turn is None else self.turn.size
        return len(self.response) + self.items_size + turn_size + len(self.events)


class FoundResponse(NamedTuple):
    """A response that was read: its object, and the own name of the model that made it."""

    model: str
    """The model's own name."""
    response: Fields
    """The response object."""


class History(NamedTuple):
    """The response or conversation that a request continues, and the stored items that it refers to."""

    model: str | None = None
    """Own name of the model that made the continued response, or last answered in the continued conversation; None:
    the request continues nothing, or no model has answered."""
    items: tuple[Fields, ...] = ()
    """Input and output of the responses that the request continues, or the items of the conversation; oldest first."""
    referenced_items: Mapping[str, Fields] = {}
    """The items that the request refers to, by id; those that are not stored are absent."""
    referred_models: Mapping[str, str] = {}
    """For these ids, the own name of the model whose response the item belongs to, or that last answered in its
    conversation; absent if none has."""
    conversation_item: str | None = None
    """Id of the last of `items` if they are a conversation's."""


class HistoryBounds(NamedTuple):
    """Limits of what a request may continue: bytes and number of items, and number of responses."""

    bytes: int
    """Maximum number of bytes of the items as JSON."""
    items: int = 10_000
    """Maximum number of items."""
    responses: int = 2_000
    """Maximum number of responses that continue each other."""


class StoredTotals(NamedTuple):
    """Number and size of the stored objects."""

    responses: int = 0
    bytes: int = 0
    """Bytes of the database without its unused pages."""
    completions: int = 0
    conversations: int = 0


KEPT_COPIES: Final = 2
"""How many times the size of its JSON a history takes that is kept in memory, about."""


class _Kept(NamedTuple):
    response_id: str
    history: History
    size: int
    """Bytes of the history's items as JSON."""
    is_stored: bool


class RecentResponse:
    """Memory of one WebSocket connection: its last response, with everything that the response continues.

    It lives as long as the connection, which calls `close`. A response larger than the bounds is not kept, nor one of
    more than `LARGE_BYTES` (256 KiB) for which the budget has no room.
    """

    def __init__(self, bounds: HistoryBounds, budget: BodyBudget) -> None:
        """`budget`: memory for request bodies, of which a large history holds `KEPT_COPIES` times its size as JSON."""
        self._bounds = bounds
        self._budget = budget
        self._held_bytes = 0
        self._is_closed = False
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
        if response is None or response["status"] not in CONTINUABLE or self._is_closed:
            return
        output: list[Fields] = response["output"]
        items = (*context.history, *context.input_items, *output)
        size = self._size_of(context.history) + len(json_bytes([*context.input_items, *output]))
        if size > self._bounds.bytes or len(items) > self._bounds.items or not self._hold(size):
            self._hold(0)
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
            self._hold(0)

    def close(self) -> None:
        """Drop the kept response, and keep no other: the connection is closed."""
        self._is_closed, self._kept = True, None
        self._hold(0)

    def _hold(self, size: int) -> bool:
        """Hold memory for a history of `size` bytes as JSON, in the place of what was held; False: there is no room."""
        more = (KEPT_COPIES * size if size > LARGE_BYTES else 0) - self._held_bytes
        if more > 0 and not self._budget.hold(more):
            return False
        self._held_bytes += more
        if more < 0:
            self._budget.give_back(-more)
        return True


_ECHOED: Final = {
    "tool_choice": "tool_choice",
    "tools": "tools",
    "seed": "seed",
    "temperature": "temperature",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "response_format": "response_format",
    "input_user": "user",
}
"""Fields of a stored completion that repeat a field of the request, by the completion's name for it."""


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A chat completion to be written. It holds JSON that is encoded already, so that later changes of the completion
    and its messages have no effect."""

    id: str
    tenant: str
    model: str
    """The model's own name."""
    created_at: float
    """Unix time in seconds."""
    metadata: Mapping[str, str]
    completion: bytes
    """The completion object as JSON, without `metadata`, which may change."""
    messages: bytes
    """The request's `messages`, a JSON array."""

    @property
    def size(self) -> int:
        """Bytes of the completion and its messages as JSON, without the metadata."""
        return len(self.completion) + len(self.messages)


class FoundCompletion(NamedTuple):
    """A chat completion that was read: its object, and the own name of the model that made it."""

    model: str
    """The model's own name."""
    completion: Fields
    """The completion object, with `metadata`."""


class CompletionFilter(NamedTuple):
    """Which chat completions a list shows: those of the model that have all pairs of the metadata."""

    model: str | None = None
    """A model's own name; None: completions of all models."""
    metadata: Sequence[tuple[str, str]] = ()
    """Pairs that a completion's metadata must have."""

    def takes_model(self, model: str) -> bool:
        """Return whether the list shows completions of a model. `model`: the model's own name."""
        return self.model is None or self.model == model


def describe_completion(answer: Fields, request_fields: Fields, request_id: str) -> Fields:
    """Return the completion object to store: the fields of `answer`, which win, and parameters of the request.

    These are `tool_choice`, `tools`, `seed`, `temperature`, `top_p`, the penalties, `response_format` and, as
    `input_user`, `user`, each None if the request lacks it; besides, `request_id`, and `service_tier` None. `metadata`
    is not set here: it is stored apart, because it may change.
    """
    echoed_fields = {name: request_fields.get(asked) for name, asked in _ECHOED.items()}
    return {**echoed_fields, "service_tier": None, "request_id": request_id, **answer}


def list_messages(completion_id: str, messages: Sequence[Fields]) -> list[Fields]:
    """Return the messages of a completion's request as list entries, in their order, each with an `id`.

    The id is the completion's id, `-`, and the message's number from 0.

    A message whose `content` is a list of parts has them as `content_parts`, and `content` None; else the parts are
    None. `name` is None if the message has none.
    """
    return [_message(f"{completion_id}-{number}", message) for number, message in enumerate(messages)]


def _message(message_id: str, message: Fields) -> Fields:
    content = message.get("content")
    is_parts = isinstance(content, list)
    parts: Any = content if is_parts else None
    return {"name": None, **message, "id": message_id, "content": None if is_parts else content, "content_parts": parts}
