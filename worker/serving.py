"""The worker's HTTP surface: routes, jobs in engine threads, answers.

Routes about texts and templates take no slot.
"""

from __future__ import annotations

import abc
import asyncio
import hmac
import logging
import math
import socket
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from worker.engine import Api, Engine, Job, Piece
from worker.errors import EngineFailedError, JobCancelledError, RequestError
from worker.metrics import Counters, prometheus_text
from worker.preflight import open_listener, read_token
from worker.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    RequestT,
    TokenizeRequest,
    parse_request,
)
from worker.text import openai_objects
from worker.text.answer_text import until_stop
from worker.text.openai_objects import ChatShape, CompletionShape, Object, Shape

T = TypeVar("T")
Work = Callable[[Job], Iterator[T]]

log = logging.getLogger("worker")


class Run(Generic[T]):
    """One job, as an asynchronous iterator over the items that an engine thread makes. Create it with
    `Runner.start_run`, and use it in the event loop only.

    Iterating ends when the job's work is done. It raises RequestError, JobCancelledError or EngineFailedError of the
    work, and EngineFailedError for any other exception of it, which is logged.
    """

    def __init__(self, work: Work[T], counters: Counters) -> None:
        self.job = Job(counters)
        self._work = work
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | Exception] = asyncio.Queue()
        self._future: Future[None] | None = None
        self._cancelled = False

    def submit_job(self, threads: ThreadPoolExecutor) -> None:
        """Queue the job for a slot. `Runner.start_run` calls it, once."""
        self._counters.count_queued()
        self._future = threads.submit(self._execute)

    def cancel(self) -> None:
        """Stop the job. Iterating raises JobCancelledError after the items that are there already; the engine stops at
        its next check, and a job that still waits never begins. Call in the event loop; further calls, and one after
        the end, do nothing."""
        if self._cancelled:
            return
        self._cancelled = True
        self.job.cancel()
        if self._future is not None and self._future.cancel():
            self._counters.count_withdrawn()
        self._items.put_nowait(JobCancelledError())

    def __aiter__(self) -> Run[T]:
        return self

    async def __anext__(self) -> T:
        item = await self._items.get()
        if isinstance(item, Exception):
            self._items.put_nowait(item)  # further calls raise the same end
            raise item
        return item

    def _execute(self) -> None:
        self._counters.count_started()
        end: Exception = StopAsyncIteration()
        try:
            for item in self._work(self.job):
                self._deliver(item)
        except (RequestError, JobCancelledError, EngineFailedError) as error:
            end = error
        except Exception:
            log.exception("the engine failed")
            end = EngineFailedError("The engine failed; its log says why.")
        finally:
            self._counters.count_finished()
        self._deliver(end)

    def _deliver(self, item: T | Exception) -> None:
        self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class Runner:
    """Runs jobs in as many threads as the engine has slots. Further jobs wait in order of arrival. Use it in the event
    loop only."""

    def __init__(self, slots: int, counters: Counters) -> None:
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="engine")
        self._counters = counters
        self._runs: set[Run[Any]] = set()
        self.stopping = False

    def start_run(self, work: Work[T]) -> Run[T]:
        """Queue a job and return its run. `work` is called in an engine thread, and iterated there.

        The caller checks `stopping` first, because nobody cancels a job that is started after `stop_runs`. The caller
        cancels the run when it no longer listens, and calls `forget_run` at the end.
        """
        run = Run(work, self._counters)
        self._runs.add(run)
        run.submit_job(self._threads)
        return run

    def forget_run(self, run: Run[T]) -> None:
        """Drop a run that its caller is done with. A run that has not ended is cancelled."""
        run.cancel()
        self._runs.discard(run)

    async def call_function(self, function: Callable[[], None]) -> None:
        """Wait until a function has run in an engine thread, where it takes a slot but is not counted in the metrics.
        Raises what the function raises. Used to load the model."""
        await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def stop_runs(self) -> None:
        """Cancel every job and set `stopping`: no job may be started afterwards. Does not wait for the engine."""
        self.stopping = True
        for run in tuple(self._runs):
            run.cancel()


_FAILURES = (RequestError, JobCancelledError, EngineFailedError)
Failure = tuple[str, str, int, str | None]
_STATUS = {"not_supported": 501}
_STOPPING = "This engine is stopping."


def error_response(message: str, code: str, status: int, param: str | None = None) -> Response:
    """Return a whole response that holds an error in OpenAI's form. A 503 asks clients to try again after 5 seconds, a
    501 not to. `param`: the request's field that is at fault; None: no single one."""
    headers = {503: {"retry-after": "5"}, 501: {"x-should-retry": "false"}}.get(status)
    content = openai_objects.encode_json(openai_objects.error_object(message, code, status, param))
    return Response(content, status, headers, media_type="application/json")


