"""Token counts of prompts, from engines that count the tokens of chat completions. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common import errors
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.via_chat.dialect import ViaChatBase


class TokenCountDialect(ViaChatBase):
    """The part of a `Dialect` that answers with the number of a prompt's tokens, by the engine's
    `/v1/chat/completions/input_tokens`.

    A subclass adds `read_request` and `build_count`; the rest comes from the family's own dialect, which it inherits
    too.
    """

    @abstractmethod
    def build_count(self, tokens: int) -> Fields:
        """Return the client's answer, to be encoded as JSON. `tokens`: the tokens of the prompt, from the engine."""

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """Return the request as a blocking chat completion; `as_stream` is ignored. Call after `check_request`. Raises
        RoundhouseError as `ViaChatDialect.engine_body`."""
        return json_bytes(self._chat_fields(request, route))

    def open_collector(self, request: InferenceRequest) -> None:
        """Return None: token counts are never streamed."""

    def get_body_converter(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """Return the function that turns the engine's count into the client's answer; never None. The function raises
        RoundhouseError `engine_disconnected` if the engine's answer counts no tokens."""
        return self._translate_body

    def _translate_body(self, body: bytes) -> bytes:
        fields = errors.decode_json(body)
        tokens = fields.get("input_tokens") if isinstance(fields, dict) else None
        if not isinstance(tokens, int) or isinstance(tokens, bool):
            raise RoundhouseError("engine_disconnected", "The engine failed: its answer counts no tokens.")
        return errors.encode_json(self.build_count(tokens))
