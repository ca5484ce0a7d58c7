"""The rounds of a response whose calls the gateway runs: what each asks of the model, what it writes, and when the
response ends. Pure.

Each round is a request of its own to the model, and has a `RoundWriter`. All of them write to one `RoundsWriter`, whose
events make up one stream: with one beginning and end, and numbers that go on.

A response ends when the model calls no tool of a server, calls a function of the client's, or needs an approval, and
when its tokens are spent. The last round that it may have offers no tools of servers any more, so that the model
answers with what it knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Answer, Fields, Finish, Tokens
from gateway.protocols.common.errors import encode_json
from gateway.protocols.common.field_reader import describe_value, field_error
from gateway.protocols.common.streams import DONE
from gateway.protocols.responses.answer import ContentItem, ResponseWriter, end_response, is_cut
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.items import resolve_item
from gateway.protocols.responses.mcp import (
    CALL_TYPE,
    LIST_TYPE,
    REQUEST_TYPE,
    RESPONSE_TYPE,
    McpCallItem,
    McpTools,
    OfferedTool,
    approval_item,
    invalid_call,
    is_mcp,
    list_item,
    mark_round,
    object_text,
    read_arguments,
    read_request,
)

ROUND_OVER: Final = b": round over\n\n"
"""The last part of a round's stream where the response has no event for its end. Clients do not get it."""


@dataclass(slots=True)
class RunCall:
    """A call of the model that the gateway runs, unless the client has to approve it first (`is_withheld`). `tool`
    None: there is no such tool. `item` None: the client was not told of it yet. `told`: what the model is told of it;
    None: nothing yet."""

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
        """Mark the ids of the calls that follow with the round's number, from 1 (`mark_round`). Calls before the first
        round, which the client has approved, have the mark 0."""
        self._round = number

    def name_call(self, prefix: str) -> str:
        """Return a fresh id for the item of a call, with the mark of the round."""
        return mark_round(self._context.new_id(prefix), self._round)

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
        return out + b"".join(self.write_whole(list_item(self._context.new_id("mcpl"), server)) for server in servers)

    @property
    def item_count(self) -> int:
        """Number of the items so far."""
        return len(self._items)

    def describe_items(self, first: int) -> list[Fields]:
        """Return the messages and thoughts from the item number `first` on, as input of the next round."""
        return [item.item for item in self._items[first:] if isinstance(item, ContentItem)]

    def begin_call(self, call: RunCall, approval_id: str | None = None) -> bytes:
        """Complete what is open, add the item of a call with the arguments that have come, and return the events. Sets
        `call.item`. Call once for each. `approval_id`: of the item by which the client was asked to approve the call;
        None: it was not asked."""
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
        return self.write_whole(approval_item(item_id, call.label, call.name, call.arguments))

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
        response = end_response(self._ensure_response(), output, finish, tokens, self._context)
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
        """The model's calls but those of the client's functions, in order, those that need an approval included."""
        return [self._calls[index] for index in sorted(self._calls)]

    @property
    def has_own_calls(self) -> bool:
        """Whether the model called a function of the client's."""
        return bool(self._own_indexes)

    @property
    def is_cut(self) -> bool:
        """Whether the answer was cut short, so that its calls may lack something."""
        return self.finish is not None and is_cut(self.finish)

    @property
    def said_items(self) -> list[Fields]:
        """The messages and thoughts of the round, as items of the next round's input."""
        return self._writer.describe_items(self._first_item)

    def begin_answer(self, answer_id: str, tokens: Tokens | None = None) -> bytes:
        return self._writer.begin_answer(answer_id, tokens)

    def write_text(self, text: str, logprobs: list[Fields] | None) -> bytes:
        return self._writer.write_text(text, logprobs)

    def write_reasoning(self, text: str) -> bytes:
        return self._writer.write_reasoning(text)

    def write_refusal(self, text: str) -> bytes:
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
        """Return the events that complete what the model said, but not the calls, which are run now, nor the response;
        `ROUND_OVER` if there are none. Sets `finish` and `tokens`. A withheld call becomes a request for an approval;
        one whose arguments are no object is not worth one, and is withheld no more."""
        self.finish, self.tokens = finish, tokens
        writer, out = self._writer, [self._writer.close_items(is_cut=self.is_cut)]
        for call in self.calls:
            if call.is_withheld and not self.is_cut and read_arguments(call.arguments) is None:
                call.is_withheld = False
                out.append(writer.begin_call(call))
            if call.item is not None:
                out.append(writer.end_arguments(call.item))
        if self.is_cut:
            out += [writer.leave_call(call.item) for call in self.calls if call.item is not None]
        return b"".join(out) or ROUND_OVER

    def fail_answer(self, error: Fields) -> bytes:
        """Keep the error in `error`: the whole response may fail by it. Return `ROUND_OVER`, which clients do not
        get."""
        self.error = error
        return ROUND_OVER

    def build_answer(self, answer: Answer) -> Fields:
        """Raise AssertionError: a round is a stream, and nobody calls this."""
        raise AssertionError("a round is a stream")

    def _new_call(self, call_id: str | None, function: str) -> RunCall:
        tool = self._mcp.find_tool(function)
        label, name = (tool.server, tool.name) if tool is not None else self._mcp.split_function(function)
        is_withheld = self._mcp.needs_approval(function)
        return RunCall(call_id or self._writer.new_call_id(), function, label, name, tool, is_withheld)


