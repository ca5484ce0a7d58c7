"""Streams of server-sent events: where events end, what passes through unchanged, and what is decoded event by event.
Pure.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from contract.errors import RoundhouseError
from gateway.protocols.common import errors
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import HOLD_LIMIT, USAGE_OBJECT, EventTooLongError, Usage, UsageTally
from gateway.protocols.common.errors import encode_json, status_of

_EVENT_END = re.compile(rb"\r?\n\r?\n")


class EventCutter:
    """Base of classes that cut a byte stream into whole events, wherever its chunks are cut. Line ends are LF or CRLF.
    One instance serves one stream and holds the bytes of the event that is not whole yet."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def _cut_events(self, chunk: bytes) -> bytes:
        """Return the events that `chunk` completes, in one piece, and hold the rest. Raises EventTooLongError if an
        event does not end within `HOLD_LIMIT` bytes."""
        held_bytes = self._held
        if not held_bytes and chunk.endswith(b"\n\n"):
            return chunk
        buffer = held_bytes + chunk
        # The held bytes contain no end of an event, so the first one starts within their last 3 bytes at the earliest.
        end = end_of_events(buffer, max(0, len(held_bytes) - 3))
        if len(buffer) - end > HOLD_LIMIT:
            raise EventTooLongError(f"an event of more than {HOLD_LIMIT} bytes")
        self._held = buffer[end:]
        return buffer[:end]

    def _take_held(self) -> bytes:
        """Return the held bytes, closed by a blank line, and forget them. They are the last event of a stream that left
        the blank line out, or a part of an event."""
        held_bytes, self._held = self._held, b""
        held_bytes = held_bytes.rstrip(b"\r\n")
        return held_bytes + b"\n\n" if held_bytes else b""


def split_events(events: bytes) -> list[bytes]:
    """Return the events, each with the blank line that ends it; the last one may lack it. The parts joined are
    `events` again; empty bytes give an empty list."""
    ends = [match.end() for match in _EVENT_END.finditer(events)]
    starts = [0, *ends]
    return [part for start, end in zip(starts, [*ends, len(events)], strict=True) if (part := events[start:end])]


def last_event(events: bytes) -> bytes:
    """Return the last event that is neither empty nor comments alone, with its blank line if it has one; empty bytes
    if there is none."""
    end = len(events)
    while end:
        start = end_of_events(events[:end].rstrip())
        event = events[start:end]
        if any(line and not line.startswith(b":") for line in event.splitlines()):
            return event
        end = start
    return b""


def data_of(event: bytes) -> bytes:
    """Return the data of an event: the values of its `data:` lines, joined by LF. Empty if it has none."""
    return b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))


def end_of_events(buffer: bytes, start: int = 0) -> int:
    """Return the offset behind the last blank line in `buffer`, where the last whole event ends; 0 if there is none.

    Only line ends at or behind the offset `start` are searched.
    """
    # The line before the blank one ends with "\n" in both styles, so these two cover them.
    after_lf = buffer.rfind(b"\n\n", start) + 2
    after_crlf = buffer.rfind(b"\n\r\n", start) + 3
    return max(after_lf if after_lf > 1 else 0, after_crlf if after_crlf > 2 else 0)


_LIMITS: Final = ("max_tokens", "max_completion_tokens", "n_predict")


# Found by reading llama-server (tools/server of llama.cpp) and by comparing its answers.
def differs_as_stream(fields: dict[str, Any]) -> bool:
    """Return whether a stream of llama-server would leave out or change a part of the blocking answer to a request
    with these decoded fields, in any API family. Then the request must not be sent as a stream. True for:

    - Stop strings with a token limit: text that could start a stop string is held back, and lost if the limit falls
      there.
    - `n_indent`: the line that ends the answer is removed from a blocking answer, but was sent in a stream.
    - `verbose`: `__verbose` of a stream describes its last part only.
    - `reasoning_format` deepseek-legacy: in a stream, thoughts are part of the content.
    - An answer that continues the last assistant message: some versions send that message's text in blocking answers
      only.
    - `best_of`: the best answer is known only when all have ended.
    """
    if _stops(fields) and any(fields.get(name) is not None for name in _LIMITS):
        return True
    if fields.get("continue_final_message") or _goes_on(fields.get("messages")):
        return True
    if fields.get("n_indent") or fields.get("verbose") or fields.get("reasoning_format") == "deepseek-legacy":
        return True
    return fields.get("best_of") not in (None, 1)


