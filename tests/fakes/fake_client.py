"""A fake of the client's end of a connection: what a `ClientCall` asks of it, asyncio's transport below it, and all
that was written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from gateway.server.call import ClientCall, Handler


class FakeTransport:
    """An open connection to nobody."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_open = True
        self.reads = True

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            self.write(part)

    def close(self) -> None:
        self.is_open = False

    abort = close

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Nothing more comes."""

    def get_write_buffer_size(self) -> int:
        """All is sent at once."""
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class FakeConnection:
    """Keeps what is written. Checks nothing: the parsers of the tests do."""

    def __init__(self) -> None:
        self.transport: Any = FakeTransport()
        self.client = ("127.0.0.1", 1)
        self.default_lines = b""
        self.max_body_bytes = 1024
        self.local_address: str | None = "127.0.0.1"
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


def post_at_once(opener: Callable[[ClientCall], Handler] | None, path: str, fields: Any, key: str) -> ClientCall:
    """A call by POST with the secret `key`, served as far as it goes without the event loop. `opener`: see
    `InferenceDispatcher.open_request`."""
    assert opener is not None
    connection, body = FakeConnection(), json.dumps(fields).encode()
    headers = [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer %b" % key.encode())]
    call = ClientCall(
        connection,  # type: ignore[arg-type]
        opener,
        b"POST",
        path.encode(),
        b"",
        headers,
        keep_alive=True,
        is_http_1_1=True,
    )
    call.take_body(body)
    call.body_complete = True
    call.serve_request()
    assert not connection.written, connection.error
    return call
