"""Writes one response that is made in several rounds: between them, the gateway runs calls of the model. Pure.

Each round is a request of its own to the model, and has a `RoundWriter`. All of them write to one `RoundsWriter`, whose
events make up one stream: with one beginning and end, and numbers that go on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from gateway.protocols.common.conversation import Answer, Fields, Finish, Tokens
from gateway.protocols.common.errors import encode_json
from gateway.protocols.responses import mcp_items
from gateway.protocols.responses import response_object as made
from gateway.protocols.responses.answer_stream import DONE, ResponseWriter
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.growing_items import ContentItem
from gateway.protocols.responses.mcp_items import McpCallItem
from gateway.protocols.responses.mcp_tools import McpTools, OfferedTool

ROUND_OVER: Final = b": round over\n\n"
"""The last part of a round's stream where the response has no event for its end. Clients do not get it."""


@dataclass(slots=True)
class RunCall:
    """A call of the model that the gateway runs, unless the client has to approve it first."""

    call_id: str
    function: str
    """The name that the model called."""
    label: str
    name: str
    """Name of the tool on its server."""
    tool: OfferedTool | None
    """None: there is no such tool."""
    is_withheld: bool = False
    """The call needs an approval."""
    item: McpCallItem | None = None
    """The call's item; None: the client was not told of it yet."""
    told: str | None = None
    """What the model is told of the call; None: nothing yet."""
    _arguments: list[str] = field(default_factory=list)

    def append_arguments(self, arguments: str) -> None:
        """Add a part of the JSON arguments, cut anywhere."""
        self._arguments.append(arguments)

    @property
    def arguments(self) -> str:
        """The JSON arguments so far."""
        return "".join(self._arguments)


class RoundsWriter(ResponseWriter):
    """The writer of the whole response: its beginning, its items, in the order in which they come, and its end.

    `begin_answer` may be called in every round, and begins the response once.
    """

    def __init__(
        self,
        fields: Fields,
        context: ResponseContext,
        *,
        is_stream: bool,
        listed_labels: Collection[str] = (),
    ) -> None:
        """`fields` and `context`: of the client's request, whose `mcp` is set. `is_stream` False: the client gets no
        events, only the response object at the end. `listed_labels`: of servers whose tools an item lists that the
        request continues; they are not listed again."""
        super().__init__(fields, context)
        assert context.mcp is not None
        self._mcp: McpTools = context.mcp
        self._is_stream = is_stream
        self._listed_labels = listed_labels
        self._round = 0

    def begin_round(self, number: int) -> None:
        """Mark the ids of the calls that follow with the round's number, which is 1 for the first
        (`mcp_items.mark_round`). Before the first call of this, the mark is 0: of calls approved earlier."""
        self._round = number

    def name_call(self, prefix: str) -> str:
        """Return a fresh id for the item of a call, with the mark of the round. See ResponseWriter."""
        return mcp_items.mark_round(self._context.new_id(prefix), self._round)

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """Return the events that begin the response, and those of the lists of tools; empty if it has begun. Without a
        stream, `context.cancel` is not set, nor `context.response` unless the response is made in the background: no
        client knows of it."""
        if self._response is not None:
            return b""
        out = super().begin_answer(answer_id, tokens)
        if not self._is_stream:
            self._context.cancel = None
            if not self._fields.get("background"):
                self._context.response = None
        servers = [server for server in self._mcp.servers if server.label not in self._listed_labels]
        return out + b"".join(
            self.write_whole(mcp_items.list_item(self._context.new_id("mcpl"), server)) for server in servers
        )

    @property
    def item_count(self) -> int:
        """Number of the items so far."""
        return len(self._items)

    def describe_items(self, first: int) -> list[Fields]:
        """Return the messages and thoughts from the item number `first` on, as input of the next round."""
        return [item.item for item in self._items[first:] if isinstance(item, ContentItem)]

    def begin_call(self, call: RunCall, approval_id: str | None = None) -> bytes:
        """Return the events that complete what is open and add the item of a call, with the arguments that have come.
        Sets `call.item`. Call once for each.
        `approval_id`: of the item by which the client was asked to approve the call; None: it was not asked."""
        name = self.name_call("mcp")
        call.item = item = McpCallItem(name, len(self._items), call.label, call.name, approval_id)
        return (
            self._close_items()
            + self.add_call(item)
            + (self.grow_call(item, call.arguments) if call.arguments else b"")
        )

    def write_approval(self, call: RunCall) -> bytes:
        """Return the events of an item that asks the client to approve a call, whose arguments are complete."""
        item_id = self.name_call("mcpr")
        return self.write_whole(mcp_items.approval_item(item_id, call.label, call.name, call.arguments))

    def close_items(self, *, is_cut: bool) -> bytes:
        """Return the events that complete the open messages, thoughts and calls of the client's functions. `is_cut`:
        the last item is incomplete, if it is one of these."""
        last = self._items[-1] if is_cut and self._items else None
        return b"".join(self._close_item(item, "incomplete" if item is last else "completed") for item in self._items)

    def end_rounds(self, finish: Finish, tokens: Tokens | None) -> bytes:
        """Return the events that end the response, and `[DONE]`. Sets `context.response` to the complete response.
        `tokens`: of all rounds; None: no engine reported any."""
        out = self.begin_answer("")
        output = [item.item for item in self._items]
        response = made.end_response(self._ensure_response(), output, finish, tokens, self._context)
        self._context.response = response
        return out + self._state_event(response["status"], encode_json(response)) + DONE

    def new_call_id(self) -> str:
        """Return a fresh id for a call to which the engine gave none."""
        return self._context.new_id("call")


