"""The routes that engines answer, in one table. `gateway.server` serves their requests, not FastAPI, to which
`declare_inference` shows them for the OpenAPI document and for answers to wrong methods alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from contract.errors import RoundhouseError
from gateway.api import schemas
from gateway.api.declare import ADMIN_SCOPE_CODES, ENVELOPE, INGRESS_CODES, codes_paragraph, error_responses
from gateway.api.schemas import Anything
from gateway.exchange.hooks import ApiSpec
from gateway.ingress.middleware import require_access
from gateway.protocols.common.stream_ids import LONGEST_ID
from gateway.server.asgi import Receive, Scope, Send

INFERENCE_CODES: Final = (
    "invalid_json",
    "thinking_unsupported",
    "modality_unsupported",
    "multi_turn_unsupported",
    "tools_unsupported",
    "structured_output_unsupported",
    "logprobs_unsupported",
    "scope_required",
    "model_not_allowed",
    "unknown_model",
    "request_timeout",
    "body_too_large",
    "queue_full",
    "headers_too_large",
    "not_supported",
    "engine_error",
    "engine_unreachable",
    "engine_disconnected",
    "gateway_stopping",
    "model_not_loaded",
    "model_loading",
    "model_unloading",
    "model_failed",
    *INGRESS_CODES,
)
"""Error codes of every inference route."""

_MODEL: Final[dict[str, Any]] = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Name or alias of the model, if the body does not name it.",
}
_REPLICA: Final[dict[str, Any]] = {
    "name": "replica",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Number (from 0) or name of the replica that answers. Without it, any does; what changes something "
    "must name one where there are several.",
}
_ID: Final[dict[str, Any]] = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 0},
    "description": "Number of the engine's slot.",
}
_CONVERSATION_ID: Final[dict[str, Any]] = {
    "name": "X-Conversation-Id",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": LONGEST_ID},
    "description": "Applies with `stream: true`. The gateway keeps the stream under this id: generation continues if "
    "the client disconnects, and the stream can be read again at `/v1/stream/{conv_id}`. An id of the form "
    "`id::model` names the model, if the body does not name it.",
}
_PROGRESS: Final[dict[str, Any]] = {
    "name": "X-Progress",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["true"]},
    "description": "With `stream: true`: the stream begins at once, and comments (`: progress {...}`) tell what the "
    "request waits for: its place in the queue, the load of its model, the reading of its prompt.",
}
_LOAD_PROGRESS: Final[dict[str, Any]] = {
    "name": "X-Load-Progress",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["true"]},
    "description": "With `stream: true`: while the request waits for the load of its model, the stream begins at once, "
    "and comments (`: load-progress {...}`) tell of the load alone.",
}
_NATIVE: Final = """llama.cpp's own route. The model is named in the query (`?model=NAME`) or in the body; where only
one model has the route, it need not be named."""

_OTHERS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {
        "content": ENVELOPE,
        "description": "The engine refuses the request. The answer has the engine's own status and message.",
    },
    "5XX": {
        "content": ENVELOPE,
        "description": "The engine failed. The answer has the engine's own status and message.",
    },
}

_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string", "description": "With `stream: true`."}}},
        "headers": {
            "x-session": {
                "description": "What the turn of a session finds in its replica; without a session there is none.",
                "schema": {"type": "string", "enum": ["new", "reused", "rebuilt"]},
            }
        },
    }
}

_ANY_MODEL: Final = """A request for an `autoload` model that is not loaded waits for it; for any other such model it is
refused with the model's state. A model that is being loaded is named with `Retry-After` and, where the engine tells,
`x-load-progress` (0 to 1). Fields that are not listed reach the engine as they are; an engine's own error keeps its
status and message. In a stream that has begun, an error is the last event before `data: [DONE]`."""


@dataclass(frozen=True, slots=True)
class InferenceRoute:
    """A route (path and method) that engines answer. `request`, `answer`: schemas of the bodies
    (`gateway/api/schemas.py`), for the document alone; `request` None: it has no body. `text`: the description.
    `more_codes`: error codes that `INFERENCE_CODES` lacks."""

    api: ApiSpec
    request: type[BaseModel] | None
    answer: type[BaseModel]
    summary: str
    text: str
    more_codes: tuple[str, ...] = ()


class DirectRoute(APIRoute):
    """A route for the OpenAPI document only: `gateway.server` takes its requests before FastAPI sees them.

    A request that reaches it all the same gets `unknown_route`; one with another method `method_not_allowed`.
    `codes`: error codes that are described; one that is not in `ERROR_CODES` raises KeyError. `route_options`: as of
    FastAPI's `APIRoute`.
    """

    def __init__(self, route: InferenceRoute, *, codes: tuple[str, ...], **route_options: Any):
        api = route.api
        endpoint = _without_body() if route.request is None else _with_body(route.request)
        super().__init__(
            api.path,
            require_access(api.scope, is_direct=True)(endpoint),
            methods=[api.method],
            response_model=route.answer,
            responses=error_responses(*codes) | _OTHERS | (_STREAM if api.streams else {}),
            **route_options,
        )
        self.app = _unreachable


def _with_body(request: type[BaseModel]) -> Callable[..., Any]:
    async def declared(body: Any) -> None:
        """Never called. FastAPI reads the request's schema from the signature."""

    declared.__annotations__["body"] = request
    return declared


