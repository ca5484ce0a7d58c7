"""Responses as a client sees them: contexts to make them in, the schemas they must suit, and what their events say."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

import openresponses_types.types as open_responses
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from gateway.protocols.responses.context import ResponseContext

Fields = dict[str, Any]

NOW = 1_700_000_000.75
LAST = {"response.completed", "response.incomplete", "response.failed"}
OPEN_EVENTS: dict[str, type[BaseModel]] = {
    next(iter(cast("Any", made.model_fields["type"].annotation))): made
    for name, made in vars(open_responses).items()
    if name.endswith("StreamingEvent")
}
_OPENAI_EVENTS: dict[str, type[BaseModel]] = {
    get_args(made.model_fields["type"].annotation)[0]: made for made in get_args(get_args(ResponseStreamEvent)[0])
}
_BEYOND = (
    *("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"),
    *("response.file_search_call.in_progress", "response.file_search_call.searching"),
    *("response.file_search_call.completed", "response.output_text.annotation.added"),
    *("response.reasoning_text.delta", "response.reasoning_text.done"),
)
"""Events that Open Responses does not know; it knows annotations of another type."""
_BEYOND_ITEMS = ("custom_tool_call", "file_search_call", "mcp_list_tools", "mcp_call", "mcp_approval_request")
RUN_CALL = "mcp_call"


def context(**fields: Any) -> ResponseContext:
    """One whose ids are counted, by prefix."""
    numbers: dict[str, Iterator[int]] = defaultdict(itertools.count)
    new_id: Callable[[str], str] = lambda prefix: f"{prefix}_{next(numbers[prefix])}"  # noqa: E731
    return ResponseContext(id="resp_1", created_at=int(NOW), clock=lambda: NOW, new_id=new_id, **fields)


def as_json(value: Fields) -> bytes:
    """JSON for pydantic, which knows no halves of surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def check_response(response: Fields, *, is_open: bool = False) -> None:
    """It suits OpenAI's types, and Open Responses' where that knows all that was asked for. `is_open`: it was asked for
    as an Open Responses client asks."""
    data = as_json(response)
    form = response["text"]["format"]["type"]
    if not (is_open and form == "json_schema"):
        Response.model_validate_json(as_json(_with_listed_code(response)), strict=True)
    if all(tool["type"] == "function" for tool in response["tools"]) and (is_open or form != "json_schema"):
        open_responses.ResponseResource.model_validate_json(data, strict=True)


def _with_listed_code(response: Fields) -> Fields:
    """`response` with a code that the document of OpenAI lists: it omits what its servers send for a long prompt."""
    error = response["error"]
    if error is None or error["code"] != "context_length_exceeded":
        return response
    return {**response, "error": {**error, "code": "invalid_prompt"}}


def check_event(event: Fields, *, is_open: bool = False) -> None:
    """The same of an event. Each is known to at least one of the two."""
    kind = event["type"]
    if "response" in event:
        check_response(event["response"], is_open=is_open)
        return
    assert kind in _OPENAI_EVENTS or kind in OPEN_EVENTS, kind
    if kind in _OPENAI_EVENTS:
        _OPENAI_EVENTS[kind].model_validate_json(as_json(event), strict=True)
    is_beyond = (
        kind in _BEYOND or kind.startswith("response.mcp_") or event.get("item", {}).get("type") in _BEYOND_ITEMS
    )
    if not is_beyond and b'"file_citation"' not in as_json(event):
        OPEN_EVENTS[kind].model_validate_json(as_json(event), strict=True)


def events_in(stream: bytes) -> list[Fields]:
    """The events of a whole stream. Each has the name that its data has; comments are none."""
    *parts, done, end = stream.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    events = []
    for part in parts:
        if part.startswith(b":"):
            continue
        name, data = part.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        events.append(event)
    return events


