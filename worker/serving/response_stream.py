"""Sends the answer of one job to one client, and ends when the first of the two does."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from worker.engine import Job, Piece
from worker.errors import EngineFailedError, JobCancelledError, RequestError
from worker.schema import GenerationRequest
from worker.serving.runner import Run, Runner, Work
from worker.text import openai_objects
from worker.text.openai_objects import Object, Shape

T = TypeVar("T")

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
        """Queue the job, send its answer, and return when the answer has ended. Errors of the job become the answer.
        Call once."""
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
