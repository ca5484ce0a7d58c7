"""What is done with ASGI's messages in every part of the gateway."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
import uvloop
from uvicorn import Config
from uvicorn.server import ServerState

from contract.errors import RoundhouseError
from gateway.protocols.common.large_body import READING_COPIES, WHOLE_COPIES, LargeBody
from gateway.server import websocket
from gateway.server.asgi import Message, Receive, limit_body
from gateway.server.body_budget import BodyBudget, BodyReservation, BodyRoom
from gateway.server.call import ClientCall, Handler
from gateway.server.connection import LINGER_S, ClientConnection
from gateway.server.request_head import with_declared_path
from gateway.server.request_reader import ClientLimits
from tests.support.outcomes import present
from tests.support.wait import until


async def test_a_body_within_its_limit_passes_as_it_is_and_one_byte_more_is_refused() -> None:
    def limited(*sizes: int) -> tuple[list[Message], Receive]:
        ends = [False] * (len(sizes) - 1) + [True]
        messages: list[Message] = [
            {"type": "http.request", "body": b"x" * size, "more_body": not is_last}
            for size, is_last in zip(sizes, ends, strict=True)
        ]
        messages.append({"type": "http.disconnect"})
        left = iter(messages)

        async def receive() -> Message:
            return next(left)

        return messages, limit_body(receive, 10)

    messages, receive = limited(4, 0, 6)
    assert [await receive() for _ in messages] == messages
    messages, receive = limited(4, 7, 1)
    assert await receive() == messages[0]
    with pytest.raises(RoundhouseError, match="10 bytes") as raised:
        await receive()
    assert raised.value.entry.code == "body_too_large"


class Bodies:
    """Bodies that ask for room, by name."""

    def __init__(self, max_bytes: int) -> None:
        self.budget = BodyBudget(max_bytes)
        self.let_in: list[str] = []
        self.rooms: dict[str, BodyReservation] = {}

    def come(self, name: str, size: int) -> None:
        """One comes; `let_in` has it if it had to wait first."""
        self.rooms[name] = self.budget.reserve(size, lambda: self.let_in.append(name))

    def leave(self, name: str) -> None:
        """One is over, or its client is gone."""
        self.budget.release(self.rooms.pop(name))

    @property
    def granted(self) -> set[str]:
        """Those that have room."""
        return {name for name, room in self.rooms.items() if room.is_granted}


@pytest.fixture
def bodies() -> Bodies:
    return Bodies(10)


def test_what_does_not_fit_waits_in_order_and_small_bodies_do_not_pass(bodies: Bodies) -> None:
    for name, size in (("x", 4), ("a", 6), ("b", 6), ("c", 1)):
        bodies.come(name, size)
    assert (bodies.granted, bodies.let_in, bodies.budget.used_bytes) == ({"x", "a"}, [], 10)
    bodies.leave("x")
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["b", "c"], 7)


def test_what_would_never_fit_is_alone_and_who_gives_up_its_place_lets_others_pass(bodies: Bodies) -> None:
    bodies.come("a", 1)
    bodies.come("huge", 99)
    assert bodies.granted == {"a"}
    bodies.leave("a")
    bodies.come("b", 1)
    assert bodies.granted == {"huge"}
    bodies.leave("huge")
    for name, size in (("c", 6), ("d", 6), ("e", 3)):
        bodies.come(name, size)
    assert bodies.granted == {"b", "c"}
    bodies.leave("d")
    assert bodies.granted == {"b", "c", "e"}
    for name in "bce":
        bodies.leave(name)
    assert bodies.budget.used_bytes == 0


def test_what_is_held_has_half_of_the_room_at_most(bodies: Bodies) -> None:
    budget = bodies.budget
    assert budget.max_held_bytes == 5
    assert [budget.hold(3), budget.hold(3), budget.hold(2), budget.hold(1)] == [True, False, True, False]
    assert budget.used_bytes == 5
    budget.give_back(3)
    assert budget.hold(3)


def test_what_is_held_waits_for_nobody_and_bodies_wait_for_it(bodies: Bodies) -> None:
    bodies.come("a", 10)
    assert bodies.budget.hold(5)
    assert bodies.budget.used_bytes == 15
    bodies.come("b", 5)
    bodies.come("c", 5)
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["b"], 10)
    bodies.budget.give_back(5)
    assert bodies.let_in == ["b", "c"]


def test_a_body_that_has_no_room_beside_what_is_held_waits_for_bodies_alone(bodies: Bodies) -> None:
    assert bodies.budget.hold(5)
    bodies.come("a", 1)
    bodies.come("large", 8)
    assert bodies.granted == {"a"}
    bodies.leave("a")
    assert bodies.granted == {"large"}
    assert bodies.budget.used_bytes == 13


def test_a_body_that_takes_more_goes_before_those_that_are_not_read(bodies: Bodies) -> None:
    for name, size in (("a", 4), ("b", 4), ("c", 4)):
        bodies.come(name, size)
    budget = bodies.budget
    assert not budget.resize(bodies.rooms["a"], 8, lambda: bodies.let_in.append("a grown"))
    bodies.come("d", 1)
    assert bodies.granted == {"a", "b"}, "c would fit beside a, which waits"
    bodies.leave("b")
    assert (bodies.let_in, budget.used_bytes) == (["a grown"], 8)
    assert budget.resize(bodies.rooms["a"], 2)
    assert (bodies.granted, budget.used_bytes) == ({"a", "c", "d"}, 7)
    assert budget.resize(bodies.rooms["c"], 20), "it has the memory already"
    assert budget.used_bytes == 23
    for name in "acd":
        bodies.leave(name)
    assert budget.used_bytes == 0


def test_a_body_that_came_before_there_was_room_keeps_its_place(bodies: Bodies) -> None:
    bodies.come("a", 8)
    bodies.come("b", 4)
    bodies.come("c", 1)
    assert not bodies.budget.resize(bodies.rooms["b"], 5, lambda: bodies.let_in.append("b is decoded"))
    assert (bodies.granted, bodies.let_in, bodies.budget.used_bytes) == ({"a"}, [], 8)
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["b", "b is decoded", "c"], 6)
    bodies.come("d", 9)
    assert bodies.budget.resize(bodies.rooms["d"], 4)
    assert (bodies.let_in[3:], bodies.budget.used_bytes) == (["d"], 10)
    bodies.come("e", 9)
    assert not bodies.budget.resize(bodies.rooms["e"], 9, lambda: bodies.let_in.append("e is decoded"))
    bodies.leave("e")
    for name in ("b", "c", "d"):
        bodies.leave(name)
    assert (bodies.let_in[4:], bodies.budget.used_bytes) == ([], 0)


def test_bodies_that_all_wait_for_more_do_not_wait_for_each_other(bodies: Bodies) -> None:
    for name in ("a", "b", "c"):
        bodies.come(name, 3)
    for name in ("a", "b", "c"):
        bodies.budget.resize(bodies.rooms[name], 9, lambda name=name: bodies.let_in.append(name))  # type: ignore[misc]
    assert (bodies.let_in, bodies.budget.used_bytes) == (["a"], 15)
    bodies.leave("b")  # its client is gone while it waits
    assert bodies.let_in == ["a"]
    bodies.leave("a")
    assert (bodies.let_in, bodies.budget.used_bytes) == (["a", "c"], 9)


class Taker:
    """A handler that keeps what it is told."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.error: RoundhouseError | None = None

    def take_body(self, body: bytes | LargeBody) -> None:
        self.body = body if isinstance(body, bytes) else body.join()

    def fail_request(self, error: RoundhouseError) -> None:
        self.error = error

    def client_gone(self) -> None:
        raise AssertionError

    client_full = client_ready = client_gone


