"""llama.cpp's own API: completions, infill, slots, properties, adapters. Pure.

Streams are `data:` events. The last event of each answer has `"stop": true`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.protocols.common import bodies, errors
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EnvelopeDialect, EventStream, StreamCollector, Usage, usage_of
from gateway.protocols.common.fan_out import check_choices, count_choices, count_prompts
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.json_dialect import JsonDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import (
    DONE_EVENT,
    EventCollector,
    PassthroughStream,
    data_of,
    differs_as_stream,
    find_error,
    last_event,
    wants_probabilities,
)


class PropsDialect(JsonDialect):
    """Dialect of /props and /lora-adapters, passed through but for files and `ui`. Of the path of a model's or an
    adapter's file, the client gets the file's name: folders of the host are nobody's business. Engines run without a
    web page of their own and answer `ui` false, for which llama.cpp's page would hide their models; the client gets
    true."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        return _show_to_clients


PROPS: Final = PropsDialect()


def _show_to_clients(body: bytes) -> bytes:
    with suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, list):
            return json_bytes([_name_file(each, "path") for each in answer])
        if isinstance(answer, dict):
            named = _name_file(answer, "model_path")
            return json_bytes({**named, "ui": True} if "ui" in named else named)
    return body


def _name_file(fields: Any, field: str) -> Any:
    """Return the fields with the name of a file in place of its path."""
    path = fields.get(field) if isinstance(fields, dict) else None
    return {**fields, field: PurePosixPath(path).name} if isinstance(path, str) else fields


_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_ACTIONS: Final = ("save", "restore", "erase")


class SlotsDialect(JsonDialect):
    """Dialect of /slots/{id}. A file's name is checked here, too, so that it is never a path, whatever the engine
    makes of it."""

    def check_request(self, request: InferenceRequest, route: ModelRoute) -> None:
        """Refuse an unknown `action` in the query of `request.target`, and, unless it is `erase`, a `filename` that is
        missing or no plain name (`invalid_request`)."""
        super().check_request(request, route)
        query = parse_qs(request.target.partition("?")[2])
        action = query.get("action", [""])[-1]
        if action not in _ACTIONS:
            raise RoundhouseError(
                "invalid_request", f"`?action=` must be one of {', '.join(_ACTIONS)}.", param="action"
            )
        name = request.fields.get("filename")
        if action != "erase" and not (isinstance(name, str) and _FILE_NAME.fullmatch(name)):
            raise RoundhouseError(
                "invalid_request",
                "`filename` must be a plain name of at most 200 letters, digits, `.`, `_` and `-`, which begins with a "
                "letter or a digit.",
                param="filename",
            )


SLOTS: Final = SlotsDialect()


_EVALUATED: Final = re.compile(rb'"tokens_evaluated"\s*:\s*(\d{1,15})')
_PREDICTED: Final = re.compile(rb'"tokens_predicted"\s*:\s*(\d{1,15})')


