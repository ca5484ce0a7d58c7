"""Anthropic's messages, passed through: typed events from `message_start` to `message_stop`, errors in Anthropic's
form."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.anthropic.stream_collector import MessagesCollector
from gateway.protocols.common import bodies, errors, usage
from gateway.protocols.common.context_overflow import find_overflow
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage
from gateway.protocols.common.event_reader import Fields
from gateway.protocols.common.known_fields import MESSAGE_FIELDS
from gateway.protocols.common.openai_events import find_error
from gateway.protocols.common.passthrough import PassthroughDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.sse import data_of
from gateway.protocols.common.stream_compat import differs_as_stream, wants_probabilities
from gateway.protocols.common.streams import PassthroughStream

_STOP: Final = re.compile(rb'"type"\s*:\s*"message_stop"')
_NO_THREADS: Final = {"error_code": "thread_unsupported_request"}
"""Error details that tell the agents of Anthropic's packages to send the whole conversation in each request."""


class MessagesStream(PassthroughStream):
    """`EventStream` of Anthropic's typed events, passed through; error events get Anthropic's form and a request id. It
    is complete after `message_stop` or an error. `message_start` reports input tokens, later events output tokens."""

    __slots__ = ("_request_id", "_told")

    _usage_mark: ClassVar[bytes] = b'"usage"'
    _error_mark: ClassVar[bytes] = b"error"

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self._request_id = request_id
        self._told: Fields = {}

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return an `error` event; empty if the stream is already complete. See `EventStream`."""
        return b"" if self.is_complete else as_error_event(own_body(error, request_id))

    def _filter_event(self, event: bytes) -> bytes:
        if self._usage_mark in event:
            fields = errors.decode_json(data_of(event))
            counts = usage_fields(fields) if isinstance(fields, dict) else None
            if counts is not None:
                self._told |= counts
                self.usage = usage.usage_of(self._told)
        error = find_error(event)
        return event if error is None else _complete_error_event(event, error, self._request_id)

    def _is_last(self, event: bytes) -> bool:
        return _STOP.search(event) is not None

    def _is_error(self, event: bytes) -> bool:
        return find_error(event) is not None


class MessagesDialect(PassthroughDialect):
    """Dialect of `/v1/messages` and `/v1/messages/count_tokens`, for engines that serve them: both are passed
    through."""

    id_header: bytes | None = b"request-id"
    heartbeat: bytes = b'event: ping\ndata: {"type": "ping"}\n\n'

    def can_serve(self, request: InferenceRequest) -> bool:
        """Return whether `thinking` is missing or no string.

        No engine knows a string there: it is Roundhouse's own form.
        """
        return not isinstance(request.outline_fields.get("thinking"), str)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body under the engine's name for the model, without fields that the engine must not get. See
        `Dialect`."""
        request = bodies.without_foreign_fields(request, MESSAGE_FIELDS, route)
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=False)
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return a new `MessagesStream` for one answer."""
        return MessagesStream(request.id)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new `MessagesCollector`; None if a stream cannot give the same answer to the request
        (`differs_as_stream`), or if it asks for log probabilities."""
        fields = request.outline_fields
        if differs_as_stream(fields) or wants_probabilities(fields):
            return None
        return MessagesCollector(request.model)

    def find_usage(self, body: bytes, request: InferenceRequest) -> Usage | None:
        """Return the token counts in a blocking answer's last `usage` object; None if it has none. See
        `usage.usage_in`."""
        return usage.usage_in(body)

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return an error of Roundhouse as JSON in Anthropic's form, with `request_id`."""
        return own_body(error, request_id)

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        """Return an engine's error as JSON in Anthropic's form. An error that has that form passes unchanged, unless it
        holds a network address or reports a context overflow in other words than Anthropic's. See `Dialect`."""
        fields = errors.decode_json(body)
        if errors.is_anthropic(fields) and _may_pass(fields["error"]):
            return body
        return errors.anthropic_body(errors.engine_body(status, body, request_id), request_id)

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """Return the error, whose JSON is `body`, as an event named `error`. See `Dialect`."""
        return as_error_event(body)


MESSAGES: Final = MessagesDialect()


def own_body(error: RoundhouseError, request_id: str | None) -> bytes:
    """Return an error of Roundhouse as JSON in Anthropic's form, with the further fields of our error envelope and, for
    a refused `thread`, the details by which Anthropic's agents send the whole conversation instead. `request_id` None:
    the error names no request."""
    envelope = error.build_envelope(request_id).model_dump()
    if error.param == "thread":
        envelope["error"]["details"] = _NO_THREADS
    return errors.anthropic_body(errors.encode_json(envelope), request_id)


def as_error_event(body: bytes) -> bytes:
    """Return the JSON of an error in Anthropic's form as an event named `error`."""
    return b"event: error\n" + errors.as_event(body)


def usage_fields(fields: Fields) -> Fields | None:
    """Return a copy of the `usage` object of a decoded event without counts that are null; None if there is no such
    object. The object is looked for in the event's `message` if there is one (`message_start`), else in the event
    itself."""
    message = fields.get("message")
    counts = (message if isinstance(message, dict) else fields).get("usage")
    return {name: value for name, value in counts.items() if value is not None} if isinstance(counts, dict) else None


def _may_pass(error: Fields) -> bool:
    """Whether an engine's error object may pass unchanged: it holds no address, and if it reports a context overflow,
    it does so in the words that Anthropic's clients look for."""
    overflow = find_overflow(error)
    is_in_other_words = overflow is not None and error["message"] != overflow.describe_for_anthropic()
    return not (is_in_other_words or errors.tells_address(error))


def _complete_error_event(event: bytes, error: Fields, request_id: str) -> bytes:
    fields = errors.decode_json(data_of(event))
    if errors.is_anthropic(fields) and _may_pass(error):
        named_fields = {**fields, "request_id": request_id}
        return event if fields.get("request_id") else as_error_event(errors.encode_json(named_fields))
    envelope = errors.engine_body(errors.status_of(error), errors.encode_json({"error": error}), request_id)
    return as_error_event(errors.anthropic_body(envelope, request_id))