def _without_body() -> Callable[..., Any]:
    async def declared() -> None:
        """Never called. FastAPI reads from the signature that there is no body."""

    return declared


async def _unreachable(scope: Scope, receive: Receive, send: Send) -> None:
    raise RoundhouseError("unknown_route", f"There is no {scope['path']}.")


def declare_inference(app: FastAPI, route: InferenceRoute) -> None:
    """Add a route to `app`, so that the OpenAPI document has it and other methods on its path get `method_not_allowed`.
    Its description also says what holds for all such routes, and names the error codes. A code that `ERROR_CODES` lacks
    raises KeyError."""
    api, text = route.api, route.text
    name = f"{api.method.lower()}_{api.path.removeprefix('/v1/').strip('/')}"
    stream_codes = ("stream_stopped", "stream_replaced", "streams_full") if api.resumes else ()
    state_codes = ("route_disabled",) if api.is_inner_state else ()
    scope_codes = ADMIN_SCOPE_CODES if api.scope == "admin" else ()
    codes = (*route.more_codes, *INFERENCE_CODES, *stream_codes, *state_codes, *scope_codes)
    parameters = [_ID] if "{id}" in api.path else [_CONVERSATION_ID] if api.resumes else []
    if api.streams:
        parameters += [_PROGRESS, _LOAD_PROGRESS]
    if api.is_native:
        text = f"{text}\n\n{_NATIVE}"
        parameters.append(_MODEL)
    if api.names_replica:
        parameters.append(_REPLICA)
    app.router.routes.append(
        DirectRoute(
            route,
            codes=codes,
            summary=route.summary,
            description=f"{text}\n\n{_ANY_MODEL}\n\n{codes_paragraph(codes)}",
            name=re.sub(r"\W+", "_", name).strip("_"),
            tags=["engines" if api.is_native else "inference"],
            openapi_extra={"parameters": parameters} if parameters else None,
            response_description="The engine's answer.",
        )
    )


# An API that takes a slot; one that does not; rerank; llama.cpp's own; how an engine is set up; its inner state.
_inference = partial(ApiSpec, scope="inference")
_count = partial(_inference, takes_slot=False)
_rerank = partial(_inference, inputs=("documents",), whole_copies=4)
_native = partial(_inference, is_native=True)
_native_count = partial(_native, takes_slot=False)
_engine_settings = partial(_native_count, method="GET", body="none", names_replica=True)
_inner_state = partial(
    ApiSpec, takes_slot=False, is_native=True, scope="admin", is_inner_state=True, names_replica=True
)

