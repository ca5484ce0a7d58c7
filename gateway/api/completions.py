"""POST /v1/completions."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import Completion, CompletionRequest
from gateway.exchange.api_spec import ApiSpec

APIS = (ApiSpec("/v1/completions", streams=True, resumes=True, inputs=("prompt",), scope="inference"),)


def declare(app: FastAPI) -> None:
    """Add the route of `APIS` to `app`, so that its OpenAPI document has it and other methods on its path get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    declare_inference(
        app,
        APIS[0],
        request=CompletionRequest,
        answer=Completion,
        summary="Completion of a prompt",
        text="Blocking or, with `stream: true`, as server-sent events. Where the engine knows conversations alone, the \
prompt is what a user says, and `echo`, `suffix`, `logprobs`, `best_of`, `n`, tokens and several prompts are refused.",
    )
