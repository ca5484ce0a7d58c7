"""APIs whose answers are one JSON body and never a stream: embeddings, rerank, tokens, and an engine's state."""

from __future__ import annotations

from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.common import bodies
from gateway.protocols.common.dialect import EventStream, StreamCollector
from gateway.protocols.common.openai_events import OpenAIStream, as_events
from gateway.protocols.common.passthrough import EnvelopeDialect
from gateway.protocols.common.request import InferenceRequest


class JsonDialect(EnvelopeDialect):
    """One body there, one back."""

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """See Dialect."""
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """See Dialect. For an engine that streams where none is known to: it passes."""
        return OpenAIStream(request.id, strip_usage=False)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        """Never: there are no streams."""
        return None

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """See Dialect."""
        return as_events(body)


JSON_DIALECT: Final = JsonDialect()
