"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import AnthropicMessage, MessagesRequest, MessagesTokensRequest, MessageTokens
from gateway.exchange.api_spec import ApiSpec

_MESSAGES = ApiSpec("/v1/messages", streams=True, resumes=True, state="message", scope="inference")
_COUNT = ApiSpec("/v1/messages/count_tokens", takes_slot=False, scope="inference")
APIS = (_MESSAGES, _COUNT)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    text = "Anthropic's messages, blocking or as server-sent events from `message_start` to `message_stop`, from any \
model that answers chats. Errors have Anthropic's form, with the fields of the envelope inside; in a stream that has \
begun, an event `error` is the last one."
    declare_inference(app, _MESSAGES, request=MessagesRequest, answer=AnthropicMessage, summary="Messages", text=text)
    count_text = "Counts the prompt tokens of a messages request. Takes no slot of the engine."
    summary = "Tokens of messages"
    declare_inference(
        app, _COUNT, request=MessagesTokensRequest, answer=MessageTokens, summary=summary, text=count_text
    )
