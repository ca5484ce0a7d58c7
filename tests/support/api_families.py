"""The API families whose answers an engine may send whole or as a stream, an example of each way to serve them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from contract.routing import ModelRoute
from tests.fakes.fake_controller import route

CHAT_EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
COMPLETION_EVENTS = (
    b'data: {"choices":[{"index":0,"text":"Hi","finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
)
MESSAGE_EVENTS = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"x","type":"message","role":"assistant",'
    b'"content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":1,"output_tokens":0}}}\n\n',
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":""}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"Hi"}}\n\n',
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":1}}\n\n',
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)
CHAT_WHOLE = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
OTHER_WHOLE = b'{"id":"x","object":"whatever","usage":{"prompt_tokens":1,"total_tokens":1}}'

_DONE = re.compile(rb"data: \[DONE\]\s*\Z")
_MESSAGES_END = re.compile(rb'(?:"type":\s*"message_stop"|event: error\ndata: )[^\n]*\s*\Z')


@dataclass(frozen=True)
class Family:
    """A family as one kind of engine serves it."""

    name: str
    path: str
    speaks: str
    """The path that the engine is asked for."""
    events: tuple[bytes, ...]
    """A whole stream of the engine's, event by event."""
    whole: bytes
    """A blocking answer of the engine's."""
    begins: bytes
    """What a client gets of the first event."""
    ends: re.Pattern[bytes]
    """How what a client gets of a stream ends, whatever happens."""
    heartbeat: bytes = b": ka\n\n"
    streams: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def is_translated(self) -> bool:
        """The engine speaks something else."""
        return self.speaks != self.path

    def route(self, name: str, url: str, **more: Any) -> ModelRoute:
        """A model whose engine speaks just that."""
        return route(name, [url], apis=(self.speaks,), **more)

    def body(self, model: str, **fields: Any) -> dict[str, Any]:
        """A request that keeps nothing."""
        bodies: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": "Hi", "max_tokens": 5},
            "/v1/responses": {"input": "Hi", "max_output_tokens": 16, "store": False},
            "/v1/embeddings": {"input": "Hi"},
        }
        usual = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
        return {"model": model, **bodies.get(self.path, usual), **fields}

    def error_in(self, body: bytes) -> dict[str, Any]:
        """The error that a blocking call is answered with: its fields."""
        fields = json.loads(body)
        assert (fields.get("type") == "error") is (self.path == "/v1/messages")
        error: dict[str, Any] = fields["error"]
        return error

    def last_error(self, stream: bytes) -> dict[str, Any]:
        """The error that a stream ends with, in the family's form: its fields."""
        events = [event for event in stream.split(b"\n\n") if event and not event.startswith(b":")]
        if self.path != "/v1/messages":
            assert events.pop() == b"data: [DONE]"
        if self.path == "/v1/responses" and events[-1].startswith(b"event: response.failed"):
            failed = json.loads(events.pop().partition(b"data: ")[2])
            assert failed["response"]["status"] == "failed"
            assert failed["response"]["error"]["code"]
        name, _, data = events[-1].rpartition(b"data: ")
        fields: dict[str, Any] = json.loads(data)
        if self.path in ("/v1/responses", "/v1/messages"):
            assert (name, fields["type"]) == (b"event: error\n", "error")
        error: dict[str, Any] = fields["error"]
        return error


_CHAT = "/v1/chat/completions"
FAMILIES = (
    Family("chat", _CHAT, _CHAT, CHAT_EVENTS, CHAT_WHOLE, CHAT_EVENTS[0], _DONE),
    Family(
        *("completions", "/v1/completions", "/v1/completions", COMPLETION_EVENTS),
        *(OTHER_WHOLE, COMPLETION_EVENTS[0], _DONE),
    ),
    Family(
        *("completions over chat", "/v1/completions", _CHAT, CHAT_EVENTS),
        *(CHAT_WHOLE, b'data: {"id":', _DONE),
    ),
    Family(
        *("responses over chat", "/v1/responses", _CHAT, CHAT_EVENTS),
        *(CHAT_WHOLE, b"event: response.created\n", _DONE),
    ),
    Family(
        *("messages", "/v1/messages", "/v1/messages", MESSAGE_EVENTS),
        *(OTHER_WHOLE, MESSAGE_EVENTS[0], _MESSAGES_END),
        heartbeat=b'event: ping\ndata: {"type": "ping"}\n\n',
    ),
    Family(
        *("messages over chat", "/v1/messages", _CHAT, CHAT_EVENTS),
        *(CHAT_WHOLE, b"event: message_start\n", _MESSAGES_END),
        heartbeat=b'event: ping\ndata: {"type": "ping"}\n\n',
    ),
    Family("embeddings", "/v1/embeddings", "/v1/embeddings", (b"",), OTHER_WHOLE, b"", _DONE, streams=False),
)
STREAMING = tuple(family for family in FAMILIES if family.streams)
