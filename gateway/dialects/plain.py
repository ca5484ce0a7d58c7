"""APIs whose answers are one JSON body and never a stream: embeddings, rerank, tokens, and an engine's state."""

from __future__ import annotations

from typing import Final

from controller.schema.errors import RoundhouseError
from gateway.dialects import bodies, errors, usage
from gateway.dialects.base import Events, Gathering, Usage
from gateway.dialects.openai import OpenAIEvents, as_events
from gateway.request import InferenceRequest


class PlainDialect:
    """One body there, one back."""

    heartbeat: bytes = b": ka\n\n"
    """Never sent: there are no streams."""

    def body_for(self, request: InferenceRequest, served_name: str, *, as_stream: bool) -> bytes:
        """See Dialect."""
        return bodies.as_named(request, served_name)

    def events(self, request: InferenceRequest) -> Events:
        """See Dialect. For an engine that streams where none is known to: it passes."""
        return OpenAIEvents(strip_usage=False)

    def gathering(self, request: InferenceRequest) -> Gathering | None:
        """Never: there are no streams."""
        return None

    def usage_in(self, body: bytes) -> Usage | None:
        """See Dialect."""
        return usage.usage_in(body)

    def error_body(self, error: RoundhouseError, request_id: str) -> bytes:
        """See Dialect."""
        return errors.own_body(error, request_id)

    def engine_error(self, status: int, body: bytes, request_id: str) -> bytes:
        """See Dialect."""
        return errors.engine_body(status, body, request_id)

    def error_as_events(self, body: bytes) -> bytes:
        """See Dialect."""
        return as_events(body)


PLAIN: Final = PlainDialect()
