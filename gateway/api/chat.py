"""POST /v1/chat/completions, and /v1/chat/completions/input_tokens, which is llama.cpp's own."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import ChatCompletion, ChatCompletionRequest, InputTokens
from gateway.exchange.api_spec import ApiSpec

_CHAT, _COUNT = APIS = (
    ApiSpec("/v1/chat/completions", streams=True, resumes=True, state="completion", scope="inference"),
    ApiSpec("/v1/chat/completions/input_tokens", takes_slot=False, scope="inference"),
)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    declare_inference(
        app,
        _CHAT,
        request=ChatCompletionRequest,
        answer=ChatCompletion,
        summary="Chat",
        text="Blocking or, with `stream: true`, as server-sent events. With `store: true` the completion is stored.",
    )
    count_text = "Counts the prompt tokens of a chat completion request. Takes no slot of the engine."
    declare_inference(
        app, _COUNT, request=ChatCompletionRequest, answer=InputTokens, summary="Tokens of a chat", text=count_text
    )