class Line:
    """The connection's side: a transport, or none."""

    client = None
    default_lines = b""
    local_address: str | None = None

    def __init__(self, transport: Any = None, max_body_bytes: int = 4 * 2**20) -> None:
        self.transport = transport
        self.max_body_bytes = max_body_bytes

    def send_continue(self) -> None:
        raise AssertionError

    def reserve_body(self, size: int) -> BodyRoom:
        return BodyRoom(lambda: None, lambda *_: True)

    def finish_call(self, call: ClientCall) -> None:
        raise AssertionError


def call_on(line: Line, taker: Taker, *, chunked: bool = True) -> ClientCall:
    return ClientCall(line, lambda _: taker, b"POST", b"/", b"", [], keep_alive=True, is_http_1_1=chunked)


def serve(parts: Sequence[bytes], max_body_bytes: int = 4 * 2**20) -> tuple[Taker, ClientCall]:
    """A request whose body came in these parts."""
    taker = Taker()
    call = call_on(Line(max_body_bytes=max_body_bytes), taker)
    for part in parts:
        call.take_body(part)
    call.body_complete = True
    call.serve_request()
    return taker, call


def test_the_parts_of_a_body_come_together() -> None:
    for parts in ([], [b"abc"], [b"a", b"bc"], [b"", b"a", b"", b"bc"]):
        taker, _ = serve(parts)
        assert taker.body == b"".join(parts)
        assert type(taker.body) is bytes
    assert serve([part := b"x" * 1000])[0].body is part, "one part is not copied"
    taker, call = serve([b"ab", b"cd", b"e"], max_body_bytes=3)
    assert present(taker.error).entry.code == "body_too_large"
    assert (taker.body, call._body) == (None, b""), "of a body that is too large nothing is kept"