def wants_probabilities(fields: dict[str, Any]) -> bool:
    """Return whether the request asks for log probabilities of tokens, by `logprobs`, `top_logprobs` or `n_probs`. The
    number 0 does not count as asking."""
    return bool(fields.get("logprobs") or fields.get("top_logprobs") or fields.get("n_probs"))


def _stops(fields: dict[str, Any]) -> bool:
    return bool(fields.get("stop") or fields.get("stop_sequences"))


def _goes_on(messages: Any) -> bool:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


_COMMENT = 0x3A  # ":" starts a comment; a field's name starts with a letter, which is greater


class PassthroughStream(EventCutter, ABC):
    """Base of the `EventStream`s that send an engine's events as they are; a subclass may rewrite or drop some.

    One instance serves one stream. It decodes only events that contain a mark (`_usage_mark`, `_ERROR_MARK`), and keeps
    the last events to know how the stream ended. A mark in quotes never matches text of the model: inside a JSON
    string, a quote follows a backslash.
    """

    __slots__ = ("_last", "_request_id", "usage")

    _usage_mark: ClassVar[bytes] = b'"usage"'
    """Bytes that occur in every event with token counts."""
    _counts: ClassVar[re.Pattern[bytes]] = re.compile(rb'"usage"')
    """Occurs in every event with token counts, and in fewer others: `"usage": null` may stand in each event."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self._request_id = request_id
        self._last = b""
        self.usage: Usage | None = None

    def feed_data(self, chunk: bytes) -> bytes:
        events = chunk if not self._held and chunk.endswith(b"\n\n") else self._cut_events(chunk)
        if self._usage_mark in events or _ERROR_MARK in events:
            return self._filter_events(events)
        if events:
            if events[0] > _COMMENT:
                self._last = events
            else:
                self._keep_last(events)
        return events

    def finish_stream(self) -> bytes:
        """Return the event that no blank line closed, if it is the stream's last event or an error; drop any other,
        because it may be incomplete."""
        held_event = self._take_held()
        if held_event and (self._is_last(held_event) or find_error(held_event) is not None):
            held_event = self._filter_event(held_event)
            self._last = held_event or self._last
            return held_event
        return b""

    def _filter_events(self, events: bytes) -> bytes:
        passed_events = []
        for event in split_events(events):
            passed_event = self._filter_event(event)
            if passed_event:
                self._keep_last(passed_event)
                passed_events.append(passed_event)
        return b"".join(passed_events)

    def _filter_event(self, event: bytes) -> bytes:
        """Note what the event reports, and return what to send in its place; empty to drop it."""
        if self._counts.search(event) is not None and not self._note_usage(event):
            return b""
        error = find_error(event) if _ERROR_MARK in event else None
        return event if error is None else self._rewrite_error(event, error)

    def _keep_last(self, events: bytes) -> None:
        if events[0] > _COMMENT:
            self._last = events
        else:
            self._last = last_event(events) or self._last

    @property
    def is_complete(self) -> bool:
        """Whether the latest event that was passed on ends a stream of this API family, or is an error.

        Comments do not count. False before the first event.
        """
        last = last_event(self._last)
        return self._is_last(last) or find_error(last) is not None

    @abstractmethod
    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the last events of a stream that ends here with `error`, in the family's form; no error after a
        complete stream. Call at most once."""

    @abstractmethod
    def _note_usage(self, event: bytes) -> bool:
        """Note the token counts of an event in which `_counts` occurs. Return whether the client gets the event."""

    @abstractmethod
    def _is_last(self, event: bytes) -> bool:
        """Whether this event is the proper end of a stream."""

    def _rewrite_error(self, event: bytes, error: Fields) -> bytes:
        """Return what to send in place of an engine's error event, whose error object is `error`: the error with every
        field of Roundhouse's error envelope and no network address. The same event if that is so already."""
        if event.startswith(b"data:") and errors.is_envelope({"error": error}) and not errors.tells_address(error):
            return event
        return errors.as_event(errors.engine_body(status_of(error), encode_json({"error": error}), self._request_id))


