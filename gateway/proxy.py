"""The hot path: one inference request, from the client to an engine and back.

The story of a request: read its body, find its model, refuse what that does not take, wait if it is loaded on demand,
choose the replica with the least inside, send it there, try elsewhere as long as nothing has come back, and hand the
answer on. Whatever goes wrong ends in one error, told in whichever form the answer still allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from controller.schema.errors import RoundhouseError
from controller.schema.routing import ModelRoute
from gateway.answer import Answer
from gateway.asgi import (
    ClientGoneError,
    Receive,
    Scope,
    Send,
    read_body,
    request_id_of,
)
from gateway.capabilities import check_capabilities
from gateway.engine_errors import ENGINE_ERROR
from gateway.ledger import Ledger
from gateway.lifetime import DeadlineError, Lifetime
from gateway.metrics import CLIENT_GONE_STATUS, UNKNOWN_MODEL, Finished, Metrics
from gateway.readiness import Readiness
from gateway.relay import relay_events, relay_whole
from gateway.request import InferenceRequest, parse_request
from gateway.retry import Tries
from gateway.settings import GatewaySettings
from gateway.sse import EventFilter, Usage, usage_in
from gateway.upstream import BrokenError, EngineAnswer, EngineFailureError, RefusedError, Upstream

logger = logging.getLogger(__name__)

_PASSED_ON = (b"traceparent", b"tracestate")
"""Headers of the client that an engine sees. Never its credentials."""


@dataclass(frozen=True, slots=True)
class Api:
    """An inference API that engines speak themselves."""

    path: str
    streams: bool
    """It takes `stream` and `stream_options`, and its streams end with `[DONE]`."""


@dataclass(slots=True)
class Call:
    """What is noted of one request for the metrics. Times are monotonic seconds."""

    started_at: float
    model: str = UNKNOWN_MODEL
    usage: Usage | None = None
    tries: int = 0
    client_gone: bool = False
    broken_off: str | None = None


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """What every inference route works with. `now` gives monotonic seconds."""

    settings: GatewaySettings
    readiness: Readiness
    ledger: Ledger
    upstream: Upstream
    metrics: Metrics
    now: Callable[[], float]


class InferenceRoute:
    """`POST api.path`, as an ASGI application."""

    def __init__(self, api: Api, parts: ProxyParts) -> None:
        self._api = api
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and count it."""
        parts = self._parts
        answer = Answer(send, request_id_of(scope), parts.now)
        call = Call(started_at=parts.now())
        try:
            with Lifetime(parts.settings.request_timeout_s) as lifetime:
                body = await read_body(scope, receive, parts.settings.max_body_bytes)
                lifetime.while_client_stays(receive, lambda: answer.ended)
                await self._serve(body, _passed_on(scope), answer, call)
        except ClientGoneError:
            call.client_gone = True
        except DeadlineError:
            limit = f"The answer was not complete after {parts.settings.request_timeout_s:g} s."
            await self._fail(answer, call, RoundhouseError("request_timeout", limit))
        except RoundhouseError as error:
            await self._fail(answer, call, error)
        except asyncio.CancelledError:
            stopped = RoundhouseError("gateway_stopping", "The gateway was stopped before the answer was complete.")
            await self._fail(answer, call, stopped)  # and no more: the task ends here, which is what was wanted
        except Exception:
            logger.exception("request %s failed", answer.request_id)
            await self._fail(answer, call, RoundhouseError("internal_error", "The gateway failed on this request."))
        finally:
            answer.close()
            self._count(answer, call)

    async def _serve(self, body: bytes, headers: dict[str, str], answer: Answer, call: Call) -> None:
        settings = self._parts.settings
        request = parse_request(body, may_stream=self._api.streams)
        route = self._parts.readiness.declared(request.model)
        call.model = route.name
        self._check_takes(route, request)  # now, because what cannot be served must not load a model
        if request.stream:
            answer.start_heartbeats(settings.hold_headers_s, settings.heartbeat_s)
        await self._forward(request, route, headers, answer, call)

    async def _forward(
        self, request: InferenceRequest, checked: ModelRoute, headers: dict[str, str], answer: Answer, call: Call
    ) -> None:
        parts = self._parts
        headers["x-request-id"] = answer.request_id
        tries = Tries()
        while True:
            route = await parts.readiness.loaded(request.model)
            if route is not checked:  # a newer table's
                self._check_takes(route, request)
                checked = route
            # No await between the look at the table, the choice and the count: see Ledger.
            endpoint = parts.ledger.choose(route.endpoints, tries)
            if endpoint is None:
                raise _unreachable(route, tries)
            body = request.body_for(route.served_name, ask_for_usage=self._api.streams)
            call.tries += 1
            with parts.ledger.inside(route.name, endpoint.replica, answer.request_id):
                try:
                    engine = await parts.upstream.post(
                        endpoint, self._api.path, body, dict(headers), fresh=tries.fresh_connection
                    )
                    parts.ledger.replica_answered(endpoint.replica)
                    await self._relay(engine, request, answer, call)
                except EngineFailureError as failure:
                    parts.ledger.replica_failed(endpoint.replica)
                    logger.warning(
                        "request %s: %s: %s (%r)", answer.request_id, endpoint.replica, failure, failure.__cause__
                    )
                    tries = _after(failure, endpoint.replica, tries)
                else:
                    return

    async def _relay(self, engine: EngineAnswer, request: InferenceRequest, answer: Answer, call: Call) -> None:
        async with engine:
            if request.stream and engine.status == 200 and engine.content_type.startswith("text/event-stream"):
                events = EventFilter(strip_usage=not request.wants_usage)
                try:
                    await relay_events(engine, answer, events)
                finally:
                    call.usage = events.usage
            else:
                if answer.status and engine.status != 200:
                    call.broken_off = ENGINE_ERROR.code
                held = await relay_whole(engine, answer, self._parts.settings.answer_buffer_bytes)
                call.usage = usage_in(held)

    def _check_takes(self, route: ModelRoute, request: InferenceRequest) -> None:
        if route.apis and self._api.path not in route.apis:
            offered = ", ".join(route.apis)
            message = f"The engine of {route.name!r} does not offer {self._api.path}; it offers {offered}."
            raise RoundhouseError("not_supported", message, param="model")
        check_capabilities(request.fields, route.capabilities, route.name)

    async def _fail(self, answer: Answer, call: Call, error: RoundhouseError) -> None:
        if answer.status:
            call.broken_off = error.entry.code
        await answer.fail(error)

    def _count(self, answer: Answer, call: Call) -> None:
        first = answer.first_byte_at
        self._parts.metrics.finished(
            Finished(
                model=call.model,
                route=self._api.path,
                status=answer.status or CLIENT_GONE_STATUS,
                duration_s=self._parts.now() - call.started_at,
                first_byte_s=None if first is None else first - call.started_at,
                usage=call.usage,
                retries=max(0, call.tries - 1),
                client_gone=call.client_gone,
                broken_off=call.broken_off,
            )
        )


def _passed_on(scope: Scope) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _PASSED_ON}


def _after(failure: EngineFailureError, replica: str, tries: Tries) -> Tries:
    """The tries including this failed one.

    Raises:
        RoundhouseError: a part of an answer had come, so there must be no other try.
    """
    if isinstance(failure, RefusedError):
        return tries.after_refusal(replica)
    if isinstance(failure, BrokenError):
        return tries.after_break(replica)
    raise RoundhouseError("engine_disconnected", f"The engine failed: {failure}.") from None


def _unreachable(route: ModelRoute, tries: Tries) -> RoundhouseError:
    if not route.endpoints:
        met = "no replica is ready"
    elif tries.breaks:
        met = f"connections broke before an answer came ({', '.join(sorted(tries.broke | tries.refused))})"
    else:
        met = f"connections were refused ({', '.join(sorted(tries.refused))})"
    return RoundhouseError("engine_unreachable", f"The model {route.name!r} cannot be reached: {met}.", param=None)
