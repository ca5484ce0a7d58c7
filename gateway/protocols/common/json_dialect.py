"""The dialect of APIs that answer with one JSON body and never with a stream: embeddings, rankings, tokens, an engine's
state. Pure.
"""

from __future__ import annotations

from typing import Final

from contract.routing import ModelRoute
from gateway.protocols.common import bodies
from gateway.protocols.common.dialect import EnvelopeDialect, EventStream, StreamCollector
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.common.streams import OpenAIStream, as_events


class JsonDialect(EnvelopeDialect):
    """Dialect of APIs with one JSON body for the request and one for the answer, both passed through. The base of
    embeddings and rankings; serves the other such APIs itself (`JSON_DIALECT`)."""

    def engine_body(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        return bodies.as_named(request, route.served_name)

    def open_stream(self, request: InferenceRequest) -> EventStream:
        """Return a stream that passes events on, for an engine that streams although these APIs have no streams."""
        return OpenAIStream(request.id, strip_usage=False)

    def open_collector(self, request: InferenceRequest) -> StreamCollector | None:
        return None

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        return as_events(body)


JSON_DIALECT: Final = JsonDialect()
