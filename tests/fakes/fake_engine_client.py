"""A fake of the gateway's engine client: keeps what is sent, and answers what the test says, when it says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

EVENT_STREAM = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


@dataclass(slots=True)
class FakeEngineCall:
    """One request to an engine. `listener` is the gateway's attempt."""

    listener: Any
    replica: str
    body: bytes
    connection: None = None
    is_paused: bool = False
    is_cancelled: bool = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def begin_stream(self, *texts: str) -> None:
        """Answer with a stream that begins with chunks of these texts."""
        self.listener.engine_head(200, EVENT_STREAM)
        for text in texts:
            self.send_chunk(text)

    def send_chunk(self, text: str) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        chunk = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
        self.listener.engine_data(b"data: %b\n\n" % json.dumps(chunk).encode())

    def end_stream(self) -> None:
        self.listener.engine_data(b"data: [DONE]\n\n")
        self.listener.engine_end()


class FakeEngineClient:
    """An `EngineClient` that connects to nobody."""

    def __init__(self) -> None:
        self.calls: list[FakeEngineCall] = []

    def send_request(
        self, endpoint: Any, method: str, target: str, headers: bytes, body: Any, listener: Any, *, fresh: bool
    ) -> FakeEngineCall:
        call = FakeEngineCall(listener, endpoint.replica, bytes(body))
        self.calls.append(call)
        return call

    def refuse_absent(self, replicas: Any) -> None:
        """Nothing: it opens no connection. See EngineClient."""
