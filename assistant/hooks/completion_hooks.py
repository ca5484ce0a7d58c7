"""Stored chat completions by hooks: `store: true` keeps the completion, recorded while it is passed on, and the
messages that it answers.

The client and the stored completion get an id of the gateway's, since engines' ids are not unique.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from assistant.storage.completions import StoredCompletions
from assistant.storage.records import describe_completion
from contract.errors import RoundhouseError
from contract.routing import ModelRoute
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import NO_HOOKS, AnswerForm, ConditionalHook, ExchangeHooks, Trigger
from gateway.exchange.stored_end import ObjectWrite
from gateway.protocols.chat.dialect import ChatCollector
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.dialect import EventStream, StreamCollector, Usage, WrappedStream
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.field_reader import optional_field, read_metadata
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest

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


class _RecordedStream(WrappedStream):
    """An `EventStream` that gathers its events into a completion, beside passing them on with the new id."""

    __slots__ = ("_collector", "_engine_id", "_events", "_is_recorded", "_recorder")

    def __init__(self, events: EventStream, recorder: _BodyRecorder) -> None:
        self._events = events
        self._recorder = recorder
        self._collector = ChatCollector(is_chat=True)
        self._engine_id: re.Pattern[bytes] | None = None
        self._is_recorded = False

    def feed_data(self, chunk: bytes) -> bytes:
        """See EventStream, as for the others."""
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


_OWN_FIELDS: Final = ("store", "metadata")
_DONE: Final = b"data: [DONE]"


class _CompletionKeeper:
    """Stores the completion that an exchange makes, when it is complete. An `AnswerKeeper`."""

    __slots__ = ("_asked_fields", "_completion", "_completions", "_exchange", "_metadata", "_write")

    def __init__(
        self,
        exchange: Exchange,
        completions: StoredCompletions,
        asked_fields: Fields,
        metadata: Mapping[str, str],
    ) -> None:
        """`asked_fields`: the client's request, of which a part is stored, too."""
        self._exchange = exchange
        self._completions = completions
        self._asked_fields = asked_fields
        self._metadata = metadata
        self._completion: Fields = {}
        self._write: ObjectWrite | None = None

    def shape_answer(self, exchange: Exchange, form: AnswerForm) -> AnswerForm:
        """Return a copy of `form` that begins to store the completion when it is complete, under a new id of the
        gateway's.

        A hook of the kind `shape_answer`, so called for each attempt.
        """
        return record_form(form, self._completions.new_id(), self._save_completion)

    def _save_completion(self, answer: Fields) -> None:
        exchange, messages = self._exchange, self._asked_fields.get("messages")
        told_messages = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
        self._completion = completion = describe_completion(answer, self._asked_fields, exchange.answer.request_id)
        self._write = self._completions.save_completion(
            exchange.caller.tenant, exchange.account.model, completion, told_messages, self._metadata
        )

    def begin_write(self, last_part: bytes) -> ObjectWrite | None:
        """Return the write that began when the answer was complete; None: it is not complete. See AnswerKeeper."""
        return self._write

    def mark_lost(self, error: RoundhouseError) -> bool:
        """Return False: the answer is an answer nevertheless."""
        return False

    def mark_events(self, events: bytes, error: RoundhouseError) -> bytes:
        """Add a chunk with `store: false`, before `[DONE]`. It has no choices, like the chunk with the usage."""
        chunk: Fields = {name: self._completion.get(name) for name in ("id", "created", "model")}
        chunk |= {"object": "chat.completion.chunk", "choices": [], "store": False}
        at = events.rfind(_DONE) if _DONE in events else len(events)
        return b"%bdata: %b\n\n%b" % (events[:at], encode_json(chunk), events[at:])

    def mark_body(self, body: bytes) -> bytes:
        """Return the answer's JSON with `"store": false`."""
        return encode_json({**decode_json(body), "store": False})


def _read_store(exchange: Exchange, _: ModelRoute, completions: StoredCompletions) -> None:
    request = exchange.request
    if optional_field(request.outline_fields, "store", bool):
        asked_fields = request.fields
        keeper = _CompletionKeeper(exchange, completions, asked_fields, read_metadata(asked_fields))
        _drop_own_fields(request)
        exchange.hold_end(keeper)
        exchange.add_hooks(ExchangeHooks(shape_answer=(keeper.shape_answer,)))


def _drop_own_fields(request: InferenceRequest) -> None:
    """Drop `store` and `metadata` from the engine's request, since the gateway stores the completion."""
    engine_fields = {name: value for name, value in request.outline_fields.items() if name not in _OWN_FIELDS}
    request.outline_fields = engine_fields
    try:
        request.outline = json_bytes(engine_fields)
    except RecursionError:
        message = "The request is nested too deeply for its completion to be stored."
        raise RoundhouseError("invalid_request", message) from None


def completion_hooks(completions: StoredCompletions) -> ExchangeHooks:
    """Return the hooks that store chat completions with `store: true`; none if this gateway stores none."""
    if not completions.stores_completions:
        return NO_HOOKS
    hook = partial(_read_store, completions=completions)
    return ExchangeHooks(on_request=(ConditionalHook(hook, Trigger(frozenset(("store",)))),))
