"""The interface by which the gateway's hot path handles an API family, the bases of dialects that pass requests
through, and the tokens of answers. Pure.

A family says how its streams end and fail, where it counts tokens, and how a blocking answer is made of a stream.

Engines send one event for each token, with few exceptions. Not every event has a token: the first one may hold only the
role, the last ones a finish reason, the usage and `[DONE]`. Where an engine tells a count in each event (llama-server's
`timings_per_token`), that counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common import errors
from gateway.protocols.common.capabilities import check_capabilities
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.request_fields import rename_error

HOLD_LIMIT = 4 * 1024 * 1024
"""Maximum bytes that are held of an event whose end has not come. Only whole events are passed on."""


class EventTooLongError(ValueError):
    """A stream sent more than `HOLD_LIMIT` (4 MiB) of an event without its end."""


class Usage(NamedTuple):
    """Token counts that an engine reported. `prompt` includes cached tokens, `completion` includes reasoning tokens.
    `cached` None: the engine does not report cached tokens."""

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
        Raises EventTooLongError if more than `HOLD_LIMIT` (4 MiB) of an event came without its end."""

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


class WrappedStream:
    """Base of the `EventStream`s around another one, the inner stream, whose usage and end they have. A subclass sets
    `_events` and adds `feed_data` and `finish_stream`."""

    __slots__ = ()

    _events: EventStream

    @property
    def usage(self) -> Usage | None:
        return self._events.usage

    @property
    def is_complete(self) -> bool:
        return self._events.is_complete

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        return self._events.fail_stream(error, request_id)


class StreamCollector(Protocol):
    """Builds one blocking answer from the events of an engine's stream. The caller passes each chunk to `feed_data`,
    and calls `build_result` once at the end of the stream."""

    @property
    def usage(self) -> Usage | None:
        """Token counts reported so far; None: none yet."""

    def feed_data(self, chunk: bytes) -> None:
        """Add bytes of the stream, cut anywhere. Raises EventTooLongError as `EventStream.feed_data`."""

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


_TEXT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|thinking|arguments|partial_json|refusal)"\s*:\s*"[^"]'
    rb'|"name"\s*:\s*"[^"]'
)
"""Text of the model in an event of any API family, or the name of a tool that it calls. A quote inside a JSON string
follows a backslash, so text of the model cannot contain such a key."""
_REPORTED: Final = re.compile(rb'"predicted_n"\s*:\s*(\d+)')
"""llama-server's own count of what was generated so far."""
_BLANK_LINE: Final = b"\n\n"
_LEAD_BYTES: Final = 256 * 1024
"""Bytes within which the first text is looked for."""


class TokenEventCounter:
    """Counts the events of one stream, to tell about how many tokens came (`count_tokens`) if the engine does not
    report it. One instance serves one stream; pass every part of it to `take_data`, in order."""

    __slots__ = ("_is_begun", "_last", "_lead", "_lead_events", "_second_last", "events")

    def __init__(self) -> None:
        self.events = 0
        """Events that came, about one per token."""
        self._lead = b""
        self._is_begun = False
        self._lead_events = 0
        self._second_last = self._last = b""

    def take_data(self, data: bytes) -> int:
        """Note the next part of the stream, cut anywhere, and return `events`, the number of events so far."""
        self._second_last = last = self._last
        self._last = data
        self.events += data.count(_BLANK_LINE)
        if data.startswith(b"\n") and last.endswith(b"\n") and not last.endswith(_BLANK_LINE):
            self.events += 1  # its blank line was cut
        if not self._is_begun:
            self._look_for_text(data)
        return self.events

    @property
    def tail(self) -> bytes:
        """The last two parts of the stream, joined: an event may be cut between them. Empty before the first."""
        return self._second_last + self._last

    def count_tokens(self) -> int:
        """Return the tokens that came so far: the engine's own count if the last two parts of the stream have one, else
        the number of events from the first to the last that has text; 0 if none had."""
        tail = self.tail
        reported = _REPORTED.findall(tail)
        if reported:
            return int(reported[-1])
        if not self._is_begun:
            return 0
        end_of_text = 0
        for match in _TEXT.finditer(tail):
            end_of_text = match.end()
        # The first blank line ends the event of the last text, or one that began before the tail.
        without_text = max(0, tail.count(_BLANK_LINE, end_of_text) - 1)
        return max(0, self.events - self._lead_events - without_text)

    def _look_for_text(self, data: bytes) -> None:
        self._lead = lead = self._lead + data
        match = _TEXT.search(lead)
        if match is not None or len(lead) > _LEAD_BYTES:
            self._is_begun = True
            self._lead_events = 0 if match is None else lead.count(_BLANK_LINE, 0, match.start())
            self._lead = b""


USAGE_OBJECT: Final = re.compile(rb'"usage"\s*:\s*\{')
"""A usage object. Its key cannot occur inside a JSON string, where each quote follows a backslash."""
_SPAN = 4096
"""Bytes within which a usage object ends."""
_DECODER = json.JSONDecoder()


