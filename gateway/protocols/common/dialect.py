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
"""Maximum bytes that are held of an event whose end has not come. Only whole events are passed on."""


class EventTooLongError(ValueError):
    """A stream sent more than `HOLD_LIMIT` (4 MiB) of an event without its end."""


class Usage(NamedTuple):
    """Token counts that an engine reported. `prompt` includes cached tokens, `completion` includes reasoning tokens."""

    prompt: int = 0
    completion: int = 0
    cached: int | None = None
    """Tokens of the prompt that the engine had in its cache; None: it does not tell."""


class EventStream(Protocol):
    """Turns the bytes of one engine's stream into events for the client, and notes the usage.

    The caller passes each chunk to `feed_data`, calls `finish_stream` once when the engine's stream has ended, and
    sends the client what they return. If `is_complete` is then false, or the engine's stream fails earlier, the caller
    also sends what `fail_stream` returns.
    """

    @property
    def usage(self) -> Usage | None:
        """Token counts reported so far; None: none yet."""

    def feed_data(self, chunk: bytes) -> bytes:
        """Return what to send to the client now: the whole events that `chunk`, cut anywhere, completes. May be empty.

        Raises:
            EventTooLongError: more than `HOLD_LIMIT` (4 MiB) of an event came without its end.
        """

    def finish_stream(self) -> bytes:
        """Return what is left to send when the engine's stream is over; may be empty. Call once.

        The result includes the closing event where the family demands one after an error. An event that was cut off is
        dropped, which raises nothing; see `is_complete`.
        """

    @property
    def is_complete(self) -> bool:
        """Whether the stream ended as the family demands: with its last event, or with an error."""

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the last events of a stream that ends here with `error`, in the family's form. Call at most once.

        If the stream is complete, no error follows: the result is empty, or the closing event that is still missing.
        """


class StreamCollector(Protocol):
    """Builds one blocking answer from the events of an engine's stream. The caller passes each chunk to `feed_data`,
    and calls `build_result` once at the end of the stream."""

    @property
    def usage(self) -> Usage | None:
        """Token counts reported so far; None: none yet."""

    def feed_data(self, chunk: bytes) -> None:
        """Add bytes of the stream, cut anywhere.

        Raises:
            EventTooLongError: more than `HOLD_LIMIT` (4 MiB) of an event came without its end.
        """

    def build_result(self) -> tuple[int, bytes] | None:
        """Return status and body of the blocking answer; None if the stream broke off before its end.

        After an error event, return the error's status (500 if it has none) and the body with which the engine would
        have answered a blocking request; the caller passes that to `Dialect.engine_error_body`.

        Raises:
            RoundhouseError: the answer cannot be translated into the client's family.
        """


class Dialect(Protocol):
    """One way to serve an API family: how requests, answers, streams and errors pass between client and engine.

    Instances hold no state and serve all requests. For each request, the caller calls `can_serve`, then `check_request`
    (again for each new version of the route), then the methods for bodies, streams and answers. The methods about
    errors may be called at any time.
    """

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
        """Refuse what the model does not support. Call before the methods that make bodies, streams, collectors and
        converters, and again for each new version of the route. A dialect may keep what it read of the request in
        `request.prompt` and `request.state`.

        Raises:
            RoundhouseError: `invalid_request`, the code of what the model does not support, or `invalid_json`: a string
                of a large body is not valid.
        """

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the JSON to send to an engine of the model; the original bytes if nothing must change.

        For a large body, this is made of its outline: the caller sends `request.fill` of it. `as_stream`: ask the
        engine for a stream, although the client asked for a blocking answer. May raise RoundhouseError if the request
        cannot be translated.
        """

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return a new `EventStream` for an answer that the client asked for as a stream."""

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new `StreamCollector` for a blocking request; None if a stream cannot give the same answer. The
        request must then be sent as a blocking one (`as_stream=False`)."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that converts the body of an engine's blocking answer into the client's body; None: the
        body passes unchanged. The caller does not call the function for an engine's error (see `engine_error_body`).
        The function may raise RoundhouseError, which the caller sends as the answer."""

    def find_usage(self, body: bytes, request: InferenceRequest) -> Usage | None:
        """Return the token counts in the body of an engine's blocking answer to `request`, or in its first part,
        without decoding all of it; None if it has none."""

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return an error of Roundhouse as JSON in the family's form, with `request_id` in it."""

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """Return an engine's error answer (its HTTP status and body) as JSON in the family's form, without network
        addresses; unchanged if it has that form already. Where the form is OpenAI's, the result has every field of
        Roundhouse's error envelope (see `errors`). `body` need not be JSON. `errors.answer_status` has the status."""

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """Return the JSON of `error_body` or `engine_error_body` as the only events of a stream, of which nothing but
        headers and heartbeats has been sent. `request` None: the request could not be read."""

    def is_told_by_events(self, error: bytes) -> bool:
        """Return whether the JSON of `error_body` or `engine_error_body` is sent as a stream with status 200 to a
        client that asked for a stream, as the family's own servers do. Called only before the stream begins."""
