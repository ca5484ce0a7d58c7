"""Items of calls that the gateway runs: `mcp_list_tools`, `mcp_call` and the approvals. Pure.

A call that failed says why in `error`, in one of OpenAI's forms: what the tool itself reported, a call that no tool
could take, or a server that did not answer.

The ids of calls end with a mark of their round (`mark_round`), because the items of a response say nothing else of
rounds, and clients and stores keep ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional_field, require_field, require_text
from gateway.protocols.responses.mcp_tools import McpServer, OfferedTool, function_name

LIST_TYPE: Final = "mcp_list_tools"
CALL_TYPE: Final = "mcp_call"
REQUEST_TYPE: Final = "mcp_approval_request"
RESPONSE_TYPE: Final = "mcp_approval_response"
INVALID_CALL: Final = -32602
"""JSON-RPC's code for a call that a server does not take: of an unknown tool, or with wrong arguments."""
NOT_RUN: Final = "The call was not run."
REFUSED: Final = "The user did not approve this call, so it was not run."
_MARKED: Final = re.compile(r"[a-z]+_(\w*?)[0-9a-f]{1,4}r([0-9]+)", re.ASCII)
"""An id by `mark_round`: a prefix, what the ids of one response have in common, the item's number, and the round's."""


class McpCallItem:
    """A call of a server's tool, from its first argument to its result. `name` is the item's id, `index` its position
    in the output."""

    __slots__ = ("_arguments", "_label", "_tool", "approval_id", "error", "index", "name", "output", "place", "status")

    def __init__(self, name: str, index: int, label: str, tool: str, approval_id: str | None = None) -> None:
        """`approval_id`: of the request by which the client approved the call; None: none was needed."""
        self.name = name
        self.index = index
        self.place = {"item_id": name, "output_index": index}
        self.status = "in_progress"
        self.approval_id = approval_id
        self.output: str | None = None
        """What the tool said; None: nothing yet, or the call failed."""
        self.error: Fields | None = None
        """Why the call failed; None: it did not."""
        self._label = label
        self._tool = tool
        self._arguments: list[str] = []

    @classmethod
    def of(cls, item: Fields, index: int) -> McpCallItem:
        """Return the call of an item `mcp_call` of this gateway, as at its beginning."""
        return cls(item["id"], index, item["server_label"], item["name"], item["approval_request_id"])

    def append_arguments(self, arguments: str) -> None:
        """Add a part of the JSON arguments, cut anywhere."""
        self._arguments.append(arguments)

    @property
    def arguments(self) -> str:
        """The JSON arguments so far."""
        return "".join(self._arguments)

    @property
    def item(self) -> Fields:
        """The item as events and responses hold it. A new object at each call."""
        return {
            "id": self.name,
            "type": CALL_TYPE,
            "status": self.status,
            "approval_request_id": self.approval_id,
            "server_label": self._label,
            "name": self._tool,
            "arguments": self.arguments,
            "output": self.output,
            "error": self.error,
        }


class WholeItem:
    """An item that is whole when it is added: a list of tools, or a request for an approval. `index` is its position in
    the output."""

    __slots__ = ("index", "item", "name", "status")

    def __init__(self, item: Fields, index: int) -> None:
        self.item = item
        self.name: str = item["id"]
        self.index = index
        self.status = "completed"

    @property
    def place(self) -> Fields:
        """The fields that say where the item is; each of its events repeats them."""
        return {"item_id": self.name, "output_index": self.index}

    @property
    def steps(self) -> tuple[str, ...]:
        """Last parts of the names of its own events, in order; empty: it has none."""
        if self.item["type"] != LIST_TYPE:
            return ()
        return ("in_progress", "completed" if self.item["error"] is None else "failed")

    @property
    def beginning(self) -> Fields:
        """The item as the event that adds it shows it: a list without its tools. A new object at each call."""
        return {**self.item, "tools": [], "error": None} if self.item["type"] == LIST_TYPE else dict(self.item)


