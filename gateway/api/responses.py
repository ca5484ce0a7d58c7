"""POST /v1/responses, /v1/responses/compact and /v1/responses/input_tokens. For stored ones see `stored_responses`."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Anything, Compaction, InputTokens, ResponsesRequest
from gateway.exchange.api_spec import ApiSpec

_MAKE, _COMPACT, _COUNT = APIS = (
    ApiSpec("/v1/responses", streams=True, resumes=True, state="made", whole_copies=5, scope="inference"),
    ApiSpec("/v1/responses/compact", gathers=True, state="read", whole_copies=4, scope="inference"),
    ApiSpec("/v1/responses/input_tokens", takes_slot=False, state="read", whole_copies=4, scope="inference"),
)
_CODES = (
    "previous_response_not_found",
    "conversation_not_found",
    "conversation_item_not_found",
    "conversation_locked",
    "response_store_failed",
)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    create_text = (
        "OpenAI's responses, blocking, as server-sent events, or with `background: true` without the client. The "
        "gateway makes them of the engine's chat completions, and keeps them itself unless `store` is false."
    )
    count_text = "Counts the prompt tokens of a request for a response. Takes no slot of the engine."
    declare_inference(
        app,
        _MAKE,
        request=ResponsesRequest,
        answer=Anything,
        summary="Responses",
        text=create_text,
        more_codes=(*_CODES, "tool_rounds_full"),
    )
    compact_text = (
        "The model sums the conversation up. The output, which takes the conversation's place as `input` of the next "
        "request, is the messages of the user, the system and the developer, and an item `compaction` with the summary."
    )
    declare_inference(
        app,
        _COMPACT,
        request=ResponsesRequest,
        answer=Compaction,
        summary="Compact a conversation",
        text=compact_text,
        more_codes=_CODES,
    )
    declare_inference(
        app,
        _COUNT,
        request=ResponsesRequest,
        answer=InputTokens,
        summary="Tokens of a response's input",
        text=count_text,
        more_codes=_CODES,
    )