DONE: Final = b"data: [DONE]\n\n"
DONE_EVENT: Final = re.compile(rb"(?:^|\n)data:\s*\[DONE\]\s*\Z")
_ERROR_MARK: Final = b"error"
"""Bytes that occur in every event that is an error."""
_ERROR_NAME: Final = re.compile(rb"(?:^|\n)event: ?error\r?\n")
"""The line that names an event `error`."""
_ERROR_LINE: Final = b"error:"
"""Start of an error in the streams of older llama-servers, contrary to the specification."""


class OpenAIStream(PassthroughStream):
    """`EventStream` for OpenAI's `data:` events; one instance serves one answer. Events pass unchanged, except that
    error events get the fields of Roundhouse's error envelope (see `errors`) and that `strip_usage` removes usage
    events whose list of choices is empty.
    """

    __slots__ = ("_strip", "_tally")

    _counts: ClassVar[re.Pattern[bytes]] = USAGE_OBJECT

    def __init__(self, request_id: str, *, strip_usage: bool) -> None:
        super().__init__(request_id)
        self._strip = strip_usage
        self._tally = UsageTally()

    def finish_stream(self) -> bytes:
        """Return what the base does, and `[DONE]` if the stream ended with an error, or without it after its answers
        did: some servers end so, and a body that broke off does not come here."""
        rest = super().finish_stream()
        last = last_event(self._last)
        if self._ends_answers(last):
            self._last = DONE
            return rest + DONE
        return rest if find_error(last) is None else rest + DONE

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """Return the error as an event and `[DONE]`; of a stream that ended with an error already, `[DONE]` alone. Do
        not call it after `finish_stream` of a complete stream."""
        if self.is_complete:
            return b"" if self._is_last(last_event(self._last)) else DONE
        return as_events(errors.own_body(error, request_id))

    def _note_usage(self, event: bytes) -> bool:
        fields = errors.decode_json(data_of(event))
        if not isinstance(fields, dict) or not isinstance(fields.get("usage"), dict):
            return True
        self._tally.note_usage(fields["usage"], fields.get("choices"))
        self.usage = self._tally.usage
        return not (self._strip and fields.get("choices") == [])

    def _is_last(self, event: bytes) -> bool:
        return DONE_EVENT.search(event) is not None

    def _ends_answers(self, event: bytes) -> bool:
        """Whether the event has a finish reason, or the usage that comes after the last one."""
        fields = errors.decode_json(data_of(event))
        choices = fields.get("choices") if isinstance(fields, dict) else None
        if choices == []:
            return isinstance(fields.get("usage"), dict)
        return isinstance(choices, list) and any(
            isinstance(each, dict) and each.get("finish_reason") is not None for each in choices
        )


def as_events(body: bytes) -> bytes:
    """Return the JSON of an error as a `data:` event, followed by `data: [DONE]`."""
    return errors.as_event(body) + DONE


def find_error(event: bytes) -> Fields | None:
    """Return the error object of an event; None if the event is no error.

    An error is an object with the field `error`, an event named `error`, or an event that starts with `error:` (older
    llama-servers). An error that is not an object is returned as `{"message": ...}`.
    """
    if b"error" not in event:
        return None
    stripped = event.lstrip()
    if stripped.startswith(_ERROR_LINE):
        text = stripped[len(_ERROR_LINE) :].strip()
        fields = errors.decode_json(text)
        if fields is None:
            return _as_object(text.decode(errors="replace"))
        return _as_object(fields.get("error", fields) if isinstance(fields, dict) else fields)
    data = data_of(event)
    fields = errors.decode_json(data)
    error = fields.get("error") if isinstance(fields, dict) else None
    if error is None and _ERROR_NAME.search(event) is not None:
        error = data.decode(errors="replace") if fields is None else fields
    return None if error is None else _as_object(error)


def _as_object(error: Any) -> Fields:
    if isinstance(error, dict):
        return error
    return {"message": errors.as_text(error) if error else "The engine failed."}


