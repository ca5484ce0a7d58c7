"""llama.cpp's own generation APIs (`/infill`, `/completion`), passed through.

Streams are `data:` events. The last event of each answer has `"stop": true`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common import bodies, errors
from gateway.protocols.common.choices import check_choices
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage
from gateway.protocols.common.event_reader import EventCollector, Fields
from gateway.protocols.common.openai_events import error_event, find_error
from gateway.protocols.common.passthrough import EnvelopeDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.sse import data_of, last_event
from gateway.protocols.common.stream_compat import differs_as_stream, wants_probabilities
from gateway.protocols.common.streams import PassthroughStream
from gateway.protocols.common.usage import add_usage, usage_of

_EVALUATED: Final = re.compile(rb'"tokens_evaluated"\s*:\s*(\d{1,15})')
_PREDICTED: Final = re.compile(rb'"tokens_predicted"\s*:\s*(\d{1,15})')
_DONE: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]\s*\Z")


class NativeStream(PassthroughStream):
    """`EventStream` of llama.cpp's own events, passed through; error events get Roundhouse's error envelope. It is
    complete when `answers` answers have ended, or an error or `[DONE]` has come."""

    __slots__ = ("_expected", "_request_id", "_stops")

    _usage_mark: ClassVar[bytes] = b'"stop_type"'
    """Occurs only in the last event of an answer."""
    _error_mark: ClassVar[bytes] = b"error"

    def __init__(self, answers: int, request_id: str) -> None:
        super().__init__()
        self._expected = answers
        self._request_id = request_id
        self._stops = 0

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the error as a `data:` event; empty if the stream is already complete. See `EventStream`."""
        return b"" if self.is_complete else errors.as_event(errors.own_body(error, request_id))

    def _filter_event(self, event: bytes) -> bytes:
        if self._usage_mark in event:
            self._stops += 1
            if (usage := usage_in(event)) is not None:
                self.usage = add_usage(self.usage, usage)
        error = find_error(event)
        return event if error is None else error_event(event, error, self._request_id)

    @property
    def is_complete(self) -> bool:
        """Whether all answers that the request asked for have ended, or an error or `[DONE]` was the last event."""
        last = last_event(self._last)
        if _DONE.search(last) or self._is_error(last):
            return True
        return self._is_last(last) and not 0 < self._stops < self._expected

    def _is_last(self, event: bytes) -> bool:
        if _DONE.search(event):
            return True
        fields = errors.decode_json(data_of(event))
        # With `response_fields` the last event may lack `stop`, but in all events before it `stop` is false.
        return isinstance(fields, dict) and fields.get("stop") is not False and fields.get("error") is None

    def _is_error(self, event: bytes) -> bool:
        return find_error(event) is not None


class NativeCollector(EventCollector):
    """`StreamCollector` of llama.cpp's own events. The blocking answer is one object, or an array of objects, by their
    `index`, if several answers came. It is None until `answers` answers have ended."""

    __slots__ = ("_answers", "_expected")

    def __init__(self, answers: int) -> None:
        super().__init__()
        self._expected = answers
        self._answers: dict[int, _Answer] = {}

    def _take_event(self, fields: Fields) -> None:
        if fields.get("error") is not None:
            self._take_error(fields["error"])
            return
        index = fields.get("index", 0)
        if not isinstance(index, int) or not isinstance(fields.get("stop"), bool):
            return
        answer = self._answers.get(index)
        if answer is None:
            answer = self._answers[index] = _Answer()
        if answer.add_part(fields):
            prompt_tokens, completion_tokens = fields.get("tokens_evaluated"), fields.get("tokens_predicted")
            usage = usage_of({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens})
            self.usage = add_usage(self.usage, usage) if usage else self.usage

    def _build_answer(self) -> Any:
        answers = [self._answers[index].build_answer() for index in sorted(self._answers)]
        if len(answers) < self._expected or None in answers:
            return None
        return answers[0] if len(answers) == 1 else answers


