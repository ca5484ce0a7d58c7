"""An engine's own error, in the one envelope. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from controller.schema.errors import ERROR_CODES, ErrorBody, ErrorEnvelope

ENGINE_ERROR: Final = ERROR_CODES["engine_error"]

_MESSAGE_CHARACTERS = 1000
_UNSEEN = re.compile(r"(?is)<(script|style|head)\b.*?</\1>|<[^>]*>")


def client_status(engine_status: int) -> int:
    """The status that the client gets. A redirect is not followed, because it would carry the prompt elsewhere."""
    return engine_status if engine_status >= 400 or 200 <= engine_status < 300 else ENGINE_ERROR.status


def as_envelope(engine_status: int, body: bytes, request_id: str) -> bytes:
    """`body` as it is where it has OpenAI's form already, else an envelope that keeps the engine's message."""
    status = client_status(engine_status)
    fields = _decoded(body)
    error = fields.get("error") if isinstance(fields, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return body
    envelope = ErrorEnvelope(
        error=ErrorBody(
            message=_message(fields, body) or f"The engine answered with status {engine_status} and no message.",
            type="invalid_request_error" if 400 <= status < 500 else ENGINE_ERROR.type,
            code=ENGINE_ERROR.code,
            status=status,
            actionable=True,
            next_steps=list(ENGINE_ERROR.next_steps),
            request_id=request_id,
        )
    )
    # ASCII, so that half a surrogate pair, which an engine's JSON can hold and UTF-8 cannot, survives.
    return json.dumps(envelope.model_dump()).encode()


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message(fields: Any, body: bytes) -> str:
    if isinstance(fields, dict):
        for name in ("message", "error", "detail"):
            if fields.get(name):
                value = fields[name]
                return (value if isinstance(value, str) else json.dumps(value))[:_MESSAGE_CHARACTERS]
    text = _UNSEEN.sub(" ", body[: 16 * _MESSAGE_CHARACTERS].decode(errors="replace"))
    return " ".join(text.split())[:_MESSAGE_CHARACTERS]