def mark_round(item_id: str, number: int) -> str:
    """Return the id of a call's item with the mark of its round. `item_id`: a fresh id. `number`: of the round in its
    response."""
    return f"{item_id}r{number}"


def round_of(item: Fields) -> str | None:
    """Return which round of which response the item of a call comes from, by its id: equal for all calls of one round,
    and for no others. A call that the client approved is of the round that asked for the approval.

    None: the id has no mark of a round, so the item is not from a response whose calls the gateway runs, or its id was
    replaced.
    """
    item_id = item.get("approval_request_id") or item.get("id")
    marked = _MARKED.fullmatch(item_id) if isinstance(item_id, str) else None
    return None if marked is None else f"{marked[1]}r{marked[2]}"


def list_item(item_id: str, server: McpServer) -> Fields:
    """Return the item that lists a server's tools, or says why they are not known."""
    tools = [describe_tool(tool) for tool in server.tools]
    return {"id": item_id, "type": LIST_TYPE, "server_label": server.label, "tools": tools, "error": server.problem}


def describe_tool(tool: OfferedTool) -> Fields:
    """Return a tool as an item `mcp_list_tools` shows it."""
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters,
        "annotations": {"readOnlyHint": not tool.writes},
    }


def approval_item(item_id: str, label: str, tool: str, arguments: str) -> Fields:
    """Return the item that asks the client to approve a call."""
    return {"id": item_id, "type": REQUEST_TYPE, "server_label": label, "name": tool, "arguments": arguments}


def invalid_call(message: str) -> Fields:
    """Return the error of a call that no tool could take."""
    return {"type": "mcp_protocol_error", "code": INVALID_CALL, "message": message}


def failed_tool(text: str) -> Fields:
    """Return the error of a call whose tool ran and failed. `text` is what the tool said."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def failed_server(status: int, message: str) -> Fields:
    """Return the error of a call whose tool gave no answer. `status` is the HTTP status that a client of the tool would
    get."""
    return {"type": "http_error", "code": status, "message": message}


def text_of_error(error: object) -> str:
    """Return what the model is told of a call's error, which need not be valid."""
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return NOT_RUN
    texts = list(_texts_in(error.get("content")))
    if texts:
        return "\n".join(texts)
    message = error.get("message")
    return message if isinstance(message, str) else NOT_RUN


def read_call(item: Fields, place: str) -> tuple[str, str, str, str]:
    """Return id, function, arguments and result of an item `mcp_call`, as the model knows them. `place` is the item's
    path in the request.

    Raises:
        RoundhouseError: `invalid_request`: a field is wrong; its `param` is the path to the value.
    """
    output = optional_field(item, "output", str, f"{place}.")
    result = text_of_error(item.get("error")) if output is None else output
    return (*read_request(item, place), result)


def read_request(item: Fields, place: str) -> tuple[str, str, str]:
    """Return id, function and arguments of an item `mcp_call` or `mcp_approval_request`, as the model knows them.

    Raises:
        RoundhouseError: as `read_call`.
    """
    label, name = (require_text(item.get(field), f"{place}.{field}") for field in ("server_label", "name"))
    arguments = require_field(item, "arguments", str, place)
    return require_text(item.get("id"), f"{place}.id"), function_name(label, name), object_text(arguments)


def refusal_text(item: Fields, place: str) -> str:
    """Return what the model is told of a refused call. `item` is the `mcp_approval_response`. Raises RoundhouseError
    `invalid_request` if its reason is no string."""
    reason = optional_field(item, "reason", str, f"{place}.")
    return f"{REFUSED} The user says: {reason}" if reason else REFUSED


def read_arguments(arguments: str) -> Fields | None:
    """Return the decoded arguments of a call; None: they are no JSON object. No arguments are an empty object."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def object_text(arguments: str) -> str:
    """Return the arguments of a call if they are the JSON of an object, else `{}`: engines and chat templates decode
    them, and fail on others."""
    return arguments if arguments.strip() and read_arguments(arguments) is not None else "{}"


def _texts_in(content: Any) -> Iterable[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