class _Answer:
    """An answer that grows with each event."""

    __slots__ = ("_last", "_probabilities", "_texts")

    def __init__(self) -> None:
        self._last: Fields | None = None
        self._texts: list[str] = []
        self._probabilities: list[Any] = []

    def add_part(self, fields: Fields) -> bool:
        """Add one event's part of the answer. Returns True for the answer's last event."""
        text, probabilities = fields.get("content"), fields.get("completion_probabilities")
        if isinstance(text, str) and text:
            self._texts.append(text)
        if isinstance(probabilities, list):
            self._probabilities += probabilities
        if not fields["stop"]:
            return False
        self._last = fields
        return True

    def build_answer(self) -> Fields | None:
        """Return the answer as a blocking request gets it; None if its last event has not come."""
        if self._last is None:
            return None
        answer = {**self._last, "content": "".join(self._texts)}
        if self._probabilities:
            answer["completion_probabilities"] = self._probabilities
        settings = answer.get("generation_settings")
        if isinstance(settings, dict) and "stream" in settings:
            answer["generation_settings"] = {**settings, "stream": False}
        return answer


class NativeDialect(EnvelopeDialect):
    """Dialect of llama.cpp's own generation APIs, `/infill` and `/completion`: requests and answers pass through."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse what the model does not support, and more answers (`n_cmpl` or `n`) than its engine generates for one
        request (`route.max_choices`). See `Dialect`.

        Raises:
            RoundhouseError: `invalid_request`, or the code of what the model does not support; `param` is the field.
        """
        super().check_request(request, route)
        check_choices(request.outline_fields, route)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the body under the engine's name for the model. See `Dialect`."""
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=False)
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return a new `NativeStream` for as many answers as the request asks for: `n_cmpl` or `n` for each prompt."""
        return NativeStream(_answers_asked(request.outline_fields), request.id)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new `NativeCollector`; None if a stream cannot give the same answer to the request. That is so where
        `differs_as_stream` says so, and for:

        - `return_tokens`: tokens inside a character are in no event.
        - `response_fields`: they may leave out the field that ends the stream.
        - Log probabilities with stop strings: a blocking answer leaves out those of the stop string.
        """
        fields = request.outline_fields
        if differs_as_stream(fields) or fields.get("return_tokens") or fields.get("response_fields"):
            return None
        if wants_probabilities(fields) and fields.get("stop"):
            return None
        return NativeCollector(_answers_asked(fields))

    def find_usage(self, body: bytes) -> Usage | None:
        """Return the token counts of all answers in a blocking answer; None if it has none. See `usage_in`."""
        return usage_in(body)

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """Return the error, whose JSON is `body`, as a `data:` event. See `Dialect`."""
        return errors.as_event(body)


NATIVE: Final = NativeDialect()


def usage_in(body: bytes) -> Usage | None:
    """Return the token counts in a body or an event; None if it has no `tokens_predicted`. The completion is the sum
    over all answers; the prompt is that of the first answer alone, also where the answers have different prompts.

    The names searched for cannot occur inside JSON strings, where a quote follows a backslash.
    """
    predicted_counts = _PREDICTED.findall(body)
    if not predicted_counts:
        return None
    evaluated_match = _EVALUATED.search(body)
    return Usage(int(evaluated_match.group(1)) if evaluated_match else 0, sum(map(int, predicted_counts)))


def _answers_asked(fields: Fields) -> int:
    count = fields.get("n_cmpl", fields.get("n"))
    return _count_prompts(fields.get("prompt")) * (count if isinstance(count, int) and count > 1 else 1)


def _count_prompts(prompt: Any) -> int:
    """Return the number of prompts. An array that holds a token is one prompt of tokens and texts; any other is an
    array of prompts."""
    if not isinstance(prompt, list) or any(isinstance(part, int) for part in prompt):
        return 1
    return max(len(prompt), 1)
