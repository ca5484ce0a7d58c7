"""What a response is made with, beside the request: its identity, and what came before it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.protocols.common.conversation import Fields


@dataclass(slots=True)
class ResponseContext:
    """Of one response (`InferenceRequest.state`). What is pure gets its ids and the time from here."""

    id: str
    created_at: int
    """Unix time in seconds."""
    clock: Callable[[], float]
    """Unix time."""
    new_id: Callable[[str], str]
    """A fresh id with this prefix: `msg`, `fc`, `rs`, ..."""
    history: tuple[Fields, ...] = ()
    """Items of the previous responses, input and output, the oldest first: what `previous_response_id` stands for; or
    those of the conversation."""
    conversation_id: str | None = None
    """The conversation that the response continues."""
    conversation_item: str | None = None
    """The id of the last of `history`, where that is a conversation's."""
    referenced_items: Mapping[str, Fields] = field(default_factory=dict)
    """Stored items that the input refers to (`item_reference`), by their id."""
    stores: bool = False
    """The response will be kept: `store` of the request, where this gateway keeps any."""
    keeps_items: bool = False
    """`input_items` are wanted, whether or not the response is stored."""
    may_lack_input: bool = False
    """The response will be empty, and a later one continues it: a request for it need not say anything."""
    owns_history: bool = False
    """`history` is stored nowhere else: it is stored with this response, if that is."""
    is_open_responses: bool = False
    """The client asked for Open Responses (header `OpenResponses-Version`), which has null where OpenAI has the schema
    of a form."""
    response: Fields | None = None
    """The response object as it was last told, in the stream or whole: set by the writer."""
    input_items: tuple[Fields, ...] = ()
    """The request's own input as items, each with an id: set by whoever reads the request."""
    cancel: Callable[[], bytes] | None = None
    """Ends the stream because somebody wants it to end: its last events. Set by the writer when the stream begins."""
