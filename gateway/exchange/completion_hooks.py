"""Stored chat completions by hooks: `store: true` keeps the completion and the messages that it answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.exchange.attempt import AnswerForm
from gateway.exchange.completion_recorder import record_form
from gateway.exchange.exchange import Exchange
from gateway.exchange.hooks import ExchangeHooks
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional_field
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.metadata import read_metadata
from gateway.protocols.common.request import InferenceRequest
from gateway.storage.completions.records import describe_completion

_OWN_FIELDS: Final = ("store", "metadata")


class _Storing(NamedTuple):
    """The parts of a request that are stored with its completion."""

    asked_fields: Fields
    metadata: Mapping[str, str]

    def shape_answer(self, exchange: Exchange, form: AnswerForm) -> AnswerForm:
        """Return a copy of `form` that stores the completion when it is complete, under a new id of the gateway's.

        A hook of the kind `shape_answer`, so called for each attempt.
        """
        return record_form(form, exchange.services.completions.new_id(), partial(self._save_completion, exchange))

    def _save_completion(self, exchange: Exchange, answer: Fields) -> None:
        messages = self.asked_fields.get("messages")
        told_messages = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
        completion = describe_completion(answer, self.asked_fields, exchange.answer.request_id)
        exchange.services.completions.save_completion(
            exchange.caller.tenant, exchange.account.model, completion, told_messages, self.metadata
        )


def _read_store(exchange: Exchange, _: ModelRoute) -> None:
    request = exchange.request
    if "store" not in request.outline_fields or not exchange.services.completions.stores_completions:
        return
    if optional_field(request.outline_fields, "store", bool):
        asked_fields = request.fields
        storing = _Storing(asked_fields, read_metadata(asked_fields))
        _drop_own_fields(request)
        exchange.add_hooks(ExchangeHooks(shape_answer=(storing.shape_answer,)))


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
