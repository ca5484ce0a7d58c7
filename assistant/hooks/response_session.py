"""Responses over WebSocket (`GET /v1/responses` with Upgrade), as OpenAI and Open Responses define them.

Each message `response.create` is a request, and they are served one after the other. A request is handled as a
`POST /v1/responses` with `stream: true` is, with its key, its limits and the queue; each event of the answer becomes a
message. Beyond that, the connection remembers the last response (`RecentResponse`), and `generate: false` exists.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from websockets.frames import CloseCode

from assistant.storage.records import HistoryBounds, RecentResponse
from contract.errors import RoundhouseError
from gateway.exchange.dispatcher import InferenceDispatcher
from gateway.exchange.hooks import ExchangeHooks
from gateway.exchange.session_hooks import SESSION_HOOKS
from gateway.ingress.access_rules import AdminGate
from gateway.ingress.authenticator import Authenticator
from gateway.protocols.common import errors
from gateway.protocols.common.field_reader import choice_error, field_error
from gateway.protocols.common.json_bytes import json_bytes
from gateway.server.asgi import Header, error_headers
from gateway.server.call import ClientCall, Handler, header_lines
from gateway.server.request_reader import WebSocketOpener
from gateway.server.websocket import WebSocketConnection

LONGEST_S: Final = 3600.0
"""The most seconds that a connection may be open: OpenAI's value."""
MOST_WAITING: Final = 16
"""The most messages that may wait for those before them. Then the gateway stops reading from the connection."""
PATH: Final = b"/v1/responses"
_PATHS: Final = (PATH, PATH.removeprefix(b"/v1"))
_CREATE: Final = "response.create"
_DATA: Final = b"data: "
_ERROR_EVENT: Final = b"event: error\n"
_TOLD_HEADERS: Final = ("retry-after", "x-should-retry", "x-request-id")


@dataclass(frozen=True, slots=True)
class SocketTurn:
    """What belongs to one request over WebSocket beside the fields of its body. Immutable; made by `read_create`."""

    recent: RecentResponse
    """The connection's memory of its last response, which the next request may continue."""
    generates: bool = True
    """False: no engine is asked and the response is empty. The next request may continue it."""


TurnOpener = Callable[[ClientCall, SocketTurn], Handler]