MOST_ROUNDS: Final = 16
"""Rounds of one response."""
_OF_RESPONSE: Final = frozenset(
    {"background", "conversation", "previous_response_id", "input", "store", "stream", "max_output_tokens"}
)
"""Fields of the request that concern the response as a whole, and have other values in a round."""
_NO_TOOL: Final = "There is no tool {name!r}."
_NO_OBJECT: Final = "The arguments are not a JSON object."
_TOO_MANY: Final = "The call was not run: the response may have no more calls (`max_tool_calls`)."
_TOO_LATE: Final = f"The call was not run: a response has at most {MOST_ROUNDS} rounds."


class CallResult(NamedTuple):
    """What became of a call. `text`: what the model is told. `error`: why the call failed, as its item says it; None:
    it did not fail."""

    text: str
    """What the model is told."""
    error: Fields | None = None
    """Why the call failed, as its item says it; None: it did not."""


def too_many_calls(most: int) -> CallResult:
    """Return the result of a call beyond the `most` that may be run after one round."""
    message = f"The call was not run: at most {most} calls are run at once."
    return CallResult(message, invalid_call(message))


class ApprovedCall(NamedTuple):
    """A call that the client has approved with this request. `request_id`: of the item by which the client was
    asked."""

    request_id: str
    """Id of the item by which the client was asked."""
    call: RunCall