class _UsageTally:
    """Adds up the tokens of the answers to one request. Each prompt counts once: its `choices` answers all report its
    tokens."""

    __slots__ = ("_choices", "_completion", "_evaluated", "_most", "usage")

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self._evaluated = self._most = self._completion = 0
        self.usage: Usage | None = None
        """Usage of all answers so far; None: no answer reported any. Before all have ended, the prompts' count may be
        too low."""

    def note_counts(self, evaluated_counts: Sequence[int], predicted_counts: Sequence[int]) -> None:
        """Add `tokens_evaluated` and `tokens_predicted` of answers that have ended. Ignores answers without the
        second."""
        if not predicted_counts:
            return
        self._evaluated += sum(evaluated_counts)
        self._most = max(self._most, *evaluated_counts, 0)
        self._completion += sum(predicted_counts)
        prompt_tokens = max(self._most, -(-self._evaluated // self._choices))
        self.usage = Usage(prompt_tokens, self._completion)


def _counts_in(pattern: re.Pattern[bytes], body: bytes) -> list[int]:
    return [int(count) for count in pattern.findall(body)]


class NativeStream(PassthroughStream):
    """`EventStream` of llama.cpp's own events, passed through; error events get Roundhouse's error envelope. It is
    complete when `choices` answers to each of `prompts` prompts have ended, or an error or `[DONE]` has come."""

    __slots__ = ("_expected", "_stops", "_tally")

    _usage_mark: ClassVar[bytes] = b'"stop_type"'
    """Occurs only in the last event of an answer."""
    _counts: ClassVar[re.Pattern[bytes]] = re.compile(re.escape(_usage_mark))

    def __init__(self, choices: int, prompts: int, request_id: str) -> None:
        super().__init__(request_id)
        self._expected = choices * prompts
        self._stops = 0
        self._tally = _UsageTally(choices)

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        return b"" if self.is_complete else errors.as_event(errors.own_body(error, request_id))

    def _note_usage(self, event: bytes) -> bool:
        self._stops += 1
        self._tally.note_counts(_counts_in(_EVALUATED, event), _counts_in(_PREDICTED, event))
        self.usage = self._tally.usage
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all answers that the request asked for have ended, or an error or `[DONE]` was the last event."""
        last = last_event(self._last)
        if DONE_EVENT.search(last) or find_error(last) is not None:
            return True
        return self._is_last(last) and not 0 < self._stops < self._expected

    def _is_last(self, event: bytes) -> bool:
        if DONE_EVENT.search(event):
            return True
        fields = errors.decode_json(data_of(event))
        # With `response_fields` the last event may lack `stop`, but in all events before it `stop` is false.
        return isinstance(fields, dict) and fields.get("stop") is not False and fields.get("error") is None


class NativeCollector(EventCollector):
    """`StreamCollector` of llama.cpp's own events. The blocking answer is one object, or an array of objects, by their
    `index`, if several answers came. It is None until `choices` answers to each of `prompts` prompts have ended."""

    __slots__ = ("_answers", "_expected", "_tally")

    def __init__(self, choices: int, prompts: int) -> None:
        super().__init__()
        self._expected = choices * prompts
        self._tally = _UsageTally(choices)
        self._answers: dict[int, _Answer] = {}

    def _take_event(self, fields: Fields) -> None:
        index = fields.get("index", 0)
        if not isinstance(index, int) or not isinstance(fields.get("stop"), bool):
            return
        answer = self._answers.get(index)
        if answer is None:
            answer = self._answers[index] = _Answer()
        if answer.add_part(fields):
            prompt_tokens, completion_tokens = fields.get("tokens_evaluated"), fields.get("tokens_predicted")
            usage = usage_of({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens})
            if usage is not None:
                self._tally.note_counts([usage.prompt], [usage.completion])
                self.usage = self._tally.usage

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
        """Refuse what the model does not support (`check_capabilities`), and more answers than its engine generates for
        one request (`invalid_request`)."""
        super().check_request(request, route)
        check_choices(request.outline_fields, route)

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        if as_stream:
            return bodies.as_stream(request, route.served_name, ask_for_usage=False)
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        fields = request.outline_fields
        return NativeStream(count_choices(fields), count_prompts(fields.get("prompt")), request.id)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Return a new `NativeCollector`; None also for `return_tokens` (tokens inside a character are in no event),
        `response_fields` (they may leave out the field that ends the stream), and log probabilities with stop strings
        (a blocking answer leaves out those of the stop string)."""
        fields = request.outline_fields
        if differs_as_stream(fields) or fields.get("return_tokens") or fields.get("response_fields"):
            return None
        if wants_probabilities(fields) and fields.get("stop"):
            return None
        return NativeCollector(count_choices(fields), count_prompts(fields.get("prompt")))

    def find_usage(self, body: bytes, request: InferenceRequest) -> Usage | None:
        """Return the counts of all prompts and answers. Their names cannot occur inside JSON strings, where a quote
        follows a backslash."""
        tally = _UsageTally(count_choices(request.outline_fields))
        tally.note_counts(_counts_in(_EVALUATED, body), _counts_in(_PREDICTED, body))
        return tally.usage

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        return errors.as_event(body)


NATIVE: Final = NativeDialect()