_RESPONSE_CODES = (
    "previous_response_not_found",
    "conversation_not_found",
    "conversation_item_not_found",
    "conversation_locked",
    "response_store_failed",
)
_WHERE_SERVED = (
    "Served only with `ROUNDHOUSE_ENGINE_STATE_ROUTES=1`; a key needs the scope `admin`. `?replica=` names a "
    "replica, by its number or its name."
)

INFERENCE_ROUTES: Final = (
    # OpenAI's chat completions; the count of tokens is llama.cpp's own.
    InferenceRoute(
        _inference("/v1/chat/completions", streams=True, resumes=True, state="completion"),
        schemas.ChatCompletionRequest,
        schemas.ChatCompletion,
        "Chat",
        "Blocking or, with `stream: true`, as server-sent events. With `store: true` the completion is stored.",
    ),
    InferenceRoute(
        _count("/v1/chat/completions/input_tokens"),
        schemas.ChatCompletionRequest,
        schemas.InputTokens,
        "Tokens of a chat",
        "Counts the prompt tokens of a chat completion request. Takes no slot of the engine.",
    ),
    InferenceRoute(
        _inference("/v1/completions", streams=True, resumes=True, inputs=("prompt",)),
        schemas.CompletionRequest,
        schemas.Completion,
        "Completion of a prompt",
        "Blocking or, with `stream: true`, as server-sent events. Where the engine knows conversations alone, the "
        "prompt is what a user says, and `echo`, `suffix`, `logprobs`, `best_of`, `n`, tokens and several prompts are "
        "refused.",
    ),
    # OpenAI's responses. The routes of stored ones are the assistant's.
    InferenceRoute(
        _inference("/v1/responses", streams=True, resumes=True, state="made", whole_copies=5),
        schemas.ResponsesRequest,
        Anything,
        "Responses",
        "OpenAI's responses, blocking, as server-sent events, or with `background: true` without the client. The "
        "gateway makes them of the engine's chat completions, and keeps them itself unless `store` is false.",
        (*_RESPONSE_CODES, "tool_rounds_full"),
    ),
    InferenceRoute(
        _inference("/v1/responses/compact", gathers=True, state="read", whole_copies=4),
        schemas.ResponsesRequest,
        schemas.Compaction,
        "Compact a conversation",
        "The model sums the conversation up. The output, which takes the conversation's place as `input` of the next "
        "request, is the messages of the user, the system and the developer, and an item `compaction` with the "
        "summary.",
        _RESPONSE_CODES,
    ),
    InferenceRoute(
        _count("/v1/responses/input_tokens", state="read", whole_copies=4),
        schemas.ResponsesRequest,
        schemas.InputTokens,
        "Tokens of a response's input",
        "Counts the prompt tokens of a request for a response. Takes no slot of the engine.",
        _RESPONSE_CODES,
    ),
    # Anthropic's messages.
    InferenceRoute(
        _inference("/v1/messages", streams=True, resumes=True, state="message"),
        schemas.MessagesRequest,
        schemas.AnthropicMessage,
        "Messages",
        "Anthropic's messages, blocking or as server-sent events from `message_start` to `message_stop`, from any "
        "model that answers chats. Errors have Anthropic's form, with the fields of the envelope inside; in a stream "
        "that has begun, an event `error` is the last one.",
    ),
    InferenceRoute(
        _count("/v1/messages/count_tokens"),
        schemas.MessagesTokensRequest,
        schemas.MessageTokens,
        "Tokens of messages",
        "Counts the prompt tokens of a messages request. Takes no slot of the engine.",
    ),
    # OpenAI's embeddings.
    InferenceRoute(
        _inference("/v1/embeddings", inputs=("input",)),
        schemas.EmbeddingRequest,
        schemas.EmbeddingList,
        "Embeddings",
        "One vector for each input. `dimensions` is for models that are declared with `matryoshka`, whose vectors the "
        "gateway shortens, and for engines that do it themselves; else only the model's own length is taken.",
        ("dimensions_unsupported",),
    ),
    # Jina's rerank and Cohere's v1; Cohere's v2.
    InferenceRoute(
        _rerank("/v1/rerank"),
        schemas.RerankRequest,
        schemas.Ranking,
        "Rerank",
        "Documents by how well they answer a query, the best first. Scores are the engine's own: some give "
        "probabilities, some logits. Takes the bodies of Jina and of Cohere's v1, and answers what clients of both "
        "read.",
    ),
    InferenceRoute(_rerank("/rerank"), schemas.RerankRequest, schemas.Ranking, "Rerank", "As /v1/rerank."),
    InferenceRoute(
        _rerank("/v2/rerank"),
        schemas.CohereRerankRequest,
        schemas.CohereRanking,
        "Rerank, v2",
        "As /v1/rerank, in the form of Cohere's v2.",
    ),
    # llama.cpp's own.
    InferenceRoute(
        _native_count("/tokenize"), Anything, Anything, "Tokens of a text", "Returns the tokens of `content`."
    ),
    InferenceRoute(_native_count("/detokenize"), Anything, Anything, "Text of tokens", "Returns the text of `tokens`."),
    InferenceRoute(
        _native_count("/apply-template"),
        Anything,
        Anything,
        "Prompt of messages",
        "Returns the prompt that the model's chat template makes of `messages`.",
    ),
    InferenceRoute(
        _native("/infill", streams=True),
        Anything,
        Anything,
        "Infill",
        "Generates the text between `input_prefix` and `input_suffix`, for models that are trained for it.",
    ),
    InferenceRoute(
        _native("/completion", streams=True, inputs=("prompt",)),
        Anything,
        Anything,
        "Completion, llama.cpp's",
        "Generates the text after `prompt`, in llama.cpp's own format (`content`, `stop`).",
    ),
    InferenceRoute(
        _native("/embedding", inputs=("input", "content")),
        Anything,
        Anything,
        "Embeddings, llama.cpp's",
        "A list of `index` and `embedding`, whose vectors are as the model pools them: with `pooling` none, one for "
        "each token.",
    ),
    InferenceRoute(
        _engine_settings("/props"),
        None,
        Anything,
        "Properties",
        "Returns the engine's settings, including its chat template.",
    ),
    InferenceRoute(
        _engine_settings("/lora-adapters"),
        None,
        Anything,
        "LoRA adapters",
        "Lists the LoRA adapters that the engine has loaded, with their scales.",
    ),
    # llama.cpp's, which change or reveal an engine's inner state. Of several replicas, `?replica=` chooses the one that
    # is meant; what changes something is refused without it.
    InferenceRoute(
        _inner_state("/slots", method="GET", body="none"),
        None,
        Anything,
        "Slots",
        f"The state of each slot of the engine, as a list.\n\n{_WHERE_SERVED}",
    ),
    InferenceRoute(
        _inner_state("/slots/{id}", body="any"),
        Anything,
        Anything,
        "Save, restore or erase a slot",
        "Performs the `action` of the query: `save` and `restore` need `llama_server_slot_save` in the model's "
        f"definition, and a plain name in `filename`.\n\n{_WHERE_SERVED}",
    ),
    InferenceRoute(
        _inner_state("/props"),
        Anything,
        Anything,
        "Set properties",
        f"Changes the engine's settings, if the model's definition sets `llama_server_props`.\n\n{_WHERE_SERVED}",
    ),
    InferenceRoute(
        _inner_state("/lora-adapters", body="any"),
        Anything,
        Anything,
        "Set LoRA scales",
        "Sets the scales of LoRA adapters, a list of `id` and `scale`, for all requests that do not set their own."
        f"\n\n{_WHERE_SERVED}",
    ),
)
"""Their requests are served by `InferenceDispatcher`, and never by FastAPI, to which `declare_inference` shows them."""