def describe_failure(error: Exception) -> Failure:
    """Return message, OpenAI error code, HTTP status and request field (None: no single one) of an error that ended a
    run early. Any exception other than RequestError and JobCancelledError becomes 500 `internal_error`."""
    if isinstance(error, RequestError):
        return str(error), error.code, _STATUS.get(error.code, 400), error.param
    if isinstance(error, JobCancelledError):
        return _STOPPING, "model_unloading", 503, None
    return str(error), "internal_error", 500, None


class Reply(abc.ABC, Generic[T]):
    """An ASGI response that runs one job and watches the client. The job begins when the response is called; one that
    the runner no longer takes, because it stops, is answered 503.

    A client that leaves cancels the job, whether its answer streams or not. uvicorn's `send()` does not report a closed
    connection, so `receive()` is watched. The headers wait for the first piece, so that an error before it has its own
    status.
    """

    def __init__(self, runner: Runner, work: Work[T]) -> None:
        self._runner = runner
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Queue the job, send its answer or its error, and return when that has ended. Call once."""
        if self._runner.stopping:
            await error_response(_STOPPING, "model_unloading", 503)(scope, receive, send)
            return
        run = self._runner.start_run(self._work)
        watcher = asyncio.create_task(_cancel_when_gone(receive, run))
        try:
            await self._answer(run, scope, receive, send)
        finally:
            watcher.cancel()
            self._runner.forget_run(run)

    @abc.abstractmethod
    async def _answer(self, run: Run[T], scope: Scope, receive: Receive, send: Send) -> None: ...


async def _cancel_when_gone(receive: Receive, run: Run[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    run.cancel()


class WholeReply(Reply[T]):
    """Sends one JSON object that `build` makes of all pieces once the job has ended, or an error in its place."""

    def __init__(self, runner: Runner, work: Work[T], build: Callable[[list[T], Job], Object]) -> None:
        super().__init__(runner, work)
        self._build = build

    async def _answer(self, run: Run[T], scope: Scope, receive: Receive, send: Send) -> None:
        try:
            pieces = [piece async for piece in run]
        except _FAILURES as error:
            response = error_response(*describe_failure(error))
        else:
            response = Response(openai_objects.encode_json(self._build(pieces, run.job)), media_type="application/json")
        await response(scope, receive, send)


class StreamReply(Reply[Piece]):
    """Sends one server-sent event for each piece, then the token counts if the request asks for them, and `[DONE]`. An
    error before the first piece is a whole response with its own status; a later one is the stream's last event."""

    def __init__(self, runner: Runner, work: Work[Piece], shape: Shape, request: GenerationRequest) -> None:
        super().__init__(runner, work)
        self._shape = shape
        self._request = request

    async def _answer(self, run: Run[Piece], scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(run, None)
        except _FAILURES as error:
            await error_response(*describe_failure(error))(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        opening = self._shape.opening_event()
        start = self._encode_chunk(opening, run.job) if opening else b""
        if first is not None:
            start += self._encode_chunk(self._shape.chunk_event(first), run.job)
        await _send_part(send, start)
        try:
            async for piece in run:
                await _send_part(send, self._encode_chunk(self._shape.chunk_event(piece), run.job))
        except _FAILURES as error:
            last = openai_objects.encode_event(openai_objects.error_object(*describe_failure(error)))
        else:
            last = (
                openai_objects.encode_event(self._shape.counts_event(run.job)) if self._request.include_usage else b""
            )
            last += openai_objects.DONE
        await send({"type": "http.response.body", "body": last})

    def _encode_chunk(self, chunk: Object, job: Job) -> bytes:
        if self._request.include_running_usage:
            chunk = {**chunk, "usage": openai_objects.usage_object(job)}
        return openai_objects.encode_event(chunk)


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


class TextRoutes:
    """The HTTP routes of one engine for tokens and prompts. `refusal` returns the error response for an API that the
    engine cannot serve now, else None: 503 while it is not loaded, 501 if it does not offer the API. Each route may
    raise RequestError, for a wrong body or from the engine, and ClientDisconnect if the client leaves while it sends
    the body."""

    def __init__(self, engine: Engine, refusal: Callable[[Api], Response | None]) -> None:
        self._engine = engine
        self._refusal = refusal

    async def tokenize(self, request: Request) -> Response:
        """Answer `/tokenize` with `{"tokens": [...]}`: the ids of a text's tokens. If the request sets `with_pieces`,
        they are objects with `id` and `piece` instead; `piece` is the token's text, or a list of its bytes if these are
        not UTF-8. Token ids in the request are passed through. Errors: see TextRoutes."""
        return await self._answer("tokens", request, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        """Answer `/detokenize` with `{"content": TEXT}`: the text of tokens, special ones included. Bytes that are not
        UTF-8 become U+FFFD. Errors: see TextRoutes."""
        return await self._answer("tokens", request, self._detokenize)

    async def apply_template(self, request: Request) -> Response:
        """Answer `/apply-template` with `{"prompt": TEXT}`: the text of a conversation's prompt, which is not sent to
        the model. Errors: see TextRoutes."""
        return await self._answer("prompts", request, self._apply_template)

    async def input_tokens(self, request: Request) -> Response:
        """Answer `/v1/chat/completions/input_tokens` with `input_tokens`: the number of tokens in a conversation's
        prompt, which may be more than fit the context. Errors: see TextRoutes."""
        return await self._answer("prompts", request, self._input_tokens)

    async def _answer(self, api: Api, request: Request, make: Callable[[bytes], Object]) -> Response:
        if refusal := self._refusal(api):
            return refusal
        content = await asyncio.to_thread(make, await request.body())
        return Response(openai_objects.encode_json(content), media_type="application/json")

    def _tokenize(self, body: bytes) -> Object:
        request = parse_request(TokenizeRequest, body)
        tokens: list[int] = []
        for index, part in enumerate([request.content] if isinstance(request.content, str) else request.content):
            if isinstance(part, int):
                tokens.append(part)
                continue
            add_special = request.add_special and index == 0
            tokens += self._engine.tokenize(part, add_special=add_special, parse_special=request.parse_special)
        if not request.with_pieces:
            return {"tokens": tokens}
        texts = self._engine.token_texts(tokens)
        return {"tokens": [{"id": id_, "piece": _piece(text)} for id_, text in zip(tokens, texts, strict=True)]}

    def _detokenize(self, body: bytes) -> Object:
        texts = self._engine.token_texts(parse_request(DetokenizeRequest, body).tokens)
        return {"content": b"".join(texts).decode(errors="replace")}

    def _apply_template(self, body: bytes) -> Object:
        return {"prompt": self._engine.render_prompt(parse_request(ChatRequest, body))}

    def _input_tokens(self, body: bytes) -> Object:
        return {
            "input_tokens": self._engine.count_tokens(parse_request(ChatRequest, body)),
            "object": "response.input_tokens",
        }


def _piece(text: bytes) -> Any:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)


Answer = Response | Reply[Any]


class Worker:
    """The HTTP routes of one engine. `run_server` makes it, and sets `ready` once the engine has loaded. Each route may
    raise RequestError, which the app of `create_app` answers as an error. Those of an API answer 503 while the engine
    is not loaded and 501 if it does not offer the API, and raise ClientDisconnect if the client leaves while it sends
    the body; their jobs begin when the answer is sent."""

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
        """Answer `/metrics` in Prometheus' text format, also while the engine loads."""
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
        """Answer `/v1/chat/completions`, as a stream if the request asks for it. Errors: see Worker."""
        if refusal := self._refusal("chat"):
            return refusal
        chat_request = await _read(request, ChatRequest)
        shape = ChatShape(f"chatcmpl-{uuid.uuid4().hex}", self._name, int(time.time()), chat_request.include_usage)
        return self._generate(chat_request, shape, lambda job: self.engine.stream_chat(chat_request, job))

    async def completions(self, request: Request) -> Answer:
        """Answer `/v1/completions`, as a stream if the request asks for it. Errors: see Worker."""
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
        """Answer `/v1/embeddings`. RequestError also for `dimensions`, which no engine supports. Errors: see Worker."""
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


KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections. So the clients close them, and no request meets a closed one."""
STOP_SECONDS = 1
"""Seconds that answers have to end after SIGTERM, once their jobs are cancelled."""


class _Server(uvicorn.Server):
    """uvicorn with two differences. When it stops, running answers are cancelled, for which uvicorn would wait. A
    signal that stopped it is not raised again afterwards, so that the worker exits 0."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self._worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.runner.stop_runs()
        await super().shutdown(sockets)


async def _serve(worker: Worker, listener: socket.socket, token: str | None) -> None:
    config = uvicorn.Config(
        create_app(worker, token),
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = _Server(config, worker)
    load = asyncio.create_task(worker.runner.call_function(worker.engine.load_model))

    def loaded(task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            server.should_exit = True
        else:
            worker.ready = True

    load.add_done_callback(loaded)
    await server.serve([listener])
    if load.done():
        load.result()
    else:
        load.cancel()


def run_server(engine: Engine, args: Namespace) -> None:
    """Serve in this thread, which must be the main one, until SIGTERM or SIGINT comes or the load fails. `args` has
    `host`, `port` and `served_name`. The bearer token comes from the variable ROUNDHOUSE_ENGINE_TOKEN; unset: none is
    required.

    Listens before it loads, so that `/health` answers meanwhile and a taken port is noticed first. Raises LoadError,
    also for an empty token, PortTakenError, and what `Engine.load_model` raises. Engine threads may still run when it
    returns.
    """
    token = read_token()
    listener = open_listener(args.host, args.port)
    worker = Worker(engine, args.served_name)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(worker, listener, token))