class TurnCall(ClientCall):
    """A `ClientCall` for a request that came as a WebSocket message. Its answer is sent as messages.

    Its body is complete from the start: the session calls the handler's `take_body`.
    """

    __slots__ = ("_session",)

    def __init__(self, session: ResponseSession, connection: Any, headers: list[Header]) -> None:
        super().__init__(connection, _no_opener, b"POST", PATH, b"", headers, keep_alive=True, is_http_1_1=True)
        self._session = session
        self.body_complete = True

    def send_whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Send an error as one message of the type `error`, and end the request. Call once.

        A whole answer is always an error here, since the requests ask for streams.

        `lines`: header lines; `retry-after`, `x-should-retry` and `x-request-id` become fields of the message.
        """
        self._session.send_error(status, body, _told_headers(lines))
        self._end_turn()

    def start_response(self, status: int, lines: bytes, first_part: bytes) -> None:
        """Send `first_part`, whole server-sent events, as messages.

        Status and header lines are dropped: a message has none.
        """
        self._session.send_events(first_part)

    def send_part(self, part: bytes) -> None:
        """Send `part`, whole server-sent events, as messages."""
        self._session.send_events(part)

    def end_response(self, last_part: bytes = b"") -> None:
        """Send `last_part`, whole server-sent events or nothing, as messages, and end the request. Call once.

        The connection stays open for the next request.
        """
        self._session.send_events(last_part)
        self._end_turn()

    def break_off(self) -> None:
        """End the request without a last event. Call once. The connection stays open for the next request."""
        self._end_turn()

    def _end_turn(self) -> None:
        self.response_complete = True
        self._session.end_turn()


class ResponseSessions:
    """Opens a `ResponseSession` for each WebSocket. One per gateway."""

    def __init__(
        self,
        dispatcher: InferenceDispatcher,
        authenticator: Authenticator,
        gate: AdminGate,
        hooks_of: Callable[[SocketTurn], ExchangeHooks],
        bounds: HistoryBounds,
    ) -> None:
        """`hooks_of`: returns the hooks of one request, beside those of sessions. `bounds`: of the history that a
        connection remembers.

        Raises:
            KeyError: the dispatcher has no `POST /v1/responses`.
        """
        self._dispatcher = dispatcher
        self._authenticator = authenticator
        self._gate = gate
        self._hooks_of = hooks_of
        self._bounds = bounds
        self._api = dispatcher.get_api(b"POST", PATH)

    def find_websocket(self, path: bytes) -> WebSocketOpener | None:
        """Return the function that opens a WebSocket at `/v1/responses` or `/responses`; None: another path.

        The function authenticates the caller by the headers of the handshake, and raises RoundhouseError where that
        fails or the gateway stops.
        """
        return self._open_session if path in _PATHS else None

    def _open_session(
        self, headers: list[Header], local_address: str | None
    ) -> Callable[[WebSocketConnection], ResponseSession]:
        """See WebSocketOpener. Each request of the connection is authenticated again: its key may be revoked then."""
        self._dispatcher.check_running()
        api = self._api
        caller = self._authenticator.authenticate_request(headers, api.method, api.path, is_http_1_1=True)
        self._gate.authorize_request(caller, api.scope, local_address)
        return lambda connection: ResponseSession(connection, headers, self._open_turn, self._new_recent())

    def _new_recent(self) -> RecentResponse:
        return RecentResponse(self._bounds, self._dispatcher.body_budget)

    def _open_turn(self, call: ClientCall, turn: SocketTurn) -> Handler:
        hooks = self._hooks_of(turn) + SESSION_HOOKS + self._dispatcher.access_hooks
        return self._dispatcher.open_exchange(self._api, hooks, call)


class ResponseSession:
    """Serves the requests of one WebSocket connection, one at a time and in order. It is a `MessageSession`.

    Each message `response.create` is served as a `POST /v1/responses` that streams, and its events are sent as
    messages. Made by `ResponseSessions` for an accepted handshake; lives as long as the connection.
    """

    def __init__(
        self, connection: WebSocketConnection, headers: list[Header], open_turn: TurnOpener, recent: RecentResponse
    ) -> None:
        """`headers`: those of the handshake, which every request gets, API key included.

        `open_turn`: opens a request and returns its handler. `recent`: the connection's memory, which it closes.
        """
        self._connection = connection
        self._headers = headers
        self._open_turn = open_turn
        self._recent = recent
        self._call: TurnCall | None = None
        """The request that is being served; None: none is."""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._served_bytes = 0
        self._is_answered = False
        """Whether an event of the current answer was sent: the message itself, and what engines were sent of it, are
        gone by then."""
        self._is_serving = False
        self._is_full = False
        """Whether the client reads more slowly than data is sent: it gets no other answer till it has caught up."""
        self._close_code: int | None = None
        """The code with which to close the connection as soon as no request is being served; None: it stays open."""

    # From the connection

    def take_message(self, message: bytes) -> None:
        """Serve a message, or keep it until those before it are served.

        A message that is no valid request is answered with an error.

        `message`: the bytes of the text. While more than `MOST_WAITING` messages, or more bytes than one message may
        have, wait, reading from the client is paused. Does nothing once the connection is to be closed.
        """
        if self._close_code is not None:
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        if len(self._waiting) > MOST_WAITING or self._waiting_bytes > self._connection.max_message_bytes:
            self._connection.pause_reading()
        self._serve_messages()

    def client_gone(self) -> None:
        """Drop the messages that wait, and tell the request that is being served that its client has left.

        Called once, when the connection is closed.
        """
        self._waiting.clear()
        self._close_code = CloseCode.GOING_AWAY
        if self._call is not None:
            self._call.lose_client()
            self._call = None
        self._recent.close()

    def client_full(self) -> None:
        """Tell the request that is being served, if any, that the client reads more slowly than data is sent."""
        self._is_full = True
        if self._call is not None and self._call.handler is not None:
            self._call.handler.client_full()

    def client_ready(self) -> None:
        """Tell the request that is being served that the client has read enough of what was sent, or serve the next."""
        self._is_full = False
        if self._call is None:
            self._serve_messages()
        elif self._call.handler is not None:
            self._call.handler.client_ready()

    def check_age(self, age_s: float) -> None:
        """Close a connection that is `LONGEST_S` seconds old or older, as soon as no request is being served.

        First sends the error `websocket_connection_limit_reached`, and drops the messages that wait. `age_s`: seconds
        since the connection was opened. Does nothing if the connection is younger or to be closed already.
        """
        if age_s >= LONGEST_S and self._close_code is None:
            message = f"The connection was open for {LONGEST_S:g} s, the most that there is: open another."
            self._send_refusal(RoundhouseError("websocket_connection_limit_reached", message))
            self._close_when_idle(CloseCode.NORMAL_CLOSURE)

    def begin_stop(self) -> None:
        """Drop the messages that wait, and close the connection as soon as no request is being served.

        Call when the gateway stops.
        """
        self._close_when_idle(CloseCode.GOING_AWAY)

    def _close_when_idle(self, code: int) -> None:
        self._close_code = code
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._call is None:
            self._connection.close(code)

    # From the request that is under way

    def send_events(self, events: bytes) -> None:
        """Send the data of whole server-sent events as messages, without `[DONE]` and comments.

        `events`: may be empty. Does nothing once the connection is closing.
        """
        messages = list(messages_of(events))
        if messages and not self._is_answered:
            self._is_answered, self._served_bytes = True, self._served_bytes // 2  # what was decoded, and its JSON
            self._count_messages()
        self._connection.send_messages(messages)

    def send_error(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send one message of the type `error`, with the fields `status`, `error` and `headers`, in the place of
        events.

        `body`: the JSON that a POST is answered with, whose `error` is taken; null if it has none. `headers`: response
        headers to put into the message; the field is left out if empty.
        """
        fields = errors.decode_json(body)
        error = fields.get("error") if isinstance(fields, dict) else None
        told = {"type": "error", "status": status, "error": error}
        self._connection.send_messages([json_bytes(told | ({"headers": headers} if headers else {}))])

    def end_turn(self) -> None:
        """End the current request, whose answer is complete, and serve the next message soon, not within this call."""
        self._call, self._served_bytes = None, 0
        if not self._is_serving:  # not at once: the request still has to give back what it holds
            asyncio.get_running_loop().call_soon(self._serve_messages)

    # Requests

    def _serve_messages(self) -> None:
        """Serve the messages that wait. In a loop, since a request that is refused ends at once."""
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._waiting and self._call is None and self._close_code is None and not self._is_full:
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message)
                self._served_bytes, self._is_answered = len(message), False
                try:
                    self._begin_turn(message)
                except RoundhouseError as error:
                    self._send_refusal(error)
        finally:
            self._is_serving = False
        self._count_messages()
        if self._call is None and self._close_code is not None:
            self._connection.close(self._close_code)
        elif len(self._waiting) <= MOST_WAITING // 2 and self._waiting_bytes <= self._connection.max_message_bytes // 2:
            self._connection.resume_reading()

    def _count_messages(self) -> None:
        self._connection.hold_messages(self._waiting_bytes + (self._served_bytes if self._call is not None else 0))

    def _begin_turn(self, message: bytes) -> None:
        fields, turn = read_create(message, self._recent)
        self._call = call = TurnCall(self, self._connection, self._headers)
        handler = self._open_turn(call, turn)
        if not call.response_complete:
            call.handler = handler
            handler.take_body(json_bytes(fields))

    def _send_refusal(self, error: RoundhouseError) -> None:
        self.send_error(error.entry.status, error.json_bytes(), _told_headers(header_lines(error_headers(error))))