class Fold:
    """Puts a response together from its events, as a client does that trusts the deltas alone, and fails where the
    order is not the specified one."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._is_open = is_open
        self.response: Fields | None = None
        self.items: list[Fields] = []
        self._open: set[int] = set()
        self._part: Fields | None = None
        """The part that is open."""
        self._summary: Fields | None = None
        """The part of a summary that is open, beside it."""
        self._is_said = False
        """Its text is done."""
        self._finished_calls: set[int] = set()
        self._error: Fields | None = None
        self._next = 0

    def take(self, event: Fields) -> None:
        assert event["sequence_number"] == self._next
        self._next += 1
        kind = event["type"].removeprefix("response.")
        assert (kind == "created") is (event["sequence_number"] == 0)
        assert (kind == "in_progress") is (event["sequence_number"] == 1)
        assert self._error is None or kind == "failed"
        for ending in ("delta", "done"):
            name, _, last = kind.rpartition(".")
            if last == ending and name not in ("output_item", "content_part", "reasoning_summary_part"):
                getattr(self, f"_{ending}")(name, event)
                return
        getattr(self, "_failure" if kind == "error" else "_" + kind.replace(".", "_"))(event)

    def _created(self, event: Fields) -> None:
        assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
        self.response = event["response"]

    def _in_progress(self, event: Fields) -> None:
        assert event["response"] == self.response

    def _output_item_added(self, event: Fields) -> None:
        item = event["item"]
        assert event["output_index"] == len(self.items)
        if item["type"] == "mcp_approval_request":
            assert item["arguments"]
        else:
            assert item.get("status", "in_progress") == "in_progress"
            begun = ("content", "arguments", "input", "queries", "tools")
            assert next(item[name] for name in begun if name in item) in ([], "")
        assert self._part is None
        assert all("call_id" in self.items[index] or self.items[index]["type"] == RUN_CALL for index in self._open)
        assert item["id"] not in [other["id"] for other in self.items]
        self.items.append(item)
        self._open.add(event["output_index"])

    def _item(self, event: Fields) -> Fields:
        item = self.items[event["output_index"]]
        assert event["output_index"] in self._open
        assert event["item_id"] == item["id"]
        return item

    def _content_part_added(self, event: Fields) -> None:
        item, part = self._item(event), event["part"]
        assert event["content_index"] == len(item["content"])
        assert self._part is None
        assert part.get("text", part.get("refusal")) == ""
        assert (part["type"] == "reasoning_text") is (item["type"] == "reasoning")
        item["content"].append(part)
        self._part, self._is_said = part, False

    def _growing(self, name: str, event: Fields) -> tuple[Fields, str]:
        item = self._item(event)
        if "summary_index" in event:
            assert name == "reasoning_summary_text"
            assert item["summary"][event["summary_index"]] is self._summary
            assert self._summary is not None
            return self._summary, "text"
        if "content_index" not in event:
            named = {"function_call": "function_call_arguments", RUN_CALL: "mcp_call_arguments"}
            assert name == named.get(item["type"], "custom_tool_call_input")
            assert event["output_index"] not in self._finished_calls
            return item, "arguments" if item["type"] in named else "input"
        part = item["content"][event["content_index"]]
        assert self._part is not None
        assert part is self._part
        assert not self._is_said
        assert name == part["type"] or (part["type"], name, self._is_open) == ("reasoning_text", "reasoning", True)
        assert (part["type"], name, self._is_open) != ("reasoning_text", "reasoning_text", True)
        return part, "refusal" if name == "refusal" else "text"

    def _delta(self, name: str, event: Fields) -> None:
        grows, field = self._growing(name, event)
        assert event["delta"]
        grows[field] += event["delta"]
        if name == "output_text":
            grows["logprobs"] += event["logprobs"]

    def _done(self, name: str, event: Fields) -> None:
        grows, field = self._growing(name, event)
        assert event[field] == grows[field]
        if name == "output_text":
            assert event["logprobs"] == grows["logprobs"]
        if "content_index" in event:
            self._is_said = True
        elif "summary_index" not in event:
            self._finished_calls.add(event["output_index"])

    def _reasoning_summary_part_added(self, event: Fields) -> None:
        item, part = self._item(event), event["part"]
        assert (event["summary_index"], self._summary) == (len(item["summary"]), None)
        assert part == {"type": "summary_text", "text": ""}
        item["summary"].append(part)
        self._summary = part

    def _reasoning_summary_part_done(self, event: Fields) -> None:
        assert self._item(event)["summary"][event["summary_index"]] is self._summary
        assert event["part"] == self._summary
        self._summary = None

    def _content_part_done(self, event: Fields) -> None:
        assert self._is_said
        assert self._item(event)["content"][event["content_index"]] is self._part
        assert event["part"] == self._part
        self._part = None

    def _output_text_annotation_added(self, event: Fields) -> None:
        part: Fields = self._item(event)["content"][event["content_index"]]
        assert part is self._part
        assert not self._is_said
        assert event["annotation_index"] == len(part["annotations"])
        part["annotations"].append(event["annotation"])

    def _file_search_call_in_progress(self, event: Fields) -> None:
        assert self._item(event)["status"] == "in_progress"

    def _file_search_call_searching(self, event: Fields) -> None:
        self._item(event)["status"] = "searching"

    def _file_search_call_completed(self, event: Fields) -> None:
        assert self._item(event)["status"] == "searching"

    def _mcp_list_tools_in_progress(self, event: Fields) -> None:
        self._item(event)["step"] = "in_progress"

    def _mcp_list_tools_completed(self, event: Fields) -> None:
        self._step(event, "completed")

    def _mcp_list_tools_failed(self, event: Fields) -> None:
        self._step(event, "failed")

    _mcp_call_in_progress = _mcp_list_tools_in_progress
    _mcp_call_completed = _mcp_list_tools_completed
    _mcp_call_failed = _mcp_list_tools_failed

    def _step(self, event: Fields, name: str) -> None:
        item = self._item(event)
        assert item["step"] == "in_progress"
        assert item["type"] != RUN_CALL or event["output_index"] in self._finished_calls
        item["step"] = name

    def _take_result(self, index: int, item: Fields) -> None:
        """Take what a call that the gateway runs, or a list of tools, has at its end alone."""
        step = self.items[index].pop("step", None)
        if item["type"] == "mcp_list_tools":
            assert step == ("completed" if item["error"] is None else "failed")
            self.items[index] |= {name: item[name] for name in ("tools", "error")}
        elif item["type"] == RUN_CALL:
            assert index in self._finished_calls
            assert (step, item["status"]) in (("completed",) * 2, ("failed",) * 2, ("in_progress", "incomplete"))
            assert (item["output"] is None) is (item["status"] != "completed")
            assert (item["error"] is None) is (item["status"] != "failed")
            self.items[index] |= {name: item[name] for name in ("output", "error", "status")}

    def _output_item_done(self, event: Fields) -> None:
        index, item = event["output_index"], event["item"]
        if item["type"].startswith("mcp_"):
            self._take_result(index, item)
            assert item == self.items[index]
            self._open.remove(index)
            return
        if item["type"] == "file_search_call":
            assert self.items[index]["status"] == "searching"
            self.items[index] |= {name: item[name] for name in ("queries", "results")}
        assert (self._part, self._summary) == (None, None) or "call_id" in item
        assert item["status"] in ("completed", "incomplete")
        assert ("call_id" not in item) or index in self._finished_calls
        assert item == {**self.items[index], "status": item["status"]}
        self.items[index]["status"] = item["status"]
        self._open.remove(index)

    def _failure(self, event: Fields) -> None:
        self._error = event

    def _ended(self, event: Fields) -> None:
        assert self.response is not None
        response, before = event["response"], self.response
        status = event["type"].removeprefix("response.")
        is_cut_off = status == "failed" or response["status"] == "cancelled"
        assert response["status"] == status or (status, response["status"]) == ("incomplete", "cancelled")
        for item in self.items:
            item.pop("step", None)
        assert response["output"] == [
            {**item, "status": "incomplete"} if number in self._open else item for number, item in enumerate(self.items)
        ]
        assert (status == "failed") is (self._error is not None)
        assert not self._open or is_cut_off
        statuses = [item.get("status") for item in response["output"]]
        assert "incomplete" not in statuses[:-1] or is_cut_off
        is_between = bool(self.items) and self.items[-1]["type"] == RUN_CALL  # the tokens were spent by then
        assert (
            ("incomplete" in statuses[-1:]) is (status == "incomplete" and bool(statuses)) or is_cut_off or is_between
        )
        changing = {"status", "output", "usage", "completed_at", "incomplete_details", "error"}
        assert {k: v for k, v in response.items() if k not in changing} == {
            k: v for k, v in before.items() if k not in changing
        }
        self.response = response

    _completed = _incomplete = _failed = _ended


def folded(stream: bytes, *, is_open: bool = False) -> Fields:
    """The response that a whole stream makes, its order and its schemas checked."""
    fold = Fold(is_open=is_open)
    events = events_in(stream)
    for event in events:
        check_event(event, is_open=is_open)
        fold.take(event)
    assert events[-1]["type"] in LAST
    assert fold.response is not None
    return fold.response