_DECODE: Final = json.JSONDecoder().raw_decode
NO_JSON: Final = "The engine sent an event that is no JSON."
_ERROR_STARTS: Final = ("event: error", "event:error", "error:")


class EventReader(EventCutter, ABC):
    """Base of classes that decode an engine's stream; subclasses say what an event does. One instance serves one
    stream. Each event is decoded once, when it is whole; data that is no JSON object goes to `_take_unreadable`.

    `usage` holds the token counts reported so far; None: none yet.
    """

    __slots__ = ("is_done", "usage")

    def __init__(self) -> None:
        super().__init__()
        self.is_done = False
        """Whether the event `data: [DONE]` has come, with which OpenAI's streams end."""
        self.usage: Usage | None = None

    @abstractmethod
    def _take_event(self, fields: Fields) -> None:
        """Handle the data of an event that is no error."""

    @abstractmethod
    def _take_error(self, error: Fields) -> None:
        """Handle an error event. `error` is its error object, as from `find_error`."""

    def _read_events(self, events: bytes) -> None:
        text = events.decode("utf-8", "replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        for event in text.split("\n\n"):
            if event:
                try:
                    self._read_event(event)
                except RecursionError:
                    continue  # JSON nested a thousand levels deep: no engine sends that

    def _read_event(self, event: str) -> None:
        # Fast path: nearly always only the last line has data, and the data is an object.
        start = 0 if event.startswith("data:") else event.find("\ndata:") + 1
        opening = start + 6 if event.startswith(" ", start + 5) else start + 5
        if event.startswith("data:", start) and event.startswith("{", opening) and event.find("\n", opening) < 0:
            try:
                fields = _DECODE(event, opening)[0]
            except ValueError:
                fields = self._read_slowly(event)
        else:
            fields = self._read_slowly(event)
        is_object = isinstance(fields, dict)
        if event.startswith(_ERROR_STARTS) or (is_object and fields.get("error") is not None):
            error = find_error(event.encode())
            if error is not None:
                self._take_error(error)
                return
        if is_object:
            self._take_event(fields)
        elif fields is not None:
            self._take_unreadable()

    def _take_unreadable(self) -> None:
        """Handle an event whose data is no JSON object. The base skips it."""

    def _take_fault(self, message: str) -> None:
        """Handle an event that cannot be read or passed on, as an error of the engine with this message."""
        self._take_error({"message": message, "code": 502, "type": "server_error"})

    def _read_slowly(self, event: str) -> Any:
        """Return the data of an event; None: it has none, or it is the end; the text itself where it is no JSON."""
        lines = [line.split(":", 1) for line in event.split("\n") if line.startswith("data:")]
        data = "\n".join([value.removeprefix(" ") for _, value in lines]).strip()
        if data == "[DONE]":
            self.is_done = True
        if data in ("", "[DONE]", "null"):
            return None
        try:
            return json.loads(data)
        except ValueError:
            return data


class EventCollector(EventReader):
    """Base of the `StreamCollector`s: builds one blocking answer from the events of one stream. Subclasses take the
    events and build the body."""

    __slots__ = ("_failure",)

    def __init__(self) -> None:
        super().__init__()
        self._failure: tuple[int, bytes] | None = None

    def feed_data(self, chunk: bytes) -> None:
        if events := self._cut_events(chunk):
            self._read_events(events)

    def build_result(self) -> tuple[int, bytes] | None:
        """Return status and body of the blocking answer; None if the stream broke off before its end. After an error
        event: the error's status (500 if it has none), and the error in the engine's form. Call once."""
        if held_events := self._take_held():
            self._read_events(held_events)
        if self._failure is not None:
            return self._failure
        answer = self._build_answer()
        return None if answer is None else (200, encode_json(answer))

    @abstractmethod
    def _build_answer(self) -> Any:
        """Return the body of the blocking answer; None if the stream has not reached its end."""

    def _take_error(self, error: Fields) -> None:
        """Make the error the result, as the engine would have answered a blocking request."""
        if self._failure is None:
            self._failure = status_of(error), encode_json({"error": error})