def _told_headers(lines: bytes) -> dict[str, str]:
    """Return what a message tells of header lines, each with CRLF: other line ends are a part of a value."""
    headers = [line.partition(": ") for line in lines.decode("latin-1").split("\r\n")]
    return {name: value for name, _, value in headers if name in _TOLD_HEADERS}


def read_create(message: bytes, recent: RecentResponse) -> tuple[dict[str, Any], SocketTurn]:
    """Return the body fields of the `POST /v1/responses` that a client's message stands for, and its `SocketTurn`.

    `stream` is always set. `recent`: the connection's memory, for the turn.

    Raises:
        RoundhouseError: `invalid_json` if the message is no JSON object; `invalid_request` if its `type` is not
            `response.create`, `background` is set, or `generate` is no boolean.
    """
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError):
        raise RoundhouseError("invalid_json", "The message is not JSON.") from None
    if not isinstance(fields, dict):
        raise RoundhouseError("invalid_json", "The message is not a JSON object.")
    kind = fields.pop("type", None)
    if kind != _CREATE:
        raise choice_error(kind, (_CREATE,), "type")
    if fields.pop("background", None):
        raise field_error("background", "must be false: over WebSocket a response is made while its client waits")
    generates = fields.pop("generate", None)
    if generates is not None and not isinstance(generates, bool):
        raise field_error("generate", f"must be true or false; it is {generates!r:.60}")
    fields["stream"] = True
    return fields, SocketTurn(recent, generates is not False)


def messages_of(events: bytes) -> Sequence[bytes]:
    """Return the data of each whole server-sent event as a message, in order, without `[DONE]` and comments.

    The data of an event `error` gets the field `status`, the error's HTTP status (500 if it names none).
    """
    messages = []
    for event in events.split(b"\n\n"):
        data = event.partition(_DATA)[2]
        if not data or data == b"[DONE]" or event.startswith(b":"):
            continue
        if event.startswith(_ERROR_EVENT):
            error = json.loads(data)
            data = json_bytes({**error, "status": error["error"].get("status", 500)})
        messages.append(data)
    return messages


def _no_opener(_: ClientCall) -> Handler:
    raise AssertionError("a message is opened by its session")
