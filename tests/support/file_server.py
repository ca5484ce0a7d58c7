"""A web server on loopback with files for downloads: ranges, answers of one's own, and a gate in the middle."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from common.network.address_rule import AllowedHosts

Answer = tuple[int, dict[str, str], bytes]
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class FileServer:
    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    """By path."""
    answers: dict[str, Callable[[dict[str, str]], Answer]] = field(default_factory=dict)
    """By path without the query, before `files`: from the request's headers to status, headers and body."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path with its query, and headers in lower case, in the order in which they came."""
    gate: threading.Event = field(default_factory=threading.Event)
    """While it is not set, ranges of files that begin behind the first byte wait."""

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def allowed(self) -> AllowedHosts:
        """What lets downloads connect to this server."""
        return AllowedHosts(frozenset({("127.0.0.1", self.port)}))

    def answer(self, path: str, headers: dict[str, str]) -> Answer:
        self.requests.append((path, headers))
        name = path.partition("?")[0]
        if name in self.answers:
            return self.answers[name](headers)
        body = self.files.get(name)
        if body is None:
            return 404, {}, b""
        asked = _RANGE.fullmatch(headers.get("range", ""))
        if asked is None:
            return 200, {}, body
        start, end = int(asked[1]), min(int(asked[2]) + 1, len(body))
        if start > 0 or end > 1:
            assert self.gate.wait(60), "nobody opened the gate"
        return 206, {"content-range": f"bytes {start}-{end - 1}/{len(body)}"}, body[start:end]


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Run a server whose gate is open. It has ended when the block ends."""
    state = FileServer()
    state.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = state.answer(self.path, {key.lower(): value for key, value in self.headers.items()})
            try:
                self.send_response(status)
                for key, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # the client has gone

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that go away in the middle."""

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
