"""What the hot path needs to know of an API family. Pure.

A family says how its streams end and fail, where it counts tokens, and how a blocking answer is made of a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.request import InferenceRequest

HOLD_LIMIT = 4 * 1024 * 1024
"""Bytes of an unfinished event that are held: nothing is passed on that does not end with an event's end."""


class EventTooLongError(ValueError):
    """An event of more than `HOLD_LIMIT` bytes."""


class Usage(NamedTuple):
    """Tokens as the engine counted them."""

    prompt: int = 0
    completion: int = 0


class EventStream(Protocol):
    """One stream on its way through: whole events only, its usage noted, its end known."""

    @property
    def usage(self) -> Usage | None:
        """Tokens, as far as the engine has told."""

    def feed_data(self, chunk: bytes) -> bytes:
        """What to pass on now: whole events, as many as `chunk` completes. Perhaps nothing.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """

    def finish_stream(self) -> bytes:
        """What is still to be passed on once the engine's stream is over, its closing event included where the
        family demands one and the engine's last event was an error. Perhaps nothing."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended as the family says it must: with its last event, or with an error."""

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """The last events of a stream that ends here with `error`, in the family's form."""


class StreamCollector(Protocol):
    """A blocking answer in the making, from the events of a stream."""

    @property
    def usage(self) -> Usage | None:
        """Tokens, as far as the engine has told."""

    def feed_data(self, chunk: bytes) -> None:
        """Take bytes of the stream, cut anywhere.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """

    def build_result(self) -> tuple[int, bytes] | None:
        """Status and body of the blocking answer; None: the stream broke off before its end. An error event gives
        the error's status (500 where it has none) and body as the engine would have answered a blocking call."""


class Dialect(Protocol):
    """One API family as an engine serves it. Instances hold no state."""

    heartbeat: bytes
    """What breaks a stream's silence, between events."""
    id_header: bytes | None
    """Where the family's clients look for the request's id, beside `x-request-id`."""
    may_flow: bool
    """A blocking answer that is too long to hold may pass as it is, whatever `whole` would make of it."""

    def can_serve(self, request: InferenceRequest) -> bool:
        """Whether this way of serving the family can do what the request asks for. Where not, the next way is
        looked at (`api_matrix.SERVING_OPTIONS`)."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model does not take. Called before all that follows, once for each version of the route.

        Raises:
            RoundhouseError: `invalid_request`, or what the model cannot do.
        """

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """The bytes for an engine of the model; the original ones where nothing must change.

        `as_stream`: the client asked for a blocking answer, and the engine is to be asked for a stream.
        """

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """For a stream that the client asked for."""

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """For a blocking answer made of a stream; None: what this request asks for cannot be made of one, so that
        it must go as it is."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """What makes the client's body of an engine's blocking answer, where that must change. Errors never come by
        it. It may raise RoundhouseError, which is answered instead."""

    def find_usage(self, body: bytes) -> Usage | None:
        """The usage that a blocking answer tells, without decoding the rest of it."""

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """An error of ours, as JSON in the family's form."""

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """An engine's own error answer, as JSON in the family's form: as it is where it has that already, and every
        field of our envelope (code a string of ours, status the number) where the form is OpenAI's."""

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """The JSON of `error_body` or `engine_error_body` as the last events of a stream that is already committed,
        though nothing but heartbeats was sent. `request` is what is answered, where it could be read."""

    def is_told_by_events(self, error: bytes) -> bool:
        """Whether the client of a stream that has not begun is told of the JSON of `error_body` or `engine_error_body`
        by a stream, with status 200, as the family's own servers do."""
