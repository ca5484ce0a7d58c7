"""The worker's HTTP surface: OpenAI's paths over one engine."""

from __future__ import annotations

import hmac
import math
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.engine import Api, Engine, Job, Piece
from worker.errors import EngineFailedError, RequestError
from worker.metrics import Counters, prometheus_text
from worker.schema import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    RequestT,
    parse_request,
)
from worker.serving.response_stream import Reply, StreamReply, WholeReply, describe_failure, error_response
from worker.serving.runner import Runner
from worker.serving.text_routes import TextRoutes
from worker.text import openai_objects
from worker.text.openai_objects import ChatShape, CompletionShape, Shape
from worker.text.stop_strings import until_stop

Answer = Response | Reply[Any]


class Worker:
    """The HTTP routes of one engine. `run_server` makes it, and sets `ready` once the engine has loaded. Each route may
    raise RequestError, which the app of `create_app` answers as an error."""

    def __init__(self, engine: Engine, served_name: str) -> None:
        self.ready = False
        self.engine = engine
        self.counters = Counters()
        self.runner = Runner(engine.slots, self.counters)
        self.texts = TextRoutes(engine, self._refusal)
        self._name = served_name
        self._created = int(time.time())

    async def health(self, request: Request) -> Answer:
        """Answer `/health`: 200 once the engine has loaded; 503 while it loads, and after the load has failed. Says
        nothing about an engine that failed later."""
        if not self.ready:
            return _loading()
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Answer:
        """Answer `/metrics` in Prometheus' text format, also while the engine loads. See `prometheus_text`."""
        text = prometheus_text(self.counters.read_figures())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Answer:
        """Answer `/v1/models` with the one model, also while the engine loads. Once it has loaded, `meta` holds what it
        applies: `n_ctx` (its context length in tokens, as in llama-server), `slots` (jobs at a time), `cache_type_k`
        and `cache_type_v`. What the engine does not have is left out."""
        model: openai_objects.Object = {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "roundhouse",
        }
        if self.ready:
            model["meta"] = self._meta()
        return JSONResponse({"object": "list", "data": [model]})

    def _meta(self) -> openai_objects.Object:
        meta: openai_objects.Object = {"slots": self.engine.slots}
        if self.engine.context_length is not None:
            meta["n_ctx"] = self.engine.context_length
        if self.engine.cache_types is not None:
            meta["cache_type_k"], meta["cache_type_v"] = self.engine.cache_types
        return meta

    async def chat(self, request: Request) -> Answer:
        """Answer `/v1/chat/completions`, as a stream if the request asks for it: 503 while the engine is not loaded,
        501 if it offers no chat. The job begins when the answer is sent. Raises RequestError for a wrong body, and
        ClientDisconnect if the client leaves while it sends the body."""
        if refusal := self._refusal("chat"):
            return refusal
        chat_request = await _read(request, ChatRequest)
        shape = ChatShape(f"chatcmpl-{uuid.uuid4().hex}", self._name, int(time.time()), chat_request.include_usage)
        return self._generate(chat_request, shape, lambda job: self.engine.stream_chat(chat_request, job))

    async def completions(self, request: Request) -> Answer:
        """Answer `/v1/completions`, as a stream if the request asks for it: 503 while the engine is not loaded, 501 if
        it offers no completions. The job begins when the answer is sent. Raises RequestError for a wrong body, and
        ClientDisconnect if the client leaves while it sends the body."""
        if refusal := self._refusal("completions"):
            return refusal
        completion_request = await _read(request, CompletionRequest)
        shape = CompletionShape(
            f"cmpl-{uuid.uuid4().hex}", self._name, int(time.time()), completion_request.include_usage
        )
        return self._generate(
            completion_request, shape, lambda job: self.engine.stream_completion(completion_request, job)
        )

    async def embeddings(self, request: Request) -> Answer:
        """Answer `/v1/embeddings`: 503 while the engine is not loaded, 501 if it offers no embeddings. The job begins
        when the answer is sent. Raises RequestError for a wrong body, and for `dimensions`, which no engine supports;
        ClientDisconnect if the client leaves while it sends the body."""
        if refusal := self._refusal("embeddings"):
            return refusal
        embedding_request = await _read(request, EmbeddingRequest)
        if embedding_request.dimensions is not None:
            message = "This engine gives embeddings as long as its model makes them: leave `dimensions` out."
            raise RequestError(message, code="dimensions_unsupported", param="dimensions")
        encoding = embedding_request.encoding_format or "float"

        def work(job: Job) -> Iterator[list[list[float]]]:
            vectors = self.engine.embed_texts([self._embedded_text(each) for each in embedding_request.inputs], job)
            if not all(all(map(math.isfinite, vector)) for vector in vectors):
                raise EngineFailedError("The model gave a number that is not finite.")
            yield vectors

        return WholeReply(
            self.runner,
            work,
            lambda results, job: openai_objects.embeddings_object(results[0], self._name, encoding, job),
        )

    def _embedded_text(self, text_or_tokens: str | list[int]) -> str:
        if isinstance(text_or_tokens, str):
            return text_or_tokens
        if not (text := self.engine.join_tokens(text_or_tokens)):
            raise RequestError("The tokens of `input` stand for no text.", param="input")
        return text

    def _generate(self, request: GenerationRequest, shape: Shape, engine: Callable[[Job], Generator[Piece]]) -> Answer:
        def work(job: Job) -> Iterator[Piece]:
            return until_stop(engine(job), request.stops)

        if request.stream:
            return StreamReply(self.runner, work, shape, request)
        return WholeReply(self.runner, work, shape.whole_answer)

    def _refusal(self, api: Api) -> Response | None:
        if not self.ready:
            return _loading()
        if api not in self.engine.apis:
            offered_apis = ", ".join(sorted(self.engine.apis))
            return error_response(f"This engine does not offer {api}; it offers {offered_apis}.", "not_supported", 501)
        return None


