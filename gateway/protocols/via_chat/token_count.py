"""Tokens of a prompt, counted by an engine that counts those of chat completions. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.protocols.common import errors
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.json_bytes import json_bytes
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.via_chat.dialect import ReadForChat


class CountedOverChat(ReadForChat):
    """Their part of a `Dialect`: for a path that counts, by an engine's `/v1/chat/completions/input_tokens`.

    A subclass gives `read` and the answer; the rest is the family's own dialect's.
    """

    @abstractmethod
    def counted(self, tokens: int) -> Fields:
        """The client's answer."""

    def body_for(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """See Dialect."""
        return json_bytes(self._fields(request, route))

    def gathering(self, request: InferenceRequest) -> None:
        """See Dialect: there are no streams."""

    def whole(self, request: InferenceRequest) -> Callable[[bytes], bytes] | None:
        """See Dialect."""
        return self._translated

    def _translated(self, body: bytes) -> bytes:
        fields = errors.decoded(body)
        tokens = fields.get("input_tokens") if isinstance(fields, dict) else None
        if not isinstance(tokens, int) or isinstance(tokens, bool):
            raise RoundhouseError("engine_disconnected", "The engine failed: its answer counts no tokens.")
        return errors.encoded(self.counted(tokens))
