"""The rounds of a response whose calls the gateway runs: what each asks of the model, and when the response ends. Pure.

A response ends when the model calls no tool of a server, calls a function of the client's, or needs an approval, and
when its tokens are spent. The last round that it may have offers no tools of servers any more, so that the model
answers with what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.protocols.common.conversation import Fields, Finish, Tokens
from gateway.protocols.common.field_reader import describe_value, field_error
from gateway.protocols.responses import mcp_items
from gateway.protocols.responses.items import resolve_item
from gateway.protocols.responses.mcp_tools import McpTools, is_mcp
from gateway.protocols.responses.rounds_writer import RoundsWriter, RoundWriter, RunCall

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
    """What became of a call."""

    text: str
    """What the model is told."""
    error: Fields | None = None
    """Why the call failed, as its item says it; None: it did not."""


def too_many_calls(most: int) -> CallResult:
    """Return the result of a call beyond the `most` that may be run after one round."""
    message = f"The call was not run: at most {most} calls are run at once."
    return CallResult(message, mcp_items.invalid_call(message))


class ApprovedCall(NamedTuple):
    """A call that the client has approved with this request."""

    request_id: str
    """Id of the item by which the client was asked."""
    call: RunCall


@dataclass(slots=True)
class _Budget:
    """What is left of the response's limits; None: no limit."""

    tokens: int | None
    calls: int | None


class ToolRounds:
    """The rounds of one response. First call `take_approved`, and for each of its calls `begin_approved` and
    `take_result`. Then call `next_round`, `end_round`, and `take_result` for each call that this returns, until
    `is_over`; then `end_rounds`."""

    def __init__(
        self, fields: Fields, history: Sequence[Fields], items: Sequence[Fields], writer: RoundsWriter, mcp: McpTools
    ) -> None:
        """`fields`: of the client's request, which a dialect has read. `history`: the items that it continues, `items`
        its own (`own_items`).

        Raises:
            RoundhouseError: as `find_approved`.
        """
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
        self._budget = _Budget(fields.get("max_output_tokens"), fields.get("max_tool_calls"))
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
        if self._budget.tokens is not None:
            fields["max_output_tokens"] = self._budget.tokens
        if self._round > 1:
            fields = _ease_choice(fields)
        self._is_last = self._round >= MOST_ROUNDS or self._budget.calls == 0
        if self._is_last:
            fields = _without_servers(fields, has_own=bool(self._own_names))
        return fields, RoundWriter(self._writer, self._mcp, self._own_names)

    def end_round(self, done: RoundWriter, spent_tokens: int) -> tuple[bytes, list[RunCall]]:
        """Take a round that has ended without an error, and set `is_over`. `spent_tokens`: those that it generated, as
        far as is known.

        Return the events of the approvals that the client is asked for, and the calls that have come to their end with
        `take_result` before the next round, or before the response ends.
        """
        self._add_tokens(done.tokens)
        if self._budget.tokens is not None:
            self._budget.tokens -= spent_tokens
        if done.finish is not None:
            self._finish = done.finish
        calls = [] if done.is_cut else [call for call in done.calls if not call.is_withheld]
        withheld = [] if done.is_cut else [call for call in done.calls if call.is_withheld]
        self._items += done.said_items
        self._items += [_call_item(call) for call in calls]
        self._calls = calls
        self.is_over = not calls or bool(withheld) or done.has_own_calls or self._is_last
        if not self.is_over and self._budget.tokens is not None and self._budget.tokens < 1:
            self.is_over, self._finish = True, "length"
        return b"".join(self._writer.write_approval(call) for call in withheld), calls

    def refuse_call(self, call: RunCall) -> CallResult | None:
        """Return the result of a call that must not be run; None: it is to be run, and counts. Call once for each."""
        if self._budget.calls == 0:
            message = _TOO_MANY
        elif self._is_last:
            message = _TOO_LATE
        elif call.tool is None:
            message = _NO_TOOL.format(name=call.function)
        elif mcp_items.read_arguments(call.arguments) is None:
            message = _NO_OBJECT
        else:
            if self._budget.calls is not None:
                self._budget.calls -= 1
            return None
        return CallResult(message, mcp_items.invalid_call(message))

    def take_result(self, call: RunCall, result: CallResult) -> bytes:
        """Return the events that end a call, and keep its result for the next round, in `call.told`. The call must
        have an item. Calls may end in any order."""
        assert call.item is not None
        call.told = result.text
        output = result.text if result.error is None else None
        return self._writer.end_call(call.item, output, result.error)

    def begin_approved(self, approved: ApprovedCall) -> bytes:
        """Return the events that begin a call which the client has approved, and the response before the first of
        them."""
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
    """Return the labels of the servers whose tools one of the items lists."""
    lists = (item for item in items if item.get("type") == mcp_items.LIST_TYPE and not item.get("error"))
    return frozenset([item["server_label"] for item in lists if isinstance(item.get("server_label"), str)])


def find_approved(items: Sequence[Fields], own: Sequence[Fields], mcp: McpTools) -> list[ApprovedCall]:
    """Return the calls that a request approves: by the responses among its `own` items whose calls have not run.

    `items`: those that it continues and its own, which a dialect has read.

    Raises:
        RoundhouseError: `invalid_request`: the request has no such tool any more.
    """
    asked = {item["id"]: item for item in items if item.get("type") == mcp_items.REQUEST_TYPE}
    run = {item.get("approval_request_id") for item in items if item.get("type") == mcp_items.CALL_TYPE}
    approved: list[ApprovedCall] = []
    for number, item in enumerate(own):
        if item.get("type") != mcp_items.RESPONSE_TYPE or item["approve"] is not True:
            continue
        request_id: str = item["approval_request_id"]
        if request_id in run:
            continue
        run.add(request_id)
        place = f"input[{number}].approval_request_id"
        _, function, arguments = mcp_items.read_request(asked[request_id], place)
        tool = mcp.find_tool(function)
        if tool is None:
            raise field_error(place, f"must be for a tool of one of `tools`; {describe_value(function)}")
        call = RunCall(request_id, function, tool.server, tool.name, tool)
        call.append_arguments(arguments)
        approved.append(ApprovedCall(request_id, call))
    return approved


def _call_item(call: RunCall) -> Fields:
    arguments = mcp_items.object_text(call.arguments)
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
