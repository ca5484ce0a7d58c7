"""OpenAI's responses, as far as that is no translation: how an error is told where a stream has not begun."""

from __future__ import annotations

from gateway.protocols.common import context_overflow, errors
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
        return ResponseWriter(request.outline_fields, request.state).fail_answer(error)

    def is_told_by_events(self, error: bytes) -> bool:
        """See Dialect. OpenAI begins a response before its prompt is counted, so Codex looks for this code in
        `response.failed` alone: status 400 is an error like any other to it."""
        return bool(errors.decode_json(error)["error"]["code"] == context_overflow.CODE)
