"""Stored chat completions by hooks: `store: true` keeps the completion and the messages that it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.exchange.attempt import AnswerForm
from gateway.exchange.completion_recorder import record_form
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.errors import decode_json, encode_json
from gateway.protocols.common.field_reader import optional_field
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.metadata import read_metadata
from gateway.protocols.common.request import InferenceRequest
from gateway.storage.completions.records import describe_completion
from gateway.storage.store import ObjectWrite

_OWN_FIELDS: Final = ("store", "metadata")
_DONE: Final = b"data: [DONE]"


class _CompletionKeeper:
    """Stores the completion that an exchange makes, when it is complete. An `AnswerKeeper`."""

    __slots__ = ("_asked_fields", "_completion", "_exchange", "_metadata", "_write")

    def __init__(self, exchange: Exchange, asked_fields: Fields, metadata: Mapping[str, str]) -> None:
        """`asked_fields`: the client's request, of which a part is stored, too."""
        self._exchange = exchange
        self._asked_fields = asked_fields
        self._metadata = metadata
        self._completion: Fields = {}
        self._write: ObjectWrite | None = None

    def shape_answer(self, exchange: Exchange, form: AnswerForm) -> AnswerForm:
        """Return a copy of `form` that begins to store the completion when it is complete, under a new id of the
        gateway's.

        A hook of the kind `shape_answer`, so called for each attempt.
        """
        return record_form(form, exchange.services.completions.new_id(), self._save_completion)

    def _save_completion(self, answer: Fields) -> None:
        exchange, messages = self._exchange, self._asked_fields.get("messages")
        told_messages = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
        self._completion = completion = describe_completion(answer, self._asked_fields, exchange.answer.request_id)
        self._write = exchange.services.completions.save_completion(
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


def _read_store(exchange: Exchange, _: ModelRoute) -> None:
    request = exchange.request
    if "store" not in request.outline_fields or not exchange.services.completions.stores_completions:
        return
    if optional_field(request.outline_fields, "store", bool):
        asked_fields = request.fields
        keeper = _CompletionKeeper(exchange, asked_fields, read_metadata(asked_fields))
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


COMPLETION_HOOKS: Final = ExchangeHooks(on_request=(_read_store,))
"""The hooks of requests for chat completions."""