def create_app(worker: Worker, token: str | None) -> Starlette:
    """Return the ASGI app of a worker's routes. `token`: all paths but `/health` require it as a bearer token; None or
    empty: no path requires one. A RequestError of a route is answered with its own status, code and message; an unknown
    path or method with 404 or 405; any other exception with 500 `internal_error`, without details."""
    routes = [
        Route("/health", worker.health),
        Route("/metrics", worker.metrics),
        Route("/v1/models", worker.models),
        Route("/v1/chat/completions", worker.chat, methods=["POST"]),
        Route("/v1/completions", worker.completions, methods=["POST"]),
        Route("/v1/embeddings", worker.embeddings, methods=["POST"]),
        Route("/v1/chat/completions/input_tokens", worker.texts.input_tokens, methods=["POST"]),
        Route("/tokenize", worker.texts.tokenize, methods=["POST"]),
        Route("/detokenize", worker.texts.detokenize, methods=["POST"]),
        Route("/apply-template", worker.texts.apply_template, methods=["POST"]),
    ]
    middleware = [Middleware(BearerToken, token=token)] if token else []
    handlers = {RequestError: _request_error, HTTPException: _http_error, Exception: _unexpected_error}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=cast("Any", handlers))


class BearerToken:
    """ASGI middleware that answers 401 to HTTP requests without `Authorization: Bearer <token>`, except to `/health`.
    It takes no other ASGI scopes, such as `lifespan`. `token` is a text that is not empty."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with 401 `invalid_api_key`."""
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if scope["path"] == "/health" or hmac.compare_digest(authorization, self._expected):
            await self._app(scope, receive, send)
        else:
            response = error_response("The engine's token is missing or wrong.", "invalid_api_key", 401)
            await response(scope, receive, send)


async def _read(request: Request, kind: type[RequestT]) -> RequestT:
    return parse_request(kind, await request.body())


def _loading() -> Response:
    return error_response("The model is being loaded.", "model_loading", 503)


async def _request_error(request: Request, error: RequestError) -> Response:
    return error_response(*describe_failure(error))


async def _http_error(request: Request, error: HTTPException) -> Response:
    code = {404: "unknown_route", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return error_response(f"{error.detail}: {request.method} {request.scope['path']}", code, error.status_code)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return error_response("The worker failed; its log says why.", "internal_error", 500)
