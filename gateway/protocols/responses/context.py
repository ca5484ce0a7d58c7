"""What a response is made from beside its request: its identity, the conversation before it, and when its parts came.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.protocols.common.conversation import AnswerWriter, Fields
from gateway.protocols.responses.file_search import FoundFiles
from gateway.protocols.responses.mcp import McpTools


@dataclass(slots=True)
class AnswerTimes:
    """The times of one response, as Unix time in seconds. The `ResponseWriter` notes them: one per item, none per
    token."""

    begun_at: float = 0.0
    """When the request was read."""
    item_starts: list[float] = field(default_factory=list)
    """When each item of the output began, in order. Empty for an answer that was no stream."""
    first_token_at: float | None = None
    """When the first item began that the model wrote; None: none did, or that is not known."""
    ended_at: float | None = None
    """When the answer was complete; None: it is not."""

    def restart(self) -> None:
        """Forget the items of an attempt of which the client got nothing. Call when another attempt begins."""
        self.item_starts.clear()
        self.first_token_at = None

    def begin_item(self, now: float, *, is_said: bool) -> None:
        """Note that the next item of the output begins at `now` (Unix seconds). `is_said`: whether the model writes
        it."""
        self.item_starts.append(now)
        if is_said and self.first_token_at is None:
            self.first_token_at = now

    def describe_items(self, response: Fields) -> list[Fields]:
        """Return the field `answer` of each item of `response`, a complete response object, in the order of `output`:
        `response_id`, `took_ms` and `figures`. `took_ms`: whole milliseconds until the next item began, of the last
        one until the answer ended; None for all where not as many items were noted, as without a stream.

        `figures` is None but for the last item, where it has those of the whole response: `model`, `usage` (None: the
        engine reported none), `first_token_ms` and `total_ms`, from the request on; None: not known.
        """
        count = len(response["output"])
        ends = [*self.item_starts[1:], self.ended_at]
        took: list[int | None] = [None] * count
        if len(self.item_starts) == count:
            took = [_milliseconds(*each) for each in zip(self.item_starts, ends, strict=True)] if count else []
        described: list[Fields] = [{"response_id": response["id"], "took_ms": each, "figures": None} for each in took]
        if described:
            described[-1]["figures"] = {
                "model": response["model"],
                "usage": response["usage"],
                "first_token_ms": _milliseconds(self.begun_at, self.first_token_at),
                "total_ms": _milliseconds(self.begun_at, self.ended_at),
            }
        return described


def _milliseconds(start: float, end: float | None) -> int | None:
    # The clock may be set back meanwhile.
    return None if end is None else max(0, round((end - start) * 1000))


@dataclass(slots=True)
class ResponseContext:
    """What one response is made from beside its request, and what has become of it (`InferenceRequest.state`).

    `new_response_context` makes one for each request, with the functions that supply ids and the time, which pure code
    cannot make; hooks complete it. `response`, `input_items`, `times` and `cancel` are filled in by the dialect and the
    `ResponseWriter`, and read by the response hooks.
    """

    id: str
    """Id of the response."""
    created_at: int
    """Unix time in seconds."""
    clock: Callable[[], float]
    """Returns the Unix time in seconds."""
    new_id: Callable[[str], str]
    """Returns a fresh id with the given prefix: `msg`, `fc`, `rs`, ..."""
    history: tuple[Fields, ...] = ()
    """Items before this request's input, oldest first: input and output of the responses that `previous_response_id`
    leads to, or the items of the conversation."""
    conversation_id: str | None = None
    """Id of the conversation that the response continues; None: it continues none."""
    conversation_item: str | None = None
    """Id of the last item in `history`, if that is a conversation's; None: it is not, or the conversation is empty."""
    names_parent: bool = False
    """Whether the request names `conversation_item` as the item that its response follows, wherever the active branch
    of the conversation ends."""
    referenced_items: Mapping[str, Fields] = field(default_factory=dict)
    """Stored items that the input refers to (`item_reference`), by their id."""
    found_files: FoundFiles | None = None
    """What the search in vector stores found that the request asked for; None: none was made."""
    mcp: McpTools | None = None
    """The declared servers that the request names, whose calls the gateway runs; None: it names none."""
    writer: AnswerWriter | None = None
    """Writes the answer in the place of a `ResponseWriter` of its own, because several requests make the response
    together (`tool_rounds`); None: this request makes it alone."""
    session_name: str | None = None
    """Name of the session of a request that is one of several which make the response together, where the client names
    none; None: without a name, the request belongs to no session."""
    stores: bool = False
    """Whether the response is stored: the request's `store`, on a gateway that stores responses."""
    keeps_items: bool = False
    """Whether to set `input_items` even if the response is not stored."""
    may_lack_input: bool = False
    """Whether the request may have no input, because the response stays empty and a later one continues it."""
    owns_history: bool = False
    """Whether `history` is stored nowhere else, so that it must be stored with this response."""
    is_open_responses: bool = False
    """Whether the client asked for Open Responses (header `OpenResponses-Version`), where thoughts stream under other
    names, and a text format's schema is null in responses."""
    response: Fields | None = None
    """The response object as at its begin or, once it has ended, at its end; the writer sets it. None before the answer
    begins. While it is in progress, `output` is empty."""
    input_items: tuple[Fields, ...] = ()
    """The request's own input as items, each with an id. Set when the request is read, if they are to be kept (see
    `request.read_prompt`); else empty."""
    times: AnswerTimes = field(default_factory=AnswerTimes)
    """When the parts of the response came. The writer notes them."""
    cancel: Callable[[], bytes] | None = None
    """Ends the stream early: sets `response` to the cancelled response and returns the last events, which the caller
    sends. Call once. Set by the writer when the stream begins; None before, and for an answer without a stream."""