def usage_in(body: bytes) -> Usage | None:
    """Return the token counts in the last `usage` object of a blocking answer, without decoding the rest of the body.

    None if the body has no such object, or if the last one is damaged or longer than 4096 bytes.
    """
    end = len(body)
    while (start := body.rfind(b'"usage"', 0, end)) >= 0:
        key = USAGE_OBJECT.match(body, start)
        if key is not None:
            span = body[key.end() - 1 : key.end() + _SPAN].decode(errors="replace")
            try:
                return usage_of(_DECODER.raw_decode(span)[0])
            except (ValueError, RecursionError):
                return None
        end = start
    return None


def usage_of(value: Any) -> Usage | None:
    """Return the counts of a decoded usage object, under the names of chat completions or of responses and messages;
    None if `value` is no object.

    Anthropic's cached input tokens are added to the prompt. A count that is missing or no whole number from 0 is 0,
    except that `total_tokens` stands for a missing `prompt_tokens`, as in rankings.
    """
    if not isinstance(value, dict):
        return None
    if "input_tokens" in value or "output_tokens" in value:
        read_tokens = count_of(value.get("cache_read_input_tokens"))
        written_tokens = count_of(value.get("cache_creation_input_tokens"))
        prompt_tokens = count_of(value.get("input_tokens")) + read_tokens + written_tokens
        cached_tokens = read_tokens if "cache_read_input_tokens" in value else _cached_tokens(value, "input")
        return Usage(prompt_tokens, count_of(value.get("output_tokens")), cached_tokens)
    prompt_tokens = count_of(value["prompt_tokens"] if "prompt_tokens" in value else value.get("total_tokens"))
    return Usage(prompt_tokens, count_of(value.get("completion_tokens")), _cached_tokens(value, "prompt"))


def add_usage(sum_: Usage | None, usage: Usage) -> Usage:
    """Return the usage of several answers to one prompt after one more answer. `sum_` is the usage of those before;
    None: there are none. Completion tokens are added up; the prompt counts once, with the larger of the two counts."""
    if sum_ is None:
        return usage
    cached_tokens = usage.cached if sum_.cached is None else sum_.cached
    return Usage(max(sum_.prompt, usage.prompt), sum_.completion + usage.completion, cached_tokens)


class UsageTally:
    """Adds up the usage of one OpenAI stream, event by event. `usage` is the usage of all answers so far; None: no
    event reported any.

    An event without choices reports the whole stream, once, or once per choice (llama-server). An event with choices
    reports its own choice's usage, which grows until that choice ends (vLLM's continuous usage).
    """

    __slots__ = ("_ended", "_whole", "usage")

    def __init__(self) -> None:
        self._whole: Usage | None = None
        self._ended: Usage | None = None
        self.usage: Usage | None = None

    def note_usage(self, value: Any, choices: Any) -> None:
        """Add the decoded `usage` of an event; `choices` are those of the same event, which may be missing or empty.

        Ignores a value that is no object, and events with choices after one without.
        """
        usage = usage_of(value)
        if usage is None:
            return
        if not choices:
            self.usage = self._whole = add_usage(self._whole, usage)
        elif self._whole is None:
            self.usage = add_usage(self._ended, usage)
            if isinstance(choices, list) and isinstance(choices[0], dict) and choices[0].get("finish_reason"):
                self._ended = self.usage


def _cached_tokens(usage: dict[str, Any], kind: str) -> int | None:
    details = usage.get(f"{kind}_tokens_details")
    tokens = details.get("cached_tokens") if isinstance(details, dict) else None
    return None if tokens is None else count_of(tokens)


def count_of(value: Any) -> int:
    """Return a count that an engine reports; 0 for anything but a whole number from 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


class PassthroughDialect:
    """Base of each `Dialect` that passes requests and answers through. Has the methods that do nothing to them; a
    subclass adds bodies, streams and errors."""

    id_header: bytes | None = None

    may_flow: bool = False

    form: str | None = None
    """Form of the requests that become chat completions, of `request_fields.PARAMS`; None: they pass as they are."""

    def can_serve(self, request: InferenceRequest) -> bool:
        return True

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model's capabilities do not include. Raises RoundhouseError as `check_capabilities`."""
        check_capabilities(request.outline_fields, route.capabilities, route.name)

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        return None

    def find_usage(self, body: bytes, request: InferenceRequest) -> Usage | None:
        return usage_in(body)

    def is_told_by_events(self, error: bytes) -> bool:
        return False


class EnvelopeDialect(PassthroughDialect):
    """A `PassthroughDialect` whose errors have OpenAI's envelope and whose heartbeat is a comment."""

    heartbeat: bytes = b": ka\n\n"

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        return errors.own_body(error, request_id)

    def engine_error_body(self, status: int, body: bytes, request_id: str) -> bytes:
        return rename_error(errors.engine_body(status, body, request_id), self.form)
