"""The fake hub's two servers, which run in threads: the hub, and the storage that it redirects to."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.support.fake_hub.answers import Answer, HubAnswers, Request
from tests.support.fake_hub.faults import Fault, FaultPlan
from tests.support.fake_hub.repositories import HubRepository, make_repositories

CHUNK_BYTES = 16 * 1024
HUGE_BYTES = 10**17
"""What a file of the fault `huge` claims to have."""
SLICE_S = 0.02
"""Seconds between two parts of a slow answer."""
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    server: str
    """`hub` or `storage`."""
    method: str
    target: str
    """Path and query."""
    headers: dict[str, str]
    """By name in lower case."""
    status: int
    """Of the answer."""


class FakeHub:
    """A hub with its storage, from `start` to `close`; a context manager does both. The public fields may be changed
    while it runs."""

    def __init__(
        self,
        repositories: Iterable[HubRepository] | None = None,
        *,
        tokens: Iterable[str] = ("hf_tester",),
        faults: FaultPlan | None = None,
        bytes_per_s: float | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        page: int = 1000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`repositories`: None for generated ones of every kind. `tokens`: those that are known. `bytes_per_s`: speed
        of each answer; None: as fast as it can. `port`: of the hub; 0: any. `page`: entries of one answer about a tree.
        `tls`: certificate of both servers; None: they speak plain HTTP."""
        every = make_repositories() if repositories is None else repositories
        self.repositories = {each.name: each for each in every}
        self.faults = faults or FaultPlan()
        self.bytes_per_s = bytes_per_s
        self.closing = threading.Event()
        self._answers = HubAnswers(self.repositories, frozenset(tokens), page)
        self._lock = threading.Lock()
        self._seen: list[SeenRequest] = []
        self._scheme = "http" if tls is None else "https"
        self._servers = {
            "hub": _Server((host, port), self, "hub", tls),
            "storage": _Server((host, 0), self, "storage", tls),
        }

    @property
    def endpoint(self) -> str:
        """Address of the hub, without a slash at its end: `HF_ENDPOINT`."""
        return self._origin("hub")

    @property
    def storage(self) -> str:
        return self._origin("storage")

    @property
    def requests(self) -> list[SeenRequest]:
        """All requests so far, in the order of their answers' beginnings."""
        with self._lock:
            return list(self._seen)

    def clear_requests(self) -> None:
        with self._lock:
            self._seen.clear()

    def add(self, repository: HubRepository) -> None:
        """Serve one more repository, or another one of the same name."""
        self.repositories[repository.name] = repository

    def store(self, content: bytes, name: str = "model.gguf") -> str:
        """Serve a file besides the repositories. Returns its address, which redirects to the storage."""
        repository = HubRepository(f"stored/{hashlib.sha256(content).hexdigest()[:16]}", {name: content})
        self.add(repository)
        return f"{self.endpoint}/{repository.name}/resolve/{repository.head}/{name}"

    def start(self) -> Self:
        """Serve. The ports are taken since the hub was made."""
        for name, server in self._servers.items():
            threading.Thread(target=server.serve_forever, args=(0.01,), name=f"fake-{name}", daemon=True).start()
        return self

    def close(self) -> None:
        """End all answers that are under way, and both servers. Call it once, after `start`."""
        self.closing.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
            server.end_connections()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answer(self, server: str, request: Request) -> tuple[Answer, Fault | None]:
        """The answer to a request, and what shall go wrong with it. The request is noted."""
        if server == "storage":
            answer = self._answers.find_stored(request)
        else:
            answer = self._answers.answer(request, self.storage)
        fault = self.faults.take(answer.site, answer.path)
        if fault is not None:
            answer = _spoil(answer, fault, request)
        with self._lock:
            self._seen.append(SeenRequest(server, request.method, request.target, dict(request.headers), answer.status))
        return answer, fault

    def _origin(self, name: str) -> str:
        host, port = self._servers[name].server_address[:2]
        return f"{self._scheme}://{host!s}:{port}"


