"""Which API family's form an error has, by the path that was asked for. Pure."""

from __future__ import annotations

from controller.schema.errors import RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES

_MESSAGES = "/v1/messages/"


def error_body(path: str, error: RoundhouseError, request_id: str) -> bytes:
    """The JSON that tells a client of `path` of the error."""
    if f"{path}/".startswith(_MESSAGES):
        return MESSAGES.error_body(error, request_id)
    return error.json_bytes(request_id)
