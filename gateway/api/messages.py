"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything, MessagesRequest
from gateway.parts import Api

_MESSAGES = Api("/v1/messages", streams=True)
_COUNT = Api("/v1/messages/count_tokens", takes_slot=False)
APIS = (_MESSAGES, _COUNT)


def declare(app: FastAPI) -> None:
    """Declare the routes."""
    text = "Anthropic's messages, blocking or as server-sent events, where the engine speaks them itself. Errors have \
Anthropic's form, with the fields of the envelope inside."
    declare_inference(app, _MESSAGES, request=MessagesRequest, answer=Anything, summary="Messages", text=text)
    counted = "The tokens of what would be a request for messages. Takes no slot of the engine."
    declare_inference(app, _COUNT, request=MessagesRequest, answer=Anything, summary="Tokens of messages", text=counted)
