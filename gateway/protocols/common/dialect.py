"""The interface by which the gateway's hot path handles an API family. Pure.

A family says how its streams end and fail, where it counts tokens, and how a blocking answer is made of a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common.request import InferenceRequest

HOLD_LIMIT = 4 * 1024 * 1024
"""Maximum bytes of an unfinished event that are held. Only whole events are passed on."""


class EventTooLongError(ValueError):
    """A stream sent an event of more than `HOLD_LIMIT` bytes."""


class Usage(NamedTuple):
    """Token counts that an engine reported."""

    prompt: int = 0
    completion: int = 0
    cached: int | None = None
    """Tokens of the prompt that the engine had in its cache; None: it does not tell."""


class EventStream(Protocol):
    """A stream from engine to client. Passes on whole events only, notes the usage, and knows whether the stream is
    complete."""

    @property
    def usage(self) -> Usage | None:
        """Token counts reported so far; None: none yet."""

    def feed_data(self, chunk: bytes) -> bytes:
        """Return what to send to the client now: the whole events that `chunk` completes. May be empty.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """

    def finish_stream(self) -> bytes:
        """Return what is left to send when the engine's stream is over. May be empty. Includes the closing event where
        the family demands one after an error."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended as the family demands: with its last event, or with an error."""

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the last events of a stream that ends here with `error`, in the family's form. May be empty if the
        stream is complete."""


class StreamCollector(Protocol):
    """Builds a blocking answer from the events of a stream."""

    @property
    def usage(self) -> Usage | None:
        """Token counts reported so far; None: none yet."""

    def feed_data(self, chunk: bytes) -> None:
        """Add bytes of the stream, cut anywhere.

        Raises:
            EventTooLongError: an event does not end within `HOLD_LIMIT` bytes.
        """

    def build_result(self) -> tuple[int, bytes] | None:
        """Return status and body of the blocking answer; None if the stream broke off before its end. After an error
        event, return the error's status (500 if it has none) and the body with which the engine would have answered a
        blocking request."""


class Dialect(Protocol):
    """One API family as an engine serves it. Instances hold no state."""

    heartbeat: bytes
    """Bytes sent between events to keep a silent stream's connection alive."""
    id_header: bytes | None
    """Response header in which the family's clients look for the request id, beside `x-request-id`; None: in no
    other."""
    may_flow: bool
    """Whether a blocking answer that is too long to hold may be sent unconverted, without `get_body_converter`."""

    def can_serve(self, request: InferenceRequest) -> bool:
        """Return whether this dialect supports what the request asks for. If not, the next option of the path is
        considered (`api_matrix.SERVING_OPTIONS`)."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model does not support. Call before the methods below, once for each version of the route.

        Raises:
            RoundhouseError: `invalid_request`, or the code of what the model does not support.
        """

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body to send to an engine of the model; the original bytes if nothing must change.

        `as_stream`: ask the engine for a stream, although the client asked for a blocking answer.
        """

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return the handler of a stream that the client asked for."""

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return the builder of a blocking answer from a stream; None if a stream cannot answer this request, which
        must then be sent as a blocking one."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that converts an engine's blocking answer into the client's body; None: the body passes
        unchanged. It is not called for errors. It may raise RoundhouseError, which becomes the answer."""

    def find_usage(self, body: bytes) -> Usage | None:
        """Return the token counts of a blocking answer, without decoding all of it; None if it has none."""

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return an error of Roundhouse as JSON in the family's form."""

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """Return an engine's error answer as JSON in the family's form; unchanged if it has that form already. Where
        the form is OpenAI's, the answer has every field of our envelope (see `errors`)."""

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """Return the JSON of `error_body` or `engine_error_body` as the last events of a stream whose headers were
        sent, and after them heartbeats only. `request` is None if it could not be read."""

    def is_told_by_events(self, error: bytes) -> bool:
        """Return whether the JSON of `error_body` or `engine_error_body` is sent as a stream with status 200 to a
        client that asked for a stream, as the family's own servers do. Called only before the stream begins."""