class ToolRounds:
    """The rounds of one response. First call `take_approved`, and for each of its calls `begin_approved`, `refuse_call`
    and `take_result`. Then call `next_round`, `end_round`, and `refuse_call` and `take_result` for each call that this
    returns, until `is_over`; then `end_rounds`. A call that `refuse_call` does not refuse is run by the caller."""

    def __init__(
        self, fields: Fields, history: Sequence[Fields], items: Sequence[Fields], writer: RoundsWriter, mcp: McpTools
    ) -> None:
        """`fields`: of the client's request, which a dialect has read. `history`: the items that it continues, `items`
        its own (`own_items`). Raises RoundhouseError as `find_approved`."""
        self._fields = fields
        self._writer = writer
        self._mcp = mcp
        self._items: list[Fields] = list(items)
        """The input of the next round, without the results of `_calls`."""
        self._calls: list[RunCall] = []
        """The calls since the last round."""
        self._approved = find_approved([*history, *items], items, mcp)
        tools = fields.get("tools") or ()
        self._own_names = frozenset([tool["name"] for tool in tools if tool.get("type") in ("function", "custom")])
        self._tokens_left: int | None = fields.get("max_output_tokens")
        """None: no limit, as for calls."""
        self._calls_left: int | None = fields.get("max_tool_calls")
        self._tokens: Tokens | None = None
        self._finish: Finish = "stop"
        self._round = 0
        self._is_last = False
        """No call of this round is run: the model was offered no tool."""
        self.is_over = False
        """No round follows: `end_rounds` ends the response."""

    def take_approved(self) -> list[ApprovedCall]:
        """Return the calls that the client has approved with this request, to be run before the first round. Call
        once."""
        approved, self._approved = self._approved, []
        return approved

    def next_round(self) -> tuple[Fields, RoundWriter]:
        """Begin a round: return the fields of its request, which continues nothing and is not stored, and its
        writer. The input has the results of the calls so far, in the order of the calls."""
        self._round += 1
        self._writer.begin_round(self._round)
        self._items += [_result_item(call) for call in self._calls if call.told is not None]
        self._calls = []
        fields = {name: value for name, value in self._fields.items() if name not in _OF_RESPONSE}
        fields |= {"input": list(self._items), "stream": True, "store": False}
        if self._tokens_left is not None:
            fields["max_output_tokens"] = self._tokens_left
        if self._round > 1:
            fields = _ease_choice(fields)
        self._is_last = self._round >= MOST_ROUNDS or self._calls_left == 0
        if self._is_last:
            fields = _without_servers(fields, has_own=bool(self._own_names))
        return fields, RoundWriter(self._writer, self._mcp, self._own_names)

    def end_round(self, done: RoundWriter, spent_tokens: int) -> tuple[bytes, list[RunCall]]:
        """Take a round that has ended without an error, and set `is_over`. `spent_tokens`: those that it generated, as
        far as is known.

        Return the events of the approvals that the client is asked for, and the calls that the gateway runs now: each
        must have its `take_result` before the next round, or before `end_rounds`.
        """
        self._add_tokens(done.tokens)
        if self._tokens_left is not None:
            self._tokens_left -= spent_tokens
        if done.finish is not None:
            self._finish = done.finish
        calls = [] if done.is_cut else [call for call in done.calls if not call.is_withheld]
        withheld = [] if done.is_cut else [call for call in done.calls if call.is_withheld]
        self._items += done.said_items
        self._items += [_call_item(call) for call in calls]
        self._calls = calls
        self.is_over = not calls or bool(withheld) or done.has_own_calls or self._is_last
        if not self.is_over and self._tokens_left is not None and self._tokens_left < 1:
            self.is_over, self._finish = True, "length"
        return b"".join(self._writer.write_approval(call) for call in withheld), calls

    def refuse_call(self, call: RunCall) -> CallResult | None:
        """Return the result of a call that must not be run; None: run it, it is counted against `max_tool_calls`. Call
        once for each."""
        if self._calls_left == 0:
            message = _TOO_MANY
        elif self._is_last:
            message = _TOO_LATE
        elif call.tool is None:
            message = _NO_TOOL.format(name=call.function)
        elif read_arguments(call.arguments) is None:
            message = _NO_OBJECT
        else:
            if self._calls_left is not None:
                self._calls_left -= 1
            return None
        return CallResult(message, invalid_call(message))

    def take_result(self, call: RunCall, result: CallResult) -> bytes:
        """Return the events that end a call, and keep its result for the next round, in `call.told`. The call must
        have an item. Calls may end in any order."""
        assert call.item is not None
        call.told = result.text
        output = result.text if result.error is None else None
        return self._writer.end_call(call.item, output, result.error)

    def begin_approved(self, approved: ApprovedCall) -> bytes:
        """Return the events that begin a call which the client has approved; before the first one, those that begin the
        response. Call for each of `take_approved`, in order."""
        call = approved.call
        # With the id, by which the call joins those of its round that needed no approval.
        self._items.append({**_call_item(call), "id": approved.request_id})
        self._calls.append(call)
        out = self._writer.begin_answer("") + self._writer.begin_call(call, approved.request_id)
        assert call.item is not None
        return out + self._writer.end_arguments(call.item)

    def end_rounds(self) -> bytes:
        """Return the last events of the response, and `[DONE]`. Sets `response` of the client's context."""
        return self._writer.end_rounds(self._finish, self._tokens)

    def _add_tokens(self, tokens: Tokens | None) -> None:
        if tokens is None:
            return
        before = self._tokens or Tokens()
        self._tokens = Tokens(
            before.prompt + tokens.prompt,
            before.completion + tokens.completion,
            before.cached + tokens.cached,
            before.reasoning + tokens.reasoning,
        )