def test_a_body_in_tiny_parts_takes_little_more_memory_than_its_bytes() -> None:
    size = 2**18
    call = call_on(Line(), Taker())
    tracemalloc.start()
    try:
        for number in range(size // 2):
            call.take_body(number.to_bytes(4, "big")[2:])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * size


class Breaking(asyncio.Protocol):
    """Breaks its answer off as soon as a client has come."""

    def __init__(self, *, chunked: bool) -> None:
        self._chunked = chunked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = Line(cast("asyncio.Transport", transport))
        call = call_on(line, Taker(), chunked=self._chunked)
        call.start_response(200, b"", b"some")
        call.break_off()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_whose_end_is_the_connections_end_is_broken_off_by_a_reset(new_loop: Any) -> None:
    async def ask(*, chunked: bool) -> bytes:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Breaking(chunked=chunked), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                return await reader.read()
            finally:
                writer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        answer = runner.run(ask(chunked=True))
        assert answer.endswith(b"4\r\nsome\r\n"), "the last chunk is missing"
        with pytest.raises(ConnectionResetError):
            runner.run(ask(chunked=False))


LIMITS = ClientLimits(max_header_bytes=1024, client_timeout_s=60.0, keep_alive_s=60.0, max_body_bytes=1024)


class Wire(asyncio.Transport):
    """A transport that keeps what it is given. `breaks`: its first write fails, which closes it."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self._breaks, self._is_closing = breaks, False
        self.did: list[str] = []

    def write(self, data: Any) -> None:
        self.did.append("write")
        self._is_closing = self._is_closing or self._breaks

    def write_eof(self) -> None:
        self.did.append("write_eof")

    def can_write_eof(self) -> bool:
        return True

    def set_protocol(self, protocol: Any) -> None:
        """The test calls it."""

    def pause_reading(self) -> None:
        self.did.append("pause_reading")

    def resume_reading(self) -> None:
        self.did.append("resume_reading")

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def get_write_buffer_size(self) -> int:
        return 0


class Refusing:
    """Serves /direct, without the framework: it answers before it has the body."""

    def open_request(self, method: bytes, path: bytes) -> Callable[[ClientCall], Handler] | None:
        return self._answer if path == b"/direct" else None

    def _answer(self, call: ClientCall) -> Handler:
        call.send_whole(401, b"", b"")
        return Silent()

    def __init__(self) -> None:
        self.body_budget = BodyBudget(1024)

    def find_websocket(self, path: bytes) -> None:
        return None

    def next_request_id(self) -> str:
        raise AssertionError


class Silent:
    """Is told nothing: its answer was complete."""

    def take_body(self, body: object) -> None:
        raise AssertionError

    fail_request = take_body

    def client_gone(self) -> None:
        raise AssertionError

    client_full = client_ready = client_gone


class App:
    """The framework's side: tells what a request heard until its client was gone."""

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}
        self.has_begun = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        heard = self.heard.setdefault(scope["path"], [])
        while "http.disconnect" not in heard:
            heard.append((await receive())["type"])
            self.has_begun.set()


