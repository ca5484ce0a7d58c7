"""Chooses the form of an error by the path that the client asked for. Pure."""

from __future__ import annotations

from controller.schema.errors import RoundhouseError
from gateway.protocols.anthropic.dialect import MESSAGES

_MESSAGES = "/v1/messages/"


def error_body(path: str, error: RoundhouseError, request_id: str) -> bytes:
    """Return the JSON of `error`, with `request_id`, in the form of the path's API family: Anthropic's for
    `/v1/messages` and paths below it, else Roundhouse's envelope, which is OpenAI's form. Any `path` is accepted; it
    must not have a query."""
    if f"{path}/".startswith(_MESSAGES):
        return MESSAGES.error_body(error, request_id)
    return error.json_bytes(request_id)
