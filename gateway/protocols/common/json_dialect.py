"""APIs whose answers are one JSON body and never a stream: embeddings, rerank, tokens, and an engine's state."""

from __future__ import annotations

from typing import Final

from controller.schema.routing import ModelRoute
from gateway.protocols.common import bodies
from gateway.protocols.common.dialect import Events, Gathering
from gateway.protocols.common.envelope import EnvelopeDialect
from gateway.protocols.common.openai_events import OpenAIEvents, as_events
from gateway.protocols.common.request import InferenceRequest


class PlainDialect(EnvelopeDialect):
    """One body there, one back."""

    def body_for(self, request: InferenceRequest, route: ModelRoute, *, as_stream: bool) -> bytes:
        """See Dialect."""
        return bodies.as_named(request, route.served_name)

    def events(self, request: InferenceRequest) -> Events:
        """See Dialect. For an engine that streams where none is known to: it passes."""
        return OpenAIEvents(strip_usage=False)

    def gathering(self, request: InferenceRequest) -> Gathering | None:
        """Never: there are no streams."""
        return None

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """See Dialect."""
        return as_events(body)


PLAIN: Final = PlainDialect()