class RoundWriter:
    """`AnswerWriter` of one round. Writes to the response's `RoundsWriter`, holds back what needs an approval, and
    keeps how the round ended."""

    def __init__(self, writer: RoundsWriter, mcp: McpTools, own_names: Collection[str]) -> None:
        """`own_names`: of the functions and custom tools that the client runs itself."""
        self._writer = writer
        self._mcp = mcp
        self._own_names = own_names
        self._first_item = writer.item_count
        self._own_indexes: set[int] = set()
        self._calls: dict[int, RunCall] = {}
        self.finish: Finish | None = None
        """Why the round ended; None: it did not, or failed."""
        self.tokens: Tokens | None = None
        """None: the engine reported none."""
        self.error: Fields | None = None
        """The error with which the round ended, with every field of our error envelope; None: with none."""

    @property
    def calls(self) -> list[RunCall]:
        """The calls that the gateway runs, in order."""
        return [self._calls[index] for index in sorted(self._calls)]

    @property
    def has_own_calls(self) -> bool:
        """Whether the model called a function of the client's."""
        return bool(self._own_indexes)

    @property
    def is_cut(self) -> bool:
        """Whether the answer was cut short, so that its calls may lack something."""
        return self.finish is not None and made.is_cut(self.finish)

    @property
    def said_items(self) -> list[Fields]:
        """The messages and thoughts of the round, as input of the next."""
        return self._writer.describe_items(self._first_item)

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        """See RoundsWriter."""
        return self._writer.begin_answer(answer_id, tokens)

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """See AnswerWriter."""
        return self._writer.write_text(text, logprobs)

    def write_reasoning(self, text: str) -> bytes:
        """See AnswerWriter."""
        return self._writer.write_reasoning(text)

    def write_refusal(self, text: str) -> bytes:
        """See AnswerWriter."""
        return self._writer.write_refusal(text)

    def write_tool_call(self, index: int, call_id: str | None, name: str | None, arguments: str) -> bytes:
        """Return events that start a call or add to its arguments; empty for a call that needs an approval. Any
        function that is not the client's counts as a tool of a server, though there may be no such tool. See
        AnswerWriter."""
        call = self._calls.get(index)
        if index in self._own_indexes or (call is None and name in self._own_names):
            self._own_indexes.add(index)
            return self._writer.write_tool_call(index, call_id, name, arguments)
        if call is None:
            self._calls[index] = call = self._new_call(call_id, name or "")
            call.append_arguments(arguments)
            return b"" if call.is_withheld else self._writer.begin_call(call)
        if not arguments:
            return b""
        call.append_arguments(arguments)
        return b"" if call.item is None else self._writer.grow_call(call.item, arguments)

    def end_answer(self, finish: Finish, stop_sequence: str | None, tokens: Tokens | None) -> bytes:
        """Return the events that complete what the model said, but not the calls, which are run now, nor the response.
        A withheld call becomes a request for an approval; one whose arguments are no object is not worth one."""
        self.finish, self.tokens = finish, tokens
        writer, out = self._writer, [self._writer.close_items(is_cut=self.is_cut)]
        for call in self.calls:
            if call.is_withheld and not self.is_cut and mcp_items.read_arguments(call.arguments) is None:
                call.is_withheld = False
                out.append(writer.begin_call(call))
            if call.item is not None:
                out.append(writer.end_arguments(call.item))
        if self.is_cut:
            out += [writer.leave_call(call.item) for call in self.calls if call.item is not None]
        return b"".join(out) or ROUND_OVER

    def fail_answer(self, error: Fields) -> bytes:
        """Keep the error, with which the whole response may fail. Return no event."""
        self.error = error
        return ROUND_OVER

    def build_answer(self, answer: Answer) -> Fields:
        """Never called: a round is a stream."""
        raise AssertionError("a round is a stream")

    def _new_call(self, call_id: str | None, function: str) -> RunCall:
        tool = self._mcp.find_tool(function)
        label, name = (tool.server, tool.name) if tool is not None else self._mcp.split_function(function)
        is_withheld = self._mcp.needs_approval(function)
        return RunCall(call_id or self._writer.new_call_id(), function, label, name, tool, is_withheld)
