"""Recording a chat completion while it is passed on to the client.

The client and the stored completion get an id of the gateway's, since engines' ids are not unique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from gateway.exchange.attempt import AnswerForm
from gateway.protocols.chat.dialect import ChatCollector
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage
from gateway.protocols.common.errors import decode_json, encode_json

KeepCompletion = Callable[[Fields], None]


def record_form(form: AnswerForm, completion_id: str, keep: KeepCompletion) -> AnswerForm:
    """Return a copy of `form` that records the completion, with `completion_id` in the place of the engine's id.

    `keep` is called at most once, with the completion object when it is complete, before its last byte is passed on,
    and never for an error or a stream that breaks off. An event without an id gets none. `may_flow` of the copy is
    False, so that a blocking answer is held whole.
    """
    body_recorder = _BodyRecorder(completion_id, keep)
    translate = form.translate
    return form._replace(
        events=None if form.events is None else _RecordedStream(form.events, body_recorder),
        collector=None if form.collector is None else ConvertedCollector(form.collector, body_recorder.record_body),
        translate=lambda body: body_recorder.record_body(body if translate is None else translate(body)),
        may_flow=False,
    )


class _BodyRecorder:
    """Replaces the id of a whole completion and gives it to `keep`."""

    def __init__(self, completion_id: str, keep: KeepCompletion) -> None:
        self.completion_id = completion_id
        self._keep = keep

    def record_body(self, body: bytes) -> bytes:
        """Return the body with the new id. A body that is no completion is returned unchanged and not kept."""
        fields = decode_json(body)
        if not isinstance(fields, dict) or not isinstance(fields.get("choices"), list):
            return body
        fields["id"] = self.completion_id
        self._keep(fields)
        return encode_json(fields)


class ConvertedCollector:
    """A `StreamCollector` whose answer is converted, unless it is an error."""

    __slots__ = ("_collector", "_convert_body")

    def __init__(self, collector: StreamCollector, convert_body: Callable[[bytes], bytes]) -> None:
        """`collector` builds the answer; `convert_body` takes its body, and returns what the client gets instead."""
        self._collector = collector
        self._convert_body = convert_body

    @property
    def usage(self) -> Usage | None:
        """Token counts that the engine's stream has reported so far; None: none yet."""
        return self._collector.usage

    def feed_data(self, chunk: bytes) -> None:
        """Add bytes of the engine's stream, cut anywhere. Raises EventTooLongError for an event that is too long to be
        held."""
        self._collector.feed_data(chunk)

    def build_result(self) -> tuple[int, bytes] | None:
        """Return status and body of the answer, the body converted unless the status is an error's (400 or more).

        None if the stream broke off before its end. Raises RoundhouseError if the answer cannot be translated, and what
        `convert_body` raises. Call once, at the end of the stream.
        """
        result = self._collector.build_result()
        if result is None or result[0] >= 400:
            return result
        return result[0], self._convert_body(result[1])


class _RecordedStream:
    """An `EventStream` that gathers its events into a completion, beside passing them on with the new id."""

    __slots__ = ("_collector", "_engine_id", "_events", "_is_recorded", "_recorder")

    def __init__(self, events: EventStream, recorder: _BodyRecorder) -> None:
        self._events = events
        self._recorder = recorder
        self._collector = ChatCollector(is_chat=True)
        self._engine_id: re.Pattern[bytes] | None = None
        self._is_recorded = False

    @property
    def usage(self) -> Usage | None:
        """See EventStream, as for the others."""
        return self._events.usage

    @property
    def is_complete(self) -> bool:
        """See EventStream."""
        return self._events.is_complete

    def feed_data(self, chunk: bytes) -> bytes:
        """See EventStream."""
        passed_events = self._events.feed_data(chunk)
        self._collector.feed_data(chunk)
        if self._collector.is_done:
            self._record()
        return self._rename(passed_events)

    def finish_stream(self) -> bytes:
        """See EventStream."""
        last_events = self._events.finish_stream()
        if self._events.is_complete:
            self._record()
        return self._rename(last_events)

    def fail_stream(self, error: RoundhouseError, request_id: str) -> bytes:
        """See EventStream."""
        return self._events.fail_stream(error, request_id)

    def _record(self) -> None:
        result = None if self._is_recorded else self._collector.build_result()
        if result is not None:
            self._is_recorded = True
            status, body = result
            if status < 400:
                self._recorder.record_body(body)

    def _rename(self, events: bytes) -> bytes:
        """Return the events with the new id in the place of the engine's."""
        if self._engine_id is None:
            engine_id = self._collector.answer_id
            if engine_id is None:
                return events
            written_id = json.dumps(engine_id, ensure_ascii=False).encode(errors="replace")
            self._engine_id = re.compile(rb'("id"\s*:\s*)' + re.escape(written_id))
        return self._engine_id.sub(rb'\1"%b"' % self._recorder.completion_id.encode(), events)
