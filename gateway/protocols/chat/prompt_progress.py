"""Prefill progress of llama-server: requested by `return_progress`, reported by stream events with `prompt_progress`.
Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from contract.routing import ModelRoute
from gateway.protocols.common import bodies
from gateway.protocols.common.bodies import LLAMA_SERVER
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, WrappedStream, count_of
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import EventCutter, data_of, split_events

FIELD: Final = "return_progress"
"""Request field that makes llama-server send these events."""
_APIS: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/completion", "/infill"))
"""Paths of llama-server's APIs that report progress."""
_MARK: Final = b'"prompt_progress"'
"""Never matches text of the model: inside a JSON string, a quote follows a backslash."""


class PromptProgress(NamedTuple):
    """Prefill of one request, in tokens of its prompt. `cached` and `processed` are parts of `total`; `processed`
    includes `cached`."""

    total: int
    cached: int = 0
    """Tokens of `total` that the engine had in its cache."""
    processed: int = 0
    """Tokens of `total` that are computed, cached ones included."""

    @property
    def share(self) -> float:
        """`processed` / `total`, 0 to 1; 1 for an empty prompt."""
        return min(1.0, self.processed / self.total) if self.total else 1.0


def tells_progress(api: str, route: ModelRoute) -> bool:
    """Return whether the model's engine reports prefill progress on its API at the path `api`."""
    return route.backend == LLAMA_SERVER and api in _APIS


def ask_for_progress(request: InferenceRequest) -> InferenceRequest:
    """Return a copy of the request with `return_progress: true`; the same object if the client set it already. Use it
    only where `tells_progress` is true. Of a request that is translated (`request.prompt`), only the prompt changes; of
    a large body, only the outline."""
    if request.outline_fields.get(FIELD) is True:
        return request
    asked_fields = {FIELD: True}
    if request.prompt is not None:  # it is translated
        passed_fields = {**request.prompt.passed_fields, **asked_fields}
        return replace(request, prompt=replace(request.prompt, passed_fields=passed_fields))
    return bodies.with_field(request, FIELD, value=True)


class PromptProgressStream(EventCutter, WrappedStream):
    """An `EventStream` that reads the prefill progress out of llama-server's events, and passes the events on to
    another stream. One instance serves one answer."""

    __slots__ = ("_drops", "_events", "_prompts", "_take_progress")

    def __init__(self, events: EventStream, take_progress: Callable[[PromptProgress], None], *, drops: bool) -> None:
        """`events`: the stream that gets the engine's events. `take_progress`: called with the sum over all prompts of
        the request for each event with progress, before the event is passed on. `drops`: remove the progress from the
        events, because the client did not ask for it."""
        super().__init__()
        self._events = events
        self._take_progress = take_progress
        self._drops = drops
        self._prompts: dict[int, PromptProgress] = {}
        """Latest progress by index of the answer; more than one for several prompts or answers."""

    def feed_data(self, chunk: bytes) -> bytes:
        """Report the progress, pass the events on, and return what the other stream makes of them."""
        events = self._cut_events(chunk)
        if _MARK in events:
            events = b"".join(map(self._read_event, split_events(events)))
        return self._events.feed_data(events) if events else b""

    def finish_stream(self) -> bytes:
        held_bytes, self._held = self._held, b""
        passed_events = self._events.feed_data(held_bytes) if held_bytes else b""
        return passed_events + self._events.finish_stream()

    def _read_event(self, event: bytes) -> bytes:
        """Note the progress that an event tells, and return what to pass on."""
        fields = decode_json(data_of(event)) if _MARK in event else None
        if not isinstance(fields, dict) or (prompt := read_progress(fields)) is None:
            return event
        self._prompts[_index_of(fields)] = prompt
        self._take_progress(PromptProgress(*map(sum, zip(*self._prompts.values(), strict=True))))
        if not self._drops:
            return event
        rest = {name: value for name, value in fields.items() if name != "prompt_progress"}
        return b"data: %b\n\n" % encode_json(rest) if _holds_answer(rest) else b""


def read_progress(fields: Fields) -> PromptProgress | None:
    """Return the progress in a stream event's decoded JSON, that is in its `prompt_progress`; None: the event has none.
    Counts that are no positive integers are 0."""
    told: Any = fields.get("prompt_progress")
    if not isinstance(told, dict):
        return None
    total, cached, processed = (told.get(name) for name in ("total", "cache", "processed"))
    return PromptProgress(count_of(total), count_of(cached), count_of(processed))


def _index_of(fields: Fields) -> int:
    """Return the index of the answer that an event belongs to."""
    choice = _first_choice(fields)
    index = fields.get("index") if choice is None else choice.get("index")
    return index if isinstance(index, int) else 0


def _first_choice(fields: Fields) -> Fields | None:
    choices = fields.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def _holds_answer(fields: Fields) -> bool:
    """Return whether an event holds a part of an answer, or its end."""
    choice = _first_choice(fields)
    if choice is None:
        return bool(fields.get("content") or fields.get("stop"))
    delta = choice.get("delta")
    has_delta = isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")
    return has_delta or bool(choice.get("text")) or choice.get("finish_reason") is not None
