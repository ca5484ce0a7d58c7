"""OpenAI's responses, as far as that is no translation: how an error is told where a stream has not begun."""

from __future__ import annotations

from gateway.protocols.common import errors
from gateway.protocols.common.envelope import EnvelopeDialect
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.responses.answer_stream import DONE, ResponseWriter, error_event


class ResponsesDialect(EnvelopeDialect):
    """Their part of a `Dialect`."""

    def error_as_events(self, body: bytes, request: InferenceRequest | None = None) -> bytes:
        """See Dialect. Of a request that was read it is a whole stream, which tells of a response that failed."""
        error = errors.decode_json(body)["error"]
        if request is None or request.prompt is None:
            return error_event(error, 0) + DONE
        return ResponseWriter(request.fields, request.state).fail_answer(error)
