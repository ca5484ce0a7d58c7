"""One request for a chat completion, which is stored where the request asks for that (`store: true`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.exchange.attempt import AnswerForm
from gateway.exchange.completion_recorder import record_form
from gateway.exchange.exchange import Exchange
from gateway.exchange.services import ApiSpec, Services
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import optional_field
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.metadata import read_metadata
from gateway.server.call import ClientCall
from gateway.storage.completions.records import describe_completion

_OWN_FIELDS: Final = ("store", "metadata")


class ChatExchange(Exchange):
    """An exchange that keeps what it has told its client, once that is complete."""

    __slots__ = ("_asked_fields", "_metadata")

    def __init__(self, api: ApiSpec, client: ClientCall, services: Services, request_id: str) -> None:
        super().__init__(api, client, services, request_id)
        self._asked_fields: Fields | None = None
        """The request's, where its completion is to be stored; None: it is not."""
        self._metadata: Mapping[str, str] = {}

    def _accept_request(self, route: ModelRoute) -> None:
        if "store" in self._request.outline_fields and self._services.completions.stores_completions:
            self._read_store()
        super()._accept_request(route)

    def _read_store(self) -> None:
        """What is stored here is no engine's to keep, so the engine is told nothing of it."""
        request = self._request
        if not optional_field(request.outline_fields, "store", bool):
            return
        self._asked_fields = request.fields
        self._metadata = read_metadata(self._asked_fields)
        engine_fields = {name: value for name, value in request.outline_fields.items() if name not in _OWN_FIELDS}
        request.outline_fields = engine_fields
        try:
            request.outline = json_bytes(engine_fields)
        except RecursionError:
            message = "The request is nested too deeply for its completion to be stored."
            raise RoundhouseError("invalid_request", message) from None

    def _adapt_form(self, form: AnswerForm) -> AnswerForm:
        if self._asked_fields is None:
            return form
        return record_form(form, self._services.completions.new_id(), self._keep_completion)

    def _keep_completion(self, answer: Fields) -> None:
        assert self._asked_fields is not None
        messages = self._asked_fields.get("messages")
        told_messages = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
        completion = describe_completion(answer, self._asked_fields, self._answer.request_id)
        tenant, model = self._caller.tenant, self._account.model
        self._services.completions.save_completion(tenant, model, completion, told_messages, self._metadata)
