"""A fake of the client's end of a connection: what a `ClientCall` asks of it, and all that was written."""

from __future__ import annotations

import json
from typing import Any

from gateway.server.call import ClientCall
from tests.fakes.fake_transport import FakeTransport


class FakeConnection:
    """Keeps what is written. Checks nothing: the parsers of the tests do."""

    def __init__(self) -> None:
        self.transport: Any = FakeTransport()
        self.client = ("127.0.0.1", 1)
        self.default_lines = b""
        self.max_body_bytes = 1024
        self.local_address = "127.0.0.1"
        self.complete: list[ClientCall] = []
        self.asked_for_body = 0

    def send_continue(self) -> None:
        self.asked_for_body += 1

    def finish_call(self, call: ClientCall) -> None:
        self.complete.append(call)

    @property
    def written(self) -> bytes:
        """As it went over the wire."""
        return bytes(self.transport.written)

    @property
    def status(self) -> int:
        return int(self.written.split(b" ", 2)[1])

    @property
    def head(self) -> dict[str, str]:
        """The answer's headers."""
        lines = self.written.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return dict(line.split(": ", 1) for line in lines)

    @property
    def body(self) -> bytes:
        """The answer's body, chunks joined."""
        body = self.written.partition(b"\r\n\r\n")[2]
        if self.head.get("transfer-encoding") != "chunked":
            return body
        joined = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            joined += rest[: int(size, 16)]
            body = rest[int(size, 16) + 2 :]
        return joined

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error