def own_items(fields: Fields, references: Mapping[str, Fields]) -> list[Fields]:
    """Return the items of a request's own input, which a dialect has read, with the items that it refers to in their
    places. `references`: stored items by their id."""
    value = fields.get("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}] if value else []
    return [resolve_item(item, references, f"input[{number}]") for number, item in enumerate(value or ())]


def listed_labels(items: Iterable[Fields]) -> frozenset[str]:
    """Return the labels of the servers whose tools one of the items lists. A list that says why there are none does not
    count."""
    lists = (item for item in items if item.get("type") == LIST_TYPE and not item.get("error"))
    return frozenset([item["server_label"] for item in lists if isinstance(item.get("server_label"), str)])


def find_approved(items: Sequence[Fields], own: Sequence[Fields], mcp: McpTools) -> list[ApprovedCall]:
    """Return the calls that a request approves: by the responses among its `own` items whose calls have not run.
    `items`: those that it continues and its own, which a dialect has read. Raises RoundhouseError `invalid_request` if
    the request has no such tool any more."""
    asked = {item["id"]: item for item in items if item.get("type") == REQUEST_TYPE}
    run = {item.get("approval_request_id") for item in items if item.get("type") == CALL_TYPE}
    approved: list[ApprovedCall] = []
    for number, item in enumerate(own):
        if item.get("type") != RESPONSE_TYPE or item["approve"] is not True:
            continue
        request_id: str = item["approval_request_id"]
        if request_id in run:
            continue
        run.add(request_id)
        place = f"input[{number}].approval_request_id"
        _, function, arguments = read_request(asked[request_id], place)
        tool = mcp.find_tool(function)
        if tool is None:
            raise field_error(place, f"must be for a tool of one of `tools`; {describe_value(function)}")
        call = RunCall(request_id, function, tool.server, tool.name, tool)
        call.append_arguments(arguments)
        approved.append(ApprovedCall(request_id, call))
    return approved


def _call_item(call: RunCall) -> Fields:
    arguments = object_text(call.arguments)
    return {
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.function or "unknown",
        "arguments": arguments,
    }


def _result_item(call: RunCall) -> Fields:
    return {"type": "function_call_output", "call_id": call.call_id, "output": call.told}


def _ease_choice(fields: Fields) -> Fields:
    """Return the fields with a choice that forces no call: it held for the first round, and would hold for ever."""
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {**fields, "tool_choice": {**choice, "mode": "auto"}}
    return fields if choice in (None, "none", "auto") else {**fields, "tool_choice": "auto"}


def _without_servers(fields: Fields, *, has_own: bool) -> Fields:
    """Return the fields with no tool of a server that the model may call."""
    if not has_own:  # with the tools, so that the engine's cache of the prompt still counts
        return {**fields, "tool_choice": "none"}
    tools = [tool for tool in fields["tools"] if not is_mcp(tool)]
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice = {**choice, "tools": [tool for tool in choice["tools"] if not is_mcp(tool)]}
    return {**fields, "tools": tools, "tool_choice": choice if choice is None or choice_is_kept(choice) else "none"}


def choice_is_kept(choice: object) -> bool:
    """Return whether a tool choice still has a tool to choose, where those of servers are left out."""
    return not isinstance(choice, dict) or choice.get("type") != "allowed_tools" or bool(choice["tools"])
