"""An engine's chat completion chunks, and the events of Anthropic's that they become, as short as can be."""

from __future__ import annotations

import json
from typing import Any

from controller.schema.routing import ModelRoute
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.common.request import InferenceRequest, parse_request
from tests.fakes.fake_controller import route
from tests.support.messages_schema import checked_events

LLAMA_SERVER = route("m").model_copy(update={"backend": "llama_server"})

Fields = dict[str, Any]
Delta = dict[str, Any]

ASKED: Fields = {"model": "claude-alias", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
NONE_TOLD = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
COUNTED = {
    "input_tokens": 8,
    "cache_read_input_tokens": 4,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 3},
}


def request_of(engine: ModelRoute = LLAMA_SERVER, **fields: Any) -> InferenceRequest:
    request = parse_request(json.dumps({**ASKED, **fields}).encode(), may_stream=True)
    request.id = "req-7"
    MESSAGES_VIA_CHAT.check_request(request, engine)
    return request


def chunk(delta: Delta, finish: str | None = None, *, index: int = 0, **more: Any) -> bytes:
    """An event of the engine's."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return b"data: " + json.dumps({"id": "chatcmpl-7", "choices": [choice]}).encode() + b"\n\n"


def call(index: int, arguments: str, name: str | None = None) -> Delta:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "function": function} | ({} if name is None else {"id": f"id{index}"})]}


def streamed(*chunks: bytes, usage: Fields | None = USAGE, done: bytes = b"data: [DONE]\n\n", **fields: Any) -> bytes:
    """What the client gets of the engine's events."""
    events = MESSAGES_VIA_CHAT.open_stream(request_of(stream=True, **fields))
    told = (
        b"" if usage is None else b"data: " + json.dumps({"id": "x", "choices": [], "usage": usage}).encode() + b"\n\n"
    )
    out = b"".join([events.feed_data(each) for each in (*chunks, told, done)]) + events.finish_stream()
    assert events.is_complete
    checked_events(out)
    return out


def lines(*events: Fields) -> bytes:
    made = [(each["type"], json.dumps(each, ensure_ascii=False, separators=(",", ":"))) for each in events]
    return "".join([f"event: {kind}\ndata: {data}\n\n" for kind, data in made]).encode()


def started(index: int, **block: Any) -> Fields:
    return {"type": "content_block_start", "index": index, "content_block": block}


def grew(index: int, kind: str, **delta: Any) -> Fields:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}


def stopped(index: int) -> Fields:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, usage: Fields = COUNTED, sequence: str | None = None) -> tuple[Fields, Fields]:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}


BEGUN: Fields = {
    "type": "message_start",
    "message": {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "claude-alias",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    },
}
TEXT: Fields = {"type": "text", "text": ""}
THINKING: Fields = {"type": "thinking", "thinking": "", "signature": ""}


def texts_of(out: bytes) -> list[str]:
    """The parts of the text and of the thoughts, which a signature ends."""
    deltas = [each["delta"] for each in checked_events(out) if each["type"] == "content_block_delta"]
    return [delta.get("text") or delta.get("thinking") or "" for delta in deltas]