def _spoil(answer: Answer, fault: Fault, request: Request) -> Answer:
    """The answer with what is wrong in its head or its bytes."""
    head, body, whole = dict(answer.headers), answer.body, answer.whole
    if fault.kind == "status":
        return Answer(fault.status, _refusal_head(fault), b"a fault on request", answer.site, answer.path)
    if fault.kind == "redirect":
        return Answer(302, {"location": fault.location or request.target}, b"", answer.site, answer.path)
    if fault.kind == "other_etag":
        head |= {"etag": f'"{"0" * 64}"', "x-linked-etag": f'"{"0" * 64}"'}
    elif fault.kind == "other_commit":
        head["x-repo-commit"] = "f" * 40
    elif fault.kind == "encoded":
        head["content-encoding"] = "gzip"
    elif fault.kind == "wrong_bytes" and body:
        at = min(fault.after_bytes, len(body) - 1)
        body = body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]
    elif whole is not None and answer.status == 206:
        return _spoil_range(answer, fault, head, whole)
    return Answer(answer.status, head, body, answer.site, answer.path, whole)


def _spoil_range(answer: Answer, fault: Fault, head: dict[str, str], whole: bytes) -> Answer:
    body, status = answer.body, answer.status
    start = int(head["content-range"].removeprefix("bytes ").partition("-")[0])
    if fault.kind == "ignored_range":
        del head["content-range"]
        body, status = whole, 200
    elif fault.kind == "other_total":
        head["content-range"] = f"bytes {start}-{start + len(body) - 1}/{len(whole) + 7}"
    elif fault.kind == "huge":
        head["content-range"] = f"bytes {start}-{start + len(body) - 1}/{HUGE_BYTES}"
    elif fault.kind == "other_range":
        moved = start + 1 if start + len(body) < len(whole) else max(0, start - 1)
        body = whole[moved : moved + len(body)]
        head["content-range"] = f"bytes {moved}-{moved + len(body) - 1}/{len(whole)}"
    return Answer(status, head, body, answer.site, answer.path, whole)


def _refusal_head(fault: Fault) -> dict[str, str]:
    named = {"retry-after": fault.retry_after, "x-error-code": fault.error_code}
    return {"content-type": "text/plain", **{name: value for name, value in named.items() if value is not None}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], hub: FakeHub, name: str, tls: ssl.SSLContext | None) -> None:
        self.hub = hub
        self.name = name
        self._tls = tls
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        connection: socket.socket = request
        with self._guard:
            self._connections.add(connection)
        try:
            with suppress(OSError, ValueError):
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                super().finish_request(connection, client_address)
                if self._tls is not None:
                    connection.close()
        finally:
            with self._guard:
                self._connections.discard(request)

    def end_connections(self) -> None:
        with self._guard:
            connections = list(self._connections)
        for each in connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: the requests are in `FakeHub.requests`."""

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer, fault = self.server.hub.answer(self.server.name, Request(self.command, self.path, headers))
        if fault is not None and fault.kind == "no_head":
            self._end(resets=fault.resets)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        body, after = self._send_length(answer, fault)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(body, fault)
        if after:
            self._end(resets=False)

    def _send_length(self, answer: Answer, fault: Fault | None) -> tuple[bytes, bool]:
        """Announce the length. Returns the body, and whether the connection ends after it."""
        body, kind = answer.body, None if fault is None else fault.kind
        if kind == "no_length":
            self.send_header("connection", "close")
            return body, True
        announced = len(body)
        if kind == "short_length":
            announced = max(0, announced - 100)
        elif kind == "long_length":
            announced += 100
        self.send_header("content-length", str(announced))
        if kind == "more_bytes":
            body += b"more than was announced" * 20
        return body, kind in ("short_length", "long_length", "more_bytes")

    def _send_body(self, body: bytes, fault: Fault | None) -> None:
        if fault is not None and fault.kind in ("drop", "stall"):
            self.wfile.write(body[: fault.after_bytes])
            if fault.kind == "stall":
                self.server.hub.closing.wait(60)
            self._end(resets=fault.resets)
            return
        speed = fault.bytes_per_s if fault is not None and fault.kind == "slow" else self.server.hub.bytes_per_s
        chunk = CHUNK_BYTES if speed is None else max(1, int(speed * SLICE_S))
        for start in range(0, len(body), chunk):
            self.wfile.write(body[start : start + chunk])
            if speed is not None and self.server.hub.closing.wait(SLICE_S):
                return

    def _end(self, *, resets: bool) -> None:
        self.close_connection = True
        with suppress(OSError):
            if resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.connection.close()
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