def connected(wire: Wire, app: App) -> ClientConnection:
    config = Config(app, interface="asgi3", lifespan="off", ws="none", log_config=None)
    connection = ClientConnection(config, ServerState(), {}, direct=Refusing(), limits=LIMITS)
    connection.connection_made(wire)
    return connection


async def test_the_request_that_is_served_hears_of_the_end_while_another_waits_behind_it() -> None:
    app = App()
    connection = connected(Wire(), app)
    connection.data_received(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\nGET /second HTTP/1.1\r\nhost: a\r\n\r\n")
    [serving] = connection.tasks
    assert [cycle.scope["path"] for cycle, _ in connection.pipeline] == ["/second"]
    async with asyncio.timeout(30):
        await app.has_begun.wait()
        connection.connection_lost(ConnectionResetError())
        await serving
    assert app.heard == {"/first": ["http.request", "http.disconnect"]}, "whoever waited is never served"


@pytest.mark.parametrize(("breaks", "did"), [(False, ["write", "write_eof"]), (True, ["write"])])
async def test_a_refusal_that_was_sent_lingers(monkeypatch: pytest.MonkeyPatch, breaks: bool, did: list[str]) -> None:
    wire = Wire(breaks=breaks)
    connection = connected(wire, App())
    later: list[tuple[float, object]] = []
    monkeypatch.setattr(connection.loop, "call_later", lambda delay, run: later.append((delay, run)))
    connection.data_received(b"POST /direct HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
    monkeypatch.undo()
    assert wire.did == did
    assert later == ([] if breaks else [(LINGER_S, wire.close)])
    connection.data_received(b"what is read after it is dropped")
    assert wire.did == did
    connection.connection_lost(None)


class Quiet(Taker):
    """Answers nothing, and hears of the client's end."""

    def client_gone(self) -> None:
        """Nothing was begun."""

    client_full = client_ready = client_gone


class Unanswering(Refusing):
    """Serves /direct, and never answers."""

    def _answer(self, call: ClientCall) -> Handler:
        return Quiet()


PART = 60_000
LARGE = 310_000
POST = b"POST /direct HTTP/1.1\r\nhost: a\r\n"
PIPELINED = {
    "whole": (b"content-length: %d\r\n\r\n" % LARGE, b"x" * PART, b"x" * (LARGE - PART)),
    "unfinished": (b"content-length: 1000000\r\n\r\n", b"x" * PART, b"x" * (LARGE - PART)),
    "malformed": (
        b"transfer-encoding: chunked\r\n\r\n",
        b"%x\r\n%b\r\n" % (PART, b"x" * PART),
        b"%x\r\n%b\r\nno chunk" % (LARGE - PART, b"x" * (LARGE - PART)),
    ),
}


@pytest.mark.parametrize("kind", PIPELINED)
async def test_the_room_of_a_large_body_that_waits_for_its_turn_is_given_back(kind: str) -> None:
    limits = ClientLimits(max_header_bytes=1024, client_timeout_s=60.0, keep_alive_s=60.0, max_body_bytes=2**20)
    config = Config(App(), interface="asgi3", lifespan="off", ws="none", log_config=None)
    direct = Unanswering()
    direct.body_budget = budget = BodyBudget(2**23)
    connection = ClientConnection(config, ServerState(), {}, direct=direct, limits=limits)
    connection.connection_made(Wire())
    connection.data_received(POST + b"content-length: 0\r\n\r\n")
    head, first, second = PIPELINED[kind]
    connection.data_received(POST + head + first)
    assert (len(connection.pipeline), budget.used_bytes) == (1, 0)
    connection.data_received(second)
    assert (budget.used_bytes > 0) is (kind != "malformed"), "what is broken is dropped at once"
    connection.connection_lost(None)
    assert budget.used_bytes == 0


class Stuck(Wire):
    """A transport whose client reads nothing: its close waits for the client."""

    def get_write_buffer_size(self) -> int:
        return 1

    def abort(self) -> None:
        self.did.append("abort")


async def test_an_answer_that_is_broken_off_and_not_taken_is_not_kept_for_ever() -> None:
    limits = ClientLimits(max_header_bytes=1024, client_timeout_s=0.02, keep_alive_s=60.0, max_body_bytes=1024)
    config = Config(App(), interface="asgi3", lifespan="off", ws="none", log_config=None)
    connection, wire = ClientConnection(config, ServerState(), {}, direct=Unanswering(), limits=limits), Stuck()
    connection.connection_made(wire)
    connection.data_received(POST + b"content-length: 0\r\n\r\n")
    call = cast("ClientCall", connection._current_call)
    call.start_response(200, b"", b"some")
    await asyncio.sleep(0.1)
    assert "abort" not in wire.did, "the client waits for the gateway"
    call.break_off()
    await until("the connection is ended", lambda: "abort" in wire.did)
    connection.connection_lost(None)


class Session:
    """Keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def take_message(self, message: bytes) -> None:
        self.messages.append(message)

    def client_gone(self) -> None:
        """Its connection is closed."""

    client_full = client_ready = begin_stop = client_gone

    def check_age(self, age_s: float) -> None:
        """It is never too old."""


def websocket_on(
    wire: Wire, session: Session, max_bytes: int = 1024, timeout_s: float = 60.0, budget: BodyBudget | None = None
) -> websocket.WebSocketConnection:
    connection = websocket.WebSocketConnection(
        wire,
        ServerState(),
        local_address=None,
        max_message_bytes=max_bytes,
        client_timeout_s=timeout_s,
        body_budget=budget or BodyBudget(1024),
    )
    connection.serve_session(session, b"")
    return connection


async def test_a_message_in_countless_empty_frames_takes_no_memory() -> None:
    session = Session()
    connection = websocket_on(Wire(), session)
    connection.data_received(b"\x01\x82\0\0\0\0ab")
    tracemalloc.start()
    try:
        for _ in range(20):
            connection.data_received(b"\0\x80\0\0\0\0" * 500)
        grown_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    connection.data_received(b"\x80\x81\0\0\0\0c" + b"\x81\x81\0\0\0\0d")
    connection.connection_lost(None)
    assert session.messages == [b"abc", b"d"]
    assert grown_bytes < 20_000


LARGE_FRAME = b"\x81\xff" + LARGE.to_bytes(8, "big") + b"\0\0\0\0"


async def test_a_large_message_waits_for_room_and_has_it_as_long_as_it_is_kept() -> None:
    budget, session, wire = BodyBudget(4 * LARGE), Session(), Wire()
    other = budget.reserve(3 * LARGE, lambda: None)
    connection = websocket_on(wire, session, LARGE, budget=budget)
    connection.data_received(LARGE_FRAME + b"x" * (LARGE - 10))
    assert (wire.did, budget.used_bytes) == (["pause_reading"], 3 * LARGE)
    budget.release(other)
    assert (wire.did, budget.used_bytes) == (["pause_reading", "resume_reading"], READING_COPIES * LARGE)
    connection.hold_messages(10)
    connection.data_received(b"x" * 10)
    assert (session.messages, budget.used_bytes) == ([b"x" * LARGE], WHOLE_COPIES * 10)
    connection.hold_messages(0)
    assert budget.used_bytes == 0
    connection.data_received(LARGE_FRAME + b"x" * (LARGE - 10))
    assert budget.used_bytes == READING_COPIES * LARGE
    connection.connection_lost(None)
    connection.hold_messages(0)
    assert budget.used_bytes == 0


async def test_a_large_message_that_does_not_go_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, ended = Wire(), asyncio.Event()
    monkeypatch.setattr(wire, "abort", ended.set)
    connection = websocket_on(wire, Session(), LARGE, timeout_s=0.1, budget=BodyBudget(4 * LARGE))
    connection.data_received(LARGE_FRAME + b"x" * (LARGE - 10))
    async with asyncio.timeout(30):
        await ended.wait()
    connection.connection_lost(None)


async def test_a_client_that_reads_nothing_is_not_heard_and_its_pings_are_not_answered() -> None:
    wire = Wire()
    connection = websocket_on(wire, Session())
    connection.pause_writing()
    connection.pause_reading()
    connection.resume_writing()
    connection.pause_writing()
    connection.resume_reading()
    assert wire.did == ["pause_reading"], "both must be over"
    connection.resume_writing()
    assert wire.did == ["pause_reading", "resume_reading"]
    connection.connection_lost(None)


async def test_a_client_that_goes_on_sending_does_not_put_off_the_end_of_its_websocket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_S", 0.2)
    wire, ended = Wire(), asyncio.Event()
    monkeypatch.setattr(wire, "abort", ended.set)
    connection = websocket_on(wire, Session())
    connection.close(1000)
    for _ in range(10):
        await asyncio.sleep(0.1)
        connection.data_received(MASKED_PING)
    assert ended.is_set()
    connection.connection_lost(None)


MASKED_PING = b"\x89\x80\0\0\0\0"

READ_AS = {
    "/chat/completions": "/v1/chat/completions",
    "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/completions": "/v1/completions",
    "/conversations/conv_1/items?limit=2": "/v1/conversations/conv_1/items?limit=2",
    "/embeddings": "/v1/embeddings",
    "/messages/count_tokens": "/v1/messages/count_tokens",
    "/models/org/m:8b": "/v1/models/org/m:8b",
    "/models/loaded": "/v1/models/loaded",
    "/responses": "/v1/responses",
    "/responses/resp_1/cancel": "/v1/responses/resp_1/cancel",
    "/responses?x=/health": "/v1/responses?x=/health",
    "/reranking": "/v1/rerank",
    "/v1/reranking?a": "/v1/rerank?a",
    "/v1/health": "/health",
    "/v1%2Fhealth": "/health",
    "/models/org%2Fm": "/v1/models/org%2Fm",
    "/chat%2fcompletions#x": "/v1/chat%2fcompletions#x",
}
UNCHANGED = (
    *(
        *("/", "/v1", "/v1/", "*", "", "/health", "/models", "/models/", "/models//", "/models?x=1", "/models/load"),
        *("/models/sse", "/v1/models/m"),
    ),
    *("/completion", "/embedding", "/rerank", "/v2/rerank", "/chat", "/chat/", "/completionsx", "/xcompletions"),
    *("/v1/chat/completions", "/v1/responses", "/v1/v1/health", "/v2/health", "/v1/health/", "/v1/admin/models"),
    *("/nowhere?/responses", "/nowhere#/responses", "/COMPLETIONS", "/%252Fcompletions", "//completions"),
)


@pytest.mark.parametrize("target", READ_AS)
def test_a_path_with_another_name(target: str) -> None:
    assert with_declared_path(b"GET", target.encode()) == READ_AS[target].encode()


@pytest.mark.parametrize("target", [*UNCHANGED, *READ_AS.values()])
def test_any_other_path_stays_as_it_is(target: str) -> None:
    assert with_declared_path(b"GET", target.encode()) == target.encode()


def test_bodies_that_leave_as_soon_as_they_are_let_in_do_not_nest() -> None:
    budget = BodyBudget(100)
    holder = budget.reserve(100, lambda: None)
    left: list[int] = []
    waiting: dict[int, BodyReservation] = {}

    def leave(number: int) -> None:
        left.append(number)
        budget.release(waiting[number])

    for number in range(2_000):
        waiting[number] = budget.reserve(100, partial(leave, number))
    budget.release(holder)
    assert (left, budget.used_bytes) == (list(range(2_000)), 0)
